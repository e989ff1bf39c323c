"""A channel of a connection: its object, its calls in order, and the functions of the peer
(protocol 5.4, 5.5).

Rule 1. Calls are executed in the order in which they came. A call that takes its time holds up
        those after it; pushes do not take any.
Rule 2. A name or number of a call is looked up in the table of its object; nothing else can be
        reached.
Rule 3. A peer that calls a method without the right gets the error in its callback, if it gave one,
        else as an ``error`` event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any

from busmq_spark.errors import BusError, ConfigError, MessageRefused, WireError
from busmq_spark.federation import error_codec
from busmq_spark.federation.npm_wire.creation_message import ObjectCreationMessage
from busmq_spark.federation.npm_wire.dnode import (
    DnodeCallbackRef,
    DnodeCallbacks,
    DnodeMessage,
    LineBuffer,
    call_message,
    invocation_line,
    invocation_tail,
    methods_message,
)
from busmq_spark.federation.npm_wire.json_steps import takes_long
from busmq_spark.federation.npm_wire.mux import PACKET_HEAD_BYTES
from busmq_spark.federation.serve.objects import make_served_object
from busmq_spark.federation.serve.objects.base import MethodCall

if TYPE_CHECKING:
    from busmq_spark.federation.serve.connection import NpmProtocolServerConnection
    from busmq_spark.federation.serve.objects.base import ServedObject

READY_PACKET = b"ready"
log = logging.getLogger("busmq_spark")


class ObjectSession:
    """Bytes of the peer in, calls of an object out."""

    def __init__(self, connection: NpmProtocolServerConnection, channel: str) -> None:
        self.connection, self._channel = connection, channel
        self.bus, self.identity, self.limits = (
            connection.bus,
            connection.identity,
            connection.limits,
        )
        self.functions = DnodeCallbacks()
        self._object: ServedObject | None = None
        self._methods: tuple[str, ...] = ()
        self._lines = LineBuffer(connection.limits.message_bytes)
        self._calls: deque[tuple[str, bytes]] = (
            deque()
        )  # as they came: read, they may take much more memory
        self._working: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._messages = self._bytes = self._partial_bytes = 0
        self.line_bytes = 0
        """Bytes of the line that invokes a function now."""
        self._open = True

    async def receive_packet(self, body: bytes) -> None:
        """The body of one packet, line by line, as fast as there is room for what they ask. A
        packet that cannot be decoded ends the channel.
        """
        try:
            if self._object is None:
                self._create(ObjectCreationMessage.decode(body))
            else:
                for line in self._lines.feed(body):
                    message = await self._decode(line)
                    began = monotonic()
                    self._on_call(message, line)
                    del message
                    self.connection.quota.turns.charge(monotonic() - began)
                    await self.connection.wait_for_turn()
                    if not self._open:
                        return
                self._set_partial_bytes(self._lines.partial_bytes)
        except WireError as error:
            self._on_unreadable(error)
        # A fault of ours in one channel must not end the server
        except Exception as error:  # noqa: BLE001
            self._on_defect(error)

    @property
    def is_open(self) -> bool:
        """Whether what is sent to the peer is on its way to it; else nothing should be taken for
        it.
        """
        return self._open and not (
            self.connection.send_buffer.closed or self.connection.send_buffer.flooded
        )

    def close(self) -> None:
        """End the channel from our side."""
        self.connection.close_channel(self._channel)

    def stop(self) -> None:
        """Nothing is sent and nothing is executed from now on."""
        if self._open:
            self._open = False
            for task in self._tasks - {self._working}:
                # Now: with one more step it would take a message without a peer to send it to
                task.cancel()
            self._calls.clear()
            if self._object is not None:
                self._object.forget_listeners()
            self.connection.count_finished_calls(self._messages, self._bytes)
            self._set_partial_bytes(0)

    async def detach(self) -> None:
        """Detach the object. While Redis is unreachable this waits as long as the bus retries: cut
        short, the object would stay attached.
        """
        self.stop()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._object is None:
            return
        try:
            await self._object.detach_object()
        except BusError as error:
            log.warning(
                "federation: an object of %s could not be detached: %s", self.identity.name, error
            )

    # -- to the peer -------------------------------------------------------------------------------

    def invoke(self, id: int, *arguments: Any) -> None:
        """Call a function of the peer. Raises MessageRefused for what is longer than a message may
        be.
        """
        line = call_message(id, arguments, self.functions).encode()
        self._check_size(len(line))
        self.send(line)

    def invoke_all(self, ids: Iterable[int], *arguments: Any) -> None:
        """Invoke several functions of the peer, like ``invoke``; arguments are encoded once, and no
        functions.
        """
        tail = invocation_tail(arguments)
        self._check_size(len(tail))
        for id in ids:
            if not self.is_open:
                return
            self.send(invocation_line(id, tail))

    def _check_size(self, size: int) -> None:
        if size + PACKET_HEAD_BYTES > self.limits.message_bytes:
            reason = (
                f"it takes {size + PACKET_HEAD_BYTES} bytes on the wire; at most"
                f" {self.limits.message_bytes} are allowed"
            )
            raise MessageRefused(reason=reason)

    def send(self, line: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Send a line, alone in its packet; ``on_sent`` is called once it was sent to the peer."""
        if self._open:
            self.connection.send(self._channel, line, on_sent)

    def send_error(self, callback: DnodeCallbackRef | None, error: BusError) -> None:
        """A call failed: send the error to its callback, or without one to the listeners of
        ``error``.
        """
        if not error_codec.is_shown_to_peers(error):
            log.warning("federation: %s", error)
        if callback is not None:
            self.send(
                call_message(
                    callback.id, [error_codec.error_to_wire(error)], self.functions
                ).encode()
            )
        elif self._object is not None:
            self._object.emit("error", error_codec.error_event_text(error))

    # -- tasks -------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run ``work`` as long as the channel is open; an error in it ends the channel."""
        task = asyncio.create_task(self._run_guarded(work), name=f"busmq: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(
            lambda _: work.close()
        )  # cancelled before its first step, it would complain
        return task

    async def _run_guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except WireError as error:
            self._on_unreadable(error)
        except BusError as error:
            self.send_error(None, error)
        # A fault of ours in one channel must not end the server
        except Exception as error:  # noqa: BLE001
            self._on_defect(error)

    def _on_unreadable(self, error: WireError) -> None:
        log.warning("federation: %s: %s", self.identity.name, error)
        self.close()

    def _on_defect(self, error: Exception) -> None:
        log.error(
            "federation: a channel of %s failed and is closed", self.identity.name, exc_info=error
        )
        self.close()

    # -- what is in work ---------------------------------------------------------------------------

    def count_begun_call(self, size: int) -> None:
        """A call of so many bytes is in work."""
        if self._open:
            self._messages += 1
            self._bytes += size
            self.connection.count_begun_call(size)

    def _set_partial_bytes(self, size: int) -> None:
        """Note that ``size`` bytes belong to a line that is not complete."""
        more, self._partial_bytes = size - self._partial_bytes, size
        self.connection.add_partial_bytes(more)

    def count_finished_call(self, size: int) -> None:
        """A call of ``size`` bytes is finished."""
        if self._open:
            self._messages -= 1
            self._bytes -= size
            self.connection.count_finished_calls(1, size)

    # -- from the peer -----------------------------------------------------------------------------

    def _create(self, made: ObjectCreationMessage) -> None:
        self._methods = made.methods
        self.functions = DnodeCallbacks(self.limits.callbacks_per_channel, first=len(made.methods))
        try:
            self._object = make_served_object(self, made)
        except ConfigError:  # its text has the name, which is the peer's
            raise WireError(
                found="an object with a name that no object of the bus may have",
                expected="text that is not empty, without control characters",
            ) from None
        self.send(READY_PACKET)
        self.send(methods_message(made.methods).encode())

    async def _decode(self, line: bytes) -> DnodeMessage:
        """The call in a line, read in turns where that takes long."""
        if takes_long(line):
            return await self.connection.work_in_turns(
                DnodeMessage.decode_steps(line, self.limits.depth)
            )
        return DnodeMessage.decode(line, self.limits.depth)

    def _on_call(self, message: DnodeMessage, text: bytes) -> None:
        method = message.method
        if isinstance(method, int) and method >= len(self._methods):
            if (function := self.functions.get(method)) is not None:
                self.line_bytes = len(text)
                function(*message.values())
        elif isinstance(method, int):
            self._call(self._methods[method], message, text)
        elif method == "cull":
            for id in message.arguments:
                if isinstance(id, int):
                    self.functions.forget(id)
        elif method in self._methods:
            self._call(method, message, text)

    def _call(self, name: str, message: DnodeMessage, text: bytes) -> None:
        size = len(text)
        if self._working is not None:
            assert self._object is not None
            self._object.on_waiting_call(name)
            self.count_begun_call(size)
            self._calls.append((name, text))
        elif (outcome := self._execute(name, message.call_values(), size)) is not None:
            self.count_begun_call(size)
            self._working = self.spawn(self._work_off_calls(outcome, size), "working off calls")
            self._working.add_done_callback(lambda _: outcome.close())

    async def _work_off_calls(self, outcome: Coroutine[Any, Any, None] | None, size: int) -> None:
        """Finish a call that takes its time, then those that came meanwhile."""
        try:
            while True:
                if outcome is not None:
                    await outcome
                self.count_finished_call(size)
                await self.connection.send_buffer.wait_room()
                await self.connection.quota.turns.wait()
                if not self._calls:
                    return
                name, text = self._calls.popleft()
                size = len(text)
                message = await self._decode(text)
                began = monotonic()
                outcome = self._execute(name, message.call_values(), size)
                del message, text
                self.connection.quota.turns.charge(monotonic() - began)
        finally:
            self._working = None

    def _execute(self, name: str, values: list[Any], size: int) -> Coroutine[Any, Any, None] | None:
        assert self._object is not None
        callback = values.pop() if values and isinstance(values[-1], DnodeCallbackRef) else None
        try:
            method = self._object.allowed_method(name, values)
            outcome: Coroutine[Any, Any, None] | None = method.handler(
                self._object, MethodCall(values, callback, size)
            )
        except WireError:
            raise
        except BusError as error:
            self.send_error(callback, error)
            return None
        return None if outcome is None else self._await_outcome(outcome, callback)

    async def _await_outcome(
        self, outcome: Coroutine[Any, Any, None], callback: DnodeCallbackRef | None
    ) -> None:
        try:
            await outcome
        except BusError as error:
            self.send_error(callback, error)
