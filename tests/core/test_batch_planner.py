"""Where a batch ends: tables that the planner of the Java module reads, too
(BatchPlannerTest.java), and what holds for any queues.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import BusError
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions
from busmq_spark.queue.message import Position
from busmq_spark.reading.batch_planner import AcquiredQueues, BatchPlanner
from tests.core.plan_world import LostInTest, World, name_of, positions

CASES = json.loads((Path(__file__).parents[1] / "golden" / "plans-v1.json").read_text("utf-8"))[
    "cases"
]


def planner(options: dict[str, str], *, available_now: bool = False) -> BatchPlanner:
    made = BatchPlanner(parse(ReadOptions, {"redis.url": "redis://host", **options}))
    if available_now:
        made.prepare_for_available_now()
    return made


@pytest.mark.parametrize("case", CASES, ids=[case["says"] for case in CASES])
def test_a_batch_ends_where_the_table_says_and_asks_what_it_says(case: dict[str, Any]) -> None:
    plans = planner(case["options"], available_now=case.get("available_now", False))
    for table in case["plannings"]:
        world = World(table)
        known = () if table.get("fresh") else ("", "eu")
        held = AcquiredQueues(
            [name_of(q) for q in table["held"]],
            [name_of(q) for q in table.get("paused", ())],
            positions(table.get("entering", {})),
            known,
        )
        assert [plans.has_pushes(held, world) for _ in table.get("pushed", ())] == table.get(
            "pushed", []
        )
        ends = outcome(plans, table, held, world)
        assert ends == (table["raises"] if "raises" in table else positions(table["end"]))
        assert world.asked == table["asks"]


def outcome(
    plans: BatchPlanner, table: dict[str, Any], held: AcquiredQueues, world: World
) -> dict[str, Position] | str:
    """Return the ends of a planning, or the name of its error."""
    try:
        return plans.plan(
            positions(table["begin"]),
            held,
            world,
            unlimited=table.get("unlimited", False),
            now_ms=table.get("now_ms", 0),
        )
    except LostInTest:
        return "lost"
    except BusError as error:
        return error.code


queues = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.integers(0, 50), st.integers(0, 60), st.integers(1, 40)),
    min_size=1,
)
"""By queue: messages acknowledged, messages stored, bytes of each."""


@given(queues, st.none() | st.integers(1, 200), st.none() | st.integers(1, 2000), st.booleans())
def test_batch_after_batch_reads_every_message_once_within_the_caps(
    found: dict[str, tuple[int, int, int]],
    most: int | None,
    budget: int | None,
    available_now: bool,
) -> None:
    options = {
        "subscribe": ",".join(sorted(found)),
        **({"maxMessagesPerTrigger": str(most)} if most else {}),
    }
    plans = planner(
        {**options, **({"maxBytesPerTrigger": str(budget)} if budget else {})},
        available_now=available_now,
    )
    states = {
        q: {"born": "x", "oldest": n and done + 1, "newest": n and done + n, "last_id": done + n}
        for q, (done, n, _) in found.items()
    }
    sizes = {q: size for q, (_, _, size) in found.items()}
    world, at = World({"queues": states, "sizes": sizes}), dict[str, Position]()
    left = sum(n for _, n, _ in found.values())
    while left:
        held = AcquiredQueues(sorted(found), sources=[""] if at else [])
        ends = plans.plan(at, held, world, unlimited=False)
        rows = {q: ends[q].last - (at[q].last if q in at else found[q][0]) for q in ends}
        assert min(rows.values()) >= 0
        assert 0 < sum(rows.values()) <= (most or left)
        assert sum(rows.values()) == 1 or sum(sizes[q] * n for q, n in rows.items()) <= (
            budget or 10**9
        )
        left, at = left - sum(rows.values()), ends
    assert {q: end.last for q, end in at.items()} == (
        {q: done + n for q, (done, n, _) in found.items()} if at else {}
    )


def test_what_is_known_already_is_planned_without_a_question() -> None:
    plans = planner({"subscribe": "a", "maxMessagesPerTrigger": "2"})
    world = World({"queues": {"a": {"born": "x", "oldest": 1, "newest": 4, "last_id": 4}}})
    held = AcquiredQueues(["a"])
    first = plans.plan({}, held, world, unlimited=False)
    assert plans.has_more(first, held, ())
    assert not plans.has_more(first, held, ("",)), "its source cannot be reached"
    second = plans.plan(first, held, world, unlimited=False)
    assert not plans.has_more(second, held, ())
    assert plans.has_more(second, AcquiredQueues(["a", "b"]), ()), "a queue that is new"


def test_an_idle_query_with_too_few_messages_is_not_planned_anew_until_its_time_has_come() -> None:
    plans = planner({"subscribe": "a", "minMessagesPerTrigger": "3", "maxTriggerDelay": "10"})
    held = AcquiredQueues(["a"])

    def ends(at: dict[str, Position], newest: int, now_ms: int) -> dict[str, Position]:
        world = World(
            {"queues": {"a": {"born": "x", "oldest": 1, "newest": newest, "last_id": newest}}}
        )
        return plans.plan(at, held, world, unlimited=False, now_ms=now_ms)

    first = ends({}, 1, 0)
    assert ends(first, 3, 1000)["a"].last == 1
    assert not plans.has_more(first, held, (), 9_999), "two messages wait for a third"
    assert plans.has_more(first, held, (), 10_000)
    assert ends(first, 4, 2000)["a"].last == 4
