"""Handing over messages that wait in memory: the part of a consumption that this bus and another
bus share. Each subclass fetches the messages in its own way.

The phases (IterationPhase):

    phase       event                                       next phase
    NEW         the first message is asked for              RUNNING
    NEW         stop()                                      CALLED_OFF
    RUNNING     stop(), ``max`` is reached, lease is lost   STOPPING
    CALLED_OFF  its resources are released                  ENDED
    STOPPING    messages are given back, the rest released  ENDED, event ``consuming(False)``

Giving back may raise LinkLost: the phase stays, and ``stop()`` may be called again. No message is
handed over in CALLED_OFF, STOPPING and ENDED.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict

from busmq_spark.errors import ConfigError
from busmq_spark.queue.message import Message

if TYPE_CHECKING:
    from busmq_spark.bus.emitter import Emitter


IterationPhase = Enum("IterationPhase", "NEW RUNNING STOPPING CALLED_OFF ENDED")
"""The phases in the life of a consumption. CALLED_OFF: it is stopped before it has begun."""
STARTED_PHASES, CONTINUING_PHASES = (
    (IterationPhase.RUNNING, IterationPhase.STOPPING),
    (IterationPhase.NEW, IterationPhase.RUNNING),
)


class ConsumptionRoom(Protocol):
    """Room in memory that a consumption asks for before it takes messages."""

    async def reserve(self) -> None:
        """Return once there is room for what one take may bring."""

    def hold(self, size: int) -> None:
        """A take has ended: it brought ``size`` bytes."""

    def release(self, size: int) -> None:
        """So many of these bytes are handed over, or dropped."""


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
    """Options of a consumption, in the words of the protocol (1.8); ``wait`` and ``prefetch`` are
    ours.
    """

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
                raise ConfigError(
                    reason=f"{name} is {value!r}; expected a whole number of at least {least}"
                )
        if self.max is not None and not isinstance(self.max, int):
            raise ConfigError(
                reason=(
                    f"max is {self.max!r}; expected a whole number; None or a negative one means no"
                    " limit"
                )
            )
        if self.reliable and not self.remove:
            raise ConfigError(
                reason=(
                    "reliable=True with remove=False would ack nothing (protocol Q27); choose one"
                    " of them"
                )
            )
        if self.index and self.remove:
            raise ConfigError(
                reason=(
                    "index counts only with remove=False: a consumer that removes begins with the"
                    " oldest message"
                )
            )
        if self.last and not self.reliable:
            raise ConfigError(reason="last counts only with reliable=True")


class ReliableMessage(Message):
    """A message that its queue keeps until it is acked."""

    queue: Any = None
    """The object whose ``ack`` takes its id: the queue, or one side of a channel."""

    def ack(self) -> Coroutine[Any, Any, None]:
        """Acknowledge it and all before it, as ``queue.ack``."""
        acked: Coroutine[Any, Any, None] = (
            super().ack() if self.queue is None else self.queue.ack(self.id)
        )
        return acked

    def _replace(self, **changes: Any) -> Any:
        return reliable_message(Message(*self)._replace(**changes), self.queue)

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, tuple(self)


def reliable_message(message: Message, queue: Any) -> Message:
    """Return the message as one that can be acked by itself."""
    made = ReliableMessage(*message)
    made.queue = queue
    return made


class BaseConsumption:
    """The messages of one queue, for one task: an asynchronous iterator."""

    _queue: Emitter[Any]

    def __init__(self, options: ConsumeOptions) -> None:
        self._options = options
        self.prefetch = options.prefetch
        """Most messages to take at once; the iterating caller may change it, to take no more than
        it has room for.
        """
        self._left = None if options.max is None or options.max < 0 else options.max
        self._buffer: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()  # ending waits for what is under way
        self._phase = IterationPhase.NEW
        self._handing_over = threading.Lock()
        """A synchronous caller takes what is stored in its own thread: never while the loop begins
        to give it back.
        """
        self.follows: Self | None = None
        """The consumption that this one ends by beginning."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = self.next_stored()
        if message is None:
            await self.wait_filled()
            message = self.pop_head()
        return message

    def next_stored(self) -> Message | None:
        """Hand over the next message of those that are here; return None when the caller must wait
        for it.
        """
        with self._handing_over:
            return None if self.is_stopping or not self._buffer else self.pop_head()

    async def deliver(self, handler: Callable[[Message], Any] | None) -> None:
        """Hand every message to ``handler`` and to the queue's event ``message``, one after the
        other.
        """
        async for message in self:
            if handler is not None:
                outcome = handler(message)
                if inspect.isawaitable(outcome):
                    await outcome
            await self._queue._emit_and_wait("message", message)

    async def wait_filled(self) -> None:
        """Returns when there is a ``head``. Raises StopAsyncIteration at the end."""
        raise NotImplementedError

    @property
    def head(self) -> Message | None:
        """The next message, not handed over yet; return None when the caller must wait for it."""
        return self._buffer[0] if self._buffer else None

    def pop_head(self) -> Message:
        """The head: it leaves the buffer."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End. The task that iterates sees the end. Messages that were not handed over go back to
        the head of the queue, or on to the next consumption.

        Raises LinkLost when Redis stays unreachable; then it may be called again.
        """
        self._start_stopping()
        if self.follows is not None:
            await self.follows.stop()
            self.follows = None
        async with self._lock:
            await self._end_once()

    def _start_stopping(self) -> None:
        with self._handing_over:
            self._phase = {
                IterationPhase.NEW: IterationPhase.CALLED_OFF,
                IterationPhase.RUNNING: IterationPhase.STOPPING,
            }.get(self._phase, self._phase)
        self._wake.set()

    async def _end_once(self) -> None:
        """Once. An end that failed may be tried again."""
        if self._phase is not IterationPhase.ENDED:
            await self._release_resources()
            ran, self._phase = self.running, IterationPhase.ENDED
            if ran:
                self._queue._emit("consuming", False)

    async def _release_resources(self) -> None:
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Whether it has begun and not ended."""
        return self._phase in STARTED_PHASES

    @property
    def is_stopping(self) -> bool:
        """Whether it is being stopped, or has been: nothing more is handed over."""
        return self._phase not in CONTINUING_PHASES

    @property
    def active(self) -> bool:
        """Whether this one runs, or one that it will end."""
        return self.running or (self.follows is not None and self.follows.active)
