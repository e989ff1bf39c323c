"""Pushing from many tasks: stored in the order of the calls, with one script call under way per
queue; pushes that come meanwhile go with the next call.

Rule 1. Nothing is sent twice. If the link breaks under way, the futures of that chunk fail with
        LinkLost, and the next pushes are sent.
Rule 2. While the link is up no task is needed: one costs as much as the rest of a push. Everything
        unusual is looked into by a task.
Rule 3. A short call waits until the end of the loop's turn for others to go with it. A batch does
        not: Redis stores it while the next is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from busmq_spark.bus.context import bus_not_open_error
from busmq_spark.errors import BusError, NotReplicated, QueueFull
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.redis_io.async_link import OnReply

MESSAGES_PER_PUSH = 50
"""So many messages are sent at once."""
V = TypeVar("V")
log = logging.getLogger("busmq_spark")
PushAnswer: TypeAlias = tuple[int, int] | Exception | None
"""First id and how many were stored (-1: there is no such queue); an error reply; the answer is
None when nothing was sent.
"""


class PendingPush(Generic[V]):
    """Values of one call of push or push_many; ``sent`` of them have been sent, ``ids`` are those
    stored.
    """

    __slots__ = ("future", "ids", "sent", "single", "values")

    def __init__(self, values: Sequence[V], future: asyncio.Future[Any], *, single: bool) -> None:
        self.values, self.future, self.single = values, future, single
        self.sent = 0
        self.ids: list[int] = []

    def on_stored(self, first: int, count: int) -> None:
        """The next ``count`` values have ids from ``first`` on."""
        if self.future.done():
            return
        if self.single:
            self.future.set_result(first)
            return
        self.ids.extend(range(first, first + count))
        if len(self.ids) == len(self.values):
            self.future.set_result(self.ids)

    def on_unconfirmed(self, first: int, count: int, error: NotReplicated) -> None:
        """The next ``count`` values have ids from ``first`` on, and too few servers have them."""
        self.ids.extend(range(first, first + count))
        left = len(self.values) - len(self.ids)
        self.fail(error.about(first=self.ids[0], last=self.ids[-1], left=left))

    def fail(self, error: BusError | None) -> None:
        """Nothing more of it is sent; an ``error`` of None means that the bus is not open any more:
        a cancelled future would look as if the task that awaits it was cancelled.
        """
        self.sent = len(self.values)
        if not self.future.done():
            self.future.set_exception(error or bus_not_open_error())


class PushTarget(Protocol):
    """The queue that values are pushed to."""

    bus: BusContext
    name: str
    pushed: int
    """The number of messages pushed so far, which the batcher counts on."""

    def _begin_push(self, values: Sequence[bytes], on_reply: OnReply) -> bool:
        """Send one chunk the quickest way; return whether the link is up."""

    def translate(self, error: Exception) -> BusError:
        """Return an error of the link as one of ours."""

    async def _push_call(self, values: Sequence[bytes]) -> tuple[int, int]:
        """Push one chunk; return the first id and the number of stored messages."""

    async def maxsize(self) -> int:
        """Return the most messages that the queue may hold."""


class PushBatcher:
    """The values waiting to be pushed to one queue; one call is under way at a time."""

    def __init__(self, queue: PushTarget) -> None:
        self._queue = queue
        self._pending: deque[PendingPush[bytes]] = deque()
        self._chunk: list[tuple[PendingPush[bytes], int]] = []
        self._values: list[bytes] = []
        self._under_way = False
        self._idle: asyncio.Event | None = None

    def add(self, values: Sequence[bytes], *, single: bool) -> asyncio.Future[Any]:
        """The id, or for ``single`` false the list of ids, once everything is stored."""
        self._queue.bus._check_loop()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if values:
            self.put(PendingPush(values, future, single=single))
        else:
            future.set_result([])
        return future

    def put(self, push: PendingPush[bytes]) -> None:
        """Enqueue a push that the caller has made; its methods are called for each chunk."""
        self._pending.append(push)
        if not self._under_way:
            self._under_way = True
            if len(push.values) < MESSAGES_PER_PUSH:
                asyncio.get_running_loop().call_soon(self._send_next_chunk)
            else:
                self._send_next_chunk()

    async def wait_flushed(self) -> None:
        """Wait until everything added so far is stored or has failed."""
        while self._under_way:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def _send_next_chunk(self) -> None:
        """Send the next chunk, if anything waits."""
        self._fill_next_chunk()
        if not self._values:
            self._under_way = False
            if self._idle is not None:
                self._idle.set()
                self._idle = None
            return
        if not self._queue._begin_push(self._values, self._on_reply):
            self._spawn_completion(None)

    def _on_reply(self, answer: Any, lost: Exception | None) -> None:
        if lost is not None:
            self._fail_chunk(self._queue.translate(lost))
        elif isinstance(answer, Exception) or answer[1] != len(self._values):
            self._spawn_completion(answer)
            return
        else:
            self._on_stored(*answer)
        self._send_next_chunk()

    def _spawn_completion(self, answer: PushAnswer) -> None:
        try:
            self._queue.bus._spawn(self._complete_chunk(answer), f"pushing to {self._queue.name}")
        except BusError:  # the bus is closed
            self._cancel_pushes()

    async def _complete_chunk(self, answer: PushAnswer) -> None:
        """Push the chunk again when it was not sent or was refused (then nothing was stored); fail
        those pushes of it that had no room.
        """
        try:
            if answer is None or isinstance(answer, Exception) or answer[1] < 0:
                answer = await self._queue._push_call(self._values)
            if refused := self._on_stored(*answer):
                await self._fail_for_room(refused)
        except NotReplicated as error:
            first, last = error.details["first"], error.details["last"]
            if refused := self._on_stored(first, last - first + 1, error):
                await self._fail_for_room(refused)
        except BusError as error:
            self._fail_chunk(error)
        except asyncio.CancelledError:
            self._cancel_pushes()
            raise
        self._send_next_chunk()

    def _on_stored(
        self, first: int, count: int, unconfirmed: NotReplicated | None = None
    ) -> list[PendingPush[bytes]]:
        """Note that the first ``count`` values of the chunk have ids from ``first`` on, and why
        they are not confirmed.

        Returns the pushes whose other values had no room.
        """
        refused = []
        self._queue.pushed += count
        if log.isEnabledFor(logging.DEBUG):
            words = "queue %r: pushed %d messages, ids %d to %d"
            log.debug(words, self._queue.name, count, first, first + count - 1)
        for push, size in self._chunk:
            fitting = min(size, count)
            if fitting and unconfirmed is not None:
                push.on_unconfirmed(first, fitting, unconfirmed)
            elif fitting:
                push.on_stored(first, fitting)
            first, count = first + fitting, count - fitting
            if fitting < size:
                refused.append(push)
        return refused

    async def _fail_for_room(self, refused: Sequence[PendingPush[bytes]]) -> None:
        try:
            maxsize = await self._queue.maxsize()
        except BusError:  # that there was no room is certain, also where the link is lost now
            maxsize = 0
        for push in refused:
            left = len(push.values) - len(push.ids)
            push.fail(QueueFull(queue=self._queue.name, maxsize=maxsize, left=left, waited=""))

    def _fail_chunk(self, error: BusError) -> None:
        for push, _ in self._chunk:
            push.fail(error)

    def _cancel_pushes(self) -> None:
        for push in (*(push for push, _ in self._chunk), *self._pending):
            push.fail(None)
        self._pending.clear()
        self._send_next_chunk()

    def _fill_next_chunk(self) -> None:
        """The values that go together next, and whose they are."""
        self._chunk, self._values = [], []
        room = CHUNK_BYTES
        while self._pending and len(self._values) < CHUNK_MESSAGES:
            push = self._pending[0]
            if len(push.values) == 1:  # as below, at less than half of its price
                room -= len(push.values[0])
                if room < 0 and self._values:
                    return
                self._chunk.append((push, 1))
                self._values.append(push.values[0])
                push.sent = 1
                self._pending.popleft()
                continue
            part = push.values[push.sent : push.sent + CHUNK_MESSAGES - len(self._values)]
            room -= sum(map(len, part))
            if room < 0:
                part = _values_that_fit(part, room + sum(map(len, part)), alone=not self._values)
            if part:
                self._chunk.append((push, len(part)))
                self._values += part
                push.sent += len(part)
            if push.sent < len(push.values):
                return
            self._pending.popleft()


def _values_that_fit(values: Sequence[bytes], room: int, *, alone: bool) -> Sequence[bytes]:
    """The first values that fit; at least one when it would go ``alone``."""
    for count, value in enumerate(values):
        room -= len(value)
        if room < 0:
            return values[: max(count, int(alone))]
    return values
