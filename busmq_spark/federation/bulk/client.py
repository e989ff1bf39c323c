"""The client of ``busmq.bulk.v1``: its web socket, its calls, and its notifications.

A blocking web socket for ``busmq.bulk.v1``: large messages go from the kernel into memory that
Arrow can use, and are copied no more.

The handshake is the websockets package's. Its own blocking client hands each message through a
second thread, which costs more than all else here.

Calls over ``busmq.bulk.v1`` that survive broken links: repeatable calls are repeated, and a
range read goes on after the last id that came.

Wakes a waiting thread at a push to any of some queues of another data centre, over
``busmq.bulk.v1``.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from busmq_spark.errors import (
    BusError,
    FederationLost,
    FederationRefused,
    LinkLost,
    MessageRefused,
    WireError,
)
from busmq_spark.federation.address import (
    CONNECT_TIMEOUT_S,
    FederationAddress,
    authorization_header,
    dial_error,
    handshake_error,
    no_answer_error,
    open_tunnel,
    proxy_of,
)
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.frames import (
    BulkFrameKind,
    BulkProtocolFrame,
    decode_error,
    make_wire_error,
)
from busmq_spark.federation.bulk.operations import OPERATIONS, ServerHello
from busmq_spark.federation.bulk.row_frames import RemainingRanges
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL, WIRE_LOG
from busmq_spark.federation.send_stall_meter import is_readable
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.push_listener import PushListenerThread
from busmq_spark.redis_io.retry import FAILOVER_PATIENCE_S, PATIENCE_S, LinkRetry
from busmq_spark.store.protocol import RowStream
from busmq_spark.tracing import span
from busmq_spark.writing.mirror import OriginQueueState, stored_ranges

PING_AFTER_SILENCE_S = 5.0
"""After so long without a byte the server is pinged, and after as long again it counts as gone: a
half-open link never breaks by itself.
"""
SEND_TIMEOUT_S = 20.0
MAX_MESSAGE_BYTES = 1536 * 1024 * 1024
"""Longest message taken: a reply of Redis with one value of 512 MB and what came before it."""
MAX_FRAMES_PER_MESSAGE = 100_000
"""Most frames of a message: websockets sends one in one."""
_SMALL_MESSAGE_BYTES = 64 * 1024
_MAX_PREALLOCATED_BYTES = 16 * 1024 * 1024
"""Memory that an announced length gets at once."""


class BulkWebSocket:
    """An open connection. Only one thread may use it. Everything that goes wrong on the way is
    FederationLost; then ``close`` it.
    """

    def __init__(self, address: FederationAddress) -> None:
        """Connects. Raises FederationLost, FederationRefused (``details["status"]``: the HTTP
        status; 101 where bulk is not spoken), TlsError.
        """
        self.url = address.url
        self.date = ""
        """The header Date of the handshake: the clock of the server, to the second."""
        self._buffer = memoryview(bytearray(_SMALL_MESSAGE_BYTES))
        self._at = self._used = 0
        uri = address.parse_url()
        try:
            self._socket = _dial(uri, address)
        except BusError:
            raise
        except OSError as error:
            raise dial_error(self.url, error) from None
        try:
            self._handshake(uri, address.secret)
        except BaseException:
            self._socket.close()
            raise

    @property
    def certificate_ends(self) -> str:
        """The time at which the certificate of the server ends, '' without TLS."""
        certificate = self._socket.getpeercert() if hasattr(self._socket, "getpeercert") else {}
        return str((certificate or {}).get("notAfter", ""))

    def send(self, message: bytes) -> None:
        """Send one binary message."""
        self._send_all(Frame(Opcode.BINARY, message).serialize(mask=True))

    def receive(self) -> memoryview:
        """The next message; its memory is its own and aligned."""
        parts: list[memoryview] = []
        size = 0
        while True:
            final, opcode, length = self._read_frame_head()
            if opcode >= Opcode.CLOSE:
                self._handle_control_frame(opcode, bytes(self._read_payload(length)))
                continue
            size += length
            if (
                opcode != (Opcode.CONT if parts else Opcode.BINARY)
                or size > MAX_MESSAGE_BYTES
                or len(parts) >= MAX_FRAMES_PER_MESSAGE
            ):
                raise make_wire_error(
                    f"a web-socket frame {opcode} of {length} bytes behind {len(parts)} others",
                    "binary messages",
                )
            parts.append(self._read_payload(length))
            if final:
                return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def is_usable(self) -> bool:
        """Whether the link seems whole; for between calls, when nothing but pings can come."""
        try:
            while self._used > self._at or self._receive_available():
                _, opcode, length = self._read_frame_head()
                if opcode < Opcode.CLOSE:
                    self._read_payload(length)  # rows of a read that was given up
                    continue
                self._handle_control_frame(opcode, bytes(self._read_payload(length)))
        except (FederationLost, WireError):
            return False
        return True

    def _receive_available(self) -> bool:
        """Take what has come without waiting. Asking the socket itself, since under TLS not all
        that comes is for us.
        """
        try:
            self._socket.settimeout(0)
            self._at, self._used = 0, self._socket.recv_into(self._buffer)
            self._socket.settimeout(PING_AFTER_SILENCE_S)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.settimeout(PING_AFTER_SILENCE_S)
            return False
        except OSError as error:
            raise self._lost_error(error.strerror or str(error)) from error
        if not self._used:
            raise self._lost_error("it closed the connection")
        return True

    def close(self) -> None:
        """Say good-bye if that is possible at once, and close."""
        with suppress(OSError):
            self._socket.settimeout(0)
            self._socket.send(Frame(Opcode.CLOSE, struct.pack(">H", 1000)).serialize(mask=True))
        self._socket.close()

    # -- opening -----------------------------------------------------------------------------------

    def _handshake(self, uri: WebSocketURI, secret: str) -> None:
        protocol = ClientProtocol(
            uri, subprotocols=[Subprotocol(BULK_SUBPROTOCOL)], logger=WIRE_LOG
        )
        request = protocol.connect()
        request.headers.update(authorization_header(secret))
        protocol.send_request(request)
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        response: Response | None = None
        try:
            for data in protocol.data_to_send():
                self._socket.sendall(data)
            while response is None and protocol.handshake_exc is None:
                if time.monotonic() > deadline and not is_readable(self._socket):
                    raise self._lost_error(
                        f"no answer to the handshake within {CONNECT_TIMEOUT_S:g} s"
                    )
                if data := self._socket.recv(_SMALL_MESSAGE_BYTES):
                    protocol.receive_data(data)
                else:
                    protocol.receive_eof()
                response = next(
                    (event for event in protocol.events_received() if isinstance(event, Response)),
                    None,
                )
        except FederationLost:
            raise
        except OSError as error:
            raise dial_error(self.url, error) from None
        self._check_handshake_response(protocol, response)
        self._socket.settimeout(PING_AFTER_SILENCE_S)

    def _check_handshake_response(
        self, protocol: ClientProtocol, response: Response | None
    ) -> None:
        if response is None:
            raise no_answer_error(self.url, protocol.handshake_exc)
        self.date = response.headers.get("Date", "")
        status = response.status_code
        if status != 101:
            raise handshake_error(self.url, status, location=response.headers.get("Location", ""))
        if isinstance(protocol.handshake_exc, InvalidHandshake | WebSocketException):
            raise self._lost_error(
                f"a handshake that is none ({type(protocol.handshake_exc).__name__})"
            )
        if protocol.subprotocol != BULK_SUBPROTOCOL:
            raise FederationRefused(
                url=self.url, reason=f"it does not speak {BULK_SUBPROTOCOL}", status=status
            )

    # -- bytes -------------------------------------------------------------------------------------

    def _read_frame_head(self) -> tuple[bool, int, int]:
        """Whether the next frame ends a message, its opcode, and the length of its payload."""
        first, second = self._read_few_bytes(2)
        length = second & 0x7F
        if second & 0x80 or first & 0x70:
            raise make_wire_error("a masked or extended frame from a server", "a plain one")
        if length == 126:
            length = struct.unpack(">H", self._read_few_bytes(2))[0]
        elif length == 127:
            length = struct.unpack(">Q", self._read_few_bytes(8))[0]
        if length > (MAX_MESSAGE_BYTES if first & 0x0F < Opcode.CLOSE else 125):
            raise make_wire_error(
                f"a web-socket frame of {length} bytes",
                f"at most {MAX_MESSAGE_BYTES}, and 125 of a control frame",
            )
        return bool(first & 0x80), first & 0x0F, length

    def _handle_control_frame(self, opcode: int, payload: bytes) -> None:
        if opcode == Opcode.PING:
            self._send_all(Frame(Opcode.PONG, payload).serialize(mask=True))
        elif opcode == Opcode.CLOSE:
            code = struct.unpack(">H", payload[:2])[0] if len(payload) >= 2 else 1005
            raise self._lost_error(f"it closed the connection with code {code}")

    def _read_few_bytes(self, count: int) -> memoryview:
        """The next few bytes."""
        while self._used - self._at < count:
            left = self._used - self._at
            self._buffer[:left] = bytes(self._buffer[self._at : self._used])
            self._at, self._used = 0, left
            self._used += self._receive_into(self._buffer[left:])
        self._at += count
        return self._buffer[self._at - count : self._at]

    def _read_payload(self, length: int) -> memoryview:
        """The next ``length`` bytes, in memory of their own."""
        size = min(length, _MAX_PREALLOCATED_BYTES)
        view = memoryview(pa.allocate_buffer(size)).cast("B") if size else memoryview(b"")
        got = min(size, self._used - self._at)
        if got:
            view[:got] = self._buffer[self._at : self._at + got]
            self._at += got
        while got < length:
            if got == size:  # memory is allocated for bytes received, not for an announced length
                size = min(length, 2 * size)
                larger = memoryview(pa.allocate_buffer(size)).cast("B")
                larger[:got] = view
                view = larger
            got += self._receive_into(view[got:])
        return view

    def _receive_into(self, into: memoryview) -> int:
        for asked in (False, True):
            try:
                got: int = self._socket.recv_into(into)
            except TimeoutError:
                if asked:
                    break
                self._send_all(Frame(Opcode.PING, b"").serialize(mask=True))
                continue
            except OSError as error:
                raise self._lost_error(error.strerror or str(error)) from error
            if not got:
                raise self._lost_error("it closed the connection")
            return got
        raise self._lost_error(
            f"no byte within {2 * PING_AFTER_SILENCE_S:g} s, although it was pinged"
        )

    def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            self._socket.settimeout(SEND_TIMEOUT_S)
            while view:
                view = view[self._socket.send(view) :]
            self._socket.settimeout(PING_AFTER_SILENCE_S)
        except OSError as error:
            raise self._lost_error(error.strerror or str(error) or "it takes nothing") from error

    def _lost_error(self, reason: str) -> FederationLost:
        return FederationLost(url=self.url, reason=reason)


def _dial(uri: WebSocketURI, address: FederationAddress) -> Any:
    context = address.make_ssl_context() if uri.secure else None
    if proxy := proxy_of(address.url, uri.host, uri.port, secure=uri.secure):
        made = open_tunnel(proxy, address.url, uri.host, uri.port, CONNECT_TIMEOUT_S)
    else:
        made = socket.create_connection((uri.host, uri.port), timeout=CONNECT_TIMEOUT_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return made
    try:
        return context.wrap_socket(made, server_hostname=uri.host)
    except BaseException:
        made.close()
        raise


READ_CREDIT_BYTES = 16 * 1024 * 1024
"""Bytes of rows that may be on their way; about four replies of Redis. Over a far link it bounds
the rate: credit by round trip.
"""

MAX_CALLS_UNDER_WAY = 64
"""Calls under way at once: as many as a server takes before it reads no further."""
log = logging.getLogger("busmq_spark")


class FederationBulkClient:
    """A connection, opened when it is needed and again when it breaks. Only one thread may use
    it.
    """

    def __init__(self, address: FederationAddress) -> None:
        self.address = address
        self.hello: ServerHello | None = None
        """The server's description of itself; it is None before the first connection."""
        self._socket: BulkWebSocket | None = None
        self._ids = itertools.count(1)
        self._inbox: dict[int, deque[BulkProtocolFrame]] = {}
        self._client = secrets.token_hex(16)

    def call(self, name: str, *arguments: Any, values: Sequence[bytes] = ()) -> Any:
        """The result. Repeated while the link breaks, or the server's own one to Redis, with
        patience; every operation is made for that.

        Raises what the server answers.
        """
        retry = LinkRetry(time.monotonic)
        with span("busmq federation call", operation=name, server=self.address.url):
            while True:
                try:
                    id = self.send_call(name, *arguments, values=values)
                    return self.wait_for_result(id, name)
                except LinkLost as error:
                    self._wait_before_retry(error, retry)

    def send_call(self, name: str, *arguments: Any, values: Sequence[bytes] = ()) -> int:
        """Send a call and do not wait: it needs a :meth:`wait_for_result`. Raises FederationLost
        when the link breaks; none sent has one then.
        """
        socket = self._ensure_connected()
        return self._send_call_on(
            socket, name, arguments, frames.pack_values(values) if values else b""
        )

    def wait_for_result(self, id: int, name: str) -> Any:
        """The result of a call that was sent."""
        frame = self._receive_frame(id)
        del self._inbox[id]
        if frame.kind is not BulkFrameKind.REPLY:
            raise self._drop_connection_and_return(
                frames.make_wire_error(f"{frame.kind.name} in answer to {name}", "REPLY or ERROR")
            )
        try:
            return OPERATIONS[name].decode_result(frame.head)
        except WireError as error:
            raise self._drop_connection_and_return(error) from None

    def call_many(
        self,
        name: str,
        argument_lists: Sequence[Sequence[Any]],
        returned_errors: tuple[type[BusError], ...] = (),
    ) -> list[Any]:
        """The results of calls of one operation, all under way at once; as :meth:`call` of each.
        ``returned_errors`` are results, too.
        """
        results: list[Any] = []
        while len(results) < len(argument_lists):
            waiting: deque[int] = deque()
            try:
                for arguments in argument_lists[len(results) :]:
                    waiting.append(self.send_call(name, *arguments))
                    if len(waiting) >= MAX_CALLS_UNDER_WAY:
                        results.append(
                            self._wait_for_result_or_error(waiting, name, returned_errors)
                        )
                while waiting:
                    results.append(self._wait_for_result_or_error(waiting, name, returned_errors))
            except LinkLost as error:
                log.debug("%s; asked again one by one", error)
                self._discard_results(waiting, name)
                arguments = argument_lists[len(results)]
                try:
                    results.append(self.call(name, *arguments))
                except returned_errors as known:
                    results.append(known)
            except BusError:
                self._discard_results(waiting, name)
                raise
        return results

    def _wait_for_result_or_error(
        self, waiting: deque[int], name: str, returned_errors: tuple[type[BusError], ...]
    ) -> Any:
        try:
            return self.wait_for_result(waiting.popleft(), name)
        except returned_errors as error:
            return error

    def _discard_results(self, waiting: deque[int], name: str) -> None:
        """Calls under way are answered, too, unless the connection is gone."""
        for id in waiting:
            with suppress(BusError):
                self.wait_for_result(id, name)

    def connect(self) -> ServerHello:
        """Connect, unless that is done, with patience, and return the server's description of
        itself.
        """
        if self.hello is None:
            self.call("hello", frames.PROTOCOL_VERSION, self._client)
        assert self.hello is not None
        return self.hello

    def read_ranges(
        self, parts: Sequence[Range], strict: bool, asked: int | None = None
    ) -> RowStream:
        """The rows of ranges, in order, each once, whatever happens to the link meanwhile. At most
        MAX_RANGES_PER_READ.

        ``asked``: the call whose answer they are, where it was sent.
        """
        rest, retry = list(parts), None
        while rest:
            expected = RemainingRanges(rest, strict)
            try:
                for rows in self._receive_rows(
                    self._send_read_call(rest, strict) if asked is None else asked, expected
                ):
                    retry = None
                    yield rows
                return
            except LinkLost as error:
                rest, asked = expected.unread_ranges, None
                self._wait_before_retry(error, retry := retry or LinkRetry(time.monotonic))

    def read_with_spans(
        self, parts: Sequence[Range]
    ) -> tuple[Mapping[str, OriginQueueState], RowStream]:
        """Return the states of the queues of the ranges, one range of each, and then the stored
        rows of the ranges; in one round trip.
        """
        retry = LinkRetry(time.monotonic)
        while True:
            try:
                id = self._send_call_on(
                    self._ensure_connected(), "read_with_spans", (parts, READ_CREDIT_BYTES), b""
                )
                spans = self._receive_spans(id)
                break
            except LinkLost as error:
                self._wait_before_retry(error, retry)
        if ranges := stored_ranges(parts, spans):
            return spans, self.read_ranges(ranges, False, id)
        return spans, self._receive_rows(id, None)

    def _receive_spans(self, id: int) -> Mapping[str, OriginQueueState]:
        frame = self._receive_frame(id)
        try:
            if frame.kind is not BulkFrameKind.SPANS:
                raise frames.make_wire_error(
                    f"{frame.kind.name} in answer to read_with_spans", "SPANS or ERROR"
                )
            found: Mapping[str, OriginQueueState] = OPERATIONS["read_with_spans"].decode_result(
                frame.head
            )
            return found
        except WireError as error:
            raise self._drop_connection_and_return(error) from None

    def drop_connection(self) -> None:
        """Close the connection; calls under way are dropped."""
        self._inbox.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _wait_before_retry(self, error: LinkLost, retry: LinkRetry) -> None:
        """Wait before the next try; raises the error when patience is over."""
        if isinstance(error, FederationLost):
            self.drop_connection()
        if not retry.failures:
            log.log(
                logging.WARNING if self.address.patience_s >= PATIENCE_S else logging.DEBUG,
                "%s; trying again",
                error,
            )
        retry_s = error.details.get(
            "patience_s"
        )  # how long it is worth while at the other side, where a fail-over may be under way
        patience_s = (
            max(self.address.patience_s, min(retry_s, FAILOVER_PATIENCE_S))
            if type(retry_s) is int
            else self.address.patience_s
        )
        with retry.pausing(error, patience_s) as pause_s:
            time.sleep(pause_s)

    def _send_read_call(self, parts: Sequence[Range], strict: bool) -> int:
        socket, one = self._ensure_connected(), len(parts) == 1
        return self._send_call_on(
            socket,
            "read" if one else "read_many",
            (parts[0] if one else parts, strict, READ_CREDIT_BYTES),
            b"",
        )

    def _receive_rows(self, id: int, expected: RemainingRanges | None) -> RowStream:
        """The answer to a call for rows; without ``expected`` there are none."""
        socket, schema, done = self._ensure_connected(), None, False
        try:
            while True:
                frame = self._receive_frame(id)
                if frame.kind is BulkFrameKind.SCHEMA:
                    schema = frames.decode_schema(frame.body)
                elif (
                    frame.kind is BulkFrameKind.ROWS and schema is not None and expected is not None
                ):
                    # Before it is handed over: the next is on its way while the reader is busy with
                    # this one.
                    socket.send(
                        BulkProtocolFrame(BulkFrameKind.CREDIT, id, len(frame.body)).encode()
                    )
                    yield from expected.take_rows(frame, schema)
                elif frame.kind is BulkFrameKind.END:
                    done = True
                    if expected is not None:
                        expected.check_complete()
                    return
                else:
                    raise frames.make_wire_error(
                        f"{frame.kind.name} in a range read", "SCHEMA, ROWS, END or ERROR"
                    )
        except BusError as error:
            done = True  # answered, or the link is gone
            if isinstance(error, WireError):
                self.drop_connection()
            raise
        finally:
            if self._inbox.pop(id, None) is not None and not done:
                self._send_cancel(id)

    def _send_cancel(self, id: int) -> None:
        if self._socket is not None:
            try:
                self._socket.send(BulkProtocolFrame(BulkFrameKind.CANCEL, id).encode())
            except FederationLost:
                self.drop_connection()

    def _receive_frame(self, id: int) -> BulkProtocolFrame:
        """The next frame of a call. Frames of other open calls are kept for them, those of ended
        calls dropped. Raises the server's error.
        """
        while not self._inbox.get(id):
            if self._socket is None or id not in self._inbox:
                raise FederationLost(
                    url=self.address.url, reason="the connection broke while this was under way"
                )
            try:
                frame = frames.decode_frame(self._socket.receive())
            except WireError as error:
                raise self._drop_connection_and_return(error) from None
            if frame.id in self._inbox:
                self._inbox[frame.id].append(frame)
        frame = self._inbox[id].popleft()
        if frame.kind is BulkFrameKind.ERROR:
            self._inbox.pop(id)
            raise decode_error(frame.head, self.address.url)
        return frame

    def _send_call_on(
        self, socket: BulkWebSocket, name: str, arguments: Sequence[Any], body: bytes
    ) -> int:
        id = next(self._ids) % frames.MAX_CALL_ID
        self._inbox[id] = deque()
        try:
            call = BulkProtocolFrame(
                BulkFrameKind.CALL,
                id,
                {"op": name, "args": OPERATIONS[name].arguments.encode(arguments)},
                body,
            ).encode()
            self._check_call_size(name, len(call), len(body))
            socket.send(call)
        except BaseException:
            self._inbox.pop(id, None)
            raise
        return id

    def _check_call_size(self, name: str, size: int, body: int) -> None:
        """Checked here, since a server closes the connection of a client that sends too much, which
        looks like a lost link.
        """
        most = self.hello.message_bytes if self.hello is not None else size
        if size > most or size - body > frames.MAX_HEAD_BYTES:
            limit = (
                f"{most} bytes (its limit message_bytes), {frames.MAX_HEAD_BYTES} of them names and"
                " the like"
            )
            raise MessageRefused(
                reason=(
                    f"a call {name!r} of {size} bytes is over what the federation server takes:"
                    f" {limit}"
                )
            )

    def _ensure_connected(self) -> BulkWebSocket:
        """The open connection; one that broke meanwhile is replaced, since that is better known
        before something is sent.
        """
        if self._socket is not None and not self._inbox and not self._socket.is_usable():
            self.drop_connection()
        if self._socket is None:
            self._socket = BulkWebSocket(self.address)
            id = self._send_call_on(
                self._socket, "hello", (frames.PROTOCOL_VERSION, self._client), b""
            )
            self.hello = self.wait_for_result(id, "hello")
        return self._socket

    def _drop_connection_and_return(self, error: BusError) -> BusError:
        """A server out of step: the connection is of no use any more."""
        self.drop_connection()
        return error


PUSH_WAIT_MS = 2_000
"""Milliseconds for which one ``wait`` of a push listener stays open; new queues are listened to
after as long at most.
"""


class FederationPushListenerThread(PushListenerThread):
    """Asks a federation server about pushes to queues, by their names."""

    def __init__(self, address: FederationAddress, notified: threading.Event) -> None:
        super().__init__(notified)
        self._link = FederationBulkClient(address)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._changed.clear()
                self._call_once("listen", self._names)
                self._notified.set()  # pushes before the subscription sent no notification
                while not (self._stopped.is_set() or self._changed.is_set()):
                    if self._call_once("wait", PUSH_WAIT_MS):
                        self._notified.set()
                        self._stopped.wait(
                            0.002
                        )  # wakes the reader a few hundred times a second at most
            except LinkLost as error:
                log.debug("push listener: %s", error)
                self._stopped.wait(1.0)
            except BusError as error:
                # A server without bulk notifies of no pushes either; one that refuses other calls
                # too raises its error in the store's next call.
                log.log(
                    logging.DEBUG if isinstance(error, FederationRefused) else logging.WARNING,
                    "pushes are not received, new messages are found by polling only: %s",
                    error,
                )
                return
        self._link.drop_connection()

    def _call_once(self, name: str, *arguments: Any) -> Any:
        """Not repeated by the link: on a new connection ``listen`` must be sent first."""
        try:
            return self._link.wait_for_result(self._link.send_call(name, *arguments), name)
        except BusError:
            self._link.drop_connection()
            raise
