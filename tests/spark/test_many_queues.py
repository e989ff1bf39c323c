"""What a thousand queues cost beside ten: work that grows with their number, not with its square,
and few calls to Redis. Counted, not timed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions, WriteOptions
from busmq_spark.queue.message import Position, Range
from busmq_spark.reading.batch_planner import AcquiredQueues, BatchPlanner
from busmq_spark.spark.read.acquisition import QueueSelection
from busmq_spark.spark.read.tasks import RangePartition
from busmq_spark.spark.write import sink_columns
from busmq_spark.spark.write.sink_columns import SinkColumns
from busmq_spark.spark.write.writers import BatchWriter
from busmq_spark.store.protocol import ConsecutiveMessages, PlanningStore
from tests.core.plan_world import World
from tests.spark.conftest import Bus, MakeBus

QUEUES, TIMES = 300, 4


class Name(str):
    """The name of a queue that counts how often it is compared with another: a list is searched so,
    a set is not.
    """

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


@pytest.fixture
def names() -> list[str]:
    Name.compared = 0
    return [Name(f"q{i:03}") for i in range(QUEUES)]


def test_a_planning_compares_no_queue_with_every_other(names: list[str]) -> None:
    options = parse(
        ReadOptions,
        {
            "redis.url": "redis://host",
            "subscribePattern": "q.*",
            "maxMessagesPerTrigger": str(QUEUES),
        },
    )
    world = World(
        {"queues": {name: {"born": "x", "oldest": 1, "newest": 9, "last_id": 9} for name in names}}
    )
    begin = {name: Position("x", 2, "") for name in names}
    held = AcquiredQueues(names, sources=[""])
    ends = BatchPlanner(options).plan(begin, held, world, unlimited=False)
    assert {end.last for end in ends.values()} == {3}
    assert Name.compared < 20 * QUEUES


def test_what_is_held_already_is_not_looked_for_in_a_list(names: list[str]) -> None:
    store = cast(PlanningStore, SimpleNamespace(discover=lambda *_: []))
    known = QueueSelection(
        parse(ReadOptions, {"redis.url": "redis://host", "subscribePattern": "q.*"})
    )
    assert known.queues_to_acquire(
        [*names, Name("q-new"), Name("other")], names, store, new_ones=False
    ) == ["q-new"]
    assert Name.compared < 5 * QUEUES


def test_a_task_travels_as_plain_tuples() -> None:
    ranges = tuple(Range(f"q{i}", "x", 3, 9, 1) for i in range(3))
    rows = ConsecutiveMessages("q0", 3, pa.array([b"a"] * 7))
    ends = {part.queue: Position("x", 9, "m", 2, 1) for part in ranges}
    text = pickle.dumps(RangePartition(ranges, {ranges[0]: [rows]}, ends))
    assert b"core.position" not in text  # neither Position nor Range
    there: Any = pickle.loads(text)
    assert (there.ranges, there.prefetched, there.ends) == (ranges, {ranges[0]: [rows]}, ends)


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as made:
        yield made


def appended(bus: Bus) -> int:
    """How often values were appended to a list: calls, however many values each had."""
    info: bytes = bus("INFO", "commandstats")
    lines = [
        line
        for line in info.split(b"\r\n")
        if line.startswith((b"cmdstat_rpush:", b"cmdstat_rpushx:"))
    ]
    return sum(int(line.split(b"calls=")[1].split(b",")[0]) for line in lines)


@pytest.mark.parametrize(("delivery", "written"), [("exactly-once", 2), ("at-least-once", 1)])
def test_the_rows_of_a_queue_travel_together_however_many_queues_lie_between_them(
    server: EmbeddedRedis, bus_of: MakeBus, delivery: str, written: int
) -> None:
    """Once to its staged list and once from there, or once for all; not with each of Spark's record
    batches. And once its clock gets a time.
    """
    bus = bus_of(server)
    write = BatchWriter(
        parse(WriteOptions, {"redis.url": bus.url, "delivery": delivery}),
        SinkColumns("value", "queue", None),
        overwrite=False,
    )
    write.commit([write.write(arrow(QUEUES, turn) for turn in range(TIMES))])
    assert [bus.stored(f"q{i}") for i in (0, QUEUES - 1)] == [[b"0", b"1", b"2", b"3"]] * 2
    assert appended(bus) == (written + 1) * QUEUES


def test_rows_are_gathered_up_to_a_bound_and_those_of_one_queue_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_columns, "GATHERED_BYTES", 2 * arrow(10, 0).nbytes)
    taken = iter([arrow(10, turn) for turn in range(5)])
    many = list(SinkColumns("value", "queue", None).values_by_queue(taken))
    assert [part["q7"] for part in many] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    one = list(SinkColumns("value", None, "q").values_by_queue(arrow(2, turn) for turn in range(2)))
    assert one == [{"q": [b"0", b"0"]}, {"q": [b"1", b"1"]}]


def arrow(queues: int, turn: int) -> Any:
    """A record batch with one row for each queue."""
    return pa.RecordBatch.from_pydict(
        {"queue": [f"q{i}" for i in range(queues)], "value": [b"%d" % turn] * queues}
    )
