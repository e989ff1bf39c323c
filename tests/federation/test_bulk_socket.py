"""The blocking web socket of the bulk protocol against a server that lies."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import struct
import threading
from contextlib import suppress

import pyarrow as pa
import pytest

from busmq_spark.errors import FederationLost, WireError
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.client import BulkWebSocket
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL

MIB = 1024 * 1024
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def answer(listener: socket.socket, data: bytes) -> None:
    """Agree to the handshake of one client, send ``data`` and leave."""
    peer, _ = listener.accept()
    with peer:
        head = b""
        while b"\r\n\r\n" not in head:
            head += peer.recv(4096)
        [key] = re.findall(r"Sec-WebSocket-Key: (\S+)", head.decode())
        accept = base64.b64encode(
            hashlib.sha1((key + GUID).encode(), usedforsecurity=False).digest()
        ).decode()
        lines = [
            "HTTP/1.1 101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept}",
        ]
        peer.sendall(
            "\r\n".join([*lines, f"Sec-WebSocket-Protocol: {BULK_SUBPROTOCOL}", "", ""]).encode()
        )
        peer.recv(1)
        with suppress(OSError):  # the client has had enough
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            peer.recv(4096)


def test_an_announced_length_is_believed_as_far_as_bytes_come() -> None:
    pool, usual = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announced = b"\x82\x7f" + struct.pack(">Q", 1400 * MIB) + bytes(20 * MIB)
        thread = threading.Thread(target=answer, args=(listener, announced), daemon=True)
        thread.start()
        made = BulkWebSocket(
            FederationAddress(
                f"ws://127.0.0.1:{listener.getsockname()[1]}/bus", "a-secret-of-some-length"
            )
        )
        made.send(b"go on")
        pa.set_memory_pool(pool)
        try:
            with pytest.raises(FederationLost, match="closed the connection"):
                made.receive()
        finally:
            pa.set_memory_pool(usual)
            made.close()
        thread.join()
    assert 0 < pool.max_memory() <= 3 * 32 * MIB


def test_frames_without_end_are_no_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(
            target=answer, args=(listener, b"\x02\x00" + b"\x00\x00" * 200_000), daemon=True
        )
        thread.start()
        made = BulkWebSocket(
            FederationAddress(
                f"ws://127.0.0.1:{listener.getsockname()[1]}/bus", "a-secret-of-some-length"
            )
        )
        made.send(b"go on")
        with pytest.raises(WireError, match="behind 100000 others"):
            made.receive()
        made.close()
        thread.join()
