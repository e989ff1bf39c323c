"""Readers of real-time mode on every layout, and while a Redis under them goes and comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busmq_spark.embedded import EmbeddedRedis, EmbeddedSentinel
from tests.spark.conftest import MakeBus
from tests.spark.live_engine import LiveEngine

# Two of them are fixtures
from tests.spark.test_layouts import Servers, expected, queues, servers  # noqa: F401
from tests.support import PATIENCE_S, wait_in_sync, wait_until

MakeLive = Callable[[dict[str, Any]], LiveEngine]


@pytest.fixture
def live(spark: SparkSession, shim_jar: Path) -> Iterator[MakeLive]:
    """Makes queries in real-time mode."""
    made: list[LiveEngine] = []

    def make(options: dict[str, Any]) -> LiveEngine:
        made.append(LiveEngine(spark, options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_queues_on_every_server_are_followed_and_acknowledged(
    servers: Servers,  # noqa: F811  # a fixture
    queues: list[str],  # noqa: F811
    live: MakeLive,
) -> None:
    query = live({**servers.where, "subscribePattern": f"{queues[0][:-2]}-.*"}).begin()
    assert set(query.rows(60)) == expected(queues)
    for queue in queues:
        servers.push(queue, b"later")
    assert set(query.rows(12)) == {(queue, 6, b"later") for queue in queues}
    query.end()
    query.begin()
    wait_until(lambda: not any(servers.stored(queue) for queue in queues), PATIENCE_S)


def test_a_redis_that_dies_and_comes_back_costs_a_pause_and_its_pushes_are_signalled_again(
    live: MakeLive, bus_of: MakeBus
) -> None:
    with EmbeddedRedis(aof=True) as server:
        bus = bus_of(server)
        bus.fill("q", 3)
        query = live({"redis.url": server.url, "subscribe": "q", "idlePollMs": 600_000}).begin()
        assert [id for _, id, _ in query.rows(3)] == [1, 2, 3]
        for first in (4, 6):
            server.restart()
            bus_of(server).fill("q", 2, first=first)
            assert [id for _, id, _ in query.rows(2)] == [first, first + 1]
        query.end()
        assert query.positions() == {"q": 7}
        query.stop()


def test_a_fail_over_in_the_middle_of_a_batch_costs_a_pause_and_no_message(
    live: MakeLive, bus_of: MakeBus
) -> None:
    with EmbeddedSentinel() as group:
        bus_of(group.master).fill("q", 3)
        query = live(
            {"redis.url": ",".join(group.urls), "redis.layout": "sentinel", "subscribe": "q"}
        ).begin()
        assert len(query.rows(2)) == 2
        dead = group.master
        wait_in_sync(dead)
        dead.kill()
        wait_until(lambda: group.master is not dead, PATIENCE_S, "a new master")
        bus_of(group.master).fill("q", 2, first=4)
        assert [id for _, id, _ in query.rows(3)] == [3, 4, 5]
        query.end()
        assert query.positions() == {"q": 5}
        query.stop()
