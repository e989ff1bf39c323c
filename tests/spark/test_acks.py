"""When messages leave their queue: once their batch is in Spark's logs for certain, and also when
nothing comes after it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spark.conftest import Bus
from tests.spark.engine import Engine

MakeEngine = Callable[..., Engine]


def ids(batches: list[list[tuple[str, int, bytes]]]) -> list[int]:
    return [id for rows in batches for _, id, _ in rows]


@pytest.fixture
def capped(bus: Bus, engine: MakeEngine, queue: str) -> Engine:
    return engine(
        {"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1", "maxMessagesPerTrigger": "2"}
    )


@pytest.mark.needs("limits")
def test_with_async_progress_tracking_nothing_is_acknowledged_before_it_is_in_the_logs(
    capped: Engine, bus: Bus, queue: str
) -> None:
    capped.asynchronous = True
    bus.fill(queue, 20)
    assert ids(capped.drain()) == list(range(1, 21))
    assert bus.ids(queue) == list(range(1, 21))
    capped.planned, capped.committed = [], 0  # the machine goes down, and none of it was written
    capped.restart()
    assert ids(capped.drain()) == list(range(1, 21))
    assert bus.ids(queue) == list(range(1, 21))
    capped.reader.commit(capped.planned[5])  # now it is
    assert bus.ids(queue) == list(range(13, 21))


@pytest.mark.needs("limits")
def test_async_progress_tracking_that_commits_in_time_by_chance_is_found_out_by_the_batch_after(
    capped: Engine, bus: Bus, queue: str
) -> None:
    bus.fill(queue, 20)
    for _ in range(3):
        capped.step()
    capped.asynchronous = True
    assert ids(capped.drain()) == list(range(7, 21))
    assert bus.ids(queue) == list(range(5, 21))  # as far as Spark has committed


def test_a_query_that_is_idle_plans_one_batch_without_rows_so_that_its_last_messages_leave(
    capped: Engine, bus: Bus, queue: str
) -> None:
    bus.fill(queue, 2)
    assert len(capped.step() or []) == 2
    assert capped.step() == []
    assert bus.ids(queue) == []
    assert [capped.step() for _ in range(5)] == [None] * 5
    assert capped.planned[1] == {**capped.planned[0], "idle": 1}
    bus.fill(queue, 1, first=3)
    assert ids(capped.drain()) == [3]
    assert "idle" not in capped.planned[2]


@pytest.mark.needs("start")
def test_one_that_has_seen_how_spark_logs_needs_no_such_batch(
    capped: Engine, bus: Bus, queue: str
) -> None:
    bus.fill(queue, 10)
    assert [len(capped.step() or []) for _ in range(5)] == [2] * 5
    assert capped.step() is None
    assert "idle" not in capped.planned[-1]
    for first in range(11, 15):
        bus.fill(queue, 1, first=first)
        before = len(capped.planned)
        assert ids(capped.drain()) == [first]
        assert bus.ids(queue) == []
        assert len(capped.planned) == before + 1


def test_where_spark_never_commits_an_idle_query_gives_up_after_a_few_batches(
    capped: Engine, bus: Bus, queue: str
) -> None:
    capped.asynchronous = True
    bus.fill(queue, 1)
    assert [capped.step() for _ in range(8)][1:] == [[], [], [], None, None, None, None]
    capped.reader.commit(capped.planned[0])
    assert bus.ids(queue) == []


@pytest.mark.needs("start")
def test_the_start_after_a_restart_is_in_the_logs(capped: Engine, bus: Bus, queue: str) -> None:
    capped.asynchronous = True
    bus.fill(queue, 2)
    capped.step()
    capped.restart()
    assert [capped.step() for _ in range(2)] == [
        None
    ] * 2  # Python acks with the second: another reader of the query may begin before the first
    assert bus.ids(queue) == []


def test_a_checkpoint_that_ends_with_an_idle_batch_goes_on(
    capped: Engine, bus: Bus, queue: str
) -> None:
    bus.fill(queue, 2)
    capped.drain()
    assert capped.planned[-1]["idle"] == 1
    capped.restart()
    bus.fill(queue, 2, first=3)
    assert ids(capped.drain()) == [3, 4]


def test_with_ack_none_an_idle_query_plans_nothing(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 2)
    query = engine({"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1", "ack": "none"})
    assert [len(rows) for rows in query.drain()] == [2]
    assert len(query.planned) == 1
