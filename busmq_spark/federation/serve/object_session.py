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
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any

from busmq_spark.errors import BusError, ConfigError, WireError
from busmq_spark.federation.bounded_json import takes_long
from busmq_spark.federation.npm_wire.creation_message import ObjectCreationMessage
from busmq_spark.federation.npm_wire.dnode import (
    DnodeCallbackRef,
    DnodeCallbacks,
    DnodeMessage,
    LineBuffer,
    methods_message,
)
from busmq_spark.federation.serve.objects import make_served_object
from busmq_spark.federation.serve.objects.base import MethodCall
from busmq_spark.federation.serve.peer_channel import PeerChannel
from busmq_spark.federation.serve.peer_work import PeerWork

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.federation.gate.rights import Identity
    from busmq_spark.federation.serve.objects.base import ServedObject

READY_PACKET = b"ready"
log = logging.getLogger("busmq_spark")


class ObjectSession(PeerChannel):
    """Bytes of the peer in, calls of an object out."""

    def __init__(
        self,
        work: PeerWork,
        bus: Bus,
        identity: Identity,
        channel: str,
        close: Callable[[str], None],
    ) -> None:
        super().__init__(work, bus, identity, channel, close)
        self._object: ServedObject | None = None
        self._methods: tuple[str, ...] = ()
        self._lines = LineBuffer(self.limits.message_bytes)
        self._calls: deque[tuple[str, bytes]] = (
            deque()
        )  # as they came: read, they may take much more memory
        self._working: asyncio.Task[None] | None = None

    def emit_error(self, text: str) -> None:
        if self._object is not None:
            self._object.emit("error", text)

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
                    self.work.quota.turns.charge(monotonic() - began)
                    await self.work.wait_for_turn()
                    if not self._open:
                        return
                self._set_partial_bytes(self._lines.partial_bytes)
        except WireError as error:
            self._on_unreadable(error)
        # A fault of ours in one channel must not end the server
        except Exception as error:  # noqa: BLE001
            self._on_defect(error)

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
            self.work.count_finished_calls(self._messages, self._bytes)
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
            return await self.work.work_in_turns(DnodeMessage.decode_steps(line, self.limits.depth))
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
                await self.work.send_buffer.wait_room()
                await self.work.quota.turns.wait()
                if not self._calls:
                    return
                name, text = self._calls.popleft()
                size = len(text)
                message = await self._decode(text)
                began = monotonic()
                outcome = self._execute(name, message.call_values(), size)
                del message, text
                self.work.quota.turns.charge(monotonic() - began)
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
