"""How much to read, how to cut it, what is lost: decisions without a socket."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.queue.message import Position, Range
from busmq_spark.reading.batch_planner import (
    MAX_UNPACKED_RANGES,
    ROWS_PER_PACKED_TASK,
    share_out,
    split,
    tasks,
)
from busmq_spark.reading.loss import loss_between
from busmq_spark.reading.reader_operations import QueueState

queues = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.integers(0, 1000), max_size=12
)


@given(queues, st.integers(1, 5000))
def test_a_cap_is_used_up_and_never_exceeded_while_there_is_something_to_read(
    available: dict[str, int], most: int
) -> None:
    given_ = share_out(available, most)
    assert sum(given_.values()) == min(most, sum(available.values()))
    assert all(0 <= given_[queue] <= available[queue] for queue in available)


@given(queues, st.integers(1, 5000))
def test_no_queue_gets_less_than_another_unless_it_has_no_more(
    available: dict[str, int], most: int
) -> None:
    given_ = share_out(available, most)
    for queue, rows in given_.items():
        if rows < available[queue]:
            assert rows >= max(given_.values()) - 1


def test_a_cap_below_the_number_of_queues_goes_to_those_with_the_most() -> None:
    assert share_out({"a": 5, "b": 1, "c": 9, "d": 7}, 2) == {"a": 0, "b": 0, "c": 1, "d": 1}


@given(st.integers(1, 10**6), st.integers(1, 3000), st.integers(1, 50))
def test_a_split_range_is_the_range_in_order_in_even_parts(
    first: int, rows: int, parts: int
) -> None:
    found = split(first, first + rows - 1, parts)
    assert len(found) == min(parts, rows)
    assert [i for a, b in found for i in range(a, b + 1)] == list(range(first, first + rows))
    sizes = {b - a + 1 for a, b in found}
    assert max(sizes) - min(sizes) <= 1


def test_an_empty_range_has_no_parts() -> None:
    assert split(5, 4, 3) == []


ranges = st.lists(st.integers(1, 2500), max_size=60).map(
    lambda sizes: [Range(f"q{i}", "b", 11, 10 + rows) for i, rows in enumerate(sizes)]
)


@given(ranges, st.none() | st.integers(1, 80), st.none() | st.integers(1, 500))
def test_tasks_hold_every_id_once_and_keep_the_order_of_each_queue(
    parts: list[Range], minimum: int | None, most: int | None
) -> None:
    found = tasks(parts, minimum, most)
    flat = [r for task in found for r in task]
    for part in parts:
        assert [
            i for r in flat if r.queue == part.queue for i in range(r.first, r.last + 1)
        ] == list(range(part.first, part.last + 1))
    assert sum(r.rows for r in flat) == sum(r.rows for r in parts)
    assert all(task for task in found)
    if most:
        assert all(r.rows <= most for r in flat)


def sizes(found: list[tuple[Range, ...]]) -> list[int]:
    return [sum(r.rows for r in task) for task in found]


def queue_of(rows: int, name: str = "q") -> Range:
    return Range(name, "b", 1, rows)


def test_without_options_every_queue_is_one_task() -> None:
    assert sizes(tasks([queue_of(10, "a"), queue_of(1000, "b")], None, None)) == [10, 1000]


def test_min_partitions_cuts_the_large_queue_and_leaves_the_small_one() -> None:
    assert sizes(tasks([queue_of(10, "a"), queue_of(790, "b")], 8, None)) == [
        10,
        *[98, 99, 99, 99, 98, 99, 99, 99],
    ]


def test_min_partitions_below_the_number_of_queues_changes_nothing() -> None:
    assert sizes(tasks([queue_of(5, "a"), queue_of(5, "b")], 2, None)) == [5, 5]


def test_max_messages_per_partition_cuts_into_parts_no_larger() -> None:
    assert sizes(tasks([queue_of(10)], None, 4)) == [3, 3, 4]


def test_of_two_options_the_one_with_more_parts_counts() -> None:
    assert sizes(tasks([queue_of(100)], 2, 10)) == [10] * 10
    assert sizes(tasks([queue_of(100)], 20, 10)) == [5] * 20


def test_many_small_queues_share_tasks_so_that_each_is_worth_starting() -> None:
    found = tasks([queue_of(100, f"q{i}") for i in range(MAX_UNPACKED_RANGES + 1)], None, None)
    assert sizes(found) == [ROWS_PER_PACKED_TASK] * 3 + [300]


def test_up_to_a_few_dozen_queues_each_has_a_task_of_its_own() -> None:
    assert (
        len(tasks([queue_of(1, f"q{i}") for i in range(MAX_UNPACKED_RANGES)], None, None))
        == MAX_UNPACKED_RANGES
    )


def test_the_parts_of_a_queue_that_was_cut_stay_in_their_order_among_many_small_ones() -> None:
    """Parts of 999 rows were packed behind parts of 1,000."""
    small = [queue_of(1, f"q{i}") for i in range(40)]
    found = tasks(
        [*small, queue_of(3 * ROWS_PER_PACKED_TASK - 1, "cut"), *small], None, ROWS_PER_PACKED_TASK
    )
    assert [(r.first, r.last) for task in found for r in task if r.queue == "cut"] == [
        (1, 999),
        (1000, 1999),
        (2000, 2999),
    ]


def test_a_large_queue_among_many_small_ones_keeps_its_own_task() -> None:
    found = tasks(
        [
            *[queue_of(1, f"q{i}") for i in range(40)],
            queue_of(ROWS_PER_PACKED_TASK, "large"),
            *[queue_of(1, f"r{i}") for i in range(40)],
        ],
        None,
        None,
    )
    assert ("large",) in [tuple(r.queue for r in task) for task in found]


# What is lost

FULL = QueueState(
    ttl_s=60,
    born="b",
    maxsize=0,
    last_id=9,
    oldest=6,
    newest=9,
    count=4,
    mark="m5",
    newest_mark="m9",
)
EMPTY = replace(FULL, oldest=0, newest=0, count=0, mark="", newest_mark="")


@pytest.mark.parametrize(
    ("at", "now"),
    [
        (Position("b", 5, "m5"), FULL),
        (Position("b", 5, "m5"), replace(FULL, mark="")),
        (Position("b", 5, ""), FULL),
        (Position("b", 7, "m7"), replace(FULL, mark="m7")),
        (Position("b", 9, "m9"), replace(FULL, mark="m9")),
        (Position("b", 9, "m9"), EMPTY),
    ],
    ids=[
        "next is the oldest",
        "acked meanwhile",
        "fingerprint unknown",
        "not acked yet",
        "at the end",
        "all acked",
    ],
)
def test_nothing_is_lost(at: Position, now: QueueState) -> None:
    assert loss_between(at, now) is None


@pytest.mark.parametrize(
    ("at", "now", "kind", "ids", "found"),
    [
        (Position("b", 5), replace(FULL, ttl_s=0, born=""), "expired", 0, "no such queue"),
        (Position("a", 5), FULL, "recreated", 0, "incarnation b with ids up to 9"),
        (
            Position("a", 5),
            replace(FULL, born=""),
            "recreated",
            0,
            "incarnation unnamed with ids up to 9",
        ),
        (Position("b", 10), FULL, "rolled-back", 0, "last id 9"),
        (Position("b", 5, "other"), FULL, "reissued", 0, "one with fingerprint m5"),
        (Position("b", 3), FULL, "removed", 2, "oldest stored id 6"),
        (Position("b", 5), EMPTY, "removed", 4, "nothing stored after id 9"),
    ],
    ids=[
        "expired",
        "recreated",
        "recreated by a peer",
        "rolled back",
        "reissued",
        "the oldest went",
        "all went",
    ],
)
def test_each_kind_of_loss_is_distinguished_with_what_was_found(
    at: Position, now: QueueState, kind: str, ids: int, found: str
) -> None:
    loss = loss_between(at, now)
    assert loss is not None
    assert (loss.kind, loss.ids, loss.found) == (kind, ids, found)
    assert str(at.last + 1) in loss.expected or str(at.last) in loss.expected
