"""redis-py connections with our settings: a timeout always, no silent retries, bytes in and out."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from inspect import signature
from typing import Any

import redis
import redis.asyncio as aredis
import redis.exceptions as rx
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.credentials import CredentialProvider
from redis.retry import Retry

from busmq_spark.redis_io.event_loops import LoopTimeout
from busmq_spark.redis_io.optional_commands import CONNECTION_NAME, tell_once
from busmq_spark.redis_io.urls import PasswordInFile, RedisServerAddress

CONNECT_TIMEOUT_S = 3.0
_SET_NAME = ("CLIENT", "SETNAME", CONNECTION_NAME)
REPLY_TIMEOUT_S = 10.0
"""Longest wait for one reply. Every script of ours takes milliseconds; a server that is silent for
longer is gone.
"""

# The version that redis-py sends, in two round trips, came with Redis 7.2: an ACL that permits it
# is refused by older servers, and one that does not makes a newer one log each connection as an
# offence.
_NO_DRIVER_INFO = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)


def connection_arguments(
    server: RedisServerAddress, reply_s: float | None = None, connect_s: float | None = None
) -> dict[str, Any]:
    """Constructor arguments of a redis-py connection."""
    common: dict[str, Any] = {
        **_credentials(server),
        "socket_timeout": REPLY_TIMEOUT_S if reply_s is None else reply_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S if connect_s is None else connect_s,
        "protocol": 2,  # RESP3 brings nothing here and is parsed slower
        "health_check_interval": 0,
        **_NO_DRIVER_INFO,
        "socket_read_size": (
            256 * 1024
        ),  # the default of 32 KB costs eight times the system calls on a range read
    }
    if server.path:
        return {**common, "path": server.path}
    common |= {"host": server.host, "port": server.port, "socket_keepalive": True}
    return {**common, **_tls_arguments(server)} if server.tls else common


def _credentials(server: RedisServerAddress) -> dict[str, Any]:
    if isinstance(server.password, PasswordInFile):
        return {"credential_provider": _FileCredentials(server.user, server.password)}
    return {"username": server.user, "password": server.password}


class _FileCredentials(CredentialProvider):
    """A login whose password is read for each connection."""

    def __init__(self, user: str | None, password: PasswordInFile) -> None:
        self._user, self._password = user, password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Called by redis-py when it has connected."""
        password = self._password.read()
        return (password,) if self._user is None else (self._user, password)


def _tls_arguments(server: RedisServerAddress) -> dict[str, Any]:
    trust = server.trust
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": trust.check_hostname,
        "ssl_ca_certs": trust.ca,
        "ssl_certfile": trust.certificate,
        "ssl_keyfile": trust.key,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }


def _greet(connection: Any) -> None:
    """Log in, and name the connection where Redis lets us: the name only helps readers of CLIENT
    LIST.
    """
    connection.on_connect()
    try:
        connection.send_command(*_SET_NAME, check_health=False)
        connection.read_response()
    except rx.ResponseError:
        _tell_nameless(connection)


async def _greet_async(connection: Any) -> None:
    """Greet on the running loop, like ``_greet``."""
    await connection.on_connect()
    try:
        await connection.send_command(*_SET_NAME, check_health=False)
        await connection.read_response()
    except rx.ResponseError:
        _tell_nameless(connection)


def _tell_nameless(connection: Any) -> None:
    where = getattr(connection, "path", None) or f"{connection.host}:{connection.port}"
    tell_once(where, "CLIENT", f"connections are not named {CONNECTION_NAME} there")


def sync_connection(server: RedisServerAddress, **timeouts: float) -> redis.Connection:
    """A blocking connection, not connected yet. ``timeouts``: reply_s, connect_s."""
    retry, arguments = (
        Retry(NoBackoff(), 0),
        connection_arguments(server, **timeouts) | {"redis_connect_func": _greet},
    )
    if server.path:
        # Same interface
        return redis.UnixDomainSocketConnection(retry=retry, **arguments)  # type: ignore[abstract,return-value]
    kind = redis.SSLConnection if server.tls else redis.Connection
    return kind(retry=retry, **arguments)


def async_connection(server: RedisServerAddress) -> aredis.Connection:
    """An asyncio connection, not connected yet, without time-outs: see :func:`opening`."""
    from redis.asyncio.retry import Retry as AsyncRetry

    retry = AsyncRetry(NoBackoff(), 0)
    arguments = connection_arguments(server) | {"redis_connect_func": _greet_async}
    # redis-py would take a loop that was blocked for a server that is silent.
    arguments |= {"socket_timeout": None, "socket_connect_timeout": None}
    if server.path:
        # Same interface
        return aredis.UnixDomainSocketConnection(retry=retry, **arguments)  # type: ignore[return-value]
    kind = aredis.SSLConnection if server.tls else aredis.Connection
    return kind(retry=retry, **arguments)


@asynccontextmanager
async def opening(
    connection: aredis.Connection, reply_s: float | None = None, connect_s: float | None = None
) -> AsyncIterator[None]:
    """Around redis-py's ``connect`` and the first replies: its time limits, of the loop's own time.

    Raises redis-py's TimeoutError. Keeps a cancellation, which redis-py may swallow: the task that
    cancels would wait for ever.
    """
    what = "connecting to server"

    async def greet(opened: Any) -> None:
        nonlocal what
        what = f"reading from {opened._host_error()}"
        limit.restart(REPLY_TIMEOUT_S if reply_s is None else reply_s)
        await _greet_async(opened)

    connection.redis_connect_func = greet  # type: ignore[assignment]  # redis-py awaits it
    try:
        async with LoopTimeout(CONNECT_TIMEOUT_S if connect_s is None else connect_s) as limit:
            with _keep_cancellation():
                yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise rx.TimeoutError(f"Timeout {what}") from None


@contextmanager
def _keep_cancellation() -> Iterator[None]:
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError
