"""The base classes of live objects: events with handlers, and the end by ``aclose``.

The end of every object of a bus: leaving its block, or ``aclose``.

Events with handlers, in the spirit of Node's emitters: ``on``, ``once``, ``off``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

from busmq_spark.arguments import check_function, show
from busmq_spark.errors import BusError, ConfigError, StateError
from busmq_spark.errors.foreign import error_text, exc_info


def not_picklable_error(thing: object) -> StateError:
    """Return the error of an object of a bus that is pickled or copied."""
    remedy = "Send its name, and make it anew on a bus of that process"
    return StateError(
        event="pickle",
        what=repr(thing),
        state="bound to the connections of this process",
        remedy=remedy,
    )


class Handle:
    """An object of a bus that is used inside ``async with``, or until ``aclose``."""

    def __reduce__(self) -> NoReturn:
        raise not_picklable_error(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.detach()

    async def aclose(self) -> None:
        """Do what leaving ``async with`` does. Nothing stored is deleted; no error when it was
        never opened.
        """
        await self.__aexit__(None, None, None)

    async def detach(self) -> None:
        """Let go of what it holds on the bus."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Begin nothing more, and wait for handlers that run. The bus that ends waits for this
        without a limit.
        """

    @property
    def _is_handling(self) -> bool:
        """Return whether the caller is one of its handlers."""
        return False


Handler = TypeVar("Handler", bound=Callable[..., Any])
EventName = TypeVar("EventName", bound=str)
LinkEvent = Literal["reconnecting", "reconnected"]
"""Events that only a federated object emits, beside those of its kind."""
SpawnTask = Callable[[Coroutine[Any, Any, Any], str], Any]
EVENTS_OF_MESSAGES = ("message", "request")
"""Events that are not logged one by one."""
log = logging.getLogger("busmq_spark")


class Emitter(Generic[EventName]):
    """Calls handlers in the order they were added. A handler may be a coroutine function; it then
    runs as a task of the bus.

    Whatever a handler raises is logged with its traceback, and ends nothing: not the bus, not the
    call that emits, not the other handlers.
    """

    events: tuple[EventName, ...] = ()
    """Names a handler may be added for."""

    def __init__(self, spawn: SpawnTask) -> None:
        self._spawn = spawn
        self._handlers: dict[str, list[tuple[Callable[..., Any], bool]]] = {}

    def __reduce__(self) -> NoReturn:
        raise not_picklable_error(self)

    @overload
    def on(self, event: EventName) -> Callable[[Handler], Handler]: ...
    @overload
    def on(self, event: EventName, handler: Handler) -> Handler: ...
    def on(self, event: EventName, handler: Any = None) -> Any:
        """Call a handler at every event of one name. Without a handler, it is a decorator.

        Args:
            event: Name of the event.
            handler: A function or a coroutine function.

        Raises:
            ConfigError: The event is never emitted, or the handler is an asynchronous generator.

        Example:
            @bus.on("offline")
            def report(error):
                print(error)
        """
        add = partial(self._add_handler, event, once=False)
        return add if handler is None else add(handler)

    @overload
    def once(self, event: EventName) -> Callable[[Handler], Handler]: ...
    @overload
    def once(self, event: EventName, handler: Handler) -> Handler: ...
    def once(self, event: EventName, handler: Any = None) -> Any:
        """Call a handler at the next event of one name only. Without a handler, it is a decorator.

        Args:
            event: Name of the event.
            handler: A function or a coroutine function.

        Raises:
            ConfigError: As for ``on``.
        """
        add = partial(self._add_handler, event, once=True)
        return add if handler is None else add(handler)

    def off(self, event: EventName, handler: Callable[..., Any]) -> None:
        """Remove a handler, if it is there.

        Args:
            event: Name of the event.
            handler: The handler that was added.
        """
        self._check_event(event, handler)
        self._handlers[event] = [
            entry for entry in self._handlers.get(event, []) if entry[0] != handler
        ]

    def _check_event(self, event: str, handler: Callable[..., Any]) -> None:
        """Raise ConfigError for an event that is never emitted, and for what is no handler."""
        if event not in self.events:
            raise ConfigError(
                reason=(
                    f"{type(self).__name__} emits no event {show(event)}; known are:"
                    f" {', '.join(self.events)}"
                )
            )
        check_function(f"the handler of {event!r}", handler)

    def _add_handler(self, event: str, handler: Handler, *, once: bool) -> Handler:
        self._check_event(event, handler)
        if inspect.isasyncgenfunction(handler):
            raise ConfigError(
                reason=(
                    f"the handler of {event!r} is an asynchronous generator, and never iterated;"
                    " expected a function"
                )
            )
        self._handlers.setdefault(event, []).append((handler, once))
        return handler

    def _emit(self, event: str, *args: Any) -> None:
        for handler in self._take_handlers(event):
            outcome = self._call_handler(event, handler, args)
            if inspect.iscoroutine(outcome):
                work = self._await_handler(event, outcome)
                try:
                    self._spawn(work, f"{event} handler")
                except BusError:  # the bus is closed
                    outcome.close()
                    raise

    def _call_handler(self, event: str, handler: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return handler(*args)
        except BaseException as error:  # noqa: BLE001  # it is the code of others
            self._log_handler_failure(event, error)

    async def _await_handler(self, event: str, outcome: Awaitable[Any]) -> None:
        try:
            await outcome
        except BaseException as error:
            me = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                raise
            self._log_handler_failure(event, error)

    def _log_handler_failure(self, event: str, error: BaseException) -> None:
        log.error(
            "%s: a handler of %r failed: %s",
            self,
            event,
            error_text(error),
            exc_info=exc_info(error),
        )

    def _take_handlers(self, event: str) -> Iterator[Callable[..., Any]]:
        """The handlers to call now; one added with ``once`` is removed before it is called."""
        assert event in self.events, event
        if event not in EVENTS_OF_MESSAGES and log.isEnabledFor(logging.DEBUG):
            log.debug("%r: %s", self, event)
        for entry in tuple(self._handlers.get(event, ())):
            if entry[1]:
                self._handlers[event].remove(entry)
            yield entry[0]

    def _has_handlers(self, event: str) -> bool:
        """Whether the event has handlers."""
        return bool(self._handlers.get(event))

    async def _emit_and_wait(self, event: str, *args: Any) -> None:
        """Like ``_emit``, but each handler that is a coroutine function is waited for."""
        for handler in self._take_handlers(event):
            outcome = self._call_handler(event, handler, args)
            if inspect.isawaitable(outcome):
                await self._await_handler(event, outcome)

    def _report(self, error: Exception) -> None:
        """An error that no call can raise: to the handlers of ``error``, else to the log."""
        if self._handlers.get("error"):
            self._emit("error", error)
        else:
            log.error("%s", error)
