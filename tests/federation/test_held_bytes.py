"""What is held for the peers of one secret is counted before it is held, and bounded over all its
sockets.
"""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import MIB, PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuota
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.federation.npm_wire.channels import make_creation
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.raw import CHANNEL, Object, Raw, all_closed, frame, request
from tests.federation.test_pressure import CONSUME, call, listen
from tests.federation.tools import SECRET, Wire
from tests.support import PATIENCE_S

BULK = ("Sec-WebSocket-Protocol: busmq.bulk.v1",)
ONE_READ = 256 * 1024
"""What one look at the network may bring: asyncio's ``max_size``."""


def ring() -> Keyring:
    return Keyring(
        {name: (f"the-secret-of-{name}", Grants.all_allowed()) for name in ("greedy", "other")}
    )


async def opened(server: FederationServer, name: str = "greedy", *lines: str) -> Raw:
    return await Raw.open(
        server.port, "/bus", f"Authorization: Bearer the-secret-of-{name}", *lines
    )


async def deaf(server: FederationServer) -> Raw:
    """A peer that reads nothing, and whose system holds little for it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sock.connect(("127.0.0.1", server.port))
    sock.setblocking(False)
    raw = Raw(*await asyncio.open_connection(sock=sock, limit=65_536))
    status, _, _ = await raw.ask(request("/bus", "Authorization: Bearer the-secret-of-greedy"))
    assert status == 101
    return raw


def most_held(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The most bytes that were counted for a secret at once."""
    most, count = 0, PerSecretQuota.count_bytes

    def counted(self: PerSecretQuota, size: int) -> None:
        nonlocal most
        count(self, size)
        most = max(most, self.bytes)

    monkeypatch.setattr(PerSecretQuota, "count_bytes", counted)
    return lambda: most


def quota_of(server: FederationServer, name: str = "greedy") -> PerSecretQuota:
    return server._quotas.quota_of(name)


def never_ended(kind: str, size: int) -> bytes:
    """The beginning of a message, or a packet with the beginning of a line, of so many bytes."""
    if kind == "line":
        return frame(CHANNEL + b"1" + make_creation("queue", "any").encode()) + frame(
            CHANNEL + b"1" + b"x" * size
        )
    if kind == "fragments":
        return frame(b"x" * (size // 2), final=False) + frame(b"x" * (size // 2), 0, final=False)
    return frame(b"x" * size, length=size + 10)


@pytest.mark.parametrize("kind", ["message", "bulk", "fragments", "line"])
async def test_what_peers_do_not_end_is_counted_and_the_longest_that_stands_still_is_cut_off(
    federation: Serve, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    limits, most = (
        PeerLimits(bytes_per_secret=4 * MIB, unfinished_s=0.2, send_s=1),
        most_held(monkeypatch),
    )
    async with federation(ring(), limits=limits) as (_, server), all_closed():
        peers = [
            await opened(server, "greedy", *(BULK if kind == "bulk" else ())) for _ in range(12)
        ]
        for peer in peers:
            peer.send(never_ended(kind, MIB))
        await until(lambda: quota_of(server).bytes > 3 * MIB)
        await until(lambda: 'cut_off_total{reason="unfinished"} 8' in server.metrics.text())
        await until(lambda: len(server._socket_limiter.sockets) <= 4)
        shown = float(server.metrics.text().split('secret_bytes{secret="greedy"} ')[1].split()[0])
        assert shown == quota_of(server).bytes > 2 * MIB
        # A packet counts until its line is kept, and its copy too.
        assert most() < 4 * MIB + 12 * ONE_READ + 2 * MIB
        for peer in peers:
            await peer.close()
        await until(lambda: quota_of(server).bytes == 0)


async def test_a_line_that_has_not_ended_is_held_once(federation: Serve) -> None:
    size = 8 * MIB
    async with federation(ring()) as (_, server), all_closed():
        peer = await opened(server)
        tracemalloc.start(1)
        try:
            peer.send(never_ended("line", size))
            await until(lambda: quota_of(server).bytes >= size)
            await until(lambda: tracemalloc.get_traced_memory()[0] < 1.5 * size)
        finally:
            tracemalloc.stop()
        await peer.close()


async def test_messages_that_fill_all_room_together_all_arrive_late(
    federation: Serve, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, most = PeerLimits(bytes_per_secret=4 * MIB, unfinished_s=30), most_held(monkeypatch)
    async with (
        federation(ring(), limits=limits) as (bus, server),
        all_closed(),
        bus.queue(fresh()) as queue,
    ):
        peers = [
            await Object(await opened(server)).create("queue", ["attach", "push"], queue.name)
            for _ in range(10)
        ]
        for number, peer in enumerate(peers):
            peer.cast("attach")
            line = b'{"method":1,"arguments":[{"0":"%d%b"}],"callbacks":{},"links":[]}\n' % (
                number,
                b"x" * MIB,
            )
            whole = frame(peer.channel + b"1" + line)
            peer.raw.send(whole[: 900 * 1024])
            peers[number].rest = whole[900 * 1024 :]  # type: ignore[attr-defined]
        await until(lambda: quota_of(server)._paused)
        for peer in peers:
            peer.raw.send(peer.rest)  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE_S):
            got = [message.text[0] async for message in queue.consume(max=10)]
        assert sorted(got) == [f"{number}" for number in range(10)]
        assert most() < 4 * MIB + 10 * ONE_READ + 4 * MIB
        assert 'cut_off_total{reason="unfinished"} 0' in server.metrics.text()


async def test_one_secret_without_room_leaves_another_all_of_its_own(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(ring(), limits=PeerLimits(bytes_per_secret=MIB)) as (_, server),
        all_closed(),
    ):
        for _ in range(6):
            (await opened(server)).send(never_ended("message", MIB))
        await until(lambda: quota_of(server)._paused)
        honest = await Object(await opened(server, "other")).create(
            "queue", ["attach", "push"], fresh()
        )
        honest.cast("attach")
        assert await honest.call("push", "x" * 500_000) == [None, 1]


async def test_compressed_messages_are_counted_as_long_as_they_are_before_they_are_inflated(
    federation: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, most = (
        PeerLimits(bytes_per_secret=8 * MIB, message_bytes=2 * MIB),
        most_held(monkeypatch),
    )
    packing = zlib.compressobj(9, zlib.DEFLATED, -12)
    packed = packing.compress(CHANNEL + b"1" + b"x" * (2 * MIB - 100)) + packing.flush(
        zlib.Z_SYNC_FLUSH
    )
    bomb = bytearray(frame(packed[:-4]))
    bomb[0] |= 0x40
    async with federation(ring(), limits=limits, compression=True) as (_, server), all_closed():
        extension = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=12"
        peers = [await opened(server, "greedy", extension) for _ in range(10)]
        for peer in peers:
            peer.send(bytes(bomb) * 3)
        for peer in peers:
            peer.send(frame(b"\x03\xe8", 8))
        await asyncio.gather(*(peer.drained() for peer in peers))
        assert 2 * MIB < most() < 8 * MIB + 2 * MIB
        await until(lambda: quota_of(server).bytes == 0)


@pytest.mark.parametrize("kind", ["queue", "channel"])
async def test_messages_are_taken_from_redis_once_there_is_room_for_them(
    federation: Serve, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    size, limits = (
        300_000,
        PeerLimits(bytes_per_secret=3 * MIB, message_bytes=400_000, kernel_bytes=65_536, send_s=60),
    )
    most = most_held(monkeypatch)
    async with (
        federation(ring(), limits=limits) as (bus, server),
        all_closed(),
        bus.queue(fresh()) as queue,
    ):
        await queue.push("x" * size)
        peers = [await deaf(server) for _ in range(4)]
        for peer in peers:
            for number in range(10 if kind == "queue" else 4):
                channel, name = b"%016d" % number, queue.name
                if kind == "channel":
                    name = fresh()
                    async with await bus.channel(name).listen() as sender:
                        await sender.send("x" * size)
                bodies = (
                    [listen("message"), call(4, {"ttl": 60}), call(18, {"remove": False})]
                    if kind == "queue"
                    else [listen("message"), call(2, {})]
                )
                for body in (make_creation(kind, name).encode(), *bodies):
                    peer.send(frame(channel + b"1" + body))
        await until(lambda: quota_of(server).bytes > 3 * size)
        await until(lambda: sum(each.work.send_buffer.is_full for each in server._connections) > 1)
        assert most() < 3 * MIB + 900_000 + limits.message_bytes
        for peer in peers:
            await peer.close()
        await until(lambda: quota_of(server).bytes == 0)


async def test_a_peer_that_reads_gets_all_messages_through_little_room(
    federation: Serve, fresh: Fresh
) -> None:
    limits = PeerLimits(bytes_per_secret=200_000, message_bytes=150_000)
    async with federation(limits=limits) as (bus, server), Wire(server) as wire:
        names = [fresh() for _ in range(5)]
        for name in names:
            async with bus.queue(name) as queue:
                await queue.push_many([f"{number}:{'x' * 60_000}" for number in range(5)])
        things = [await wire.open("queue", name) for name in names]
        for thing in things:
            await thing.listen("message")
            await thing.send("attach", {})
            await thing.send("consume", {})
        for thing in things:
            assert [(await thing.event("message"))[1] for _ in range(5)] == [1, 2, 3, 4, 5]


async def test_requests_of_a_service_are_taken_once_there_is_room_for_them(
    federation: Serve, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, size = most_held(monkeypatch), 300_000
    limits = PeerLimits(bytes_per_secret=2 * MIB, message_bytes=400_000, in_flight_bytes=MIB)
    async with (
        federation(limits=limits) as (bus, server),
        Wire(server) as wire,
        bus.service(name := fresh()) as asking,
    ):
        await asking.connect()
        provider = await wire.open("service", name)
        await provider.listen("request")
        assert await provider.call("serve") == []
        for number in range(10):
            await asking.send(f"{number}:{'x' * size}", timeout_s=60)
        for number in range(10):
            data, reply = await provider.event("request")
            assert data.startswith(f"{number}:")
            await provider.invoke(reply, None, "done")
        assert size < most() < 3 * MIB


async def test_the_room_of_messages_that_are_not_handed_over_comes_back(
    federation: Serve, fresh: Fresh
) -> None:
    async with (
        federation(limits=PeerLimits(kernel_bytes=65_536)) as (bus, server),
        bus.queue(fresh()) as queue,
        all_closed(),
    ):
        await queue.push_many(["x" * 100_000] * 200)
        peer = await Raw.open(server.port, f"/bus?secret={SECRET}", limit=65_536)
        for body in (make_creation("queue", queue.name).encode(), *CONSUME):
            peer.send(frame(CHANNEL + b"1" + body))
        [quota] = server._quotas
        await until(lambda: quota.bytes > 500_000)
        await peer.close()
        await until(
            lambda: not server._connections and quota.bytes == 0 and not quota._reservations
        )
