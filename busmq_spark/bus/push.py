"""Pushing from many tasks: order by call, one script call under way per queue, everything that came meanwhile goes with the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from busmq_spark.core.message import CHUNK_BYTES, CHUNK_MESSAGES
from busmq_spark.errors import BusError, QueueFull

if TYPE_CHECKING:
    from busmq_spark.bus.queue import Queue


class Pump:
    """What one queue has to push. A push is never sent twice: when the link breaks under way, its future fails with LinkLost."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: deque[tuple[bytes, asyncio.Future[int]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, value: bytes) -> asyncio.Future[int]:
        """The id, once the message is stored."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((value, future))
        if self._task is None:
            self._task = self._queue.bus.spawn(self._run(), f"pushing to {self._queue.name}")
        return future

    async def flushed(self) -> None:
        """Wait until everything added so far is stored or has failed."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._send(self._chunk())
        finally:
            self._task = None
            for _, future in self._waiting:  # only when cancelled: the bus ends
                future.cancel()

    def _chunk(self) -> list[tuple[bytes, asyncio.Future[int]]]:
        chunk: list[tuple[bytes, asyncio.Future[int]]] = []
        room = CHUNK_BYTES
        while self._waiting and len(chunk) < CHUNK_MESSAGES:
            size = len(self._waiting[0][0])
            if chunk and size > room:
                break
            room -= size
            chunk.append(self._waiting.popleft())
        return chunk

    async def _send(self, chunk: Sequence[tuple[bytes, asyncio.Future[int]]]) -> None:
        try:
            first, stored = await self._queue.push_call([value for value, _ in chunk])
        except BusError as error:
            for _, future in chunk:
                _fail(future, error)
            return
        except asyncio.CancelledError:
            for _, future in chunk:
                future.cancel()
            raise
        for offset, (_, future) in enumerate(chunk[:stored]):
            if not future.done():
                future.set_result(first + offset)
        if stored < len(chunk):
            full = QueueFull(queue=self._queue.name, maxsize=await self._queue.maxsize(), left=len(chunk) - stored, waited="")
            for _, future in chunk[stored:]:
                _fail(future, full)


def _fail(future: asyncio.Future[int], error: BusError) -> None:
    if not future.done():
        future.set_exception(error)
