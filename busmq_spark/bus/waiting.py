"""Waits in a program: time limits, early calls, and buffers of slow listeners.

Waiting with a time limit.

A buffer for a slow listener: bounded in messages and bytes; the oldest messages are dropped.

Calls made while an object is being attached, connected or subscribed, as npm busmq allows them.

Rule 1. They are made as soon as the object is open, in their order, before any later call.
Rule 2. If the opening fails, or its coroutine is dropped, they fail with it.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

from busmq_spark.errors import StateError


async def wait_at_most(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Await ``work()``; after ``seconds`` it is cancelled. Which of the two ended the wait is not
    said: callers look at their state.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work()


class DropOldestBuffer:
    """First in, first out. A value over the byte bound still fits when it is alone."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.dropped = 0
        """Values that gave way to newer ones."""
        self._most, self._most_bytes = most, most_bytes
        self._values: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def put(self, value: bytes) -> int:
        """Add a value; the result is how many older ones it pushed out."""
        self._values.append(value)
        self._bytes += len(value)
        out = 0
        while len(self._values) > 1 and (
            len(self._values) > self._most or self._bytes > self._most_bytes
        ):
            self.take()
            out += 1
        self.dropped += out
        return out

    def take(self) -> bytes:
        """The oldest value. Raises IndexError when there is none."""
        value = self._values.popleft()
        self._bytes -= len(value)
        return value

    def clear(self) -> None:
        """Forget what waits; it does not count as dropped."""
        self._values.clear()
        self._bytes = 0


T = TypeVar("T")


class EarlyCalls:
    """The calls of one object that wait for its opening. ``not_open`` makes the error of a call."""

    def __init__(self, not_open: Callable[[str], StateError]) -> None:
        self._not_open = not_open
        self._openings: list[weakref.ref[_Opening[Any]]] = []
        self._calls: deque[tuple[Callable[[], asyncio.Future[Any]], asyncio.Future[Any], str]]
        self._calls = deque()

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Return the coroutine that opens the object. Calls are kept until it ends."""
        opening = _Opening(work, self)
        self._openings.append(weakref.ref(opening, self._on_dropped))
        return opening

    @property
    def waiting(self) -> bool:
        """Whether calls are kept now."""
        return bool(self._calls)

    @property
    def opening(self) -> bool:
        """Whether an opening was called and has not ended."""
        return any(not each.over for each in self._alive())

    def add(self, event: str, call: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        """Return the result of ``call``, made after the opening. Raises StateError without one."""
        if not self.opening:
            raise self._not_open(event)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.append((call, future, event))
        return future

    async def wait_open(self, event: str) -> None:
        """Return when the opening has ended. Raises its error, and StateError without one."""
        await self.add(event, _done)

    async def let_begin(self) -> None:
        """Let an opening begin that was called before, so that a call to leave comes after it."""
        if any(not (each.begun or each.over) for each in self._alive()):
            await asyncio.sleep(0)

    def make(self) -> None:
        """Make the calls: the object is open."""
        while self._calls:
            call, future, _ = self._calls.popleft()
            try:
                _hand_on(call(), future)
            except Exception as error:  # noqa: BLE001  # the caller's, as without waiting
                _fail(future, error)

    def fail(self, error: BaseException | None) -> None:
        """Fail the calls, unless another opening goes on. An ``error`` of None means that the
        opening was never begun. The calls of an opening that is cancelled find the object not open:
        their own tasks are not cancelled.
        """
        if isinstance(error, asyncio.CancelledError):
            error = None
        while self._calls and not self.opening:
            _, future, event = self._calls.popleft()
            _fail(future, self._not_open(event) if error is None else error)

    def _alive(self) -> list[_Opening[Any]]:
        return [opening for ref in self._openings if (opening := ref()) is not None]

    def _on_dropped(self, ref: weakref.ref[_Opening[Any]]) -> None:
        self._openings.remove(ref)
        self.fail(None)


class _Opening(Coroutine[Any, Any, T]):
    """A coroutine that also says when it is called off before it has begun."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], early: EarlyCalls) -> None:
        self._make, self._early = work, early
        self._work: Coroutine[Any, Any, T] | None = None
        self.over = False

    def __del__(self) -> None:
        if not (self.begun or self.over):
            warnings.warn("an attach or connect was never awaited", RuntimeWarning, stacklevel=2)

    @property
    def begun(self) -> bool:
        """Whether its first step has been taken."""
        return self._work is not None

    def __await__(self) -> Generator[Any, Any, T]:
        self._work = self._run()
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """See Coroutine."""
        self._work = self._work or self._run()
        return self._work.send(value)

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        """See Coroutine."""
        if self._work is not None:
            return self._work.throw(kind, value, trace)
        error = kind if isinstance(kind, BaseException) else value or kind()
        self._end(error)
        raise error

    def close(self) -> None:
        """See Coroutine."""
        if self._work is not None:
            self._work.close()
        elif not self.over:
            self._end(None)

    async def _run(self) -> T:
        try:
            found = await self._make()
        except BaseException as error:
            self._end(error)
            raise
        self.over = True
        self._early.make()
        return found

    def _end(self, error: BaseException | None) -> None:
        self.over = True
        self._early.fail(error)


def _hand_on(inner: asyncio.Future[T], outer: asyncio.Future[T]) -> None:
    def on_end(_: object) -> None:
        if inner.cancelled():
            outer.cancel()
        elif (error := inner.exception()) is not None:
            _fail(outer, error)
        elif not outer.done():
            outer.set_result(inner.result())

    inner.add_done_callback(on_end)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
