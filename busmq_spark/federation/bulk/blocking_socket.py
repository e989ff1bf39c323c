"""A blocking web socket for ``busmq.bulk.v1``: large messages go from the kernel into memory that
Arrow can use, and are copied no more.

The handshake is the websockets package's. Its own blocking client hands each message through a
second thread, which costs more than all else here.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Any

import pyarrow as pa
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from busmq_spark.errors import BusError, FederationLost, FederationRefused, WireError
from busmq_spark.federation.address import (
    CONNECT_TIMEOUT_S,
    FederationAddress,
    authorization_header,
    dial_error,
    no_answer_error,
)
from busmq_spark.federation.bulk.frames import make_wire_error
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL, WIRE_LOG
from busmq_spark.federation.proxies import handshake_error, open_tunnel, proxy_of
from busmq_spark.federation.send_stall_meter import is_readable

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
