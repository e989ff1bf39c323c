"""Several data centres and Redis itself in one query, under an engine that crashes and links that
come and go.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError, LinkLost, QueueBusy, QueueFlushed, QueueMissing
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions
from busmq_spark.queue.keys import QueueKeys, qualified_name, split_name
from busmq_spark.redis_io.lease_token import my_token
from busmq_spark.spark.read import acquisition
from busmq_spark.spark.read.batch_reader import BatchReader
from busmq_spark.store import multi_source_store
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus
from tests.spark.engine import Engine, rows_of
from tests.spark.links import LINKED, LINKS, SOURCES, Centre, gather, ids
from tests.support import wait_until

MakeEngine = Callable[..., Engine]
pytestmark = pytest.mark.only(
    "python", reason="only the Python source reads over links of federation"
)

# Everything there


def test_one_query_reads_the_same_queue_of_every_source_and_says_where_a_row_is_from(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str
) -> None:
    for many, bus in enumerate(buses.values(), 1):
        bus.fill(queue, many)
    query = linked(queue)
    [rows] = query.drain()
    assert [row for row in rows if row[3] == "us"] == [
        (queue, i, f"{queue}:{i}".encode(), "us") for i in (1, 2, 3)
    ]
    assert {source: ids(rows, source) for source in SOURCES} == {
        "": [1],
        "eu": [1, 2],
        "us": [1, 2, 3],
    }
    assert all(bus.ids(queue) == [] for bus in buses.values())


def test_the_offset_has_the_queues_of_links_beside_those_of_redis(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str
) -> None:
    for bus in buses.values():
        bus.fill(queue, 2)
    query = linked(queue)
    query.step()
    offset = query.planned[-1]
    assert list(offset) == ["v", "queues", "sources"]
    assert offset["v"] == 1
    assert [
        offset["queues"][queue]["last"],
        *(offset["sources"][link]["queues"][queue]["last"] for link in ("eu", "us")),
    ] == [2, 2, 2]
    assert "\ufdd0" not in json.dumps(query.planned, ensure_ascii=False)
    report = query.reader.reportLatestOffset()
    assert report == {
        "v": 1,
        "queues": {queue: {"last": 2}},
        "sources": {link: {"queues": {queue: {"last": 2}}} for link in ("eu", "us")},
        "lag": 0,
        "lag_s": 0,
    }


def test_a_pattern_finds_queues_of_every_source(
    linked: Callable[..., Engine], buses: dict[str, Bus], fresh: Fresh
) -> None:
    base = fresh("p")
    for source, bus in buses.items():
        bus.fill(f"{base}-{source}", 2)
    query = linked(subscribePattern=f"{base}-.*")
    rows = [row for batch in query.drain() for row in batch]
    assert sorted((source, queue) for queue, _, _, source in rows) == sorted(
        (s or "local", f"{base}-{s}") for s in SOURCES for _ in range(2)
    )
    buses["us"].fill(f"{base}-late", 1)
    assert [(row[0], row[3]) for row in gather(query, {"us": 1})] == [(f"{base}-late", "us")]


def test_a_far_data_centre_is_asked_about_all_its_queues_at_once(
    linked: Callable[..., Engine], buses: dict[str, Bus], centres: dict[str, Centre], fresh: Fresh
) -> None:
    base = fresh("many")
    for number in range(30):
        buses["eu"].fill(f"{base}-{number}", 1)
    query = linked(subscribePattern=f"{base}-.*", subscription="s")
    [rows] = query.drain()
    assert len(ids(rows, "eu")) == 30
    assert [centres["eu"].asked.count(what) for what in ("attach", "lease", "subscribe")] == [
        1,
        1,
        1,
    ]


def test_starting_offsets_count_for_each_source(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str
) -> None:
    for bus in buses.values():
        bus.fill(queue, 5)
    query = linked(
        queue,
        startingOffsets=json.dumps({queue: 3, "eu": {queue: "latest"}, "local": {queue: 1}}),
        discardBacklog="true",
    )
    [rows] = query.drain()
    assert {source: ids(rows, source) for source in SOURCES} == {
        "": [2, 3, 4, 5],
        "eu": [],
        "us": [4, 5],
    }


def test_an_added_link_begins_at_starting_offsets_and_one_that_is_left_out_is_dropped(
    centres: dict[str, Centre], buses: dict[str, Bus], engine: MakeEngine, queue: str
) -> None:
    for bus in buses.values():
        bus.fill(queue, 2)
    query = engine({"redis.url": buses[""].url, "subscribe": queue})
    query.drain()
    query.kill()
    query._schema = LINKED
    query.options |= {**LINKS, "startingOffsets": "latest", "discardBacklog": "true"}
    query.reader = query._new_reader()
    buses["eu"].fill(queue, 1, first=3)
    buses[""].fill(queue, 1, first=3)
    rows = gather(query, {"": 1})
    assert {source: ids(rows, source) for source in SOURCES} == {"": [3], "eu": [], "us": []}
    buses["eu"].fill(queue, 1, first=4)
    assert ids(gather(query, {"eu": 1}), "eu") == [4]
    query.restart(**{"federation.url": "us=wss://us.example/bus"})
    buses["us"].fill(queue, 1, first=3)
    gather(query, {"us": 1})
    assert list(query.planned[-1]["sources"]) == ["us"]


def test_a_planned_batch_of_a_link_that_is_not_named_any_more_is_refused(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str
) -> None:
    buses["eu"].fill(queue, 2)
    query = linked(queue)
    query.step("planned")
    query.restart(**{"federation.url": "us=wss://us.example/bus"})
    with pytest.raises(
        ConfigError,
        match=(
            r"reads from link 'eu', which federation.url does not name any more; name it until that"
            r" batch is done"
        ),
    ):
        query.step()


def test_a_batch_read_takes_every_source(
    buses: dict[str, Bus], centres: dict[str, Centre], queue: str
) -> None:
    for many, bus in enumerate(buses.values(), 1):
        bus.fill(queue, many)
    options = parse(ReadOptions, {"redis.url": buses[""].url, **LINKS, "subscribe": queue})
    batch = BatchReader(options, LINKED)
    # It has a read, too
    rows = [row for part in batch.partitions() for row in rows_of(batch, part)]  # type: ignore[arg-type]
    assert {source: ids(rows, source) for source in SOURCES} == {
        "": [1],
        "eu": [1, 2],
        "us": [1, 2, 3],
    }
    assert buses["us"].ids(queue) == [1, 2, 3]
    with pytest.raises(QueueMissing, match="queue 'eu/nobody' does not exist"):
        BatchReader(parse(ReadOptions, {**LINKS, "subscribe": "nobody"}), LINKED).partitions()


# Losses and conflicts name their source


def test_a_loss_behind_a_link_stops_the_query_and_names_link_and_queue(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str
) -> None:
    buses["eu"].fill(queue, 3)
    query = linked(queue)
    query.drain()
    buses["eu"].fill(queue, 2, first=4)
    buses["eu"]("LTRIM", QueueKeys(queue).messages, 2, -1)
    query.restart()
    with pytest.raises(
        QueueFlushed, match=f"queue 'eu/{queue}'.* expected ids from 4 on, found oldest stored id 5"
    ):
        query.step()


def test_a_loss_that_a_task_meets_names_link_and_queue(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str
) -> None:
    buses["eu"].fill(queue, 3)
    query = linked(queue)
    query.step("planned")
    query.restart()  # with what it had fetched already
    buses["eu"]("DEL", QueueKeys(queue).messages)
    with pytest.raises(QueueFlushed, match=f"queue 'eu/{queue}'"):
        query.step()


def test_a_queue_that_another_query_reads_is_named_with_its_link(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str
) -> None:
    buses["us"].attach(queue)
    buses["us"]("SET", QueueKeys(queue).lease(""), my_token())
    with pytest.raises(QueueBusy, match=f"queue 'us/{queue}' is read by another query"):
        linked(queue).step()


# Links that are away


def test_a_link_that_is_away_stops_its_own_queues_and_no_others_and_loses_nothing(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    queue: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for bus in buses.values():
        bus.fill(queue, 2)
    query = linked(queue)
    query.drain()
    centres["eu"].down = True
    for bus in buses.values():
        bus.fill(queue, 3, first=3)
    rows = gather(query, {"": 3, "us": 3})
    assert ids(rows, "eu") == []
    assert query.planned[-1]["sources"]["eu"]["queues"][queue]["last"] == 2
    assert query.reader.reportLatestOffset()["sources"]["eu"] == {
        "queues": {queue: {"last": 2}},
        "away": True,
    }  # type: ignore[index]
    centres["eu"].down = False
    assert ids(gather(query, {"eu": 3}), "eu") == [3, 4, 5]
    wait_until(lambda: query.step() is None and buses["eu"].ids(queue) == [], PATIENCE_S)
    said = [text for text in caplog.messages if "link" in text]
    assert [text.partition(" (")[0] for text in said] == [
        "link 'eu' cannot be reached",
        "link 'eu' is reached again; its queues go on where they were",
    ]
    assert "the test took it away" in said[0]


def test_a_link_that_does_not_answer_costs_one_budget_and_nothing_after_that(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multi_source_store, "ANSWER_BUDGET_S", 5.0)
    for bus in buses.values():
        bus.fill(queue, 1)
    query = linked(queue)
    query.drain()
    centres["us"].awake.clear()
    wait_until(
        lambda: (
            query.step() is None and "us" in query.reader._planning.stream_queues.store.unavailable
        ),
        PATIENCE_S,
    )  # type: ignore[union-attr]
    waited: list[str] = []
    answer = multi_source_store.ThreadedStoreCaller._wait_for_answer
    monkeypatch.setattr(
        multi_source_store.ThreadedStoreCaller,
        "_wait_for_answer",
        lambda self, *of: waited.append(self._source) or answer(self, *of),
    )
    wait_until(lambda: query.step() is None and waited.count("eu") >= 5, PATIENCE_S)
    assert "us" not in waited, "a link that cannot be reached is not waited for"
    buses[""].fill(queue, 1, first=2)
    gather(query, {"": 1})
    centres["us"].awake.set()
    buses["us"].fill(queue, 2, first=2)
    assert ids(gather(query, {"us": 2}), "us") == [2, 3]


@pytest.mark.needs("start")
def test_a_link_that_is_away_at_the_start_joins_later_and_starting_offsets_count_then(
    linked: Callable[..., Engine], buses: dict[str, Bus], centres: dict[str, Centre], queue: str
) -> None:
    for bus in buses.values():
        bus.fill(queue, 2)
    centres["eu"].down = True
    query = linked(queue, startingOffsets="latest", discardBacklog="true")
    wait_until(lambda: query.step() is None, PATIENCE_S)
    buses[""].fill(queue, 1, first=3)
    assert ids(gather(query, {"": 1}), "") == [3]
    assert "eu" not in query.planned[-1]["sources"]
    buses["eu"].fill(queue, 1, first=3)
    query.restart()
    query.step()
    centres["eu"].down = False
    wait_until(lambda: query.step() is None and "eu" in query.planned[-1]["sources"], PATIENCE_S)
    buses["eu"].fill(queue, 1, first=4)
    assert ids(gather(query, {"eu": 1}), "eu") == [4]


@pytest.mark.parametrize("before_42", [False, True])
def test_a_query_started_again_while_a_link_is_away_keeps_its_position(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    queue: str,
    before_42: bool,
) -> None:
    for bus in buses.values():
        bus.fill(queue, 2)
    query = linked(queue, ack="none")
    query.before_42 = before_42
    gather(query, dict.fromkeys(SOURCES, 2))
    query.restart()
    centres["eu"].down = True
    for bus in buses.values():
        bus.fill(queue, 2, first=3)
    if before_42:  # it does not say where the checkpoint is, so the query waits for all
        threading.Timer(0.3, lambda: setattr(centres["eu"], "down", False)).start()
    else:
        assert ids(gather(query, {"": 2, "us": 2}), "eu") == []
        assert query.planned[-1]["sources"]["eu"]["queues"][queue]["last"] == 2
        centres["eu"].down = False
    assert ids(gather(query, {"eu": 2}), "eu") == [3, 4]


@pytest.mark.needs("start")
def test_available_now_takes_what_is_there_and_leaves_a_link_that_is_away_to_the_next_run(
    linked: Callable[..., Engine], buses: dict[str, Bus], centres: dict[str, Centre], queue: str
) -> None:
    for bus in buses.values():
        bus.fill(queue, 5)
    query = linked(queue)
    centres["eu"].down = True
    rows = [row for batch in query.available_now() for row in batch]
    assert {source: len(ids(rows, source)) for source in SOURCES} == {"": 5, "eu": 0, "us": 5}
    centres["eu"].down = False
    query.restart()
    assert ids([row for batch in query.available_now() for row in batch], "eu") == [1, 2, 3, 4, 5]


@pytest.mark.needs("start")
@pytest.mark.parametrize("calls", range(9))
def test_a_link_may_go_away_at_any_call_of_a_planning(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    queue: str,
    calls: int,
) -> None:
    for bus in buses.values():
        bus.fill(queue, 10)
    query = linked(queue, maxMessagesPerTrigger="15", maxBytesPerTrigger="100000", subscription="s")
    centres["eu"].calls_until_down = calls
    rows = query.step("planned") or []
    centres["eu"].down, centres["eu"].calls_until_down = False, -1
    rows += gather(query, {"eu": 10, "us": 10, "": 10})
    assert {source: ids(rows, source) for source in SOURCES} == {
        source: list(range(1, 11)) for source in SOURCES
    }
    positions = [
        p
        for offset in query.planned
        for queues in [offset, *offset.get("sources", {}).values()]
        for p in queues["queues"].values()
    ]
    assert all(len(p["mark"]) > 8 for p in positions if p["last"])
    wait_until(
        lambda: query.step() is None and not any(bus.ids(queue) for bus in buses.values()),
        PATIENCE_S,
    )


def test_what_a_link_missed_it_gets_when_it_is_back(
    linked: Callable[..., Engine], buses: dict[str, Bus], centres: dict[str, Centre], queue: str
) -> None:
    buses["eu"].fill(queue, 3)
    query = linked(queue)
    assert query.step()
    centres["eu"].down = True
    store = query.reader._planning.stream_queues.store  # type: ignore[union-attr]
    assert store.counters([qualified_name("eu", queue)]) == [
        None
    ]  # before the ack: a first failed call is repeated as the probe
    assert query.drain() == []
    assert buses["eu"].ids(queue) == [1, 2, 3]
    centres["eu"].down = False
    wait_until(lambda: query.step() is None and buses["eu"].ids(queue) == [], PATIENCE_S)


def test_an_idle_query_does_not_plan_again_and_again_because_a_link_that_is_away_has_messages(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buses["eu"].fill(queue, 10)
    query = linked(queue, maxMessagesPerTrigger="5")
    assert query.step()
    centres["eu"].down = True
    wait_until(lambda: query.step() is None, PATIENCE_S)
    own = query.reader._planning.stream_queues.store.redis_store  # type: ignore[union-attr]
    plannings: list[object] = []
    asked = own.states
    monkeypatch.setattr(own, "states", lambda wanted: plannings.append(wanted) or asked(wanted))
    for _ in range(20):
        assert query.step() is None
    assert plannings == []
    assert query.reader.reportLatestOffset()["sources"]["eu"] == {
        "queues": {queue: {"last": 10}},
        "away": True,
    }  # type: ignore[index]


def test_only_what_has_answered_is_leased() -> None:
    class Deaf:
        def lease(self, *_: object) -> dict[str, str]:
            return {"there": "me"}

    # All of a store that is asked
    assert acquisition.acquire_leases(Deaf(), ["there", "away"], "", "me") == ["there"]  # type: ignore[arg-type]


def test_a_queue_here_whose_name_looks_like_one_of_a_link_is_left_alone(
    buses: dict[str, Bus], centres: dict[str, Centre], fresh: Fresh
) -> None:
    base = fresh("p")
    buses[""].fill(qualified_name("eu", base), 3)
    buses["us"].fill(base, 2)
    batch = BatchReader(
        parse(ReadOptions, {"redis.url": buses[""].url, **LINKS, "subscribePattern": f".*{base}"}),
        LINKED,
    )
    # It has a read, too
    rows = [row for part in batch.partitions() for row in rows_of(batch, part)]  # type: ignore[arg-type]
    assert [(row[0], row[1], row[3]) for row in rows] == [(base, 1, "us"), (base, 2, "us")]


def test_a_task_whose_link_goes_away_in_the_middle_waits_and_goes_on_behind_its_last_row(
    linked: Callable[..., Engine], buses: dict[str, Bus], centres: dict[str, Centre], queue: str
) -> None:
    rows = 30_000
    for at in range(0, rows, 5000):
        buses["eu"].fill(queue, 5000, first=at + 1)
    query = linked(queue)
    query.step("planned")
    centres["eu"].rows_until_down = 10_000
    back = threading.Thread(
        target=lambda: (
            wait_until(lambda: centres["eu"].down, PATIENCE_S),
            setattr(centres["eu"], "down", False),
        )
    )
    back.start()
    found = query.step() or []
    back.join()
    assert centres["eu"].rows_until_down < 0
    assert ids(found, "eu") == list(range(1, rows + 1))


@pytest.mark.parametrize("moment", ["planning", "reading"])
def test_with_on_unavailable_fail_the_error_names_link_and_reason(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    queue: str,
    moment: str,
) -> None:
    buses["eu"].fill(queue, 2)
    query = linked(queue, onUnavailable="fail")
    if moment == "reading":
        query.step("planned")
    centres["eu"].down = True
    with pytest.raises(LinkLost, match="link 'eu': the test took it away"):
        query.step()
    centres["eu"].down = False


def test_redis_itself_is_not_waited_for(
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = linked(queue)
    query.drain()
    own = query.reader._planning.stream_queues.store.redis_store  # type: ignore[union-attr]

    def gone(*_: object) -> None:
        raise LinkLost(url="redis", reason="gone")

    monkeypatch.setattr(own, "intact", gone)
    buses["eu"].fill(queue, 1)
    with pytest.raises(LinkLost, match="gone"):
        wait_until(query.step, PATIENCE_S)


# Names


@given(st.from_regex(r"[a-z][a-z0-9_-]*", fullmatch=True) | st.just(""), st.text())
def test_a_name_of_a_link_is_taken_apart_as_it_was_made(source: str, queue: str) -> None:
    if source:
        assert split_name(qualified_name(source, queue)) == (source, queue)
    assert qualified_name(*split_name(queue)) == queue
