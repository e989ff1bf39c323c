"""The part that every exposed object has: its table of methods, their rights, and the listeners to
its events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from busmq_spark.bus.queue.base_queue import DEFAULT_QUEUE_TTL_S
from busmq_spark.errors import (
    BusError,
    ConfigError,
    FederationRefused,
    MessageRefused,
    WireError,
)
from busmq_spark.federation.bounded_json import MAX_SHORT_BYTES
from busmq_spark.federation.gate.rights import VERBS, RequiredRight, Verb, Verbs
from busmq_spark.federation.npm_wire.dnode import (
    LONE_SURROGATE,
    DnodeCallbackRef,
    invocation_line,
    message_tail,
    message_tail_steps,
    result_line,
)

if TYPE_CHECKING:
    from busmq_spark.bus.queue.base_consumption import ConsumeKeywords
    from busmq_spark.federation.npm_wire.channels import ObjectCreationMessage
    from busmq_spark.federation.serve.peer import PeerChannel

NeededVerbs = tuple[Verbs, ...]
"""The verbs that must be granted on an object: one verb of each."""
NEEDS_NOTHING: NeededVerbs = ()
NEEDS_ANY_VERB: NeededVerbs = (VERBS,)
NEEDS_BROWSE: NeededVerbs = (("browse",),)
NEEDS_CONSUME: NeededVerbs = (("consume",),)
NEEDS_PUSH: NeededVerbs = (("push",),)
NEEDS_CREATE: NeededVerbs = (("create",),)
NEEDS_ADMIN: NeededVerbs = (("admin",),)
MAX_TTL_S = 10 * 365 * 86_400
LINE_OVERHEAD_BYTES = 200
"""The bytes of a line and its packet beside the message, and then some."""
T = TypeVar("T")


@dataclass(slots=True)
class MethodCall:
    """A call: its values, the function at their end if there was one, and its bytes on the wire."""

    values: list[Any]
    callback: DnodeCallbackRef | None
    size: int

    def expect_value(self, place: int, kind: type[T], what: str) -> T:
        """The value at a place. Raises ConfigError when it is missing or another kind of value."""
        found = self.values[place] if place < len(self.values) else None
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
            raise ConfigError(reason=f"{what} is {type(found).__name__}; expected {kind.__name__}")
        return found

    def expect_number(self, place: int, name: str, default: int) -> int:
        """The whole number at a place, as of an option called ``name``."""
        return whole_number_option(
            {name: self.values[place]} if place < len(self.values) else {}, name, default
        )

    @property
    def options(self) -> dict[str, Any]:
        """The first value, if it is an object: options are always optional."""
        return self.values[0] if self.values and isinstance(self.values[0], dict) else {}


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A row of a table: its handler, and the rights that it needs. ``handler`` gives a coroutine
    when it takes its time.
    """

    handler: Callable[[Any, MethodCall], Coroutine[Any, Any, None] | None]
    need: NeededVerbs = NEEDS_ANY_VERB


class ServedObject:
    """An object as one peer sees it."""

    kind: ClassVar[str]
    emits: ClassVar[frozenset[str]] = frozenset()
    """The events that it emits. A listener of any other event would wait for ever, and is not
    stored.
    """
    methods: ClassVar[dict[str, ServedMethod]]

    def __init__(self, peer: PeerChannel, made: ObjectCreationMessage) -> None:
        self.peer, self.bus, self.name = peer, peer.bus, made.name
        self._listeners: dict[str, list[tuple[int, bool]]] = {}
        self._functions = 0
        self._granted: set[NeededVerbs] = {NEEDS_NOTHING}
        self._reader: asyncio.Task[None] | None = None
        """Hands messages over to the peer."""

    # -- who may -----------------------------------------------------------------------------------

    def allowed_method(self, name: str, values: list[Any]) -> ServedMethod:
        """The method with this name. Raises FederationRefused when there is none, or the peer may
        not call it.
        """
        method = self.methods.get(name)
        if method is None:
            raise refused_error(f"a {self.kind} has no method {name}")
        need = self.needed_verbs(name, method, values)
        if need not in self._granted:  # found out once, since neither changes
            self.peer.identity.require_rights(
                RequiredRight(verbs, self.kind, self.name) for verbs in need
            )
            self._granted.add(need)
        return method

    # Some look at name and values
    def needed_verbs(self, name: str, method: ServedMethod, values: list[Any]) -> NeededVerbs:  # noqa: ARG002
        """The verbs that a call needs, one of each entry."""
        return method.need

    def may(self, verb: Verb) -> bool:
        """Whether a verb is granted on this object."""
        return self.peer.identity.may(verb, self.kind, self.name)

    # -- events ------------------------------------------------------------------------------------

    def on(self, call: MethodCall) -> None:
        """Invoke the function at every event from now on."""
        self._add_listener(call, once=False)

    def once(self, call: MethodCall) -> None:
        """Invoke the function at the next event."""
        self._add_listener(call, once=True)

    def listeners_to_invoke(self, event: str) -> list[tuple[int, bool]]:
        """The callbacks to invoke now; those registered with ``once`` are removed."""
        found = self._listeners.get(event)
        if not found:
            return []
        if any(once for _, once in found):
            self._listeners[event] = [entry for entry in found if not entry[1]]
            self._count_listeners(len(self._listeners[event]) - len(found))
        return found

    def emit(self, event: str, *arguments: Any) -> None:
        """Send an event to its listeners; without one it is dropped, ``error`` too. An event that
        is too long becomes an error.
        """
        try:
            if listeners := self.listeners_to_invoke(event):
                self.peer.invoke_all((id for id, _ in listeners), *arguments)
        except MessageRefused as error:
            if event != "error":
                self.peer.send_error(None, error)

    def _add_listener(self, call: MethodCall, *, once: bool) -> None:
        event = call.expect_value(0, str, "the name of an event")
        if call.callback is None or len(event) > self.peer.limits.name_bytes:
            raise ConfigError(reason="on and once take the name of an event and a function")
        if event not in self.emits:
            return
        limits, quota = self.peer.limits, self.peer.work.quota
        if self._functions >= limits.listeners_per_channel:
            raise WireError(
                found=f"more than {self._functions} listeners on one channel", expected="fewer"
            )
        if quota.listeners >= limits.listeners_per_secret:
            raise WireError(
                found=f"more than {quota.listeners} listeners of one secret", expected="fewer"
            )
        self._count_listeners(1)
        self._listeners.setdefault(event, []).append((call.callback.id, once))

    def forget_listeners(self) -> None:
        """Events are not sent any more."""
        self._listeners.clear()
        self._count_listeners(-self._functions)

    def _count_listeners(self, more: int) -> None:
        self._functions += more
        self.peer.work.quota.listeners += more

    # -- results -----------------------------------------------------------------------------------

    def answer(self, call: MethodCall, *arguments: Any) -> None:
        """Invoke the function at the end of a call, if there is one. An answer that is too long
        becomes an error.
        """
        if call.callback is not None:
            try:
                self.peer.invoke(call.callback.id, *arguments)
            except MessageRefused as error:
                self.peer.send_error(call.callback, error)

    def answer_push(self, call: MethodCall, future: asyncio.Future[int]) -> None:
        """Answer a call with the id that is stored, or fail it; until then it is in work."""
        self.peer.count_begun_call(call.size)
        future.add_done_callback(partial(self._answer_stored_push, call))

    def _answer_stored_push(self, call: MethodCall, future: asyncio.Future[int]) -> None:
        self.peer.count_finished_call(call.size)
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            if call.callback is not None:
                self.peer.send(result_line(call.callback.id, future.result()))
        elif isinstance(error, BusError):
            self.answer_failed_push(call, error)
        else:
            raise error

    def answer_failed_push(self, call: MethodCall, error: BusError) -> None:
        """The answer to a push that is not stored."""
        self.peer.send_error(call.callback, error)

    # -- messages ----------------------------------------------------------------------------------

    async def encode_message(self, value: bytes, number: int | None) -> bytes:
        """Return the line for all listeners of a message, made once, in turns where that takes
        long.

        Raises MessageRefused for a message that is longer on the wire than allowed.
        """
        most, tail = self.peer.limits.message_bytes - LINE_OVERHEAD_BYTES, b""
        if len(value) <= min(MAX_SHORT_BYTES, most) and number is not None:
            tail = message_tail(value.decode("utf-8", "replace"), number)
            if len(tail) <= most:
                return tail
        found = await self.peer.work.work_in_turns(message_tail_steps(value, number, most))
        if isinstance(found, bytes):
            return found
        raise MessageRefused(
            reason=f"it takes {found} bytes on the wire; at most {most} are allowed"
        )

    async def send_message(self, tail: bytes, arrived: Callable[[], None] = lambda: None) -> None:
        """Send a message to its listeners, while there is room for each.

        ``arrived`` is called once it has left for the last of them, at once where there is none.
        """
        listeners, buffer = self.listeners_to_invoke("message"), self.peer.work.send_buffer
        for place, (id, _) in enumerate(listeners, 1):
            if (
                place > 1
                and buffer.is_full
                and not (await buffer.wait_room() and self.peer.is_open)
            ):
                return
            self.peer.send(invocation_line(id, tail), arrived if place == len(listeners) else None)
        if not listeners:
            arrived()

    async def stop_sending_messages(self) -> None:
        """Hand over nothing more, and wait until what was has left: it must not go back as well.
        The task may wait for the peer's word.
        """
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        await self.peer.work.send_buffer.wait_sent_so_far()

    def do_nothing(self, call: MethodCall) -> None:
        """A method of the client's own, named for compatibility."""

    def on_waiting_call(self, name: str) -> None:
        """A call has come that has to wait for the one under way."""

    async def detach_object(self) -> None:
        """The channel is over: detach."""


EVENT_METHODS = {
    "on": ServedMethod(ServedObject.on, NEEDS_NOTHING),
    "once": ServedMethod(ServedObject.once, NEEDS_NOTHING),
    "promisify": ServedMethod(ServedObject.do_nothing, NEEDS_NOTHING),
}


def refused_error(reason: str) -> FederationRefused:
    """The error for a peer without the right."""
    return FederationRefused(url="this bus", reason=reason)


def whole_number_option(options: dict[str, Any], name: str, default: int) -> int:
    """A whole number among options; missing and null mean the default. Raises ConfigError."""
    found = options.get(name)
    if found is None:
        return default
    if (
        isinstance(found, bool)
        or not isinstance(found, int | float)
        or abs(found) > 2**53
        or found != int(found)
    ):
        raise ConfigError(reason=f"{name} is no whole number")
    return int(found)


def ttl_of(options: dict[str, Any]) -> int:
    """The ttl among options, in seconds; 0 and nothing mean npm's default. Raises ConfigError."""
    ttl_s = whole_number_option(options, "ttl", DEFAULT_QUEUE_TTL_S) or DEFAULT_QUEUE_TTL_S
    if not 0 < ttl_s <= MAX_TTL_S:
        raise ConfigError(reason=f"ttl is {ttl_s}; expected seconds, at least 1")
    return ttl_s


def to_storable(value: Any) -> Any:
    """A message as JavaScript would store it: half a surrogate pair, which is no character, becomes
    U+FFFD.
    """
    return (
        LONE_SURROGATE.sub("�", value) if isinstance(value, str) and not value.isascii() else value
    )


def consume_keywords(options: dict[str, Any]) -> ConsumeKeywords:
    """Return npm's options of ``consume`` as ours.

    An option without a meaning beside the others is ignored, as npm does.
    """
    most, reliable = options.get("max"), options.get("reliable") is True
    remove = options.get("remove", True) is not False
    found: ConsumeKeywords = {"remove": remove, "reliable": reliable}
    if most is not None:
        found["max"] = whole_number_option(options, "max", -1)
    if not remove:
        found["index"] = whole_number_option(options, "index", 0)
    if reliable:
        found["last"] = whole_number_option(options, "last", 0)
        found["wait"] = options.get("wait") is not False  # ours: npm knows no lease
    return found
