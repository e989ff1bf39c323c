"""The streaming reader under an engine that crashes where Spark may: no message lost, none twice,
order kept.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError
from busmq_spark.queue.keys import QueueKeys
from tests.clocks import HOUR, pass_by
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus
from tests.spark.engine import Engine, Row

MakeEngine = Callable[..., Engine]

pushes = st.tuples(st.just("push"), st.integers(0, 2), st.integers(1, 30))
steps = st.tuples(st.just("step"), st.sampled_from(["", "", "planned", "read"]))
restarts = st.tuples(st.just("restart"), st.sampled_from(["2", "7", "1000000"]))
life = st.lists(st.one_of(pushes, steps, restarts), max_size=25)


# Drawn by hypothesis
def live(engine: Engine, bus: Bus, queues: list[str], events: list[tuple]) -> list[Row]:  # type: ignore[type-arg]
    """Let a query live through the events and then drain it; every row of a committed batch, in
    order of delivery.
    """
    pushed = dict.fromkeys(queues, 0)
    delivered: list[Row] = []
    for kind, *details in events:
        if kind == "push":
            queue = queues[details[0]]
            bus.fill(queue, details[1], first=pushed[queue] + 1)
            pushed[queue] += details[1]
        elif kind == "restart":
            engine.restart(maxMessagesPerTrigger=details[0])
        else:
            before = engine.committed
            rows = engine.step(details[0])
            if engine.committed > before:
                delivered += rows or []
            if details[0]:
                engine.restart()
    polls = 0
    while polls < 2:  # a process acknowledges nothing at its first
        rows = engine.step()
        delivered += rows or []
        polls = polls + 1 if rows is None else 0
    return delivered


@examples(max_examples=60)
@given(events=life, ack=st.sampled_from(["commit", "none"]), before_42=st.booleans())
def test_whatever_happens_every_message_is_delivered_once_and_in_order(
    events: list[tuple],  # type: ignore[type-arg]
    ack: str,
    before_42: bool,
    *,
    bus: Bus,
    engine: MakeEngine,
    language: str,
    fresh: Fresh,
) -> None:
    if before_42 and language != "python":
        return  # it has one way to plan: half of the examples are enough
    queues = [fresh("a"), fresh("b"), fresh("c")]
    query = engine(
        {"redis.url": bus.url, "subscribe": ",".join(queues), "ack": ack}, before_42=before_42
    )
    delivered = live(query, bus, queues, events)
    for queue in queues:
        pushed = sum(
            details[1]
            for kind, *details in events
            if kind == "push" and queues[details[0]] == queue
        )
        assert [(id, value) for name, id, value in delivered if name == queue] == [
            (i, f"{queue}:{i}".encode()) for i in range(1, pushed + 1)
        ]
        assert bus.ids(queue) == (list(range(1, pushed + 1)) if ack == "none" else [])
    query.reader.stop()


@pytest.mark.parametrize("before_42", [False, True])
@pytest.mark.parametrize("crash", ["", "planned", "read"])
def test_latest_means_what_was_newest_when_the_first_batch_was_planned(
    bus: Bus, engine: MakeEngine, queue: str, crash: str, before_42: bool
) -> None:
    bus.fill(queue, 5)
    query = engine(
        {
            "redis.url": bus.url,
            "subscribe": queue,
            "startingOffsets": "latest",
            "discardBacklog": "true",
        },
        before_42=before_42,
    )
    query.step(crash)
    bus.fill(queue, 3, first=6)
    if crash:
        query.restart()
    assert [id for batch in query.drain() for _, id, _ in batch] == [6, 7, 8]
    bus.fill(queue, 2, first=9)
    query.restart()
    bus.fill(queue, 1, first=11)
    assert [id for batch in query.drain() for _, id, _ in batch] == [9, 10, 11]


def test_the_offset_is_the_last_id_of_each_queue(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    a, b = fresh("a"), fresh("b")
    bus.fill(a, 3)
    bus.attach(b)
    query = engine({"redis.url": bus.url, "subscribe": f"{b},{a}"})
    query.step()
    assert query.positions() == {a: 3, b: 0}


def test_starting_offsets_as_json_name_the_last_id_that_is_done(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    a, b, c = fresh("a"), fresh("b"), fresh("c")
    for queue in (a, b, c):
        bus.fill(queue, 5)
    query = engine(
        {
            "redis.url": bus.url,
            "subscribe": f"{a},{b},{c}",
            "startingOffsets": f'{{"{a}": 3, "{b}": "latest"}}',
            "discardBacklog": "true",
        }
    )
    assert [(name, id) for batch in query.drain() for name, id, _ in batch] == [
        (a, 4),
        (a, 5),
        *[(c, i) for i in range(1, 6)],
    ]


def test_starting_offsets_count_only_for_a_fresh_checkpoint(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 5)
    query = engine(
        {
            "redis.url": bus.url,
            "subscribe": queue,
            "startingOffsets": f'{{"{queue}": 4}}',
            "discardBacklog": "true",
        }
    )
    assert [id for batch in query.drain() for _, id, _ in batch] == [5]
    bus.fill(queue, 2, first=6)
    query.restart(startingOffsets="latest")
    assert [id for batch in query.drain() for _, id, _ in batch] == [6, 7]


def test_a_start_after_the_newest_message_is_refused(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 5)
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "startingOffsets": f'{{"{queue}": 6}}'}
    )
    with pytest.raises(
        ConfigError,
        match=f"startingOffsets says '{queue}' is read up to id 6, but its last id is 5",
    ):
        query.step()


def test_a_queue_taken_out_of_subscribe_is_not_read_any_more(
    bus: Bus, engine: MakeEngine, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = fresh("a"), fresh("b")
    bus.fill(a, 2)
    bus.fill(b, 2)
    query = engine({"redis.url": bus.url, "subscribe": f"{a},{b}"})
    query.drain()
    bus.fill(a, 1, first=3)
    bus.fill(b, 1, first=3)
    query.restart(subscribe=a)
    assert [(name, id) for batch in query.drain() for name, id, _ in batch] == [(a, 3)]
    assert query.positions() == {a: 3}
    assert f"dropped {b}, added none" in caplog.text
    assert bus.ids(b) == [3]


@pytest.mark.parametrize("before_42", [False, True])
@pytest.mark.parametrize("crash", ["", "planned", "read"])
def test_a_queue_added_to_subscribe_is_read_from_its_oldest_message_even_with_latest(
    bus: Bus, engine: MakeEngine, fresh: Fresh, before_42: bool, crash: str
) -> None:
    a, b = fresh("a"), fresh("b")
    bus.fill(a, 2)
    read = {
        "redis.url": bus.url,
        "subscribe": a,
        "startingOffsets": "latest",
        "discardBacklog": "true",
    }
    query = engine(read, before_42=before_42)
    query.step()
    bus.fill(b, 3)
    bus("LTRIM", QueueKeys(b).messages, 2, -1)  # another reader had done the first
    query.restart(subscribe=f"{a},{b}")
    first = query.step(crash)
    if crash:
        query.restart()
    rows = [*([] if crash else first or []), *(row for batch in query.drain() for row in batch)]
    assert [(name, id) for name, id, _ in rows] == [(b, 2), (b, 3)]


def test_a_checkpoint_of_another_source_is_refused(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    query = engine({"redis.url": bus.url, "subscribe": queue})
    query.planned, query.committed = [{"orders": {"0": 41}}], 1
    with pytest.raises(ConfigError, match="does not hold busmq offsets"):
        query.step()


def test_nothing_new_is_the_same_offset_again(bus: Bus, engine: MakeEngine, queue: str) -> None:
    bus.fill(queue, 2)
    query = engine({"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1"})
    query.drain()
    assert [query.step() for _ in range(20)] == [None] * 20


@pytest.mark.needs("limits")
def test_lag_is_the_newest_id_minus_the_end_of_the_batch(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 9)
    query = engine({"redis.url": bus.url, "subscribe": queue, "maxMessagesPerTrigger": "4"})
    assert query.reader.reportLatestOffset() is None
    pass_by(bus, QueueKeys(queue), HOUR)
    query.step()
    assert query.positions() == {queue: 4}
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert HOUR // 1000 <= report.pop("lag_s") < HOUR // 1000 + PATIENCE_S, "the age of message 5"
    assert report == {"v": 1, "queues": {queue: {"last": 9}}, "lag": 5}
    query.drain()
    assert query.reader.reportLatestOffset() == {
        "v": 1,
        "queues": {queue: {"last": 9}},
        "lag": 0,
        "lag_s": 0,
    }


@pytest.mark.needs("limits")
def test_lag_in_seconds_is_that_of_the_queue_that_waits_longest_and_left_out_where_it_is_not_known(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    queues = [fresh("lag") for _ in range(3)]
    for hours, queue in enumerate(queues):
        bus.fill(queue, 2)
        pass_by(bus, QueueKeys(queue), hours * HOUR)
    query = engine(
        {
            "redis.url": bus.url,
            "subscribe": ",".join(queues),
            "maxMessagesPerTrigger": "3",
            "ack": "none",
        }
    )
    query.step()
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert (report["lag"], report["lag_s"] * 1000 // HOUR) == (3, 2)
    query.drain()
    for queue in queues:
        bus.fill(queue, 3, first=3)
    query.restart()
    query.step()
    for queue in queues:
        bus("DEL", QueueKeys(queue).clock)
        bus("HDEL", QueueKeys(queue).metadata, "clock")
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert (report["lag"], report["lag_s"]) == (6, None)
