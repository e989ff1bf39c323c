"""A web socket that speaks busmq's protocol, and its channels with their objects.

A channel of a connection: its object, its calls in order, and the functions of the peer
(protocol 5.4, 5.5).

Rule 1. Calls are executed in the order in which they came. A call that takes its time holds up
        those after it; pushes do not take any.
Rule 2. A name or number of a call is looked up in the table of its object; nothing else can be
        reached.
Rule 3. A peer that calls a method without the right gets the error in its callback, if it gave one,
        else as an ``error`` event.

A web socket that speaks busmq's protocol: its channels, and the peer's work under way (protocol
5.2 to 5.5).

Rule 1. A bad packet ends the web socket, a bad creation message or line ends its channel, a call
        that fails is answered. Nothing ends the server.
Rule 2. Bytes taken from the socket and not worked off are counted; above the limits nothing more is
        read: TCP slows the peer down. The quota of a secret counts the bytes held for all its
        peers, and stops reading (gate/per_secret_quotas.py).
Rule 3. If a channel or the socket ends, its object is detached, whatever it was doing.

| state of the socket | event | next state |
|---|---|---|
| reading | a packet | reading; a new channel, or a packet of a known one |
| reading | the limits of its work are reached | waiting |
| waiting | calls are worked off, or packets sent | reading |
| reading, waiting | ``detach_objects``: the server leaves | leaving |
| leaving | a packet | leaving; the packet is ignored |
| any | a bad packet, ``abort``, or the peer is gone | gone |

| state of a channel | event | next state |
|---|---|---|
| new | a creation message | open |
| open | a call, while none takes its time | open, or working |
| working | further calls | working; they wait in order |
| working | the last call ends | open |
| any | a bad line, a closing packet of either side, the end of the socket | ended |
| ended | its object is detached | forgotten; later packets are ignored |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed

from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import BusError, ConfigError, WireError
from busmq_spark.federation.bounded_json import takes_long
from busmq_spark.federation.npm_wire.channels import MuxPacket, ObjectCreationMessage
from busmq_spark.federation.npm_wire.dnode import (
    DnodeCallbackRef,
    DnodeCallbacks,
    DnodeMessage,
    LineBuffer,
    methods_message,
)
from busmq_spark.federation.serve.objects import make_served_object
from busmq_spark.federation.serve.objects.base import MethodCall
from busmq_spark.federation.serve.peer import PeerChannel, PeerWork

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.federation.gate.limits import PeerLimits
    from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuota
    from busmq_spark.federation.gate.rights import Identity
    from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection
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
        began = monotonic()
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
        if outcome is not None:
            return self._await_outcome(outcome, callback, began)
        self.work.quota.note_call("busmq", began)
        return None

    async def _await_outcome(
        self, outcome: Coroutine[Any, Any, None], callback: DnodeCallbackRef | None, began: float
    ) -> None:
        try:
            await outcome
            self.work.quota.note_call("busmq", began)
        except BusError as error:
            self.send_error(callback, error)


REFUSED_CHANNEL_PAUSE_S = 0.1
"""Seconds without reading after a channel beyond the limit was refused: npm clients retry at
once.
"""
MAX_REMEMBERED_CLOSED_CHANNELS = 10_000
"""The number of closed channels that are remembered: a packet for one of them opens no new
channel.
"""
PROTOCOL_ERROR_CLOSE_CODE = 1002


class NpmProtocolServerConnection:
    """From an accepted handshake to the end of the socket."""

    def __init__(
        self,
        socket: LimitedServerConnection,
        identity: Identity,
        bus: Bus,
        limits: PeerLimits,
        quota: PerSecretQuota,
    ) -> None:
        self._socket, self.identity, self.bus, self.limits = socket, identity, bus, limits
        self.work = PeerWork(socket, limits, quota)
        self._sessions: dict[str, ObjectSession] = {}
        self._closed: dict[str, None] = {}
        self._leaving = False
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def channel_count(self) -> int:
        """Return the number of its objects."""
        return len(self._sessions)

    async def serve(self) -> None:
        """Until the socket is closed."""
        self.work.quota.sockets += 1
        sending = asyncio.create_task(self._send_buffered(), name="busmq: sending to a peer")
        watching = asyncio.create_task(self._watch_socket(), name="busmq: watching a peer")
        try:
            while True:
                message: Any = await self._socket.recv()
                if not self._leaving:
                    await self._handle_message(message)
                    del message  # it is worked off
                    self._socket.release_taken()
                    await self.work.wait_for_turn()
        except ConnectionClosed:
            log.debug("federation: %s broke off", self.identity.name)
        except WireError as error:
            log.warning("federation: %s is cut off: %s", self.identity.name, error)
            await self._socket.close(PROTOCOL_ERROR_CLOSE_CODE, "no packet")
        finally:
            sending.cancel()
            watching.cancel()
            self.work.send_buffer.close()  # before the objects detach: their messages wait for room
            self.work.quota.sockets -= 1
            await self._end_all_sessions()

    async def detach_objects(self) -> None:
        """Execute nothing more, detach every object, and wait until the peer has been sent what was
        taken for it.
        """
        self._leaving = True
        for session in self._sessions.values():
            session.stop()
        await wait_at_most(self.limits.close_s / 2, self.work.send_buffer.wait_sent)
        if self.work.send_buffer.waiting:
            self.abort()  # messages that the peer has not taken go back to their places
        await self._end_all_sessions()

    def abort(self) -> None:
        """Abort the connection without a close frame."""
        self.work.send_buffer.close()
        self._socket.transport.abort()

    def close_channel(self, channel: str) -> None:
        """End a channel from this side; the peer gets a closing frame."""
        if channel in self._sessions:
            self.work.send_buffer.put(MuxPacket(channel, None).encode())
            self._end_session(channel)

    # -- packets -----------------------------------------------------------------------------------

    async def _handle_message(self, message: str | bytes) -> None:
        packet = MuxPacket.decode(
            message.encode() if isinstance(message, str) else message
        )  # text is bytes to Node's server
        if packet.body is None:
            self._end_session(packet.channel)
            return
        session = self._sessions.get(packet.channel)
        if session is None:
            if packet.channel in self._closed:
                return
            most = self.limits.channels_per_secret
            if (
                len(self._sessions) + len(self._ending) >= self.limits.channels_per_socket
                or self.work.quota.channels >= most
            ):
                await self._refuse_channel(packet.channel)
                return
            self.work.quota.channels += 1
            session = self._sessions[packet.channel] = ObjectSession(
                self.work, self.bus, self.identity, packet.channel, self.close_channel
            )
        await session.receive_packet(packet.body)

    async def _refuse_channel(self, channel: str) -> None:
        found = len(self._sessions), self.work.quota.channels
        log.info(
            "federation: %s has %d channels on one socket, %d in all; a further one is refused",
            self.identity.name,
            *found,
        )
        self.work.send_buffer.put(MuxPacket(channel, None).encode())
        self._remember_closed(channel)
        await asyncio.sleep(REFUSED_CHANNEL_PAUSE_S)

    # -- ending ------------------------------------------------------------------------------------

    def _end_session(self, channel: str) -> None:
        """The channel is closed; its object detaches on its own time."""
        session = self._sessions.pop(channel, None)
        if session is not None:
            session.stop()
            self._remember_closed(channel)
            task = asyncio.create_task(session.detach(), name="busmq: ending a federated object")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.add_done_callback(lambda _: self.work.quota.uncount_channel())

    def _remember_closed(self, channel: str) -> None:
        self._closed[channel] = None
        if len(self._closed) > MAX_REMEMBERED_CLOSED_CHANNELS:
            del self._closed[next(iter(self._closed))]

    async def _end_all_sessions(self) -> None:
        for channel in tuple(self._sessions):
            self._end_session(channel)
        try:
            if self._ending:
                await asyncio.wait(self._ending)
        finally:
            for task in self._ending:  # the server leaves, and has waited long enough
                task.cancel()

    async def _watch_socket(self) -> None:
        """Release the tasks that wait for the peer to read when its connection has closed."""
        await self._socket.wait_closed()
        self.work.on_peer_gone()

    async def _send_buffered(self) -> None:
        with suppress(ConnectionClosed):
            await self.work.send_buffer.run()
