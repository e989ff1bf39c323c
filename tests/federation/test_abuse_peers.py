"""Peers that cling to a live server: it stays up, a call of another peer takes no more work, and
its memory comes back.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.bulk.frames import BulkFrameKind
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.abused import (
    MIB,
    ROOM,
    SECRET,
    Served,
    honest,
    ignorant,
    loris,
    serve_process,
    work,
)
from tests.federation.raw import CHANNEL, Raw, all_closed, frame
from tests.support import wait_until
from tests.tls import Authority

pytestmark = [pytest.mark.redis, pytest.mark.fault]
LORISES = IGNORANT = 100
CUT_OFF = re.escape('busmq_federation_cut_off_total{reason="slow"}')


@pytest.fixture(scope="module")
def served(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Who never reads is cut off later here than elsewhere: all of them shall be there while it is
    measured what they cost.
    """
    with serve_process(redis_url, tmp_path_factory.mktemp("served"), send_s=4) as made:
        yield made


async def test_a_call_takes_no_more_work_while_other_clients_are_slow_or_never_read(
    fresh: Fresh, redis_url: str
) -> None:
    many, full = 100, fresh("full")
    limits = PeerLimits(
        connections_per_address=1000,
        handshake_s=600,
        send_s=600,
        kernel_bytes=32_768,
        in_flight_bytes=131_072,
    )
    keyring = Keyring.single(SECRET)
    async with (
        Bus(redis_url) as bus,
        FederationServer(bus, keyring, limits=limits) as server,
        bus.queue(full) as queue,
        all_closed(),
    ):
        await queue.push_many(["x" * 16_000] * 500)
        peer = await honest(server.port, fresh())
        alone = await work(peer)
        await asyncio.gather(*(loris(server.port) for _ in range(many)))
        await asyncio.gather(*(ignorant(server.port, full) for _ in range(many)))
        await until(
            lambda: (
                sum(connection.work.send_buffer.waiting for connection in server._connections)
                >= many * 120_000
            )
        )
        beset = await work(peer)
    print(f"a call takes {alone:.0f} functions alone and {beset:.0f} beset")
    assert beset < alone * 1.2


async def test_clients_that_are_slow_or_never_read_are_cut_off_and_cost_little(
    served: Served, fresh: Fresh, redis_url: str
) -> None:
    full = fresh("full")
    async with all_closed(), Bus(redis_url) as bus, bus.queue(full) as queue:
        peer = await honest(served.port, fresh())
        await queue.push_many(["x" * 16_000] * 500)
        before, cut_before = served.memory, await served.metric(CUT_OFF)
        await asyncio.gather(*(loris(served.port) for _ in range(LORISES)))
        await asyncio.gather(*(ignorant(served.port, full) for _ in range(IGNORANT)))
        filled = await served.steady("busmq_federation_waiting_bytes", IGNORANT * 120_000)
        peak = served.memory
        assert await peer.call("exists") == [None, False]
        cut_already = (
            await served.metric(CUT_OFF) - cut_before
        )  # on a busy machine the first are, before the last have filled what they may
        assert await served.metric("busmq_federation_sockets") + cut_already >= IGNORANT
        await queue.flush()
        async with asyncio.timeout(120):
            # It is another process's
            while await served.metric("busmq_federation_sockets") > 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        cut_off = await served.metric(CUT_OFF) - cut_before
    wait_until(lambda: served.memory < before + 2 * ROOM, what="memory comes back")
    print(
        f"memory {before / MIB:.0f} MiB before, {peak / MIB:.0f} beset, {served.memory / MIB:.0f}"
        f" after; {filled / MIB:.0f} waited"
    )
    assert cut_off == IGNORANT
    assert peak < before + IGNORANT * 2 * MIB


async def test_what_is_not_worked_off_is_not_read_either(
    served: Served, fresh: Fresh, redis_url: str
) -> None:
    """A peer that does not read what it asked for gets no further call done; what it sends
    meanwhile stays with it.
    """
    full, peers, before = fresh("full"), [], served.memory
    async with all_closed(), Bus(redis_url) as bus, bus.queue(full) as queue:
        await queue.push_many(["x" * 16_000] * 100)
        peers += [await ignorant(served.port, full) for _ in range(10)]
        await served.steady("busmq_federation_waiting_bytes", 10 * 120_000)
        for peer in peers:
            for _ in range(16):
                peer.send(frame(CHANNEL + b"1" + b"x" * MIB))
        left = [-1]
        async with asyncio.timeout(60):
            while len(left) < 10 or len({*left[-5:]}) > 1:
                left.append(sum(peer.writer.transport.get_write_buffer_size() for peer in peers))
                await asyncio.sleep(0.05)  # between two looks: until it does not change any more
        peak = served.memory
    await served.empty(60)
    assert left[-1] > 10 * 6 * MIB
    assert peak < before + 10 * 10 * MIB


async def test_a_client_that_never_begins_its_tls_handshake_is_cut_off(
    redis_url: str, tmp_path: Path
) -> None:
    tls, limits = Authority.in_(tmp_path).server_context("localhost"), PeerLimits(handshake_s=0.3)
    async with (
        Bus(redis_url) as bus,
        FederationServer(bus, Keyring.single(SECRET), tls=tls, limits=limits) as server,
    ):
        silent = [await Raw.dial(server.port) for _ in range(20)]
        async with asyncio.timeout(45):  # a minute by default
            assert [await raw.drained() for raw in silent] == [b""] * 20
        for raw in silent:
            await raw.close()


async def test_memory_of_connections_that_are_closed_comes_back_however_few_they_are(
    redis_url: str, tmp_path: Path
) -> None:
    """One connection after the other sends calls that are large when decoded, and closes."""
    call = b'{"op":"discover","args":[' + b",".join([b'{"":0}'] * 99_000) + b"]}"
    calls = [
        frame(struct.pack("<BII", BulkFrameKind.CALL, number, len(call)) + call)
        for number in range(40)
    ]
    with serve_process(redis_url, tmp_path, in_flight_bytes=32 * MIB) as served:
        kept: list[int] = []
        for _ in range(8):
            raw = await Raw.open(
                served.port,
                "/bus",
                f"Authorization: Bearer {SECRET}",
                f"Sec-WebSocket-Protocol: {BULK_SUBPROTOCOL}",
            )
            for each in calls:
                raw.send(each)
                await raw.writer.drain()
            await raw.close()
            await served.empty(60)
            kept.append(served.memory)
        print("MiB after each connection:", [each // MIB for each in kept])
        wait_until(lambda: served.memory < kept[0] + 4 * ROOM, what="memory comes back")
