"""Giving freed memory back to the system.

The federation server: a bus for peers that come by web socket (protocol chapter 5).

    keyring = Keyring.load("secrets.toml")
    async with Bus(url) as bus, FederationServer(bus, keyring, host="0.0.0.0", port=7001):
        await stopped.wait()

Two protocols at one path, by subprotocol: busmq's own, and ``busmq.bulk.v1``. Beside it
``/healthz`` and ``/metrics``.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import ssl
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from types import TracebackType
from typing import Any, Self, cast

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from busmq_spark.arguments import check_flag, check_instance, check_text, check_texts, check_whole
from busmq_spark.bus.bus import Bus
from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import BusError, ConfigError, LinkLost, StateError
from busmq_spark.federation.bulk.server import FederationBulkServer
from busmq_spark.federation.gate.handshake import (
    BULK_SUBPROTOCOL,
    BUSMQ_HEADER,
    REFUSAL_REASONS,
    WIRE_LOG,
    HandshakeRefusal,
    WebSocketHandshakePolicy,
    client_address,
    decide_handshake,
    is_loopback,
    is_metrics_reader,
    page_path,
    parse_networks,
)
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuotas, QuotaReader
from busmq_spark.federation.gate.socket_limiter import (
    LimitedServerConnection,
    SocketLimiter,
    network_of,
)
from busmq_spark.federation.npm_wire.deflate import server_deflate
from busmq_spark.federation.serve.connection import NpmProtocolServerConnection
from busmq_spark.metrics import CONTENT_TYPE, LIVE_PATH, METRICS_PATH, Metrics
from busmq_spark.option_parsing import describe_stray_character

DISCONNECTS_BEFORE_TRIM = 50
"""Peers that have disconnected from which on memory is given back."""
BYTES_BEFORE_TRIM = 64 * 1024 * 1024
"""Bytes sent by peers that have disconnected, from which on it is, too: decoded, they may be
several times as many.
"""

LARGE_BLOCK_BYTES = 1024 * 1024
_M_MMAP_THRESHOLD = -3


def trim_memory() -> None:
    """Objects of a closed connection are in reference cycles, and glibc keeps freed memory between
    blocks in use (fragmentation).

    After hundreds that did not read, these are hundreds of megabytes. Without glibc, it collects
    the cycles only.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def map_large_blocks() -> None:
    """Let glibc give large blocks back to the system as soon as they are freed.

    By itself it keeps blocks of up to 32 MiB after the first was freed, between those in use.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


class MemoryTrimTrigger:
    """Detects the moment when many peers have disconnected and no more are disconnecting, or when
    those that have gone had sent much.
    """

    def __init__(self) -> None:
        self._most = self._last = 0
        self._gone_bytes = self._trimmed_bytes = 0

    def is_due(self, now: int, gone_bytes: int) -> bool:
        """Called at intervals with the number of connections ``now``, and what all that are closed
        had received.
        """
        calm, self._last = now == self._last, now
        self._most = max(self._most, now)
        settled, self._gone_bytes = (
            self._gone_bytes,
            gone_bytes,
        )  # those of the last interval may still be closing
        if settled - self._trimmed_bytes < BYTES_BEFORE_TRIM and (
            not calm or self._most - now < DISCONNECTS_BEFORE_TRIM
        ):
            return False
        self._most, self._trimmed_bytes = now, settled
        return True


MAX_PEER_CHECK_INTERVAL_S = 1.0
SECRET_LABEL = "secret"  # noqa: S105  # the name of a label
CUT_OFF_REASONS = ("slow", "silent", "expired", "flooded", "unfinished", "revoked")
log = logging.getLogger("busmq_spark")


class FederationServer:
    """Serves the objects of an open bus, from entering to leaving ``async with``; leaving closes
    every socket and detaches every object.

    Without a keyring it listens on loopback only, and refuses web pages unless ``origins`` names
    them. ``path`` must match exactly. ``audience``: the name that tokens must be signed for.
    ``metrics_secret``: the name of the secret whose holder sees the names of secrets at /metrics;
    everybody else sees sums over them, and so do all without it. ``compression``: peers of busmq's
    own protocol that ask for it send and get compressed messages, up to 71 KiB more for each
    connection.
    """

    def __init__(  # noqa: PLR0913  # each is a setting of its own, with a default
        self,
        bus: Bus,
        keyring: Keyring | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str = "/bus",
        limits: PeerLimits | None = None,
        origins: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        metrics: Metrics | None = None,
        proxies: Sequence[str] = (),
        compression: bool = False,
        audience: str | None = None,
        metrics_secret: str | None = None,
    ) -> None:
        check_instance("bus", bus, Bus)
        for name, given, kind in (
            ("keyring", keyring, Keyring),
            ("limits", limits, PeerLimits),
            ("tls", tls, ssl.SSLContext),
            ("metrics", metrics, Metrics),
        ):
            if given is not None:
                check_instance(name, given, kind)
        if audience is not None:
            check_text("audience", audience)
        _check_address(host, port, path)
        if keyring is None and not is_loopback(host):
            raise ConfigError(
                reason=(
                    f"a server at {host!r} needs a keyring: without one it listens on this machine"
                    " only (127.0.0.1, ::1, localhost)"
                )
            )
        self._bus, self._host, self._port, self._tls = bus, host, port, tls
        self._limits, self._metrics = limits or PeerLimits(), metrics or Metrics()
        self._policy = WebSocketHandshakePolicy(
            keyring, path, check_texts("origins", origins), audience
        )
        self._counts = ServerCounters(self._metrics)
        self._proxies, self._compression = (
            parse_networks(check_texts("proxies", proxies)),
            check_flag("compression", compression),
        )
        self._socket_limiter = SocketLimiter(
            self._limits, lambda: self._counts.refused.add(reason="busy"), tls, self._proxies
        )
        if metrics_secret is not None and (keyring is None or metrics_secret not in keyring.names):
            raise ConfigError(
                reason=(
                    f"the secret for /metrics is {metrics_secret!r}; expected the name of a secret"
                    " of the server"
                )
            )
        self._metrics_secret = metrics_secret
        self._draining, self._closing = False, asyncio.Lock()
        self._connections: set[NpmProtocolServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._quotas = PerSecretQuotas(
            self._limits, self._metrics, ("anyone",) if keyring is None else keyring.names
        )
        self._bulk = FederationBulkServer(bus.options, self._limits, self._metrics, self._quotas)
        self._server: Server | None = None
        # Pages that wait for a Redis take no thread from the calls of peers.
        self._page_maker = ThreadPoolExecutor(1, "busmq-page")
        self._watch: asyncio.Task[None] | None = None
        self._revoking: asyncio.Task[None] | None = None
        self._metrics.before_text(self._update_gauges)

    def __repr__(self) -> str:
        return f"FederationServer({self._host}:{self._port})"

    async def __aenter__(self) -> Self:
        """Listen. Raises LinkLost when the address is taken or not ours."""
        async with self._closing:
            await self._listen()
        return self

    async def _listen(self) -> None:
        if self._server is not None:
            raise StateError(
                event="enter",
                what="this server",
                state="open already",
                remedy="Make another FederationServer for another scope",
            )
        limits, self._draining = self._limits, False
        map_large_blocks()
        await self._bulk.__aenter__()
        try:
            self._server = await serve(
                self._serve,
                self._host,
                self._port,
                process_request=self._decide_request,
                process_response=_add_our_header,
                select_subprotocol=_select_subprotocol,
                compression=None,
                extensions=[server_deflate()] if self._compression else None,
                server_header=None,
                open_timeout=limits.handshake_s,
                ping_interval=limits.idle_s / 2,
                # A pong waits for the bytes on their way to us, and the ping for the bytes to the
                # peer: see _watching
                ping_timeout=None,
                close_timeout=limits.close_s,
                max_size=limits.message_bytes,
                backlog=limits.backlog,
                max_queue=(
                    2,
                    1,
                ),  # messages that are read and not taken: each may be as long as is allowed
                logger=WIRE_LOG,
                create_connection=cast(
                    Any, self._socket_limiter.make_socket
                ),  # anything that makes one
            )
        except OSError as error:
            await self._bulk.__aexit__(None, None, None)
            reason = error.strerror or str(error)
            raise LinkLost(
                url=f"{self._host}:{self._port}",
                reason=f"the federation server cannot listen there ({reason})",
            ) from None
        self._port = self._server.sockets[0].getsockname()[1]
        self._watch = asyncio.create_task(
            self._watch_peers(), name="busmq: watching federation peers"
        )
        if self._policy.keyring is not None:
            self._end_revoked_event_rows(self._policy.keyring, set())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Detach what peers had attached, send them what was taken for them, and close every socket
        with 1001 (going away).
        """
        async with self._closing:
            await self._close(kind, error, trace)

    async def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        server = self._server
        if server is None:  # it is closed already
            return
        assert self._watch is not None
        self._draining = True  # /readyz reports it, and new connections are refused
        try:
            await asyncio.gather(
                wait_at_most(self._limits.drain_s, self._bulk.drain),
                wait_at_most(self._limits.close_s, self._detach_peers),
            )
        finally:  # a stop that is cancelled leaves no server that listens
            self._watch.cancel()
            if self._revoking is not None:
                self._revoking.cancel()
            self._server = None
            server.close()
            try:
                await asyncio.gather(*filter(None, (self._revoking,)), return_exceptions=True)
                await self._wait_until_closed(server)
            finally:
                await self._bulk.__aexit__(kind, error, trace)

    async def start(self) -> Self:
        """Listen, as ``async with`` does, and return the server; ``aclose`` ends it.

        A call during ``aclose`` waits for its end first.

        Raises:
            LinkLost: The address is taken, or is not of this machine.
            StateError: The server is open already.

        Example:
            server = await FederationServer(bus, keyring, port=9000).start()
            try:
                ...
            finally:
                await server.aclose()
        """
        return await self.__aenter__()

    async def aclose(self) -> None:
        """Do what leaving ``async with`` does. A server that is closed is left alone. Several calls
        at once wait for the same end.
        """
        await self.__aexit__(None, None, None)

    async def _detach_peers(self) -> None:
        await asyncio.gather(*(connection.detach_objects() for connection in self._connections))

    async def _wait_until_closed(self, server: Server) -> None:
        """Until all sockets are; peers that hold that up are left without detaching their
        objects.
        """
        try:
            async with asyncio.timeout(3 * self._limits.close_s):
                await asyncio.shield(server.wait_closed())
        except TimeoutError:
            log.warning(
                "federation: %d peers are left without detaching their objects", len(self._tasks)
            )
            for task in tuple(self._tasks):
                task.cancel()
            await server.wait_closed()

    @property
    def port(self) -> int:
        """Return the port of the server; known once it listens."""
        return self._port

    @property
    def url(self) -> str:
        """Return the URL that peers use."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'ws' if self._tls is None else 'wss'}://{host}:{self._port}{self._policy.path}"

    @property
    def metrics(self) -> Metrics:
        """Return the metrics of the server."""
        return self._metrics

    def reload(self, keyring: Keyring | None = None, tls: ssl.SSLContext | None = None) -> None:
        """Use other secrets or another certificate from now on. Peers whose secret is gone or has
        other rights are cut off.

        Args:
            keyring: The new secrets, or None to keep the present ones.
            tls: The new certificate, or None to keep the present one.
        """
        if tls is not None:
            self._socket_limiter.tls = tls
            log.info("federation: the certificate is read anew")
        if keyring is None:
            return
        gone = {*(self._policy.keyring.names if self._policy.keyring else ())} - {*keyring.names}
        log.info("federation: the secrets are read anew; %d are gone", len(gone))
        self._policy = replace(self._policy, keyring=keyring)
        self._end_revoked_event_rows(keyring, gone)
        for socket in tuple(self._socket_limiter.sockets):
            if socket.accepted is not None and not keyring.holds(socket.accepted.identity):
                self._cut_off(socket, "revoked", "has shown a secret that has changed,")

    def _end_revoked_event_rows(self, keyring: Keyring, gone: set[str]) -> None:
        """Let no queue get events any more that a secret has lost the right to; ``gone`` are names
        of secrets that are no more.
        """

        async def end() -> None:
            try:
                ended = await self._bus._end_revoked_event_rows(
                    lambda owner, *row: (
                        owner.partition("~")[0] not in gone
                        and keyring.may_keep_event_row(owner, *row)
                    )
                )
            except BusError as error:
                log.warning(
                    "federation: event subscriptions of secrets that have changed stay for now: %s",
                    error,
                )
            else:
                if ended:
                    log.info(
                        "federation: %d event subscriptions ended, since their secrets have lost"
                        " the right",
                        ended,
                    )

        self._revoking = asyncio.create_task(end(), name="busmq: ending event subscriptions")

    # -- handshake ---------------------------------------------------------------------------------

    def _decide_request(
        self, socket: ServerConnection, request: Request
    ) -> Response | Awaitable[Response | None] | None:
        found = page_path(request.path)
        if found == METRICS_PATH:
            return self._metrics_page(list(request.headers.raw_items()))
        if found is not None:
            return self._operator_page(found)
        if self._server is None or self._draining:
            return self._respond_at_capacity()
        headers = list(request.headers.raw_items())
        decision = decide_handshake(request.path, headers, self._policy)
        if isinstance(decision, HandshakeRefusal):
            self._counts.refused.add(reason=decision.reason)
            self._log_refusal(socket, decision.reason)
            return Response(
                decision.status, decision.phrase, Headers(decision.headers), decision.body
            )
        if (
            self._quotas.quota_of(decision.identity.name).sockets
            >= self._limits.connections_per_secret
        ):
            self._log_refusal(socket, "busy")
            return self._respond_at_capacity()
        ours = cast(LimitedServerConnection, socket)
        if not self._socket_limiter.admit(
            ours, network_of(client_address(ours.address, headers, self._proxies))
        ):
            return _unavailable_response()
        ours.accepted = decision
        ours.begin_counting(self._quotas.quota_of(decision.identity.name))
        return None

    def _log_fields(self, socket: ServerConnection, peer: str = "") -> dict[str, str]:
        """Return the fields of a record about a connection, with the client's own address."""
        host = str((socket.remote_address or ("unknown",))[0])
        headers = list(socket.request.headers.raw_items()) if socket.request else []
        address = client_address(host, headers, self._proxies)
        found = {"connection": socket.id.hex, "address": address}
        return {**found, "peer": peer} if peer else found

    def _log_refusal(self, socket: ServerConnection, reason: str) -> None:
        about = {**self._log_fields(socket), "reason": reason}
        log.info("federation: refused a client at %s: %s", about["address"], reason, extra=about)

    def _respond_at_capacity(self) -> Response:
        self._counts.refused.add(reason="busy")
        return _unavailable_response()

    async def _metrics_page(self, headers: Sequence[tuple[str, str]]) -> Response:
        """The text is made in a thread of its own: sources ask Redis. With a secret for metrics,
        only its holder sees sources and the names of secrets.
        """
        named, policy = self._metrics_secret, self._policy
        reader = is_metrics_reader(headers, policy.keyring, named) if named else None
        if reader is False:
            self._counts.refused.add(reason="secret")
            return _make_page(401, "Unauthorized", "it is not the secret for these metrics\n")
        make = partial(
            self._metrics.text,
            "" if reader else SECRET_LABEL,
            sources=bool(reader) or named is None,
        )
        text = await asyncio.get_running_loop().run_in_executor(self._page_maker, make)
        return _make_page(200, "OK", text, CONTENT_TYPE)

    def _operator_page(self, path: str) -> Response:
        status, phrase, text = 200, "OK", "ok\n"
        if path != LIVE_PATH and (self._draining or self._server is None or not self._bus.online):
            status, phrase, text = (
                503,
                "Service Unavailable",
                "leaving\n" if self._draining else "no Redis\n",
            )
        return _make_page(status, phrase, text)

    # -- sockets -----------------------------------------------------------------------------------

    async def _serve(self, socket: ServerConnection) -> None:
        ours = cast(LimitedServerConnection, socket)
        accepted = ours.accepted
        assert accepted is not None
        self._counts.accepted.add(protocol=accepted.protocol)
        about = self._log_fields(ours, accepted.identity.name)
        log.info(
            "federation: %s has connected by %s",
            accepted.identity.name,
            accepted.protocol,
            extra=about,
        )
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if accepted.protocol == BULK_SUBPROTOCOL:
                await self._bulk.serve(ours, accepted.identity)
            else:
                limit_kernel_buffers(socket, self._limits.kernel_bytes)
                await self._serve_peer(
                    NpmProtocolServerConnection(
                        ours,
                        accepted.identity,
                        self._bus,
                        self._limits,
                        self._quotas.quota_of(accepted.identity.name),
                    )
                )
        except ConnectionClosed:
            log.debug("federation: %s broke off", accepted.identity.name, extra=about)
        except Exception:  # whatever it is: one socket must not end the server, and the log has it
            log.exception("federation: a socket of %s failed", accepted.identity.name, extra=about)
        finally:
            log.info("federation: %s has disconnected", accepted.identity.name, extra=about)
            self._tasks.discard(task)

    async def _serve_peer(self, connection: NpmProtocolServerConnection) -> None:
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)

    async def _watch_peers(self) -> None:
        """Disconnect peers that read nothing, that do not answer pings, and whose token has
        expired.
        """
        clock, trim_trigger = asyncio.get_running_loop().time, MemoryTrimTrigger()
        limits = self._limits
        while True:
            await asyncio.sleep(min(MAX_PEER_CHECK_INTERVAL_S, self._limits.send_s / 4))
            if trim_trigger.is_due(
                self._socket_limiter.open_count, self._socket_limiter.gone_bytes
            ):
                trim_memory()
            now = clock()
            for socket in tuple(self._socket_limiter.sockets):
                if socket.stalled_s(now) > limits.send_s:
                    self._cut_off(socket, "slow", f"has taken nothing for {limits.send_s:g} s")
                elif socket.silent_s(now) > limits.idle_s:
                    self._cut_off(socket, "silent", f"has been silent for {limits.idle_s:g} s")
            for quota in self._quotas:
                if (overdue := quota.overdue(now)) is not None:
                    self._cut_off(
                        overdue,
                        "unfinished",
                        "does not end a message while its secret has no more room,",
                    )
            for connection in [one for one in self._connections if not one.work.send_buffer.closed]:
                expires = connection.identity.expires
                if connection.work.send_buffer.flooded:
                    log.info(
                        "federation: more waited for %s than may, and it is cut off",
                        connection.identity.name,
                    )
                    self._counts.cut_off.add(reason="flooded")
                    connection.abort()
                elif expires is not None and time.time() > expires:
                    log.info("federation: the token of %s has run out", connection.identity.name)
                    self._counts.cut_off.add(reason="expired")
                    connection.abort()

    def _cut_off(self, socket: QuotaReader, reason: str, what: str) -> None:
        name = socket.accepted.identity.name if socket.accepted is not None else "a stranger"
        about = {"peer": name, "reason": reason}
        log.info("federation: %s %s and is cut off", name, what, extra=about)
        self._counts.cut_off.add(reason=reason)
        socket.transport.abort()

    def _update_gauges(self) -> None:
        self._counts.sockets.set(self._socket_limiter.open_count)
        connections = tuple(self._connections)  # the loop changes the set meanwhile
        self._counts.channels.set(sum(connection.channel_count for connection in connections))
        self._counts.waiting.set(
            sum(connection.work.send_buffer.waiting for connection in connections)
        )


class ServerCounters:
    """The counters of the server."""

    def __init__(self, metrics: Metrics) -> None:
        self.accepted = metrics.counter(
            "busmq_federation_accepted_total",
            "Handshakes accepted",
            protocol=("busmq", BULK_SUBPROTOCOL),
        )
        self.refused = metrics.counter(
            "busmq_federation_refused_total", "Handshakes refused", reason=REFUSAL_REASONS
        )
        self.cut_off = metrics.counter(
            "busmq_federation_cut_off_total", "Sockets cut off", reason=CUT_OFF_REASONS
        )
        self.sockets = metrics.gauge(
            "busmq_federation_sockets", "Open connections, handshakes under way included"
        )
        self.channels = metrics.gauge("busmq_federation_channels", "Objects of peers")
        self.waiting = metrics.gauge(
            "busmq_federation_waiting_bytes", "Bytes that wait to be sent to peers"
        )


def _check_address(host: str, port: int, path: str) -> None:
    """Raise ConfigError for what is no address to listen at."""
    check_text("host", host)
    check_whole("port", port, 0, 65535)
    if (
        not check_text("path", path).startswith("/")
        or describe_stray_character(path, inside=True)
        or {"?", "#"} & {*path}
    ):
        raise ConfigError(
            reason=(
                f"path is {path!r}; expected the path of a URL, such as /bus, without blank, query"
                " or fragment"
            )
        )


def _make_page(status: int, phrase: str, text: str, kind: str = "text/plain") -> Response:
    body = text.encode()
    headers = (
        ("Content-Type", kind),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    )
    return Response(status, phrase, Headers(headers), body)


def _unavailable_response() -> Response:
    return Response(
        503, "Service Unavailable", Headers([("Content-Length", "0"), ("Connection", "close")]), b""
    )


def limit_kernel_buffers(socket: ServerConnection, size: int) -> None:
    """Let the system keep less of what a peer does not read or may not send yet: by itself it takes
    megabytes. Bulk needs them, over far links.
    """
    below = socket.transport.get_extra_info("socket")
    for buffer in (SO_SNDBUF, SO_RCVBUF):
        below.setsockopt(SOL_SOCKET, buffer, size)


def _add_our_header(_: ServerConnection, __: Request, response: Response) -> None:
    if response.status_code == 101:
        response.headers[BUSMQ_HEADER] = "busmq_spark"


def _select_subprotocol(_: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol(BULK_SUBPROTOCOL) if BULK_SUBPROTOCOL in offered else None
