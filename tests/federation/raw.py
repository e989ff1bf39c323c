"""A web-socket client that checks nothing: it sends the bytes of a test, whole or in pieces, masked
or not. Enough of RFC 6455 for that.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Self

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
CHANNEL = b"0123456789abcdef"


def request(path: str, *lines: str, host: str = "127.0.0.1") -> bytes:
    """The head of a handshake."""
    key = base64.b64encode(os.urandom(16)).decode()
    head = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
    ]
    return "\r\n".join([*head, f"Sec-WebSocket-Key: {key}", *lines, "", ""]).encode("latin-1")


def frame(
    payload: bytes,
    opcode: int = BINARY,
    *,
    final: bool = True,
    masked: bool = True,
    length: int | None = None,
) -> bytes:
    """One frame; ``length`` lies about its size. The mask is zero: it need not hide anything."""
    size = len(payload) if length is None else length
    head = bytes([(0x80 if final else 0) | opcode])
    mask = 0x80 if masked else 0
    if size < 126:
        head += bytes([mask | size])
    elif size < 65536:
        head += bytes([mask | 126]) + struct.pack(">H", size)
    else:
        head += bytes([mask | 127]) + struct.pack(">Q", size)
    return head + (b"\0\0\0\0" if masked else b"") + payload


class Raw:
    """One TCP connection to a server."""

    kept: ClassVar[list[Raw] | None] = None
    """Those made inside ``all_closed``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        if self.kept is not None:
            self.kept.append(self)

    @classmethod
    async def dial(cls, port: int, **more: Any) -> Self:
        """Connected, nothing said."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, **more))

    @classmethod
    async def open(cls, port: int, path: str, *lines: str, **more: Any) -> Self:
        """Connected and let in; raises ConnectionRefusedError with the status otherwise."""
        raw = await cls.dial(port, **more)
        status, _, _ = await raw.ask(request(path, *lines))
        if status != 101:
            await raw.close()
            raise ConnectionRefusedError(status)
        return raw

    async def ask(self, data: bytes) -> tuple[int, str, bytes]:
        """Send a request; status, head and, unless it is 101, body of the answer."""
        self.writer.write(data)
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        return status, head.decode("latin-1"), b"" if status == 101 else await self.reader.read()

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)

    async def message(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame. Raises IncompleteReadError at the end."""
        first, second = await self.reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            [size] = struct.unpack(">H", await self.reader.readexactly(2))
        elif size == 127:
            [size] = struct.unpack(">Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(size)

    async def drained(self) -> bytes:
        """Everything until the server ends the connection."""
        with suppress(ConnectionError):
            return await self.reader.read()
        return b""

    async def close(self) -> None:
        """Gone, without a closing handshake."""
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def all_closed() -> AsyncIterator[None]:
    """At the end every connection made inside is closed, also when the test fails: one left open
    would be collected as an error of a later test.
    """
    Raw.kept = kept = []
    try:
        yield
    finally:
        Raw.kept = None
        await asyncio.gather(*(raw.close() for raw in kept))


class Object:
    """An honest peer's object on a channel of its own: ``await object.call("push", "x")`` is what
    the callback was given.
    """

    def __init__(self, raw: Raw, channel: bytes = CHANNEL) -> None:
        self.raw, self.channel = raw, channel
        self.methods: list[str] = []
        self.heard: list[list[Any]] = []
        self._next = 0

    async def create(self, kind: str, methods: list[str], *args: Any) -> Self:
        """Until the methods' line is there."""
        self.methods = methods
        self.put(json.dumps({"type": kind, "methods": methods, "args": list(args)}).encode())
        assert await self.body() == b"ready"
        assert json.loads(await self.body())["method"] == "methods"
        return self

    def put(self, body: bytes) -> None:
        """One packet."""
        self.raw.send(frame(self.channel + b"1" + body))

    async def body(self) -> bytes:
        """The next packet's, of this channel; b"" when the channel was closed."""
        while True:
            opcode, payload = await self.raw.message()
            if opcode == CLOSE:
                raise ConnectionResetError(payload)
            if opcode == BINARY and payload[:16] == self.channel:
                return payload[17:]

    def cast(self, method: str, *values: Any, callback: bool = False) -> int:
        """Call without waiting; the number of the function at the end."""
        arguments = {str(place): value for place, value in enumerate(values)}
        callbacks = {}
        if callback:
            arguments[str(len(values))] = "[Function]"
            callbacks[str(self._next)] = ["0", str(len(values))]
            self._next += 1
        line = {
            "method": self.methods.index(method),
            "arguments": [arguments],
            "callbacks": callbacks,
            "links": [],
        }
        self.put(json.dumps(line).encode() + b"\n")
        return self._next - 1

    async def call(self, method: str, *values: Any) -> list[Any]:
        """Call and wait; other invocations meanwhile go to ``heard``."""
        number = self.cast(method, *values, callback=True)
        while True:
            body = await self.body()
            if not body:
                raise ConnectionResetError("the channel was closed")
            line = json.loads(body)
            if line["method"] == number:
                return list(line["arguments"])
            self.heard.append([line["method"], *line["arguments"]])
