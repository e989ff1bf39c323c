"""The limits on sockets: of all peers, and of one address. Sockets that are not let in yet have
places of their own, which are few.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import zlib
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from busmq_spark.federation.gate.handshake import client_address
from busmq_spark.federation.gate.per_secret_quotas import MAX_TURN_S
from busmq_spark.federation.npm_wire.deflate import MAX_RATIO, LazyDeflate
from busmq_spark.federation.send_stall_meter import SendStallMeter, is_readable, unsent_bytes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Network, IPv6Network

    from busmq_spark.federation.gate.handshake import HandshakeAcceptance
    from busmq_spark.federation.gate.limits import PeerLimits
    from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuota

PIECE_BYTES = 4 * 1024
"""Received bytes that are taken apart at once: they may be hundreds of frames."""
FRAME_OVERHEAD_BYTES = 256
"""The bytes of a frame of a message beside its payload."""
DATA_OPCODES = (Opcode.CONT, Opcode.TEXT, Opcode.BINARY)
IPV6_PREFIX_BITS = 64
"""Length in bits of the IPv6 prefix that one site gets: a client with one address of the prefix can
use all of them.
"""
HANDSHAKE_GRACE_S = 0.25
"""Shortest age of a handshake that is closed for the sake of others."""
HANDSHAKES_PER_TURN = 50
log = logging.getLogger("busmq_spark")


class SocketLimiter:
    """Counts the sockets of a server, and refuses those above the limits."""

    def __init__(
        self,
        limits: PeerLimits,
        refused: Callable[[], None],
        tls: ssl.SSLContext | None = None,
        proxies: Sequence[IPv4Network | IPv6Network] = (),
    ) -> None:
        self.limits, self._refused, self.tls, self.proxies = limits, refused, tls, proxies
        self._by_address: Counter[str] = Counter()
        self._admitted = 0
        self._pending: dict[LimitedServerConnection, str] = {}
        self._crowds: dict[
            str, dict[LimitedServerConnection, None]
        ] = {}  # the same by address, the oldest first
        self._ending = False
        self.sockets: set[LimitedServerConnection] = set()
        """The sockets that speak HTTP or more: under TLS those whose TLS handshake is over."""
        self.gone_bytes = 0
        """Bytes that sockets had received which are closed by now."""

    def make_socket(self, *args: Any, **keywords: Any) -> ServerConnection:
        """Make the connection object of a socket for websockets."""
        return LimitedServerConnection(self, *args, **keywords)

    @property
    def open_count(self) -> int:
        """Sockets, handshakes under way included."""
        return self._admitted + len(self._pending)

    def count_handshake(self, socket: LimitedServerConnection, address: str) -> None:
        """Count another socket in its handshake. Above the limit, the oldest handshake of the
        address that has most of them is closed.

        It is closed a moment later, so that a crowd does not end those whose request is on its way;
        above twice the limit at once.
        """
        self._add_pending(socket, address)
        if len(self._pending) > 2 * self.limits.handshakes:
            self._end_handshake(self._oldest_of_crowd())
        if len(self._pending) > self.limits.handshakes and not self._ending:
            self._ending = True
            socket.loop.call_later(HANDSHAKE_GRACE_S, self._end_crowd, socket.loop)

    def _end_crowd(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close handshakes above the limit, a few in each turn of the loop."""
        for _ in range(HANDSHAKES_PER_TURN):
            if len(self._pending) <= self.limits.handshakes:
                self._ending = False
                return
            oldest = self._oldest_of_crowd()
            age_s = loop.time() - oldest.made_at
            if age_s < HANDSHAKE_GRACE_S:
                loop.call_later(HANDSHAKE_GRACE_S - age_s, self._end_crowd, loop)
                return
            self._end_handshake(oldest)
        loop.call_soon(self._end_crowd, loop)

    def _oldest_of_crowd(self) -> LimitedServerConnection:
        crowded = max(self._crowds, key=lambda address: len(self._crowds[address]))
        return next(iter(self._crowds[crowded]))

    def _add_pending(self, socket: LimitedServerConnection, address: str) -> None:
        self._pending[socket] = address
        self._crowds.setdefault(address, {})[socket] = None

    def _remove_pending(self, socket: LimitedServerConnection) -> bool:
        """Whether it was in its handshake."""
        address = self._pending.pop(socket, None)
        if address is None:
            return False
        crowd = self._crowds[address]
        del crowd[socket]
        if not crowd:
            del self._crowds[address]
        return True

    def _end_handshake(self, socket: LimitedServerConnection) -> None:
        self._remove_pending(socket)
        self._refused()
        socket.tcp.abort()

    def count_for_client(
        self, socket: LimitedServerConnection, headers: Sequence[tuple[str, str]]
    ) -> None:
        """Count a handshake for the client that a trusted proxy names, and no longer for the
        proxy.
        """
        if self._remove_pending(socket):
            self._add_pending(
                socket, network_of(client_address(socket.address, headers, self.proxies))
            )

    def admit(self, socket: LimitedServerConnection, address: str) -> bool:
        """Count a socket whose handshake is over; False when there are too many."""
        if (
            self._admitted >= self.limits.connections
            or self._by_address[address] >= self.limits.connections_per_address
        ):
            self._refused()
            return False
        if not self._remove_pending(socket):
            return False  # it was ended meanwhile
        self._admitted += 1
        self._by_address[address] += 1
        socket.counted_address = address
        return True

    def count_closed(self, socket: LimitedServerConnection) -> None:
        """Count the socket no more: it is closed."""
        self._remove_pending(socket)
        self.sockets.discard(socket)
        self.gone_bytes, socket.received = self.gone_bytes + socket.received, 0
        address, socket.counted_address = socket.counted_address, None
        if address is not None:
            self._admitted -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


class LimitedServerConnection(ServerConnection):
    """A web socket that its SocketLimiter counts against the limits, with the bytes it receives.

    Received bytes count for the quota of the peer's secret from their arrival until the message
    that they belong to is worked off. They are taken apart piece by piece, in the secret's turns.

    It speaks TLS itself, once it is counted: asyncio shows a socket to its protocol only when the
    handshake of TLS is over.
    """

    accepted: HandshakeAcceptance | None = None
    """The decision of the handshake."""
    tcp: asyncio.Transport
    """Under TLS not the transport that is written to."""
    address = ""
    made_at = 0.0
    """The time of the TCP connection, by the clock of the loop."""
    counted_address: str | None = None
    """The address under which it was let in: with a proxy not its own."""
    received = 0
    """Bytes."""

    def __init__(self, listener: SocketLimiter, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._limiter, self._made = listener, False
        self._head, self._early = listener.limits.head_bytes, b""
        self._line = b""
        self._forwarded: list[tuple[str, str]] = []
        self._quota: PerSecretQuota | None = None
        self._unread, self._at, self._fragments = b"", 0, 0
        self._is_feed_due, self._is_counted = False, True
        self._complete: deque[int] = deque()  # sizes of the messages that are not taken yet
        self._complete_bytes = self._partial_bytes = self._taken_bytes = self._held_bytes = 0
        self.unfinished_line_bytes = 0
        """Bytes of lines that its channels have not received whole."""
        self._progress, self._last_data_at = SendStallMeter(self.loop.time()), self.loop.time()
        self._ping: bytes | None = None
        self._recv_frame = self.protocol.recv_frame
        # Before the library answers a ping
        self.protocol.recv_frame = self._receive_frame  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection is there."""
        assert isinstance(transport, asyncio.Transport)
        self.tcp, self.made_at = transport, self.loop.time()
        self.address = address_of(transport.get_extra_info("peername"))
        self._limiter.count_handshake(self, network_of(self.address))
        if self._limiter.tls is None:
            self._start_http(transport)
        else:
            transport.pause_reading()
            self._securing = asyncio.get_running_loop().create_task(
                self._start_tls(transport, self._limiter.tls), name="busmq: a handshake of TLS"
            )

    async def _start_tls(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        limits, start_tls = self._limiter.limits, asyncio.get_running_loop().start_tls
        try:
            secured = await start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=limits.handshake_s,
                ssl_shutdown_timeout=limits.close_s,
            )
        except OSError as error:  # also those of TLS
            log.debug("federation: %s speaks no TLS (%s)", self.address, error)
            transport.abort()
            return
        if secured is not None and not secured.is_closing():
            self._start_http(secured)
            early, self._early = self._early, b""
            if early:
                self.data_received(early)

    def _start_http(self, transport: asyncio.Transport) -> None:
        self._made = True
        self._limiter.sockets.add(self)
        super().connection_made(transport)
        self.recv_messages.resume = self.adjust_reading

    def stalled_s(self, now: float) -> float:
        """Return the seconds for which the peer has taken nothing although something waits for
        it.
        """
        return self._progress.stalled_s(unsent_bytes(self), now)

    def silent_s(self, now: float) -> float:
        """Return the seconds for which no byte has come from the peer, pongs included, and none has
        left for it.
        """
        return min(
            now - self._last_data_at,
            self.stalled_s(now) if unsent_bytes(self)[0] else now - self._last_data_at,
        )

    # -- frames -----------------------------------------------------------------------------------

    def _receive_frame(self, frame: Frame) -> None:
        """Take a frame. If the peer does not read, its last ping is answered once it does (RFC
        6455, 5.5.3); pongs would pile up without bound.
        """
        if frame.opcode is Opcode.PING and self.paused:
            self._ping = bytes(frame.data)
            return
        if frame.opcode is Opcode.CONT:
            self._fragments += 1
            if self._fragments > (most := self._limiter.limits.fragments):
                raise ProtocolError(f"a message of more than {most} fragments")
        elif frame.opcode in DATA_OPCODES:
            self._fragments = 1
        taken = frame
        if len(frame.data) > FRAME_OVERHEAD_BYTES:
            # The library's parser keeps its last frame until the next one
            taken, frame.data = replace(frame), b""
        self._recv_frame(taken)

    def process_event(self, event: Any) -> None:
        """Called by websockets with the request, and with each frame."""
        super().process_event(event)
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            self._partial_bytes += len(event.data) + FRAME_OVERHEAD_BYTES
            if event.fin:
                self._complete.append(self._partial_bytes)
                self._complete_bytes += self._partial_bytes
                self._partial_bytes = 0

    async def recv(self, decode: bool | None = None) -> Any:
        """The next message; the one before it counts as worked off."""
        self.release_taken()
        deflate = next(
            (each for each in self.protocol.extensions if isinstance(each, LazyDeflate)), None
        )
        message: Any = await super().recv(decode if deflate is None else False)
        self._taken_bytes = self._complete.popleft()
        self._complete_bytes -= self._taken_bytes
        if deflate is None:
            return message
        is_compressed, is_text = deflate.received.popleft()
        if is_compressed:
            message = await self._inflate(deflate, message)
        return message.decode("utf-8", "replace") if is_text else message

    async def _inflate(self, deflate: LazyDeflate, data: bytes) -> bytes:
        """The message, in the turns of its secret, once there is room for the longest that it can
        be.
        """
        quota, most, pieces, size = self._quota, self._limiter.limits.message_bytes, [], 0
        assert quota is not None
        reserved = min(most, MAX_RATIO * len(data))
        await quota.reserve(reserved)
        try:
            began = self.loop.time()
            for piece in deflate.inflate(data):
                size += len(piece)
                if size > most:
                    await self.close(1009, f"over size limit (> {most} bytes)")
                    raise self.protocol.close_exc
                pieces.append(piece)
                quota.turns.charge(self.loop.time() - began)
                await quota.turns.wait()
                began = self.loop.time()
            self._taken_bytes += size
            return b"".join(pieces)
        except zlib.error:
            await self.close(1002, "decompression failed")
            raise self.protocol.close_exc from None
        finally:
            quota.replace_reservation(reserved, 0)
            self._count_held()

    def release_taken(self) -> None:
        """The message taken last is worked off, or counted by its taker."""
        self._taken_bytes = 0
        self._count_held()

    def resume_writing(self) -> None:
        """Called by asyncio when there is room to send."""
        super().resume_writing()
        ping, self._ping = self._ping, None
        if ping is not None and self.protocol.state is State.OPEN:
            self.protocol.send_pong(ping)
            self.send_data()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is closed."""
        self._limiter.count_closed(self)
        if self._made:
            super().connection_lost(exc)
        if self._quota is not None:
            self._quota.remove_reader(self)
            self._quota.count_bytes(-self._held_bytes)
            self._unread, self._at, self._is_counted = b"", 0, False

    def data_received(self, data: bytes) -> None:
        """Some of what the peer sends. A peer that is not let in yet sends no more than a head:
        websockets would keep a megabyte of it.
        """
        if not self._made:  # after the last word of the TLS handshake, in the same packet
            self._early += data
            return
        self._last_data_at = self.loop.time()
        self.received += len(data)
        if self.request is None:
            self._head -= len(data)
            if self._head < 0:
                self.transport.abort()
                return
            if self._limiter.proxies:
                self._look_for_client(data)
        self._unread = self._unread[self._at :] + data
        self._at = 0
        self._count_held()
        if self._quota is not None and not self._quota.turns.is_due:
            self.adjust_reading()
        elif not self._is_feed_due:
            self._feed()

    def begin_counting(self, quota: PerSecretQuota) -> None:
        """From now on what is held for the peer counts for its secret."""
        self._quota = quota
        quota.add_reader(self)
        self._count_held()

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of a message, or of lines, whose end has not come."""
        return self._partial_bytes + len(self.protocol.reader.buffer) + self.unfinished_line_bytes

    @property
    def has_unread_bytes(self) -> bool:
        """Whether the operating system holds bytes of the peer that were not read yet."""
        return is_readable(self.transport.get_extra_info("socket"))

    @property
    def is_taking_pause(self) -> bool:
        """Whether the taker of messages has as many as it may."""
        return self.recv_messages.paused

    def _count_held(self) -> None:
        if self._quota is None or not self._is_counted:
            return
        held = len(self._unread) - self._at + len(self.protocol.reader.buffer)
        held += self._partial_bytes + self._complete_bytes + self._taken_bytes
        more, self._held_bytes = held - self._held_bytes, held
        if more:
            self._quota.count_bytes(more)

    def _look_for_client(self, data: bytes) -> None:
        """Find who the client is before the head is complete: a slow one must not use up the places
        of its proxy.
        """
        self._line += data
        *lines, self._line = self._line.split(b"\n")
        found = [line for line in lines if line[:16].lower() == b"x-forwarded-for:"]
        if found:
            self._forwarded += [("x-forwarded-for", line[16:].decode("latin-1")) for line in found]
            self._limiter.count_for_client(self, self._forwarded)

    def _feed(self) -> None:
        """Take received bytes apart, until the turn ends or as many messages wait as may."""
        self._is_feed_due = False
        quota, began = self._quota, self.loop.time()
        used = 0.0
        while self._at < len(self._unread) and self._may_feed:
            piece = self._unread[self._at : self._at + PIECE_BYTES]
            self._at += len(piece)
            super().data_received(piece)
            self._count_held()
            used = self.loop.time() - began
            if used >= MAX_TURN_S:
                break
        if self._at == len(self._unread):
            self._unread, self._at = b"", 0
        if quota is not None:
            quota.turns.charge(used)
        self.adjust_reading()

    @property
    def _may_feed(self) -> bool:
        return not (
            self.recv_messages.paused or self.transport.is_closing() or self.protocol.reader.eof
        )

    def adjust_reading(self) -> None:
        """Read on, or read no more, as the takers of messages and the secret's quota allow."""
        quota = self._quota
        if self._at < len(self._unread):
            self.transport.pause_reading()
            if self._may_feed and not self._is_feed_due:
                self._is_feed_due = True
                if quota is None:
                    self.loop.call_soon(self._feed)
                else:
                    quota.turns.call_in_turn(self._feed)
        elif self.recv_messages.paused or not (quota is None or quota.may_read(self)):
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def eof_received(self) -> None:
        """The peer sends no more."""
        if self._made:
            super().eof_received()


def address_of(peer: Any) -> str:
    """The address of a peer, as its socket says it."""
    try:
        return str(peer[0]).partition("%")[0]
    except (TypeError, IndexError):
        return str(peer)


def network_of(text: str) -> str:
    """The address, or of an IPv6 one the network it stands for."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))
