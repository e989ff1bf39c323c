"""Events with handlers, in the spirit of Node's emitters: ``on``, ``once``, ``off``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from busmq_spark.errors import ConfigError

Handler = TypeVar("Handler", bound=Callable[..., Any])
SpawnTask = Callable[[Coroutine[Any, Any, Any], str], Any]
EVENTS_OF_MESSAGES = ("message", "request")
"""Events that are not logged one by one."""
log = logging.getLogger("busmq_spark")


class Emitter:
    """Calls handlers in the order they were added. A handler may be a coroutine function; it then runs as a task of the bus.

    What a coroutine handler raises ends the bus' scope, and so does what a function raises in an event that a task of the bus emits: a hidden error
    would be worse. In an event that a call of yours emits (``attached``, ``connect`` …) a function raises out of that call.
    """

    events: tuple[str, ...] = ()
    """Names a handler may be added for."""

    def __init__(self, spawn: SpawnTask) -> None:
        self._spawn = spawn
        self._handlers: dict[str, list[tuple[Callable[..., Any], bool]]] = {}

    def on(self, event: str, handler: Handler) -> Handler:
        """Call ``handler`` at every ``event``. Raises ConfigError for an event that is never emitted."""
        return self._add_handler(event, handler, once=False)

    def once(self, event: str, handler: Handler) -> Handler:
        """Call ``handler`` at the next ``event`` only."""
        return self._add_handler(event, handler, once=True)

    def off(self, event: str, handler: Callable[..., Any]) -> None:
        """Forget a handler; no error when it was not there."""
        self._handlers[event] = [entry for entry in self._handlers.get(event, []) if entry[0] != handler]

    def _add_handler(self, event: str, handler: Handler, *, once: bool) -> Handler:
        if event not in self.events:
            raise ConfigError(reason=f"{type(self).__name__} emits no event {event!r}; known are: {', '.join(self.events)}")
        self._handlers.setdefault(event, []).append((handler, once))
        return handler

    def _emit(self, event: str, *args: Any) -> None:
        for handler in self._take_handlers(event):
            outcome = handler(*args)
            if inspect.iscoroutine(outcome):
                self._spawn(outcome, f"{event} handler")

    def _take_handlers(self, event: str) -> Iterator[Callable[..., Any]]:
        """The handlers to call now; one added with ``once`` is removed before it is called."""
        assert event in self.events, event
        if event not in EVENTS_OF_MESSAGES and log.isEnabledFor(logging.DEBUG):
            log.debug("%r: %s", self, event)
        for entry in tuple(self._handlers.get(event, ())):
            if entry[1]:
                self._handlers[event].remove(entry)
            yield entry[0]

    def has_handlers(self, event: str) -> bool:
        """Whether the event has handlers."""
        return bool(self._handlers.get(event))

    async def _emit_and_wait(self, event: str, *args: Any) -> None:
        """Like ``_emit``, but each handler that is a coroutine function is waited for."""
        for handler in self._take_handlers(event):
            outcome = handler(*args)
            if inspect.isawaitable(outcome):
                await outcome

    def _report(self, error: Exception) -> None:
        """An error that no call can raise: to the handlers of ``error``, else to the log."""
        if self._handlers.get("error"):
            self._emit("error", error)
        else:
            log.error("%s", error)
