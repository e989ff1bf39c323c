"""A bus for notebooks and scripts without a loop: the names of the asyncio objects, called plainly.

    with Bus.sync("redis://localhost") as bus, bus.queue("orders") as orders:
        orders.push({"n": 1})
        for message in orders.consume(max=1):
            print(message.json())

Rule 1. Not a second implementation: a loop in a thread of its own runs the bus, and a SyncProxy
        hands calls over to it and waits.
Rule 2. An awaitable's result is returned, an async iterator becomes an iterator, and an object of
        the bus comes as a SyncProxy.
Rule 3. Handlers of events (plain functions) run one after the other in a thread of their own, so
        they may call the bus; their errors are logged. ``close`` does not wait there. Functions
        given to ``queue.each`` and ``service.serve`` run on the loop: they must not block or call
        the bus.
Rule 4. A consumption is a plain iterator here; ``queue.stop()`` ends it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

from busmq_spark.bus.base_persisted_object import PersistedDict
from busmq_spark.bus.emitter import Emitter, not_picklable_error
from busmq_spark.bus.handler_calls import calling_thread, closing_callers, is_called_by_handler
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.queue.base_consumption import ReliableMessage, reliable_message
from busmq_spark.errors import StateError
from busmq_spark.errors.foreign import exc_info
from busmq_spark.redis_io.event_loops import forked_error

_PROXIED_MODULES = (
    "busmq_spark.bus.",
    "busmq_spark.federation.client.",
    "busmq_spark.mirror.runner",
)
LOOP_POLL_S = 0.5
"""Longest wait without looking whether the loop has closed."""
log = logging.getLogger("busmq_spark")


class LoopThread:
    """A thread whose loop runs the bus from ``open`` to ``close``. Ctrl-C in the waiting thread
    leaves the bus as it is.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._over: Future[None] = Future()
        self._handlers: ThreadPoolExecutor | None = None
        self._handler_thread: threading.Thread | None = None
        self._opening = threading.Lock()
        self._closing_callers: set[object] = set()
        """The threads whose ``close`` waits."""
        self._pid = 0

    def open(self, bus: AbstractAsyncContextManager[Any]) -> None:
        """Enter the bus.

        Raises:
            StateError: The bus is open already.
            BaseException: Whatever entering raises.
        """
        ready: Future[None] = Future()
        with self._opening:
            if self._thread is not None and not self._over.done():
                raise StateError(
                    event="enter",
                    what="this bus",
                    state="open already",
                    remedy="Make another Bus.sync(...), or close this one first",
                )
            self._over, self._pid = Future(), os.getpid()
            thread = self._thread = threading.Thread(
                target=self._run, args=(bus, ready), name="busmq-loop", daemon=True
            )
            thread.start()
        try:
            ready.result()
        except Exception:  # whatever opening the bus raised; it may be opened again at once
            thread.join()
            raise

    @classmethod
    def of_running_loop(cls) -> Self:
        """Return one whose calls run on the loop that runs here, for other threads."""
        made = cls()
        made._loop, made._pid = asyncio.get_running_loop(), os.getpid()
        made._thread = threading.current_thread()
        return made

    def close(self) -> None:
        """Leave the bus and end the thread. In a forked child it does nothing.

        In a handler it does not wait: the bus is left once the handlers have ended.

        Raises what ended the bus, if something did.
        """
        thread, over = self._thread, self._over
        if self.is_forked or thread is None or self._loop is None or self._leave is None:
            return
        me = threading.current_thread()
        waits = me not in (thread, self._handler_thread) and not is_called_by_handler(self._loop)
        with suppress(RuntimeError):  # the loop has ended
            if waits:
                self._loop.call_soon_threadsafe(self._closing_callers.add, me)
            self._loop.call_soon_threadsafe(self._leave.set)
        if not waits:
            return
        thread.join()
        if self._thread is thread:
            self._thread = None
        over.result()

    @property
    def is_forked(self) -> bool:
        """Return whether this process was forked from the one whose thread runs the loop."""
        return self._pid not in (0, os.getpid())

    @property
    def is_idle(self) -> bool:
        """Return whether no loop runs yet, or any more."""
        return not self.is_forked and (self._loop is None or self._over.done())

    def submit_handler(self, handler: Callable[..., Any], event: str, *args: Any) -> None:
        """Start the handler of an event in the thread of the handlers."""
        assert self._handlers is not None  # events come from the loop, which ends before it
        given = [_as_synchronous(arg, self) for arg in args]
        self._handlers.submit(_call_and_log, handler, event, *given)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run ``work`` on the loop and wait for its result."""
        if self.is_forked:
            work.close()
            raise forked_error("the bus")
        if self._loop is None or self._over.done():
            work.close()
            raise StateError(
                event="use",
                what="the bus",
                state="not open",
                remedy="Use it inside 'with Bus.sync(...) as bus:'",
            )
        if threading.current_thread() is self._thread:
            work.close()
            raise StateError(
                event="wait",
                what="for the bus",
                state="its own thread that asks",
                remedy="Call it from another thread",
            )
        context = contextvars.copy_context()
        context.run(calling_thread.set, threading.current_thread())
        try:
            under_way = context.run(asyncio.run_coroutine_threadsafe, work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise _loop_ended_error() from None
        try:
            return _result_from_loop(under_way, self._loop)
        except BaseException:
            if self._loop.is_closed():
                if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                    work.close()
            else:
                under_way.cancel()
            raise

    def _run(self, bus: AbstractAsyncContextManager[Any], ready: Future[None]) -> None:
        async def live() -> None:
            self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
            self._closing_callers = set()
            async with bus:
                ready.set_result(None)
                await self._leave.wait()
                closing_callers.set(self._closing_callers)

        def note_thread() -> None:
            self._handler_thread = threading.current_thread()

        with ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="busmq-handlers", initializer=note_thread
        ) as self._handlers:
            try:
                asyncio.run(live())
            # Handed to the thread that waits, which raises it
            except BaseException as error:  # noqa: BLE001
                (self._over if ready.done() else ready).set_exception(error)
            finally:
                if not self._over.done():
                    self._over.set_result(None)


def _result_from_loop(under_way: Future[Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Return the result. A loop that closes may have taken the call and never run it."""
    while True:
        try:
            return under_way.result(LOOP_POLL_S)
        except TimeoutError:
            if under_way.done():  # by the call itself, or just now
                return under_way.result()
            if loop.is_closed():
                raise _loop_ended_error() from None


def _loop_ended_error() -> StateError:
    return StateError(
        event="use",
        what="the bus",
        state="closed",
        remedy="End its handlers before the loop of the bus ends",
    )


class SyncProxy:
    """An object of the bus, called plainly. Attributes are those of the object itself."""

    def __init__(self, thing: Any, loop_thread: LoopThread) -> None:
        self._thing, self._loop_thread = thing, loop_thread

    def __repr__(self) -> str:
        return f"{self._thing!r} (synchronous)"

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._thing) if not name.startswith("_")]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._thing, name)
        if name in ("on", "once", "off") and isinstance(self._thing, Emitter):
            return partial(self._change_handler, name)
        return (
            partial(self._call_on_loop, found)
            if inspect.ismethod(found)
            else self._wrap_result(found)
        )

    def __enter__(self) -> Self:
        self._loop_thread.call(self._thing.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._loop_thread.is_forked:
            self._loop_thread.call(self._thing.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Do what leaving ``with`` does."""
        self.__exit__(None, None, None)

    def __reduce__(self) -> NoReturn:
        raise not_picklable_error(self)

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._call_on_loop(lambda: aiter(self._thing))
        return found

    def _call_on_loop(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def work() -> Any:
            outcome = method(
                *(_unwrap_proxies(arg) for arg in args),
                **{name: _unwrap_proxies(value) for name, value in options.items()},
            )
            return (
                await outcome
                if inspect.isawaitable(outcome) and not isinstance(outcome, asyncio.Task)
                else outcome
            )

        return self._wrap_result(self._loop_thread.call(work()))

    def _change_handler(
        self, how: str, event: str, handler: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        if handler is None:
            return partial(self._change_handler, how, event)
        self._thing._check_event(event, handler)
        method, key = getattr(self._thing, how), (event, handler)
        handlers = self._thing.__dict__.setdefault("_sync_handlers", {})
        if how == "off":
            found = handlers.pop(key, None)
        else:
            found = handlers[key] = partial(self._loop_thread.submit_handler, handler, event)
        if found is not None and self._loop_thread.is_idle:
            method(event, found)
        elif found is not None:
            self._call_on_loop(method, event, found)
        return handler

    def _wrap_result(self, found: Any) -> Any:
        """A result as the caller may use it."""
        if isinstance(found, AsyncIterator):
            return _iterate_synchronously(found, self._loop_thread)
        if isinstance(found, asyncio.Task):
            return _RunningTask(found, self._loop_thread)
        if inspect.isfunction(found):  # a decorator, as of a worker
            return partial(self._call_on_loop, found)
        if isinstance(found, PersistedDict | Job):
            return _SyncDict(found, self._loop_thread)
        return (
            SyncProxy(found, self._loop_thread)
            if type(found).__module__.startswith(_PROXIED_MODULES)
            else found
        )


class _SyncDict(SyncProxy):
    """A persisted dictionary, or a job: reads and writes by ``[]`` happen on the loop, too."""

    def __getitem__(self, name: str) -> Any:
        return self._call_on_loop(self._thing.__getitem__, name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._call_on_loop(self._thing.__setitem__, name, value)

    def __contains__(self, name: object) -> bool:
        return bool(self._call_on_loop(self._thing.__contains__, name))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._call_on_loop(lambda: list(self._thing)))

    def __len__(self) -> int:
        return int(self._call_on_loop(self._thing.__len__))


def job_of_a_thread(job: Job) -> Any:
    """Return a job for a plain function that runs in a thread: its calls wait."""
    return _SyncDict(job, LoopThread.of_running_loop())


class SyncBus(SyncProxy):
    """The bus, open inside ``with``, or between ``start()`` and ``close()``."""

    def __init__(self, bus: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(bus, LoopThread())

    def start(self) -> Self:
        """Connect, and return the bus: ``close`` ends it."""
        return self.__enter__()

    def __enter__(self) -> Self:
        if self._loop_thread.is_forked:
            raise forked_error("the bus")
        self._loop_thread.open(self._thing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop_thread.close()


class _RunningTask:
    """A task of the bus, such as that of ``queue.each``."""

    def __init__(self, task: asyncio.Task[Any], loop_thread: LoopThread) -> None:
        self._task, self._loop_thread = task, loop_thread

    def done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    def result(self) -> Any:
        """Wait for its end; raises what it raised."""

        async def work() -> Any:
            return await asyncio.shield(self._task)

        return self._loop_thread.call(work())


def _call_and_log(handler: Callable[..., Any], event: str, *args: Any) -> None:
    """No caller awaits a handler here, so its exception is logged."""
    try:
        handler(*args)
    except BaseException as error:
        log.error("a handler of %r failed", event, exc_info=exc_info(error))


def _unwrap_proxies(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(each, SyncProxy) for each in value):
        return [_unwrap_proxies(each) for each in value]
    return value._thing if isinstance(value, SyncProxy) else value


def _iterate_synchronously(source: Any, loop_thread: LoopThread) -> Iterator[Any]:
    """The items of an asynchronous iterator. Messages that are there already cost no hop between
    threads.
    """
    stored = getattr(source, "next_stored", lambda: None)
    while True:
        item = None if loop_thread.is_forked else stored()
        if item is None:
            try:
                item = loop_thread.call(source.__anext__())
            except StopAsyncIteration:
                return
        yield _as_synchronous(item, loop_thread)


def _as_synchronous(item: Any, loop_thread: LoopThread) -> Any:
    """A message, or a list of messages, whose ``ack`` waits. Everything else as it is."""
    if isinstance(item, ReliableMessage):
        return reliable_message(item, SyncProxy(item.queue, loop_thread))
    if type(item) is list and item and isinstance(item[0], ReliableMessage):
        return [_as_synchronous(each, loop_thread) for each in item]
    return item
