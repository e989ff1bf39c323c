"""Values that a server gives, each checked: one of another kind is a WireError, which ends
its remote object and no more.

An object on a web socket, from its creation message until one side ends it (protocol 5.4 to
5.6).

Rule 1. A Node server dies of what it does not expect: the creation message goes first, then calls
        of the object's own methods, each in one packet.
Rule 2. The number of a callback that was answered is used again: Node keeps every number it has
        seen for the life of the channel (protocol Q31).
Rule 3. Every call with a callback gets an answer: the server's, or FederationLost.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING, Any

from busmq_spark.errors import BusError, FederationLost, RemoteError, WireError
from busmq_spark.federation import error_codec
from busmq_spark.federation.npm_wire import dnode
from busmq_spark.federation.npm_wire.channels import MuxPacket
from busmq_spark.queue.message import MAX_ID, Message

if TYPE_CHECKING:
    from busmq_spark.federation.client.socket import ReconnectingWebSocket, SendWindow
    from busmq_spark.federation.npm_wire.channels import ObjectCreationMessage


def expect_number(found: Any, what: str) -> int:
    """A whole number from 0, also as text: Node sends what Redis says."""
    if isinstance(found, str) and found.isascii() and found.isdecimal() and len(found) < 17:
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_ID:
        raise WireError(
            found=f"{what} that is {_describe_kind(found)}", expected="a whole number from 0"
        )
    return found


def expect_first_number(found: list[Any], what: str) -> int:
    """The number that an answer begins with."""
    return expect_number(found[0] if found else None, what)


def expect_text_as_bytes(found: Any, what: str) -> bytes:
    """A text, as bytes."""
    if not isinstance(found, str):
        raise WireError(found=f"{what} that is {_describe_kind(found)}", expected="text")
    return found.encode("utf-8", "replace")


def make_message(value: Any, id: Any) -> Message:
    """A message of a queue or channel."""
    return Message(
        expect_number(id, "the id of a message"), expect_text_as_bytes(value, "a message")
    )


def expect_texts_by_name(found: list[Any], what: str) -> dict[str, str]:
    """The names and texts that an answer begins with; none where it is null."""
    given = found[0] if found else None
    if not given:
        return {}
    if not isinstance(given, dict):
        raise WireError(found=f"{what} that is {_describe_kind(given)}", expected="an object")
    return {name: str(value) for name, value in given.items()}


def _describe_kind(found: Any) -> str:
    """Not the value itself: it may be long, or no business of a log."""
    return (
        "null"
        if found is None
        else "a number"
        if isinstance(found, int | float)
        else f"a {type(found).__name__}"
    )


MAX_LINE_BYTES = 100 * 1024 * 1024
_ERROR_WITH_CODE = re.compile(r"\[(BUSMQ_\w+)\] (.*)", re.DOTALL)
ReplyCallback = Callable[[list[Any] | BusError], None]


class RemoteObjectConnection:
    """``on_lost`` is called once, unless this side closes it."""

    def __init__(
        self,
        socket: ReconnectingWebSocket,
        creation: ObjectCreationMessage,
        on_lost: Callable[[RemoteObjectConnection, BusError], None],
    ) -> None:
        self.id = secrets.token_hex(8)
        self._socket, self._on_lost = socket, on_lost
        self.ours = socket.is_ours
        """Whether the server is of our kind."""
        self._head = self.id.encode() + b"1"
        self._methods: dict[str, int] = {}
        self._handlers: dict[int, Callable[..., None]] = {}
        self._asked: dict[int, tuple[ReplyCallback, float, int]] = {}
        self._expected: set[asyncio.Future[list[Any]]] = set()
        self._free: list[int] = []
        self._next = 0
        self._lines = dnode.LineBuffer(MAX_LINE_BYTES)
        self.ready = False
        """Whether the server has accepted it."""
        self.over = False
        self._opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        socket.add_remote(self)
        socket.send(MuxPacket(self.id, creation.encode()).encode())

    @property
    def is_awaiting_reply(self) -> bool:
        """Whether an answer is owed."""
        return bool(self._asked)

    async def wait_open(self) -> None:
        """Returns when calls may be made. Raises FederationLost."""
        await self._opening

    @property
    def send_window(self) -> SendWindow:
        """Return the send window of the socket: a sender of much data first asks whether it has
        room.
        """
        return self._socket.send_window

    # -- calls -------------------------------------------------------------------------------------

    def call_without_reply(self, method: str, *args: Any) -> None:
        """Call a method without a callback."""
        self._send(
            dnode.DnodeMessage(
                self._method_number(method),
                [{str(place): value for place, value in enumerate(args)}],
            ).encode()
        )

    def call_for_result(self, method: str, *args: Any) -> asyncio.Future[list[Any]]:
        """Call a method; the result are the values its callback gets after the error. Fails with
        RemoteError and FederationLost.
        """
        future: asyncio.Future[list[Any]] = self._loop.create_future()

        def on_answer(found: list[Any] | BusError) -> None:
            if not future.done():
                complete_future(future, found)

        self._send_with_callback(method, args, on_answer)
        return future

    def push(self, method: str, text: str, answered: ReplyCallback) -> None:
        """``call_for_result`` with one text, the quickest way: it is what most calls are."""
        if self.over or method not in self._methods:
            answered(self._lost_error() if self.over else _missing_method_error(method))
            return
        data = dnode.encode_utf8(quoted(text))
        id = self._allocate_callback_id(answered, len(data))
        body = (
            b'{"method":%d,"arguments":[{"0":%b,"1":"[Function]"}],'
            b'"callbacks":{"%d":["0","1"]},"links":[]}\n'
        )
        self._send(body % (self._methods[method], data, id))

    def on(self, event: str, handler: Callable[..., None]) -> None:
        """Call ``handler`` with the arguments of every such event, until the object is lost or
        closed.
        """
        id, self._next = self._next, self._next + 1
        self._handlers[id] = handler
        self._send(
            dnode.DnodeMessage(
                self._method_number("on"), [{"0": event, "1": "[Function]"}], {str(id): ("0", "1")}
            ).encode()
        )

    def next_event(self, event: str) -> asyncio.Future[list[Any]]:
        """The arguments of the next such event; fails when the object is lost first."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if self.over:
            future.set_exception(self._lost_error())
        else:
            self._expected.add(future)
            future.add_done_callback(self._expected.discard)
            self.on(event, lambda *args: None if future.done() else future.set_result(list(args)))
        return future

    def close(self) -> None:
        """End the object at the server, which detaches it. Callers that wait for an answer get
        FederationLost.
        """
        if not self.over:
            self._socket.remove_remote(self)
            self._socket.send(MuxPacket(self.id, None).encode())
            self._fail_callers(
                FederationLost(url=self._socket.target.url, reason="the object was closed here")
            )

    # -- called by the socket ----------------------------------------------------------------------

    def receive_packet(self, body: bytes) -> None:
        """Raises WireError."""
        if not self.ready:
            if body[:5] != b"ready":
                raise WireError(found="a first packet that is not 'ready'", expected="ready")
            self.ready = True
            return
        for line in self._lines.feed(body):
            self._on_call(dnode.DnodeMessage.decode(line))

    def end_for_protocol_error(self, error: WireError) -> None:
        """End the object at the server, which does not speak the protocol."""
        if not self.over:
            self._socket.send(MuxPacket(self.id, None).encode())
            self.end_as_lost(
                FederationLost(
                    url=self._socket.target.url, reason=f"it does not speak the protocol: {error}"
                )
            )

    def end_as_lost(self, why: BusError) -> None:
        """The socket is gone, or the server has closed the channel."""
        if not self.over:
            self._socket.remove_remote(self)
            self._fail_callers(why)
            self._on_lost(self, why)

    def end_if_overdue(self, arrived: float) -> None:
        """End the object when an answer is overdue: to what was sent before ``arrived``, which has
        been at the server for long.
        """
        oldest = (
            next((sent for _, sent, _ in self._asked.values()), None)
            if self._opening.done()
            else self._began
        )
        if oldest is not None and oldest < arrived:
            self._socket.send(MuxPacket(self.id, None).encode())
            self.end_as_lost(
                FederationLost(
                    url=self._socket.target.url,
                    reason="it has had a call for long, and does not answer it",
                )
            )

    # -- inside ------------------------------------------------------------------------------------

    def _on_call(self, message: dnode.DnodeMessage) -> None:
        if isinstance(message.method, int):
            if (asked := self._asked.pop(message.method, None)) is not None:
                self._free.append(message.method)
                self._free_window_space(asked[2])
                asked[0](message.arguments)
            elif (handler := self._handlers.get(message.method)) is not None:
                handler(*message.arguments)
        elif message.method == "methods" and not self._methods:
            self._methods = {path[-1]: int(id) for id, path in message.callbacks.items()}
            self._send(b'{"method":"methods","arguments":[{}],"callbacks":{},"links":[]}\n')
            if not self._opening.done():
                self._opening.set_result(None)

    def _send_with_callback(
        self, method: str, args: tuple[Any, ...], answered: ReplyCallback
    ) -> None:
        if self.over:
            answered(self._lost_error())
            return
        number, size = (
            self._method_number(method),
            sum(len(arg) for arg in args if isinstance(arg, str)),
        )
        id, last = self._allocate_callback_id(answered, size), str(len(args))
        values = {**{str(place): value for place, value in enumerate(args)}, last: "[Function]"}
        self._send(dnode.DnodeMessage(number, [values], {str(id): ("0", last)}).encode())

    def _method_number(self, method: str) -> int:
        if method not in self._methods:
            raise _missing_method_error(method)
        return self._methods[method]

    def _allocate_callback_id(self, answered: ReplyCallback, size: int) -> int:
        if self._free:
            id = self._free.pop()
        else:
            id, self._next = self._next, self._next + 1
        self._asked[id] = (answered, self._loop.time(), size)
        self.send_window.under_way += size
        return id

    def _free_window_space(self, size: int) -> None:
        self.send_window.under_way -= size
        self.send_window.resume_if_room()

    def _send(self, line: bytes) -> None:
        if not self.over:
            self._socket.send(self._head + line)

    def _fail_callers(self, why: BusError) -> None:
        self.over = True
        if not self._opening.done():
            self._opening.set_exception(why)
            self._opening.exception()  # retrieved: there may be no waiting caller
        asked, self._asked = self._asked, {}
        for answered, _, size in asked.values():
            self._free_window_space(size)
            answered(why)
        for future in tuple(self._expected):
            if not future.done():
                future.set_exception(why)
                future.exception()

    def _lost_error(self) -> FederationLost:
        return FederationLost(url=self._socket.target.url, reason="the link was lost")


def _missing_method_error(method: str) -> WireError:
    return WireError(
        found=f"a list of methods without {method!r}", expected="those that were asked for"
    )


def complete_future(future: asyncio.Future[list[Any]], found: list[Any] | BusError) -> None:
    """Complete a future with the arguments of a callback, in Node's manner: the error first."""
    if isinstance(found, BusError):
        future.set_exception(found)
        future.exception()  # retrieved: the caller may have been cancelled
    elif found and found[0] is not None:
        future.set_exception(error_codec.error_from_wire(found[0]))
        future.exception()
    else:
        future.set_result(found[1:])


def error_from_event(found: Any) -> BusError:
    """Return the error of an ``error`` event. It is text; that of our server begins with the
    code.
    """
    if isinstance(found, str) and (parts := _ERROR_WITH_CODE.fullmatch(found)):
        kind = error_codec.ERRORS_SHOWN_TO_PEERS.get(parts[1])
        return (
            _error_from_text(kind, found)
            if kind is not None
            else RemoteError(remote=parts[1], reason=parts[2])
        )
    return error_codec.error_from_wire(found)


def _error_from_text(kind: type[BusError], text: str) -> BusError:
    """An error of a class of ours whose details have not travelled, with the words that have."""
    error = RemoteError(remote=kind.code, reason=text)
    made = kind.__new__(kind)
    Exception.__init__(made, text)
    made.details = error.details
    return made
