"""Consuming a queue: in batches, woken by the queue's notification, nothing lost by stopping.

Rule 1. Whatever was taken and not handed over stands in a record in Redis: ``toack`` when reliable, else a list of this consumer. A reply lost
        with its link is found there by the next call; stopping returns the rest of the record to the head of the queue.
Rule 2. The next batch is taken when the one before is handed over, so at most ``prefetch`` messages are ever in memory.
Rule 3. A notification sets a flag; it is cleared before Redis is asked, so none is missed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict

from busmq_spark.core import queue as flows
from busmq_spark.core import state
from busmq_spark.core.message import CHUNK_BYTES, Message
from busmq_spark.errors import BusError, ConfigError, LinkLost, QueueBusy
from busmq_spark.topology.holder import LEASE_MS, is_dead
from busmq_spark.topology.place import new_token

if TYPE_CHECKING:
    from busmq_spark.bus.queue import Queue

LEASE_POLL_S = 0.5


class ConsumeKeywords(TypedDict, total=False):
    """The options of ``consume``; see ConsumeOptions."""

    max: int | None
    remove: bool
    reliable: bool
    last: int
    index: int
    wait: bool
    prefetch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """How to consume, in the words of the protocol (1.8); ``wait`` and ``prefetch`` are ours."""

    max: int | None = None
    remove: bool = True
    reliable: bool = False
    last: int = 0
    index: int = 0
    wait: bool = True
    prefetch: int = 100

    def __post_init__(self) -> None:
        for name, least in (("index", 0), ("last", 0), ("prefetch", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(reason=f"{name} is {value!r}; expected a whole number of at least {least}")
        if self.reliable and not self.remove:
            raise ConfigError(reason="reliable=True with remove=False would ack nothing (protocol Q27); choose one of them")
        if self.index and self.remove:
            raise ConfigError(reason="index counts only with remove=False: whoever removes begins with the oldest message")
        if self.last and not self.reliable:
            raise ConfigError(reason="last counts only with reliable=True")


class Consumption:
    """The messages of one queue, for one task: an asynchronous iterator. Begins with the first message asked for."""

    def __init__(self, queue: Queue, options: ConsumeOptions) -> None:
        self._queue, self._options = queue, options
        self.prefetch = options.prefetch
        """Most messages to take at once; whoever iterates may change it, to take no more than it has room for."""
        self._left = None if options.max is None or options.max < 0 else options.max
        self._record = queue.keys.toack if options.reliable else queue.keys.hand(new_token())
        self._buffer: deque[Message] = deque()
        self._received = self._handed = 0
        self._announced: bytes | None = None
        self._wake = asyncio.Event()
        self._stopping = self._empty = False
        self._failed: BusError | None = None
        self.follows: Consumption | None = None
        """The consumption that this one ends by beginning."""
        self.running = False
        """Whether it has begun and not ended."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while (message := self.next_stored()) is None:
            await self._fill()
        return message

    def next_stored(self) -> Message | None:
        """Hand over the next message of those taken already; None when Redis must be asked."""
        if not self._buffer:
            return None
        message = self._buffer.popleft()
        self._handed = message.id
        self._queue.consumed += 1
        return message

    async def batches(self) -> AsyncIterator[list[Message]]:
        """The messages in the lists they came in: cheaper where messages are small and many."""
        while True:
            try:
                first = await self.__anext__()
            except StopAsyncIteration:
                return
            batch = [first, *self._buffer]
            self._buffer.clear()
            self._handed = batch[-1].id
            self._queue.consumed += len(batch) - 1
            yield batch

    async def deliver(self, handler: Callable[[Message], Any] | None) -> None:
        """Hand every message to ``handler`` and to the queue's event ``message``, one after the other."""
        async for message in self:
            if handler is not None:
                outcome = handler(message)
                if inspect.isawaitable(outcome):
                    await outcome
            self._queue._emit("message", message)

    async def stop(self) -> None:
        """End; what was not handed over goes back to the head of the queue. The task that iterates sees the end."""
        if self._stopping:
            return
        self._stopping = True
        self._wake.set()
        if self.running:
            await self._end()

    def lease_lost(self) -> None:
        """Somebody else has become the reliable consumer: this one was cut off for longer than its lease."""
        self._failed = QueueBusy(queue=self._queue.name, found="is consumed reliably by another process now", remedy="Consume again to wait for it")
        self._wake.set()

    # -- filling ----------------------------------------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Returns with something in the buffer. Raises StopAsyncIteration at the end."""
        if self._stopping or self._left == 0:
            await self.stop()
            raise StopAsyncIteration
        if not self.running:
            await self._begin()
        while not self._buffer:
            if self._failed is not None:
                self._buffer.clear()
                await self._end()
                raise self._failed
            if self._stopping:
                raise StopAsyncIteration
            if self._empty:
                await self._wake.wait()
            self._wake.clear()
            await self._take()

    async def _begin(self) -> None:
        if self.follows is not None:
            await self.follows.stop()
            self.follows = None
        queue = self._queue
        if self._options.reliable:
            await self._lease()
            await queue.run(flows.ack(queue.keys, self._options.last, ttl_s=queue.ttl_s, restore=True))
        self.running = True
        await self._ear.add(queue.keys.available, self._notified)
        queue._emit("consuming", True)

    async def _take(self) -> None:
        """Get the next batch. A server that is away is waited for, however long."""
        most = self.prefetch if self._left is None else min(self.prefetch, self._left)
        link, keys = self._queue.bus.servers.takes[self._queue.server], self._queue.keys
        try:
            if self._options.remove:
                flow = flows.take(keys, self._record, self._received, most=most, ttl_s=self._queue.ttl_s, drop=not self._options.reliable)
            else:
                flow = flows.after(keys, self._received, self._options.index, most)
            batch = await link.run(flow)
        except LinkLost as error:
            self._queue.not_touched(error)
            self._empty = False  # ask again, with the link's own patience
            return
        self._empty = not batch or (len(batch) < most and _small(batch))
        if batch and not self._stopping:
            self._buffer.extend(batch)
            self._received = batch[-1].id
            if self._left is not None:
                self._left -= len(batch)

    async def _lease(self) -> None:
        """Become the one reliable consumer of the queue."""
        queue, token, dead = self._queue, self._queue.bus.token, ""
        while True:
            holder = (await queue.run(state.lease([queue.keys], "", token, LEASE_MS, [dead])))[0]
            if holder == token and queue.bus.hold(queue.name, self):
                break
            if not self._options.wait:
                raise QueueBusy(
                    queue=queue.name,
                    found="has a reliable consumer already",
                    remedy="Stop that one, or consume with wait=True to take over when it ends",
                )
            dead = holder if holder != token and is_dead(holder) else ""
            if not dead:
                await asyncio.sleep(LEASE_POLL_S)
            if self._stopping:
                raise StopAsyncIteration
        queue.leased = True
        queue.bus.keeper.add(queue)

    # -- ending -----------------------------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        if not self.running:
            return
        self.running = False
        queue = self._queue
        self._ear.remove(queue.keys.available, self._notified)
        self._buffer.clear()
        try:
            if self._options.remove and self._failed is None:
                # On the link of the takes: behind one that may still be under way.
                link = queue.bus.servers.takes[queue.server]
                await link.run(flows.give_back(queue.keys, self._record, self._handed, ttl_s=queue.ttl_s, drop=not self._options.reliable))
        finally:
            if self._options.reliable:
                await self._unlease()
            queue._emit("consuming", False)

    async def _unlease(self) -> None:
        queue = self._queue
        queue.leased = False
        queue.bus.unhold(queue.name, self)
        if self._failed is None:
            await queue.run(state.release(queue.keys, "", queue.bus.token))

    @property
    def _ear(self) -> Any:
        ears = self._queue.bus.servers.ears
        return ears[self._queue.server]

    def look(self) -> None:
        """Ask Redis, even if nothing was heard."""
        self._wake.set()

    def _notified(self, id: bytes | None) -> None:
        # What was received already needs no look; but an id that is announced twice belongs to a new life of the queue.
        if id is None or id == self._announced or id != b"%d" % self._received:
            self._wake.set()
        self._announced = id


def _small(batch: list[Message]) -> bool:
    """Whether the batch ended because the queue did, not because of its bytes."""
    return sum(len(message.value) for message in batch) < CHUNK_BYTES
