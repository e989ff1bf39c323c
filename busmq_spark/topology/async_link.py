"""The asyncio twin of ``link.py``: same rules, one connection, steps of several tasks one after the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import redis.exceptions as rx

from busmq_spark.core.flow import Call, Flow, Step, T, run_async
from busmq_spark.errors import BusError, LinkLost
from busmq_spark.topology.connect import async_connection
from busmq_spark.topology.link import PATIENCE_S
from busmq_spark.topology.translate import translate
from busmq_spark.topology.urls import Server
from busmq_spark.topology.wire import calls_of, first_error, pack, repeatable, result, unknown_scripts

_WIRE_ERRORS = (rx.RedisError, OSError)


class AsyncLink:
    """An asyncio link; see SyncLink for what is repeated. Cancelling a step drops the connection, so that no reply is taken for another's."""

    def __init__(self, server: Server, patience_s: float = PATIENCE_S) -> None:
        self.server = server
        self._patience_s = patience_s
        self._connection = async_connection(server)
        self._turn = asyncio.Lock()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return await run_async(flow, self.execute)

    async def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error of the first call that failed."""
        calls = calls_of(step)
        if not calls:
            return []
        deadline = asyncio.get_running_loop().time() + self._patience_s
        async with self._turn:
            for attempt in range(1_000_000):
                try:
                    await self._ready()
                except _WIRE_ERRORS as error:
                    await self._pause_or_raise(translate(error, self.server), attempt, deadline)
                    continue
                try:
                    replies = await self._exchange(calls)
                except _WIRE_ERRORS as error:
                    await self.close()
                    lost = translate(error, self.server)
                    if not repeatable(step):
                        raise lost from error
                    await self._pause_or_raise(lost, attempt, deadline)
                    continue
                if (failed := first_error(replies)) is None:
                    return result(step, replies)
                refused = translate(failed, self.server)
                if not isinstance(refused, LinkLost) or not (len(calls) == 1 or repeatable(step)):
                    raise refused from None
                await self._pause_or_raise(refused, attempt, deadline)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Close the connection. A later step opens a new one."""
        await self._connection.disconnect(nowait=True)

    async def _ready(self) -> None:
        connection = self._connection
        # The stream itself: whether the server closed it meanwhile is better known before a push is sent, and redis-py offers no question
        # that all its versions answer without reading.
        stream = connection._reader
        if connection.is_connected and stream is not None and (stream.at_eof() or stream.exception() is not None):
            await self.close()
        if not connection.is_connected:
            await connection.connect()

    async def _exchange(self, calls: Sequence[Call]) -> list[Any]:
        try:
            await self._connection.send_packed_command(pack(calls), check_health=False)
            replies = [await self._read() for _ in calls]
            if missing := unknown_scripts(replies):
                await self._connection.send_packed_command(pack([calls[i] for i in missing], whole=True), check_health=False)
                for i in missing:
                    replies[i] = await self._read()
        except asyncio.CancelledError:
            await self.close()
            raise
        return replies

    async def _read(self) -> Any:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except (rx.ResponseError, rx.BusyLoadingError) as error:
            return error

    async def _pause_or_raise(self, error: BusError, attempt: int, deadline: float) -> None:
        pause_s = min(1.0, 0.02 * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311  # jitter, not a secret
        if not isinstance(error, LinkLost) or asyncio.get_running_loop().time() + pause_s > deadline:
            raise error from None
        await asyncio.sleep(pause_s)
