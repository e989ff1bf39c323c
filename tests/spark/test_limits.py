"""How much one batch reads and how it is cut into tasks, on real queues."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus
from tests.spark.engine import Engine, Row
from tests.support import wait_until

MakeEngine = Callable[..., Engine]


def per_queue(rows: list[Row]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, _, _ in rows:
        found[name] = found.get(name, 0) + 1
    return found


def test_max_messages_per_trigger_is_shared_fairly_and_what_small_queues_leave_is_used(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    a, b, c = fresh("a"), fresh("b"), fresh("c")
    query = engine(
        {
            "redis.url": bus.url,
            "idlePollMs": "1",
            "subscribe": f"{a},{b},{c}",
            "maxMessagesPerTrigger": "20",
        }
    )
    query.step()  # before Spark 4.2 the caps of Python hold from the second batch on
    for queue, rows in ((a, 2), (b, 50), (c, 100)):
        bus.fill(queue, rows)
    batches = query.drain()
    assert per_queue(batches[0]) == {a: 2, b: 9, c: 9}
    assert per_queue(batches[1]) == {b: 10, c: 10}
    assert [len(rows) for rows in batches] == [20] * 7 + [12]


def test_a_trigger_with_fewer_messages_than_queues_serves_all_of_them_in_turn(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    queues = [fresh("q") for _ in range(5)]
    query = engine(
        {
            "redis.url": bus.url,
            "idlePollMs": "1",
            "subscribe": ",".join(queues),
            "maxMessagesPerTrigger": "2",
        }
    )
    query.step()  # before Spark 4.2 the caps of Python hold from the second batch on
    for queue in queues:
        bus.fill(queue, 3)
    batches = query.drain()
    assert [len(rows) for rows in batches] == [2] * 7 + [1]
    assert max(per_queue([row for rows in batches[:5] for row in rows]).values()) == 2


def test_max_bytes_per_trigger_counts_the_bytes_of_values(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    query = engine(
        {"redis.url": bus.url, "idlePollMs": "1", "subscribe": queue, "maxBytesPerTrigger": "399"}
    )
    query.step()  # before Spark 4.2 the caps of Python hold from the second batch on
    bus.push(queue, *["x" * 100] * 10)
    assert [len(rows) for rows in query.drain()] == [3, 3, 3, 1]


def test_of_both_caps_the_tighter_one_holds(bus: Bus, engine: MakeEngine, queue: str) -> None:
    query = engine(
        {
            "redis.url": bus.url,
            "idlePollMs": "1",
            "subscribe": queue,
            "maxBytesPerTrigger": "250",
            "maxMessagesPerTrigger": "4",
        }
    )
    query.step()  # before Spark 4.2 the caps of Python hold from the second batch on
    bus.push(queue, *["x" * 100] * 4, *["y"] * 10)
    assert [len(rows) for rows in query.drain()] == [2, 4, 4, 4]


def test_the_budget_of_bytes_is_shared_by_queues(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    a, b = fresh("a"), fresh("b")
    query = engine(
        {
            "redis.url": bus.url,
            "idlePollMs": "1",
            "subscribe": f"{a},{b}",
            "maxBytesPerTrigger": "100",
        }
    )
    query.step()  # before Spark 4.2 the caps of Python hold from the second batch on
    bus.push(a, *["x" * 10] * 2)
    bus.push(b, *["x" * 10] * 30)
    assert [per_queue(rows) for rows in query.drain()] == [{a: 2, b: 8}, {b: 10}, {b: 10}, {b: 2}]


def test_a_message_larger_than_the_whole_budget_passes_alone(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    a, b = fresh("a"), fresh("b")
    query = engine({"redis.url": bus.url, "subscribe": f"{a},{b}", "maxBytesPerTrigger": "100"})
    query.step()
    bus.push(a, "x" * 1000, "small")
    bus.push(b, "x" * 1000)
    assert sorted(len(rows) for rows in query.drain()) == [1, 1, 1]


@pytest.mark.parametrize(
    "size", [60, 1000], ids=["over its part of the quota", "over the whole quota"]
)
def test_a_large_message_waits_one_batch_at_most_while_other_queues_are_busy(
    bus: Bus, engine: MakeEngine, fresh: Fresh, size: int
) -> None:
    busy, slow = fresh("a"), fresh("b")
    bus.push(busy, *["x" * 10] * 200)
    bus.push(slow, *["y" * size] * 3)
    query = engine(
        {"redis.url": bus.url, "subscribe": f"{busy},{slow}", "maxBytesPerTrigger": "100"}
    )
    batches = query.drain()
    at = [number for number, rows in enumerate(batches) if slow in per_queue(rows)]
    assert at[-1] <= 5
    assert all(after - before <= 2 for before, after in pairwise(at))


@pytest.mark.only("python", reason="no Spark hides limits from Java")
def test_without_read_limits_of_spark_the_caps_hold_from_the_second_batch_after_a_start(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    """Python before 4.2: a batch that is planned without its start must not end before the
    checkpoint.
    """
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1", "maxMessagesPerTrigger": "4"},
        before_42=True,
    )
    for first in (1, 21):
        bus.fill(queue, 10, first=first)
        assert [len(rows) for rows in query.drain()] == [10]
        bus.fill(queue, 10, first=first + 10)
        assert [len(rows) for rows in query.drain()] == [4, 4, 2]
        query.restart()
    bus.fill(queue, 10, first=41)
    assert [len(rows) for rows in query.available_now()] == [10]


@pytest.mark.needs("limits")
def test_trigger_once_takes_everything_whatever_the_caps(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    class ReadAllAvailable:
        """As that of Spark, of which the source looks at the name: Spark before 4.2 has none, and
        Java obeys caps there, too.
        """

    bus.fill(queue, 30)
    query = engine(
        {
            "redis.url": bus.url,
            "subscribe": queue,
            "maxMessagesPerTrigger": "4",
            "maxBytesPerTrigger": "10",
        }
    )
    assert len(query.step(limit=ReadAllAvailable()) or []) == 30


@pytest.mark.needs("limits")
def test_available_now_ends_with_what_was_there_when_it_began(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 10)
    query = engine({"redis.url": bus.url, "subscribe": queue, "maxMessagesPerTrigger": "4"})
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.step() or []) == 4
    bus.fill(queue, 100, first=11)
    assert [len(rows) for rows in query.drain()] == [4, 2]
    query.restart()
    assert sum(len(rows) for rows in query.available_now()) == 100


@pytest.mark.needs("limits")
def test_available_now_acknowledges_its_last_batch_before_it_ends(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 10)
    engine({"redis.url": bus.url, "subscribe": queue}).available_now()
    assert bus.ids(queue) == []


def test_available_now_without_news_ends_at_once(bus: Bus, engine: MakeEngine, queue: str) -> None:
    bus.fill(queue, 3)
    query = engine({"redis.url": bus.url, "subscribe": queue})
    query.available_now()
    query.restart()
    assert query.available_now() == []


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, [10, 90]),
        ({"minPartitions": "10"}, [10, *[10] * 9]),
        ({"minPartitions": "2"}, [10, 90]),
        ({"maxMessagesPerPartition": "30"}, [10, 30, 30, 30]),
        ({"maxMessagesPerPartition": "1"}, [100]),  # small ranges share tasks
        ({"maxMessagesPerPartition": "1", "minPartitions": "100"}, [1] * 100),
    ],
    ids=str,
)
def test_queues_are_cut_into_tasks_and_the_rows_stay_the_same(
    bus: Bus, engine: MakeEngine, fresh: Fresh, options: dict[str, str], tasks: list[int]
) -> None:
    a, b = fresh("a"), fresh("b")
    bus.fill(a, 10)
    bus.fill(b, 90)
    query = engine({"redis.url": bus.url, "subscribe": f"{a},{b}", **options})
    rows = query.step()
    assert rows == [
        *[(a, i, f"{a}:{i}".encode()) for i in range(1, 11)],
        *[(b, i, f"{b}:{i}".encode()) for i in range(1, 91)],
    ]
    assert query.tasks == tasks


def test_hundreds_of_queues_need_a_handful_of_tasks(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    queues = [fresh("many") for _ in range(300)]
    for queue in queues:
        bus.fill(queue, 10)
    query = engine({"redis.url": bus.url, "subscribe": ",".join(queues)})
    assert len(query.step() or []) == 3000
    assert query.tasks == [1000, 1000, 1000]


# The least number of messages


def ids(rows: list[Row] | None) -> list[int] | None:
    return rows and [id for _, id, _ in rows]


@pytest.mark.parametrize("name", ["minMessagesPerTrigger", "minOffsetsPerTrigger"])
def test_a_batch_waits_for_so_many_messages_but_the_first_one(
    bus: Bus, engine: MakeEngine, queue: str, name: str
) -> None:
    bus.fill(queue, 1)
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "ack": "none", "idlePollMs": "1", name: "3"}
    )
    assert [ids(rows) for rows in query.drain()] == [[1]]
    for more in (2, 3):
        bus.fill(queue, 1, first=more)
        assert [query.step() for _ in range(3)] == [None] * 3
    bus.fill(queue, 1, first=4)
    assert [ids(rows) for rows in query.drain()] == [[2, 3, 4]]


def test_too_few_messages_wait_no_longer_than_they_may(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 1)
    query = engine(
        {
            "redis.url": bus.url,
            "subscribe": queue,
            "minMessagesPerTrigger": "9",
            "maxTriggerDelay": "1s",
        }
    )
    query.drain()
    bus.fill(queue, 1, first=2)
    found: list[list[int] | None] = []
    wait_until(lambda: found.append(ids(query.step())) or found[-1], PATIENCE_S)
    assert found[-1] == [2]


def test_what_was_read_is_acknowledged_while_too_few_messages_wait(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    """The idle query plans a batch without rows, so that Spark commits the one before."""
    bus.fill(queue, 2)
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1", "minMessagesPerTrigger": "9"}
    )
    query.drain()
    bus.fill(queue, 1, first=3)
    wait_until(lambda: query.step() in (None, []) and bus.ids(queue) == [3], PATIENCE_S)
    assert [query.step() for _ in range(3)] == [None] * 3


def test_after_a_restart_the_first_batch_does_not_wait(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 1)
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1", "minMessagesPerTrigger": "3"}
    )
    query.drain()
    bus.fill(queue, 1, first=2)
    assert query.drain() == []
    query.restart()
    assert [ids(rows) for rows in query.drain()] == [[2]]
    bus.fill(queue, 3, first=3)
    query.step("planned")  # a batch that was planned before a crash is executed whatever waits now
    query.restart()
    assert [ids(rows) for rows in query.drain()] == [[3, 4, 5]]


@pytest.mark.needs("limits")
def test_what_is_available_now_does_not_wait(bus: Bus, engine: MakeEngine, queue: str) -> None:
    bus.fill(queue, 5)
    query = engine(
        {
            "redis.url": bus.url,
            "subscribe": queue,
            "minMessagesPerTrigger": "2",
            "maxMessagesPerTrigger": "2",
        }
    )
    assert [ids(rows) for rows in query.available_now()] == [[1, 2], [3, 4], [5]]
