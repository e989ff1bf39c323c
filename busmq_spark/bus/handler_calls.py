"""Calls of handlers: a coroutine function runs in the loop, a function in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from busmq_spark.errors import ConfigError

T = TypeVar("T")


class _TaskOfThread:
    """In calls from the thread of a handler: the task that waits for that thread.

    A context variable cannot be pickled, and the package may travel by value (Spark Connect): its
    copy begins with a variable of its own.
    """

    def __init__(self) -> None:
        self._variable: contextvars.ContextVar[asyncio.Task[Any] | None] = contextvars.ContextVar(
            "busmq_task_of_thread", default=None
        )
        self.get, self.set = self._variable.get, self._variable.set

    def __reduce__(self) -> tuple[type[_TaskOfThread], tuple[()]]:
        return type(self), ()


_task_of_thread = _TaskOfThread()


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


def calling_tasks() -> set[asyncio.Task[Any]]:
    """Return the current task, and the task that waits for the handler whose thread has made this
    call.
    """
    return {each for each in (asyncio.current_task(), _task_of_thread.get()) if each is not None}


def call_outside_handler(make: Callable[[], T]) -> T:
    """Call ``make``, whose tasks then do not count as calls of the handler that this one is of."""
    context = contextvars.copy_context()
    context.run(_task_of_thread.set, None)
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
    context.run(_task_of_thread.set, asyncio.current_task())
    threading.Thread(target=context.run, args=(run,), name="busmq-handler", daemon=True).start()
    return done
