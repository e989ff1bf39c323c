"""Calls of handlers: a coroutine function runs in the loop, a function in a thread of its own.

Each call of a handler leaves its mark on the tasks and threads that it starts. So ``stop`` knows
that it is called by a handler, and does not wait for itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import ConfigError

T = TypeVar("T")
FINISHING_POLL_S = 0.5
"""Longest wait without looking whether a task or thread with messages has ended."""
FINISHING_WARNING_S = 10.0
log = logging.getLogger("busmq_spark")


class CallContext(Generic[T]):
    """A context variable that the package can travel with by value (Spark Connect): the copy begins
    with a variable of its own.
    """

    def __init__(self, name: str, default: T) -> None:
        self._given = name, default
        self._variable: contextvars.ContextVar[T] = contextvars.ContextVar(name, default=default)
        self.get, self.set = self._variable.get, self._variable.set

    def __reduce__(self) -> tuple[type[CallContext[T]], tuple[str, T]]:
        return type(self), self._given


_calling_work: CallContext[tuple[object, ...]] = CallContext("busmq_calling_work", ())
"""The tasks of handlers, and the work in hand, that the current call is part of."""
calling_thread: CallContext[threading.Thread | None] = CallContext("busmq_calling_thread", None)
"""The thread that waits for the current call; None for a call of the loop itself."""


closing_callers: CallContext[Collection[object]] = CallContext("busmq_closing_callers", ())
"""The tasks, threads and work in hand whose calls wait for the bus that ends here."""


class WorkInHand(Generic[T]):
    """A batch that the body of a loop over ``batches()`` works on."""

    def __init__(self, batch: T) -> None:
        self.batch: T | None = batch
        """None once the body has ended: contexts of tasks may keep this object longer."""
        self._owner = calling_thread.get() or asyncio.current_task()

    @property
    def is_over(self) -> bool:
        """Return whether the task or thread of the body has ended, makes this call, or waits for
        the bus to end.
        """
        waiting = closing_callers.get()
        if self in waiting or self._owner in waiting:
            return True
        if isinstance(self._owner, threading.Thread):
            return not self._owner.is_alive() or self._owner is calling_thread.get()
        return self in calling_work() or self._owner is None or self._owner.done()


class BatchesInHand(Generic[T]):
    """The batches of a holder that bodies of loops work on."""

    def __init__(self) -> None:
        self._all: set[WorkInHand[T]] = set()
        self.changed = asyncio.Event()
        """Set when a body ends; its user sets it when messages are settled."""

    @contextmanager
    def hand_out(self, batch: T) -> Iterator[None]:
        """Count the batch as in work until the block ends."""
        work = WorkInHand(batch)
        self._all.add(work)
        _calling_work.set((*_work_of_context(), work))
        try:
            yield
        finally:
            work.batch = None
            _calling_work.set(_work_of_context())
            self._all.discard(work)
            self.changed.set()

    def others(self) -> list[T]:
        """Return the batches that others than the caller work on."""
        return [work.batch for work in self._all if work.batch is not None and not work.is_over]

    async def wait_until_none(self, count: Callable[[], int], holder: object) -> None:
        """Wait until ``count()``, of messages in work, is 0; log from time to time who waits."""
        clock = asyncio.get_running_loop().time
        warn_at = clock() + FINISHING_WARNING_S
        while left := count():
            if clock() >= warn_at:
                warn_at += FINISHING_WARNING_S
                log.warning("%r waits for handlers, which work on %d messages", holder, left)
            await wait_at_most(FINISHING_POLL_S, self.changed.wait)
            self.changed.clear()


def _work_of_context() -> tuple[object, ...]:
    """Return the work of the current call, without bodies that have ended: their loops end in other
    contexts after a ``break``.
    """
    return tuple(
        each
        for each in _calling_work.get()
        if not (isinstance(each, WorkInHand) and each.batch is None)
    )


async def call_handler(
    handler: Callable[[Any], object],
    argument: object,
    in_thread: Callable[[Any], object] | None = None,
) -> Any:
    """Call a handler and return its result.

    Args:
        handler: Function or coroutine function of one argument.
        argument: Its argument.
        in_thread: Makes of it the argument of a function, which runs in a thread. The function
            may not return an awaitable then: its argument waits, and would stop the loop.

    Raises:
        ConfigError: The function has returned an awaitable.
        BaseException: Whatever the handler raises.
    """
    if is_coroutine_function(handler):
        _calling_work.set((*_calling_work.get(), asyncio.current_task()))
        return await handler(argument)  # type: ignore[misc]
    result, error = await _start_thread(handler, in_thread(argument) if in_thread else argument)
    if error is not None:
        raise error
    if in_thread and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigError(
            reason=(
                f"the handler is a plain function and returned a {type(result).__name__}; make the"
                " handler a coroutine function (async def)"
            )
        )
    return await result if inspect.isawaitable(result) else result


def is_coroutine_function(handler: object) -> bool:
    """Return whether a call of it, an object with such a ``__call__`` too, makes a coroutine."""
    call = getattr(handler, "__call__", None)  # noqa: B004  # its kind, not whether it is there
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def calling_work() -> set[object]:
    """Return the current task, and the tasks of the handlers that this call is part of: also where
    it is made in a task or a thread that such a handler has started.
    """
    loop = asyncio._get_running_loop()
    return {*_calling_work.get(), *(() if loop is None else (asyncio.current_task(),))}


def is_called_by_handler(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Return whether a handler that has not ended on this loop makes this call."""
    return any(
        isinstance(each, asyncio.Task) and not each.done() and each.get_loop() is loop
        for each in _calling_work.get()
    )


def call_outside_handler(make: Callable[[], T]) -> T:
    """Call ``make``, whose tasks then do not count as calls of the handler that this one is of."""
    context = contextvars.copy_context()
    context.run(_calling_work.set, ())
    return context.run(make)


def _start_thread(
    handler: Callable[[Any], object], argument: object
) -> asyncio.Future[tuple[Any, BaseException | None]]:
    """Start the handler. The future has its result or its error.

    A pool would do worse: a handler that hangs would take the place of others in it, and would
    keep the program from its end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(answer: tuple[Any, BaseException | None]) -> None:
        if not done.done():  # its caller was not cancelled
            done.set_result(answer)

    def run() -> None:
        try:
            answer: tuple[Any, BaseException | None] = handler(argument), None
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises is its answer
            answer = None, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, answer)

    context = contextvars.copy_context()
    context.run(_calling_work.set, (*_calling_work.get(), asyncio.current_task()))
    context.run(calling_thread.set, None)
    threading.Thread(target=context.run, args=(run,), name="busmq-handler", daemon=True).start()
    return done
