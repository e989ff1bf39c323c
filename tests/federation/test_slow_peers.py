"""Peers on slow links: bytes that leave are progress, and what has not left when a peer ends goes
back to its place.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection
from busmq_spark.federation.npm_wire.channels import METHODS_OF_TYPE, make_creation
from busmq_spark.federation.serve.server import MemoryTrimTrigger
from busmq_spark.queue.keys import channel_queue
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.raw import PING, PONG, Raw, frame, request
from tests.federation.test_pressure import CONSUME, SOCKETS, call, deaf, listen, say, waits
from tests.federation.tools import SECRET, Wire

LONG = "x" * (SOCKETS + 2 * 1024 * 1024)
"""A message that is longer than all buffers on the way together."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more entry each time a server has looked at its peers."""
    found: list[int] = []
    looked = MemoryTrimTrigger.is_due

    def counted(trim_trigger: Any, now: int, gone_bytes: int) -> bool:
        found.append(now)
        return looked(trim_trigger, now, gone_bytes)

    monkeypatch.setattr(MemoryTrimTrigger, "is_due", counted)
    return found


async def small(port: int) -> Raw:
    """Let in, with little room for what it does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sock.connect(("127.0.0.1", port))
    sock.setblocking(False)
    raw = Raw(*await asyncio.open_connection(sock=sock, limit=65_536))
    status, _, _ = await raw.ask(request(f"/bus?secret={SECRET}"))
    assert status == 101
    return raw


async def test_a_peer_that_reads_slowly_gets_a_long_message_however_long_it_takes(
    federation: Serve, fresh: Fresh, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stalled_s = asyncio.get_running_loop().time(), LimitedServerConnection.stalled_s
    # The clock goes on by a fifth of a second with each look: a machine that is busy between two of
    # them makes no peer slower.
    monkeypatch.setattr(
        LimitedServerConnection,
        "stalled_s",
        lambda socket, _: stalled_s(socket, begun + 0.2 * len(looks)),
    )
    limits = PeerLimits(send_s=0.8, kernel_bytes=65_536)
    async with federation(limits=limits) as (bus, server), bus.queue(fresh()) as queue:
        await queue.push("x" * (5 * 1024 * 1024))
        raw = await small(server.port)
        for body in (make_creation("queue", queue.name).encode(), *CONSUME):
            raw.send(frame(b"0" * 16 + b"1" + body))
        got, rounds = 0, 0
        while got < 5 * 1024 * 1024:
            seen = len(looks)
            await until(lambda seen=seen: len(looks) > seen)
            data = await raw.reader.read(262_144)
            assert data, f"cut off after {got} bytes"
            got += len(data)
            rounds += 1
        assert rounds > 12  # three times as long as nothing may leave
        assert "cut_off_total{" in server.metrics.text()
        assert 'cut_off_total{reason="slow"} 0' in server.metrics.text()
        await raw.close()


async def test_a_message_that_has_not_left_goes_back_to_its_place(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(send_s=0.5)) as (bus, server),
        bus.queue(fresh()) as queue,
    ):
        await queue.push_many([LONG, "next"])
        async with deaf(server) as peer:
            await say(peer, "0" * 16, make_creation("queue", queue.name).encode(), *CONSUME)
            await until(lambda: 'cut_off_total{reason="slow"} 1' in server.metrics.text())
            await until(lambda: not server._connections)
        assert await queue.count() == 2
        found = queue.consume(max=2)
        assert [(message.id, len(message.value)) async for message in found] == [
            (1, len(LONG)),
            (2, 4),
        ]


async def test_what_a_channel_has_taken_and_has_not_left_goes_back_with_what_came_behind_it(
    federation: Serve, fresh: Fresh
) -> None:
    name = fresh()
    async with federation(limits=PeerLimits(send_s=0.5)) as (bus, server):
        async with await bus.channel(name).listen() as other:
            await asyncio.gather(other.send("first"), other.send(LONG), other.send("next"))
        async with deaf(server) as peer:
            await say(
                peer,
                "0" * 16,
                make_creation("channel", name).encode(),
                listen("message"),
                call(METHODS_OF_TYPE["channel"].index("connect"), {}),
            )
            await until(lambda: 'cut_off_total{reason="slow"} 1' in server.metrics.text())
            await until(lambda: not server._connections)
        events: list[str] = []
        channel = bus.channel(name)
        channel.on("message", lambda message: events.append(message.text))
        channel.on("remote_connect", lambda: events.append("came"))
        channel.on("remote_disconnect", lambda: events.append("left"))
        async with await channel.connect():
            await until(lambda: "left" in events or "next" in events)
        assert [text[:8] for text in events] == [LONG[:8], "next"]


async def test_the_end_of_a_channel_comes_behind_its_messages_and_leaves_none_in_the_queue(
    federation: Serve, fresh: Fresh
) -> None:
    name = fresh()
    async with federation(limits=PeerLimits(kernel_bytes=65_536)) as (bus, server):
        async with await bus.channel(name).listen() as other:
            await asyncio.gather(*(other.send(f"{n}:{LONG[: 256 * 1024]}") for n in range(16)))
            await other.end()
        async with Wire(server) as wire:
            channel = await wire.open("channel", name)
            await channel.listen("message", "end")
            await channel.send("connect", {})
            await channel.event("end")
            got = [
                text.partition(":")[0] for event, (text, *_) in channel.heard if event == "message"
            ]
            assert got == [f"{n}" for n in range(16)]
        async with bus.queue(channel_queue("local", name)) as left:
            assert await left.count() == 0


async def test_what_a_peer_has_got_does_not_go_back_when_it_stops(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), bus.queue(fresh()) as owner, Wire(server) as wire:
        await owner.push_many([f"{n}" for n in range(500)])
        queue = await wire.open("queue", owner.name)
        await queue.listen("message", "consuming")
        await queue.send("attach", {})
        await queue.send("consume", {})
        await queue.event("message")
        await queue.send("stop")
        assert [await queue.event("consuming") for _ in range(2)] == [[True], [False]]
        got = [text for event, (text, *_) in queue.heard if event == "message"]
        left = (
            [message.text async for message in owner.consume(max=await owner.count())]
            if await owner.count()
            else []
        )
        assert ["0", *got, *left] == [f"{n}" for n in range(500)]


async def test_what_a_channel_sends_to_a_peer_that_disconnects_does_not_go_back_as_well(
    federation: Serve, fresh: Fresh
) -> None:
    name, texts, got = fresh(), [f"{n}:{LONG[: 256 * 1024]}" for n in range(64)], list[str]()
    async with (
        federation(limits=PeerLimits(kernel_bytes=65_536)) as (bus, server),
        await bus.channel(name).listen() as other,
    ):
        await asyncio.gather(*map(other.send, texts))
        async with deaf(server) as peer:
            method = METHODS_OF_TYPE["channel"].index
            await say(
                peer,
                "0" * 16,
                make_creation("channel", name).encode(),
                listen("message"),
                call(method("connect"), {}),
            )
            await until(lambda: any(map(waits, server._connections)))
            [connection] = server._connections
            channel: Any = connection._sessions["0" * 16]._object
            await say(peer, "0" * 16, call(method("disconnect")))
            await until(
                lambda: channel._reader is None
            )  # it has begun, and what was taken has not left yet
            reading = asyncio.create_task(texts_of(peer, got))
            await until(lambda: not channel._channel.connected)
            await (await peer.ping())  # behind all that was sent
            reading.cancel()
        assert len(got) < len(texts)
        async with await bus.channel(name).connect() as mine:
            while len(got) < len(texts):
                got.append((await anext(aiter(mine))).text.partition(":")[0])
    assert got == [f"{n}" for n in range(64)]


async def texts_of(peer: Any, got: list[str]) -> None:
    """The beginning of each message that comes."""
    async for message in peer:
        if b":xxx" in message[:60]:
            # Others look at it meanwhile
            got.append(message.split(b'["')[1].split(b":")[0].decode())  # noqa: PERF401


async def test_a_server_that_stops_gives_back_what_a_slow_peer_has_not_taken(
    federation: Serve, fresh: Fresh, redis_url: str
) -> None:
    name = fresh()
    async with (
        federation(limits=PeerLimits(close_s=0.5)) as (bus, server),
        bus.queue(name) as queue,
    ):
        await queue.push_many([LONG, "next"])
        held = deaf(server)
        peer = await held.__aenter__()
        await say(peer, "0" * 16, make_creation("queue", name).encode(), *CONSUME)
        await until(
            lambda: any(connection.work.send_buffer.waiting for connection in server._connections)
        )
    async with federation() as (bus, _), bus.queue(name) as queue:
        assert await queue.count() == 2
    peer.transport.abort()


@pytest.mark.parametrize(
    "lines", [(), ("Authorization: Bearer " + SECRET, "Sec-WebSocket-Protocol: busmq.bulk.v1")]
)
async def test_pings_of_a_peer_that_does_not_read_cost_no_memory(
    federation: Serve, lines: tuple[str, ...]
) -> None:
    async with federation(limits=PeerLimits(send_s=60, kernel_bytes=65_536)) as (_, server):
        raw = await Raw.open(server.port, f"/bus?secret={SECRET}", *lines, limit=65_536)
        await until(lambda: server._socket_limiter.sockets)
        [peer] = server._socket_limiter.sockets
        count = 100_000  # more than all buffers on the way hold
        for at in range(0, count, 1000):
            raw.send(b"".join(frame(b"%0125d" % number, PING) for number in range(at, at + 1000)))
            await raw.writer.drain()
            assert peer.transport.get_write_buffer_size() < 1024 * 1024
        pongs = 0
        while True:
            opcode, payload = await raw.message()
            pongs += 1
            assert opcode == PONG
            if payload == b"%0125d" % (count - 1):
                break
        assert pongs < count
        await raw.close()
