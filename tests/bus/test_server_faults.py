"""Topics, groups, jobs and an outbox while servers of each layout are killed, with successors or
not; while clocks are set, and slots move.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from busmq_spark import Event
from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedCluster
from busmq_spark.errors import LinkLost
from busmq_spark.outbox import forwarder
from busmq_spark.redis_io import endpoint
from busmq_spark.routing.event_routing import EventPublishReceipt
from tests.bus.loads import HOUR_S, flow, loads
from tests.bus.lost_servers import Servers, own_servers
from tests.bus.tools import UNTIL_S, until
from tests.conftest import Fresh
from tests.layouts import LAYOUTS
from tests.moves import Move
from tests.soak.machine import Machine, can_be_set

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "RETRY_PAUSES_S", (0.02, 0.1))


@pytest.fixture(scope="module", params=LAYOUTS)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """Their clocks are those of a machine of their own."""
    machine = Machine(tmp_path_factory.mktemp("machine") / "machine")
    machine.environment.pop("MACHINE_DISK", None)  # nobody cuts its power
    with own_servers(request.param, machine) as made:
        yield made


async def test_they_go_on_when_servers_are_killed(
    servers: Servers, tmp_path: Path, fresh: Fresh
) -> None:
    """In a cluster the one that knows of the topic, and has the queues of the others."""
    async with loads(servers, tmp_path, fresh) as some:
        topic, shared, jobs, _ = some
        for queue in {
            queue.server: queue for queue in (topic.topic.queues[0], jobs.jobs.queue, shared.queue)
        }.values():
            await asyncio.to_thread(servers.kill, queue)
            await flow(*some)


@pytest.mark.skipif(
    not can_be_set(), reason="setting the clock of a process needs Linux and a C compiler (cc)"
)
async def test_they_go_on_when_clocks_are_set_by_an_hour(
    servers: Servers, tmp_path: Path, fresh: Fresh
) -> None:
    """All leases have ended at once, and their holders do not know; then those that were given last
    an hour longer.
    """
    async with loads(servers, tmp_path, fresh, lease_s=30) as some:
        shared = some[1]
        async with shared.queue.group("g", shared=True) as slow:
            taking = asyncio.ensure_future(anext(slow.batches(5)))
            await shared.queue.push_many(
                [b"v"] * 500
            )  # far more than the other two holders take at once
            held = await taking
            for seconds in (HOUR_S, -HOUR_S):
                servers.machine.set_clock(seconds)
                ahead_s = await shared.queue._server_ms() / 1000 - time.time()
                assert abs(ahead_s - max(0, seconds)) < HOUR_S / 2
                await flow(*some)
                await until(lambda: {(each.id, 2) for each in held} <= {*shared.seen})
                assert await slow.ack(held) == held


async def test_a_publisher_before_any_server_delivers_when_they_are_up_or_gets_an_error(
    servers: Servers, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, queue = fresh("k"), fresh()

    async def publisher() -> EventPublishReceipt:
        async with Bus(**servers.place) as bus:
            return await bus.publish([key], "x", require=1)

    def wait_for_servers(seconds: float) -> None:
        for name in ("PATIENCE_S", "FAILOVER_PATIENCE_S"):
            monkeypatch.setattr(endpoint, name, seconds)

    try:
        async with Bus(**servers.place) as before:
            await before.subscribe([key], into=queue)
            await asyncio.to_thread(servers.stop)
            wait_for_servers(0.5)
            with pytest.raises(LinkLost, match="cannot reach Redis"):
                await before.publish([key], "lost")
        with pytest.raises(LinkLost, match="cannot reach Redis"):
            await publisher()
        wait_for_servers(UNTIL_S)  # however long they take
        publishing = asyncio.ensure_future(publisher())
        await asyncio.sleep(0)
    finally:
        await asyncio.to_thread(servers.start)
    assert (await publishing).destinations == (queue,)
    async with Bus(**servers.place) as bus, bus.queue(queue) as found:
        assert [
            Event.decode(each.value).data async for each in found.consume(max=await found.count())
        ] == ["x"]


async def test_they_go_on_while_slots_move(
    cluster_servers: EmbeddedCluster, tmp_path: Path, fresh: Fresh
) -> None:
    async with loads(Servers(cluster_servers), tmp_path, fresh) as some:
        topic, shared, jobs, _ = some
        for key in (
            topic.topic.keys.base,
            *(
                queue.keys.metadata
                for queue in (topic.topic.queues[0], shared.queue, jobs.jobs.queue)
            ),
        ):
            await asyncio.to_thread(Move(cluster_servers, key).whole)
            await flow(*some)
