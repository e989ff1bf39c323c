"""Pushing from many tasks: order by call, one script call under way per queue, everything that came meanwhile goes with the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from busmq_spark.core.message import CHUNK_BYTES, CHUNK_MESSAGES
from busmq_spark.errors import BusError, LinkLost, QueueFull

if TYPE_CHECKING:
    from busmq_spark.bus.queue import Queue


class Pump:
    """What one queue has to push. A push is never sent twice: when the link breaks under way, its future fails with LinkLost."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: deque[tuple[bytes, asyncio.Future[int]]] = deque()
        self._chunk: list[tuple[bytes, asyncio.Future[int]]] = []
        self._under_way = False
        self._idle: asyncio.Event | None = None

    def add(self, value: bytes) -> asyncio.Future[int]:
        """The id, once the message is stored."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        self._waiting.append((value, future))
        if not self._under_way:
            self._under_way = True
            loop.call_soon(self._next)
        return future

    async def flushed(self) -> None:
        """Wait until everything added so far is stored or has failed."""
        while self._under_way:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def cancel(self) -> None:
        """Give up what was not sent: the bus ends."""
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            future.cancel()

    def _next(self) -> None:
        """Send the next chunk: without a task of its own, since one costs as much as the rest of a push."""
        if not self._waiting:
            self._under_way = False
            if self._idle is not None:
                self._idle.set()
                self._idle = None
            return
        self._chunk = self._cut()
        reply = self._queue.begin_push([value for value, _ in self._chunk])
        if reply is None:
            self._go_slow()
        else:
            reply.add_done_callback(self._answered)

    def _answered(self, reply: asyncio.Future[list[Any]]) -> None:
        """The usual end of a chunk. A lost link leaves it in doubt; an error reply says that nothing was done, so the slow way looks into it."""
        chunk = self._chunk
        if reply.cancelled() or (error := reply.exception()) is not None:
            lost = LinkLost(url=self._queue.name, reason="cancelled") if reply.cancelled() else self._queue.translate(error)
            for _, future in chunk:
                _fail(future, lost)
        else:
            found = reply.result()[0]
            if isinstance(found, Exception) or found[1] != len(chunk):
                self._go_slow(found)
                return
            _settle(chunk, found[0])
        self._next()

    def _go_slow(self, found: Any = None) -> None:
        try:
            self._queue.bus.spawn(self._slow(found), f"pushing to {self._queue.name}")
        except BusError:
            for _, future in self._chunk:
                future.cancel()
            self.cancel()

    async def _slow(self, found: Any) -> None:
        chunk = self._chunk
        try:
            if found is None or isinstance(found, Exception) or found[1] < 0:
                found = await self._queue.push_call([value for value, _ in chunk])
            first, stored = found
            _settle(chunk[:stored], first)
            if stored < len(chunk):
                full = QueueFull(queue=self._queue.name, maxsize=await self._queue.maxsize(), left=len(chunk) - stored, waited="")
                for _, future in chunk[stored:]:
                    _fail(future, full)
        except BusError as error:
            for _, future in chunk:
                _fail(future, error)
        except asyncio.CancelledError:
            for _, future in chunk:
                future.cancel()
            self.cancel()
            raise
        finally:
            self._next()

    def _cut(self) -> list[tuple[bytes, asyncio.Future[int]]]:
        chunk: list[tuple[bytes, asyncio.Future[int]]] = []
        room = CHUNK_BYTES
        while self._waiting and len(chunk) < CHUNK_MESSAGES:
            size = len(self._waiting[0][0])
            if chunk and size > room:
                break
            room -= size
            chunk.append(self._waiting.popleft())
        return chunk


def _settle(chunk: Sequence[tuple[bytes, asyncio.Future[int]]], first: int) -> None:
    for offset, (_, future) in enumerate(chunk):
        if not future.done():
            future.set_result(first + offset)


def _fail(future: asyncio.Future[int], error: BusError) -> None:
    if not future.done():
        future.set_exception(error)
