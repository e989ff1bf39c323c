"""A web socket that speaks busmq's protocol: its channels, and the peer's work under way (protocol
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
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed

from busmq_spark.bus.wait_at_most import wait_at_most
from busmq_spark.errors import WireError
from busmq_spark.federation.npm_wire.mux import MuxPacket
from busmq_spark.federation.serve.object_session import ObjectSession
from busmq_spark.federation.serve.peer_work import PeerWork

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.federation.gate.limits import PeerLimits
    from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuota
    from busmq_spark.federation.gate.rights import Identity
    from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection

REFUSED_CHANNEL_PAUSE_S = 0.1
"""Seconds without reading after a channel beyond the limit was refused: npm clients retry at
once.
"""
MAX_REMEMBERED_CLOSED_CHANNELS = 10_000
"""The number of closed channels that are remembered: a packet for one of them opens no new
channel.
"""
PROTOCOL_ERROR_CLOSE_CODE = 1002
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
        log.warning(
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
