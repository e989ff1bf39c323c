"""Endpoint to open connection. Behind an endpoint that may move, only a server that says it is
master will do.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio as aredis
import redis.exceptions as rx

from busmq_spark.redis_io.connection_factory import (
    REPLY_TIMEOUT_S,
    async_connection,
    opening,
    sync_connection,
)
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.fork_guard import keep_from_children
from busmq_spark.redis_io.resp_codec import pack_words

_ROLE_COMMAND = pack_words(("ROLE",))


def dial(endpoint: RedisEndpoint) -> redis.Connection:
    """A blocking connection, open. Raises what redis-py raises, and NoServerReachable."""
    connection = sync_connection(endpoint.resolve())
    try:
        connection.connect()
        if endpoint.may_move:
            connection.send_packed_command([_ROLE_COMMAND], check_health=False)
            _check_is_master(connection.read_response(disable_decoding=True))
    except BaseException:
        connection.disconnect()
        raise
    return connection


async def dial_async(
    endpoint: RedisEndpoint, reply_s: float = REPLY_TIMEOUT_S
) -> aredis.Connection:
    """Dial on the running loop. ``reply_s``: longest wait for a reply on the way to an open
    connection.
    """
    connection = async_connection(await endpoint.resolve_async())
    try:
        async with opening(connection, reply_s):
            await connection.connect()
            # It is open
            keep_from_children(connection._writer.transport)  # type: ignore[union-attr]
            if endpoint.may_move:
                await connection.send_packed_command(_ROLE_COMMAND, check_health=False)
                _check_is_master(await connection.read_response(disable_decoding=True))
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


def _check_is_master(role: Any) -> None:
    if role[0] != b"master":
        raise rx.ConnectionError(
            f"this server is a {role[0].decode('utf-8', 'replace')} now, not a master"
        )
