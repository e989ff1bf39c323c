"""A web socket to a federation server that stays open, with its target and its flow control.

The address of a federation server, and the secret for it.

A web socket that counts what passes, and how much may be on its way (socket.py).

Rule 1. Every byte that comes, and every byte that the operating system takes for the server, is a
        sign of life: also a part of a message.
Rule 2. Bytes in the buffers of the operating system and of machines in between are not seen. So a
        silent server has as long as that takes over a slow link.

A web socket to a federation server that stays open: dialled again whenever it is lost, with many
remote objects on it (protocol 5.1 to 5.3).

Rule 1. Nothing is sent twice: each object decides about its messages that were under way when the
        socket broke.
Rule 2. Sending never waits. Senders of pushes ask whether there is room (socket.py): the
        bytes under way on one socket are bounded, and each object has its turn.
Rule 3. A server is gone when no byte at all has passed for too long, not when its pong waits after
        other data.

| state | event | next state |
|---|---|---|
| dialling | the handshake is accepted | open |
| dialling | no connection, no answer in time, or a temporary HTTP status | pausing |
| dialling | any other HTTP status | refused; this is final |
| open | the connection is lost, or silent for too long | pausing; each remote object is lost |
| pausing | the pause ends; a pause is longer after each failure | dialling |
| any | the task of ``run`` is cancelled | closed |
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.protocol import State
from websockets.uri import parse_uri

from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import (
    BusError,
    ConfigError,
    FederationLost,
    FederationRefused,
    TlsError,
    WireError,
)
from busmq_spark.federation.address import (
    authorization_header,
    check_federation_secret,
    dial_error,
    handshake_error,
    no_answer_error,
    open_tunnel_async,
    proxy_of,
)
from busmq_spark.federation.gate.handshake import BUSMQ_HEADER, WIRE_LOG
from busmq_spark.federation.npm_wire.channels import MuxPacket
from busmq_spark.federation.npm_wire.deflate import client_deflate
from busmq_spark.option_parsing import check_web_socket_url
from busmq_spark.queue.caching import MemoizedFunction
from busmq_spark.redis_io.event_loops import LoopTimeout, keep_from_children
from busmq_spark.redis_io.retry import Pauses

WEBSOCKET_SCHEME_OF = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class FederationTarget:
    """``url`` as it was given: queues found at the server are stored under it. The secret is not in
    the repr.
    """

    url: str
    secret: str = field(repr=False)
    tls_ca: str | None = None
    secret_in_url: bool = False
    """For npm servers, which look for it there only: URLs are logged on the way."""
    compression: bool = False

    @property
    def url_to_dial(self) -> str:
        """Return the URL of the connection. It may hold the secret: never print it."""
        parts = urlsplit(self.url)
        query = f"?secret={quote(self.secret, safe='')}" if self.secret_in_url else ""
        return f"{WEBSOCKET_SCHEME_OF[parts.scheme]}://{parts.netloc}{parts.path or '/'}{query}"

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the handshake. It holds the secret: never print it."""
        return authorization_header(self.secret)

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for this URL; return None without TLS. Raises OSError for a file
        that cannot be used now.
        """
        if WEBSOCKET_SCHEME_OF[urlsplit(self.url).scheme] != "wss":
            return None
        return _cached_ssl_context(self.tls_ca, _version_of(self.tls_ca) if self.tls_ca else ())


def _version_of(file: str) -> tuple[int, ...]:
    """Return what changes with a file: one that replaces it may have the same time."""
    found = Path(file).stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _load_ssl_context(tls_ca: str | None, _version: tuple[int, ...]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=tls_ca)


_cached_ssl_context = MemoizedFunction(_load_ssl_context, 16)
"""The context of all dials until the file changes: reading the authorities takes longer than a
handshake. Without a file: whom the system trusts.
"""


def make_federation_target(
    url: str,
    secret: str | None,
    tls_ca: str | None = None,
    *,
    secret_in_url: bool = False,
    compression: bool = False,
) -> FederationTarget:
    """Raises ConfigError before anything is connected. The URL is shown in errors only when it can
    hold no secret.
    """
    try:
        check_web_socket_url(url, WEBSOCKET_SCHEME_OF)
    except ValueError as error:
        raise ConfigError(reason=f"the federation URL is none: {error}") from None
    if not secret:
        raise ConfigError(
            reason=(
                f"no secret for the federation server at {url}: set federate_secret, or federate(…,"
                " secret=…)"
            )
        )
    check_federation_secret(f"the secret for {url}", secret, secret_in_url=secret_in_url)
    if tls_ca and not Path(tls_ca).is_file():
        raise ConfigError(reason=f"federate_tls_ca is {tls_ca!r}, which is no file on this machine")
    return FederationTarget(url, secret, tls_ca, secret_in_url, compression)


MAX_WAITING_BYTES = 256 * 1024
"""Bytes that wait here before the objects wait, each for its turn: so much an object that comes
later waits for at most.
"""
MAX_UNANSWERED_BYTES = 1024 * 1024
"""Bytes of calls of one socket that are not answered, whatever the number of its objects; one call
may be larger.
"""
SLOWEST_LINK_BYTES_PER_S = 32 * 1024
"""Bytes per second of the slowest link that we wait for when nothing is seen of what passes on
it.
"""
LARGE_WRITE_BYTES = 64 * 1024
WRITE_PIECE_BYTES = 64 * 1024


class ByteCountingWebSocket(ClientConnection):
    """``received`` and ``written`` are bytes since the handshake, ``partial`` those that have come
    after the last complete message.
    """

    received = written = partial = 0
    on_writable: Callable[[], None] | None = None

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.partial += len(data)
        super().data_received(data)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    def write(self, packets: list[bytes]) -> None:
        """In one piece. It may be that they are lost with the connection."""
        for packet in packets:
            self.protocol.send_binary(packet)
        if not self.transport.is_closing():  # asyncio would complain of each
            data = b"".join(self.protocol.data_to_send())
            self.written += len(data)
            self.transport.write(data)

    @property
    def bytes_passed(self) -> tuple[int, int]:
        """Return the bytes that have come, and the bytes that the operating system has taken: they
        change as long as bytes pass.
        """
        return self.received, self.written - self.transport.get_write_buffer_size()


class SendWindow:
    """The bytes that wait and are under way on one socket, and the senders that wait for room, each
    in its turn.
    """

    def __init__(self) -> None:
        self.waiting = self.under_way = 0
        self._turns: dict[Callable[[], None], None] = {}
        self._soon: asyncio.Handle | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more call may be made."""
        return self.waiting < MAX_WAITING_BYTES and self.under_way < MAX_UNANSWERED_BYTES

    def call_when_room(self, go_on: Callable[[], None]) -> None:
        """Call it once when there is room, after those that wait already."""
        self._turns[go_on] = None
        self.resume_if_room()

    def resume_if_room(self) -> None:
        """Call those that wait, if there is room."""
        if self._turns and self._soon is None and self.has_room:
            self._soon = asyncio.get_running_loop().call_soon(self._call_waiting)

    def reset(self) -> None:
        """The socket is gone; who waited waits for another."""
        self.waiting = self.under_way = 0
        self._turns.clear()

    def _call_waiting(self) -> None:
        self._soon = None
        for go_on in tuple(self._turns):
            if not self.has_room:
                return
            self._turns.pop(go_on, None)
            go_on()


class PongConfirmationTracker:
    """The proofs of pongs: bytes that were sent before a ping have arrived when its pong comes."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque()
        self._before = float("-inf")

    def add_pong(self, at: float, now: float) -> None:
        """The pong of a ping that was sent at ``at``."""
        self._times.append((at, now))

    def proven_send_time(self, since: float) -> float:
        """Return a time: bytes that were sent before it had arrived at ``since``."""
        while self._times and self._times[0][1] <= since:
            self._before = self._times.popleft()[0]
        return self._before


HEARTBEAT_INTERVAL_S = 10.0
SILENCE_TIMEOUT_S = 10.0
"""A server whose pong is due counts as lost after so long without data, plus the time that data
under way takes on a slow link.
"""
ANSWER_TIMEOUT_S = 60.0
"""A server that has not answered a call for so long after its arrival counts as lost, even if it
still answers pings.
"""
HANDSHAKE_TIMEOUTS_S = (10.0, 30.0)
"""Seconds that a handshake may take, at first and at most. A handshake that takes longer doubles
the time of the next: where thousands come back to a server at once, none would be through before
all of them gave up.
"""
DIAL_PAUSES_S = (0.05, 5.0)
"""Shortest and longest pause between two tries to dial."""
MAX_MESSAGE_BYTES = 100 * 1024 * 1024
"""Largest message taken, as by Node."""
_OWN_PROXY_RULES: dict[str, Any] = (
    {"proxy": None} if "proxy" in signature(connect).parameters else {}
)
"""Keeps websockets from looking for a proxy itself, as it does from version 15 on."""
log = logging.getLogger("busmq_spark")


class _ConnectWithoutRedirects(connect):
    """A redirect is an error: the secret is for the server of the URL only."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class RemoteEnd(Protocol):
    """A remote object on a web socket, as the socket sees it: the end of a channel."""

    id: str
    ready: bool

    def receive_packet(self, body: bytes) -> None: ...
    def end_for_protocol_error(self, error: WireError) -> None: ...
    def end_as_lost(self, why: BusError) -> None: ...
    def end_if_overdue(self, arrived: float) -> None: ...


class ReconnectingWebSocket:
    """Runs from ``run`` until cancelled or refused. ``changed`` is called when it opens, when it is
    lost and when it is refused.
    """

    def __init__(
        self,
        target: FederationTarget,
        spawn: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]],
        changed: Callable[[], None],
    ) -> None:
        self.target = target
        self.why: BusError = self._lost_error("it was not reached yet")
        """The last error; FederationRefused is final."""
        self._spawn, self._changed = spawn, changed
        self._socket: ByteCountingWebSocket | None = None
        self._remotes: dict[str, RemoteEnd] = {}
        self.send_window = SendWindow()
        self._outbox: deque[bytes] = deque()
        self._flushing = False
        self._silent = ""
        self._open_s = HANDSHAKE_TIMEOUTS_S[0]

    @property
    def is_ours(self) -> bool:
        """Whether the server is of our kind, and not npm's."""
        response = self._socket.response if self._socket is not None else None
        return response is not None and BUSMQ_HEADER in response.headers

    @property
    def is_open(self) -> bool:
        """Whether remote objects can be opened now."""
        return self._socket is not None

    async def run(self) -> None:
        """Dial, read, and dial again."""
        pauses = Pauses(*DIAL_PAUSES_S)
        while True:
            try:
                socket = await self._dial()
            except FederationRefused as error:
                log.debug("federation: refused: %s", error)
                self.why = error
                self._changed()
                return
            except (FederationLost, TlsError) as error:  # a certificate may be renewed
                log.debug("federation: not connected: %s", error)
                self.why = error
                self._changed()
                await asyncio.sleep(pauses.next_s())
                continue
            began = asyncio.get_running_loop().time()
            log.debug("federation: connected to %s", self.target.url)
            await self._receive_packets(socket)
            # A server that closes each connection at once is dialled with pauses.
            pauses = (
                Pauses(*DIAL_PAUSES_S) if asyncio.get_running_loop().time() - began > 1 else pauses
            )
            await asyncio.sleep(pauses.next_s())

    def abort_connections(self) -> None:
        """Abort the connection, which seems dead; it is dialled again."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def close(self) -> None:
        """Send what is left and a close frame, if connected."""
        if self._socket is not None:
            self._flush(all_of_it=True)
            await wait_at_most(1, self._socket.close)

    def add_remote(self, remote: RemoteEnd) -> None:
        """Packets with its id are for this remote object."""
        self._remotes[remote.id] = remote

    def remove_remote(self, remote: RemoteEnd) -> None:
        """Remove a remote object: messages that still come for it are ignored."""
        self._remotes.pop(remote.id, None)

    def send(self, packet: bytes) -> None:
        """In the order of the calls. If the socket is lost first, so is the packet, and its remote
        object gets the error.
        """
        self._outbox.append(packet)
        self.send_window.waiting += len(packet)
        self._flush_soon()

    # -- inside ------------------------------------------------------------------------------------

    async def _dial(self) -> ByteCountingWebSocket:
        try:
            trust = self.target.ssl_context
            options: dict[str, Any] = {
                **_OWN_PROXY_RULES,
                **({} if trust is None else {"ssl": trust}),
            }
            uri = parse_uri(self.target.url_to_dial)
            if proxy := proxy_of(self.target.url, uri.host, uri.port, secure=uri.secure):
                options["sock"] = await open_tunnel_async(
                    proxy, self.target.url, uri.host, uri.port, self._open_s
                )
            connecting = _ConnectWithoutRedirects(
                self.target.url_to_dial,
                additional_headers=self.target.headers,
                create_connection=ByteCountingWebSocket,
                compression=None,
                extensions=[client_deflate()] if self.target.compression else None,
                open_timeout=None,
                ping_interval=None,
                close_timeout=1,
                max_size=MAX_MESSAGE_BYTES,
                write_limit=WRITE_PIECE_BYTES,
                logger=WIRE_LOG,
                **options,
            )
            async with LoopTimeout(self._open_s):
                made = await connecting
            self._open_s = HANDSHAKE_TIMEOUTS_S[0]
            keep_from_children(made.transport)
            return cast("ByteCountingWebSocket", made)
        except FederationLost:
            raise
        except InvalidStatus as error:
            location = error.response.headers.get("Location", "")
            raise handshake_error(
                self.target.url,
                error.response.status_code,
                location=location,
                secret_in_url=self.target.secret_in_url,
            ) from None
        except TimeoutError:
            within, self._open_s = self._open_s, min(2 * self._open_s, HANDSHAKE_TIMEOUTS_S[1])
            raise self._lost_error(
                f"no handshake within {within:g} s; npm servers are silent when the path is wrong"
            ) from None
        except (InvalidHandshake, EOFError) as error:
            raise no_answer_error(self.target.url, error) from None
        except OSError as error:
            raise dial_error(self.target.url, error) from None

    async def _receive_packets(self, socket: ByteCountingWebSocket) -> None:
        self._socket, self._silent = socket, ""
        socket.on_writable = self._flush_soon
        self._outbox.clear()
        self.send_window.reset()
        beat = self._spawn(self._send_heartbeats(socket), "the heartbeat of a federation link")
        reason = "the link was closed"
        try:
            self._changed()
            while True:
                message = await socket.recv()
                socket.partial = 0
                self._on_packet(message if isinstance(message, bytes) else message.encode())
        except ConnectionClosed as closed:
            reason = self._silent or f"the link was lost ({closed})"
            if socket.partial > LARGE_WRITE_BYTES:
                reason += (
                    f"; {socket.partial} bytes of a message had come, which comes again from its"
                    " beginning"
                )
        finally:
            beat.cancel()
            self._socket = None
            socket.transport.abort()
            log.debug("federation: %s: %s", self.target.url, reason)
            self._end_remotes(self._lost_error(reason))

    def _on_packet(self, message: bytes) -> None:
        try:
            packet = MuxPacket.decode(message)
        except WireError as error:
            log.warning("%s", error)
            return
        remote = self._remotes.get(packet.channel)
        if remote is None:
            return  # late, for a remote object that is closed
        if packet.body is None:
            self.remove_remote(remote)
            remote.end_as_lost(
                self._lost_error(
                    "the server closed the channel" if remote.ready else self._refusal_reason()
                )
            )
            return
        try:
            remote.receive_packet(packet.body)
        except WireError as error:
            remote.end_for_protocol_error(error)

    def _refusal_reason(self) -> str:
        return (
            f"the server refused one more object beside {len(self._remotes)} on this web socket;"
            " its limit is channels_per_socket"
        )

    def _end_remotes(self, why: FederationLost) -> None:
        self.why = why
        remotes, self._remotes = self._remotes, {}
        self._outbox.clear()
        self._changed()
        for remote in remotes.values():
            remote.end_as_lost(why)
        self.send_window.reset()

    async def _send_heartbeats(self, socket: ByteCountingWebSocket) -> None:
        """Send pings, which npm servers answer as well: a server that does not, and sends nothing
        else either, counts as lost.
        """
        clock, pong_times = asyncio.get_running_loop().time, PongConfirmationTracker()
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)
                if socket.partial <= LARGE_WRITE_BYTES:  # else answers may wait for a long message
                    arrived = pong_times.proven_send_time(clock() - ANSWER_TIMEOUT_S)
                    for remote in tuple(self._remotes.values()):
                        remote.end_if_overdue(arrived)
                asked, pong = (
                    clock(),
                    asyncio.create_task(_ping(socket), name="busmq: a ping of a federation link"),
                )
                try:
                    if not await self._wait_for_pong(socket, pong):
                        socket.transport.abort()
                        return
                finally:
                    pong.cancel()
                pong_times.add_pong(asked, clock())

    async def _wait_for_pong(self, socket: ByteCountingWebSocket, pong: asyncio.Task[bool]) -> bool:
        """True with the pong; false when nothing has passed for too long."""
        silent_s, life, step_s = 0.0, socket.bytes_passed, SILENCE_TIMEOUT_S / 4
        while not pong.done():
            under_way = self.send_window.under_way
            if silent_s >= SILENCE_TIMEOUT_S + under_way / SLOWEST_LINK_BYTES_PER_S:
                self._silent = (
                    f"nothing has passed for {silent_s:.0f} s, not even the answer to a ping;"
                    f" {under_way} bytes of calls are under way"
                )
                return False
            await asyncio.wait({pong}, timeout=step_s)
            silent_s, life = (
                (silent_s + step_s if socket.bytes_passed == life else 0.0),
                socket.bytes_passed,
            )
        return pong.result()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self, *, all_of_it: bool = False) -> None:
        """Send as much as there is room for; the rest when there is."""
        self._flushing = False
        socket = self._socket
        if socket is None or socket.protocol.state is not State.OPEN:
            return  # the reading task reports the loss
        while self._outbox and (all_of_it or not socket.paused):
            packets, size = [], 0
            while self._outbox and size < WRITE_PIECE_BYTES:
                packets.append(self._outbox.popleft())
                size += len(packets[-1])
            self.send_window.waiting -= size
            socket.write(packets)
        self.send_window.resume_if_room()

    def _lost_error(self, reason: str) -> FederationLost:
        return FederationLost(url=self.target.url, reason=reason)


async def _ping(socket: ByteCountingWebSocket) -> bool:
    """True when it has come; false when the connection is lost first."""
    try:
        await (await socket.ping(b"hb"))
    except ConnectionClosed:
        return False
    return True
