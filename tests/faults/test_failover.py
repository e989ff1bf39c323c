"""The master is killed, or the slot of a queue moves, in the middle of a query: a pause, and every
message once and in order.

What Redis itself may lose in a fail-over is what its replica had not received. These tests see to
it that nothing acknowledged is lost so: writes are held, and the replica catches up, right before
the kill. What happens when Redis does lose something is in test_rollback.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis, EmbeddedSentinel
from tests.faults.process import DriverProcess
from tests.faults.scene import Bus, Pipeline
from tests.moves import Move
from tests.support import wait_in_sync, wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ROWS = 6000
STEP = "600"


class Scene:
    """A group of servers behind a layout: ``master`` is who holds the keys of a queue."""

    def __init__(self, group: EmbeddedSentinel | EmbeddedCluster) -> None:
        self.group = group
        self.bus = Bus(
            **{
                "redis.url": ",".join(group.urls),
                "redis.layout": "cluster" if isinstance(group, EmbeddedCluster) else "sentinel",
            }
        )

    def master(self, queue: str) -> EmbeddedRedis:
        return (
            self.group.owner(self.bus.keys(queue).metadata)
            if isinstance(self.group, EmbeddedCluster)
            else self.group.master
        )

    def neighbour(self, queue: str) -> str:
        """The name of a queue on the same master."""
        return next(
            name
            for name in (f"out{n}" for n in range(1000))
            if self.master(name) is self.master(queue)
        )

    def kill_master(self, queue: str) -> EmbeddedRedis:
        """SIGKILL once its replica has everything that anybody was told is stored."""
        master = self.master(queue)
        master.command("CLIENT", "PAUSE", 20_000, "WRITE")
        wait_in_sync(master)
        master.kill()
        return master


@pytest.fixture(params=[EmbeddedSentinel, EmbeddedCluster], ids=["sentinel", "cluster"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with request.param() as group:
        yield Scene(group)


def test_a_master_killed_in_the_middle_of_a_query_costs_a_pause_and_no_message(
    scene: Scene, workshop: DriverProcess, tmp_path: Path
) -> None:
    run = Pipeline(
        scene.bus, tmp_path, sink=(sink := scene.neighbour("in")), maxMessagesPerTrigger=STEP
    )
    run.feed(ROWS)
    run.start(workshop)
    wait_until(lambda: scene.bus.count(sink) >= ROWS / 6, what="the query is in the middle")
    dead = scene.kill_master("in")
    run.feed(1000)
    run.check_whole(workshop)
    assert scene.master("in") is not dead
    assert scene.master(sink) is not dead
    assert run.attempts == 1


def test_slots_that_move_under_load_cost_a_pause_and_no_message(
    cluster_servers: EmbeddedCluster, workshop: DriverProcess, tmp_path: Path
) -> None:
    bus = Bus(**{"redis.url": cluster_servers.urls[0], "redis.layout": "cluster"})
    run = Pipeline(bus, tmp_path, source="moved-in", sink="moved-out", maxMessagesPerTrigger=STEP)
    run.feed(ROWS)
    run.start(workshop)
    for queue in ("moved-in", "moved-out", "moved-in"):
        keys = bus.keys(queue)
        arrived = bus.count("moved-out")
        run.feed(1000)
        wait_until(lambda before=arrived: bus.count("moved-out") > before, what="the query goes on")
        move = Move(cluster_servers, keys.metadata)
        move.begin()
        move.migrate(keys.messages)  # the list is ahead of the rest of its queue for a while
        move.migrate()
        move.end()
        assert cluster_servers.owner(keys.metadata) is move.target
    run.feed(1000)
    run.check_whole(workshop)
    assert run.attempts == 1
