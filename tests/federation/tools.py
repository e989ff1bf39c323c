"""A peer of the federation server that is nothing but bytes: it sends the lines it is given and
keeps those it gets.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect

from busmq_spark.federation.npm_wire.channels import (
    METHODS_OF_TYPE,
    MuxPacket,
    ObjectType,
    make_creation,
)
from busmq_spark.federation.npm_wire.dnode import (
    DnodeCallbackRef,
    DnodeCallbacks,
    DnodeMessage,
    call_message,
)
from busmq_spark.federation.serve.connection import NpmProtocolServerConnection
from busmq_spark.federation.serve.server import FederationServer
from tests.support import PATIENCE_S

SECRET = "correct-horse-battery"  # a test's
UNDEFINED = object()
"""An argument that JSON drops: later ones keep their place in a call, and move up when it is read
(protocol Q18).
"""


def pack_call(method: int, arguments: Iterable[Any], functions: DnodeCallbacks) -> DnodeMessage:
    """The line of a client's call: one object keyed by place; UNDEFINED leaves a gap."""
    return call_message(
        method,
        [{str(place): value for place, value in enumerate(arguments) if value is not UNDEFINED}],
        functions,
    )


class Wire:
    """One web socket."""

    def __init__(self, server: FederationServer, secret: str = SECRET) -> None:
        self._connecting = connect(f"{server.url}?secret={secret}", compression=None, max_size=None)
        self.got: dict[str, asyncio.Queue[bytes | None]] = defaultdict(asyncio.Queue)
        self._ids = 0

    async def __aenter__(self) -> Self:
        self.socket: ClientConnection = await self._connecting.__aenter__()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reading.cancel()
        await self._connecting.__aexit__(kind, error, trace)

    async def _read(self) -> None:
        async for message in self.socket:
            assert isinstance(message, bytes), "a server sends binary messages only"
            packet = MuxPacket.decode(message)
            self.got[packet.channel].put_nowait(packet.body)

    async def send(self, channel: str, body: bytes | None) -> None:
        await self.socket.send(MuxPacket(channel, body).encode())

    async def next(self, channel: str) -> bytes | None:
        async with asyncio.timeout(PATIENCE_S):
            return await self.got[channel].get()

    def channel(self) -> str:
        self._ids += 1
        return f"{self._ids:016x}"

    async def open(self, kind: ObjectType, name: str, *more: Any) -> Thing:
        """A federated object, ready to be called."""
        thing = Thing(self, self.channel(), kind, name)
        await self.send(thing.channel, make_creation(kind, name, *more).encode())
        assert await self.next(thing.channel) == b"ready"
        line = await self.next(thing.channel)
        assert line is not None
        assert list(DnodeMessage.decode(line).arguments[0]) == list(METHODS_OF_TYPE[kind])
        return thing


class Thing:
    """A federated object: what it is called with, and what comes back to which function."""

    def __init__(self, wire: Wire, channel: str, kind: ObjectType, name: str) -> None:
        self.wire, self.channel, self.kind, self.name = wire, channel, kind, name
        self.functions = DnodeCallbacks()
        self.heard: list[tuple[str, list[Any]]] = []

    async def send(self, method: str, *arguments: Any) -> None:
        """A call without waiting."""
        await self.wire.send(
            self.channel,
            pack_call(METHODS_OF_TYPE[self.kind].index(method), arguments, self.functions).encode(),
        )

    async def listen(self, *events: str) -> None:
        """Keep these events in ``heard``."""
        for event in events:
            await self.send("on", event, self._keeper(event))

    async def call(self, method: str, *arguments: Any) -> list[Any]:
        """A call with a function at its end: what that gets."""
        answers: list[list[Any]] = []
        await self.send(method, *arguments, lambda *values: answers.append(list(values)))
        while not answers:
            await self.step()
        return answers[0]

    async def event(self, name: str) -> list[Any]:
        """The next event of this name, also one heard already."""
        while not (found := [entry for entry in self.heard if entry[0] == name]):
            await self.step()
        self.heard.remove(found[0])
        return found[0][1]

    async def step(self) -> None:
        """Take one line."""
        body = await self.wire.next(self.channel)
        assert body is not None, "the server has closed the channel"
        assert body.endswith(b"\n")
        assert body.count(b"\n") == 1
        line = DnodeMessage.decode(body)
        assert list(json.loads(body)) == ["method", "arguments", "callbacks", "links"]
        assert isinstance(line.method, int)
        function = self.functions.get(line.method)
        assert function is not None
        function(*line.values())

    async def invoke(self, remote: DnodeCallbackRef, *arguments: Any) -> None:
        """Call a function that the server has handed out."""
        await self.wire.send(self.channel, DnodeMessage(remote.id, list(arguments)).encode())

    async def close(self) -> None:
        await self.wire.send(self.channel, None)

    def _keeper(self, event: str) -> Any:
        return lambda *values: self.heard.append((event, list(values)))


def most_in_work(connection: NpmProtocolServerConnection) -> Callable[[], int]:
    """Observe a connection: the result counts how many calls have been in work at once."""
    most, began = 0, connection.work.count_begun_call

    def counted(size: int) -> None:
        nonlocal most
        began(size)
        most = max(most, connection.work._messages)

    connection.work.count_begun_call = counted  # type: ignore[method-assign]
    return lambda: most


def most_waiting(connection: NpmProtocolServerConnection) -> Callable[[], int]:
    """Observe a connection: the result says how many bytes have waited for its peer at most."""
    most, put = 0, connection.work.send_buffer.put

    def counted(packet: bytes, left: Callable[[], None] | None = None) -> None:
        nonlocal most
        put(packet, left)
        most = max(most, connection.work.send_buffer.waiting)

    connection.work.send_buffer.put = counted  # type: ignore[method-assign]
    return lambda: most
