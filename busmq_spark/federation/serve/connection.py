"""A web socket that speaks busmq's protocol: its channels, and the peer's work under way (protocol
5.2 to 5.5).

Rule 1. A bad packet ends the web socket, a bad creation message or line ends its channel, a call
        that fails is answered. Nothing ends the server.
Rule 2. Bytes taken from the socket and not worked off are counted; above the limits nothing more is
        read: TCP slows the peer down. The quota of a secret counts the bytes held for all its
        peers, and stops reading (gate/per_secret_quotas.py).
Rule 3. If a channel or the socket ends, its object is detached, whatever it was doing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from websockets.exceptions import ConnectionClosed

from busmq_spark.bus.wait_at_most import wait_at_most
from busmq_spark.errors import WireError
from busmq_spark.federation.gate.byte_budget import ByteBudget
from busmq_spark.federation.npm_wire.mux import MuxPacket
from busmq_spark.federation.serve.object_session import ObjectSession
from busmq_spark.federation.serve.send_buffer import MAX_WAITING_BYTES, PeerSendBuffer

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.federation.gate.limits import PeerLimits
    from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuota
    from busmq_spark.federation.gate.rights import Identity
    from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection

MAX_ANSWERS_READ_AT_ONCE = 4
"""Answers read from Redis at once for one peer; each may be as large as the largest message."""
REFUSED_CHANNEL_PAUSE_S = 0.1
"""Seconds without reading after a channel beyond the limit was refused: npm clients retry at
once.
"""
MAX_REMEMBERED_CLOSED_CHANNELS = 10_000
"""The number of closed channels that are remembered: a packet for one of them opens no new
channel.
"""
PROTOCOL_ERROR_CLOSE_CODE = 1002
T = TypeVar("T")
log = logging.getLogger("busmq_spark")


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
        self._worked, self.quota = asyncio.Event(), quota
        most = limits.in_flight_bytes + 2 * limits.message_bytes
        high = min(MAX_WAITING_BYTES, limits.in_flight_bytes)
        self.send_buffer = PeerSendBuffer(
            socket.send, high, most, self._worked.set, quota.count_bytes
        )
        self.taken = ByteBudget(limits.in_flight_bytes)
        """Bytes of messages that were taken from Redis for its objects, and do not wait to be sent
        yet.
        """
        self._sessions: dict[str, ObjectSession] = {}
        self._closed: dict[str, None] = {}
        self._messages = self._bytes = self._partial_bytes = 0
        self.pubsub_bytes = 0
        """Bytes of messages that its pubsubs have received and not sent yet."""
        self.deferred_bytes = 0
        """Bytes of its pushes to queues that are not attached yet."""
        self._gone = self._leaving = False
        self._answers = asyncio.Semaphore(MAX_ANSWERS_READ_AT_ONCE)
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def channel_count(self) -> int:
        """Return the number of its objects."""
        return len(self._sessions)

    async def serve(self) -> None:
        """Until the socket is closed."""
        self.quota.sockets += 1
        sending = asyncio.create_task(self._send_buffered(), name="busmq: sending to a peer")
        watching = asyncio.create_task(self._watch_socket(), name="busmq: watching a peer")
        try:
            while True:
                message: Any = await self._socket.recv()
                if not self._leaving:
                    await self._handle_message(message)
                    del message  # it is worked off
                    self._socket.release_taken()
                    await self.wait_for_turn()
        except ConnectionClosed:
            log.debug("federation: %s broke off", self.identity.name)
        except WireError as error:
            log.warning("federation: %s is cut off: %s", self.identity.name, error)
            await self._socket.close(PROTOCOL_ERROR_CLOSE_CODE, "no packet")
        finally:
            sending.cancel()
            watching.cancel()
            self.send_buffer.close()  # before the objects detach: their messages wait for room
            self.quota.sockets -= 1
            await self._end_all_sessions()

    async def detach_objects(self) -> None:
        """Execute nothing more, detach every object, and wait until the peer has been sent what was
        taken for it.
        """
        self._leaving = True
        for session in self._sessions.values():
            session.stop()
        await wait_at_most(self.limits.close_s / 2, self.send_buffer.wait_sent)
        if self.send_buffer.waiting:
            self.abort()  # messages that the peer has not taken go back to their places
        await self._end_all_sessions()

    def abort(self) -> None:
        """Abort the connection without a close frame."""
        self.send_buffer.close()
        self._socket.transport.abort()

    def send(self, channel: str, body: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Send a packet of data; ``on_sent`` is called once it was sent to the peer."""
        self.send_buffer.put(b"%b1%b" % (channel.encode("ascii"), body), on_sent)

    def close_channel(self, channel: str) -> None:
        """End a channel from this side; the peer gets a closing frame."""
        if channel in self._sessions:
            self.send_buffer.put(MuxPacket(channel, None).encode())
            self._end_session(channel)

    # -- what is in work ---------------------------------------------------------------------------

    def count_begun_call(self, size: int) -> None:
        """A call of ``size`` bytes is begun."""
        self._messages += 1
        self._bytes += size
        self.quota.count_bytes(size)

    def count_finished_calls(self, messages: int, size: int) -> None:
        """``messages`` calls of ``size`` bytes in all are finished."""
        self._messages -= messages
        self._bytes -= size
        self.quota.count_bytes(-size)
        self._worked.set()

    def add_partial_bytes(self, size: int) -> None:
        """So many bytes more belong to lines that are not complete. Raises WireError when
        they are too many: they would wait for ever.
        """
        self._partial_bytes += size
        self.quota.count_bytes(size)
        self._socket.unfinished_line_bytes += size
        if size > 0 and self._partial_bytes > self.limits.message_bytes:
            raise WireError(
                found=f"{self._partial_bytes} bytes of lines that do not end",
                expected="each line in one packet",
            )

    @asynccontextmanager
    async def large_answer(self) -> AsyncIterator[None]:
        """For calls whose answer may be much longer than they are: a few at once, and only while
        there is room to send it.
        """
        async with self._answers:
            await self.send_buffer.wait_room()
            await self.quota.reserve(size := self.limits.message_bytes)
            try:
                yield
            finally:  # what the answer takes waits to be sent by now
                self.quota.replace_reservation(size, 0)

    async def wait_for_turn(self) -> None:
        """Returns when the next line may be executed: at once, unless too much is in work or its
        secret's turn is over.
        """
        if self._over_limits:
            await self._wait_below_limits()
        await self.quota.turns.wait()

    async def work_in_turns(self, steps: Generator[None, None, T]) -> T:
        """The result of work that is done in short steps, in the turns of its secret."""
        turns = self.quota.turns
        while True:
            began = monotonic()
            try:
                next(steps)
            except StopIteration as done:
                found: T = done.value
                return found
            finally:
                turns.charge(monotonic() - began)
            await turns.wait()

    @property
    def _over_limits(self) -> bool:
        limits = self.limits
        return (
            self._messages >= limits.in_flight_messages
            or self._bytes + self.send_buffer.waiting >= limits.in_flight_bytes
        )

    async def _wait_below_limits(self) -> None:
        while self._over_limits and not self._gone:
            self._worked.clear()
            await self._worked.wait()

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
                or self.quota.channels >= most
            ):
                await self._refuse_channel(packet.channel)
                return
            self.quota.channels += 1
            session = self._sessions[packet.channel] = ObjectSession(self, packet.channel)
        await session.receive_packet(packet.body)

    async def _refuse_channel(self, channel: str) -> None:
        found = len(self._sessions), self.quota.channels
        log.warning(
            "federation: %s has %d channels on one socket, %d in all; a further one is refused",
            self.identity.name,
            *found,
        )
        self.send_buffer.put(MuxPacket(channel, None).encode())
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
            task.add_done_callback(lambda _: self.quota.uncount_channel())

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
        self._gone = True
        self.send_buffer.close()
        self._worked.set()

    async def _send_buffered(self) -> None:
        with suppress(ConnectionClosed):
            await self.send_buffer.run()
