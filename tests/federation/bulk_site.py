"""A federation server with nothing but the bulk protocol, in a thread of its own, as tests of it
need it.
"""

from __future__ import annotations

import asyncio
import http
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from websockets.asyncio.server import ServerConnection, serve

from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.server import FederationBulkServer
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL, WIRE_LOG
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection, SocketLimiter
from busmq_spark.options import RedisOptions
from tests.support import PATIENCE_S

SECRET = "a-secret-of-the-tests"


class Site:
    """A running server."""

    def __init__(
        self,
        redis: str | RedisOptions,
        keyring: Keyring | None = None,
        limits: PeerLimits | None = None,
        port: int = 0,
    ) -> None:
        self._options = RedisOptions(url=redis) if isinstance(redis, str) else redis
        self._limits = limits or PeerLimits()
        self.keyring = keyring or Keyring.single(SECRET)
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._end: asyncio.Event
        self.bulk: FederationBulkServer
        self.connections: set[ServerConnection] = set()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._run(),), daemon=True
        )

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/bus"

    def address(self, secret: str = SECRET, port: int = 0, **more: Any) -> FederationAddress:
        return FederationAddress(f"ws://127.0.0.1:{port or self.port}/bus", secret, **more)

    def start(self) -> Site:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._loop.close()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the server's loop."""

        async def now() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(now(), self._loop).result(PATIENCE_S)

    async def _run(self) -> None:
        self._end = asyncio.Event()

        def knock(connection: ServerConnection, request: Any) -> Any:
            scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
            identity = self.keyring.identify_either(shown) if scheme == "Bearer" else None
            if identity is None:
                return connection.respond(http.HTTPStatus.UNAUTHORIZED, "")
            connection.identity = identity  # type: ignore[attr-defined]
            cast(LimitedServerConnection, connection).begin_counting(
                self.bulk.quotas.quota_of(identity.name)
            )
            return None

        async with FederationBulkServer(self._options, self._limits) as bulk:
            self.bulk = bulk

            async def answer(socket: Any) -> None:
                self.connections.add(socket)
                try:
                    await bulk.serve(socket, socket.identity)
                finally:
                    self.connections.discard(socket)

            options: dict[str, Any] = {
                "compression": None,
                "max_size": self._limits.message_bytes,
                "close_timeout": 1,
                "logger": WIRE_LOG,
            }
            options["create_connection"] = SocketLimiter(self._limits, lambda: None).make_socket
            async with serve(
                answer,
                "127.0.0.1",
                self.port,
                subprotocols=[BULK_SUBPROTOCOL],
                process_request=knock,
                **options,
            ) as server:  # type: ignore[list-item]
                self.port = server.sockets[0].getsockname()[1]
                looking = asyncio.create_task(self._look_at_quotas())
                self._ready.set()
                await self._end.wait()
                looking.cancel()

    async def _look_at_quotas(self) -> None:
        """A quota that unfinished messages use up alone is looked at from time to time, as by a
        whole server.
        """
        while True:
            await asyncio.sleep(0.1)
            for quota in self.bulk.quotas:
                quota.overdue(self._loop.time())


@contextmanager
def site(
    redis: str | RedisOptions, keyring: Keyring | None = None, limits: PeerLimits | None = None
) -> Iterator[Site]:
    made = Site(redis, keyring, limits).start()
    try:
        yield made
    finally:
        made.stop()
