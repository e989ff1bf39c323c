"""Readers of real-time mode: woken by a push, in order, nothing lost, and an error for what is gone
under them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError, DataLoss, QueueBusy, StateError
from busmq_spark.queue import queue as core
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.skipping import skip
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus
from tests.spark.engine import Engine
from tests.spark.live_engine import LiveEngine
from tests.spark.monitor import Monitor
from tests.spark.test_loss import Kind, consumed, flushed, kinds
from tests.support import wait_until

MakeLive = Callable[..., LiveEngine]


@pytest.fixture
def live(spark: SparkSession, shim_jar: Path, bus: Bus) -> Iterator[MakeLive]:
    """Makes queries in real-time mode."""
    made: list[LiveEngine] = []

    def make(subscribe: str = "", **options: Any) -> LiveEngine:
        made.append(
            LiveEngine(
                spark,
                {
                    "redis.url": bus.url,
                    **({"subscribe": subscribe} if subscribe else {}),
                    **options,
                },
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.stop()


def ids(rows: list[Any]) -> list[int]:
    return [id for _, id, _ in rows]


def test_a_reader_hands_out_what_is_stored_and_then_what_comes_in_order(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 3)
    query = live(queue).begin()
    assert query.rows(3) == [(queue, i, f"{queue}:{i}".encode()) for i in (1, 2, 3)]
    bus.fill(queue, 2, first=4)
    assert ids(query.rows(2)) == [4, 5]
    query.end()
    assert query.positions() == {queue: 5}


def test_a_reader_passes_over_skipped_messages_and_its_position_does_not_stop_at_them(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 5)
    for id in (1, 3, 5):
        assert bus.link.run(skip(QueueKeys(queue), "", id)) == ("ok", "")
    query = live(queue).begin()
    assert ids(query.rows(2)) == [2, 4]
    assert bus.link.run(skip(QueueKeys(queue), "", 2))[0] == "busy"
    bus.fill(queue, 1, first=6)
    assert ids(query.rows(1)) == [6]
    query.end()
    assert query.positions() == {queue: 6}


def test_a_push_wakes_a_reader_that_would_not_ask_for_minutes(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    query = live(queue, idlePollMs=600_000).begin()
    assert query.rows(1, patience_ms=500) == []  # it is asleep, and listens
    bus.fill(queue, 1)
    assert ids(query.rows(1)) == [1]


def test_a_message_without_a_notification_is_found_all_the_same(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    keys = QueueKeys(queue)
    query = live(queue).begin()
    assert query.rows(1, patience_ms=100) == []
    bus("INCR", keys.msgid)
    bus("RPUSH", keys.messages, 1, "unheard")
    assert query.rows(1) == [(queue, 1, b"unheard")]


def test_a_backlog_comes_in_order_whatever_the_size_of_its_messages(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    sizes = [1, 5000, 0, 1024, 1025, 300_000, 2] * 3
    bus.push(queue, *("x" * size for size in sizes))
    query = live(queue).begin()
    assert [len(value) for _, _, value in query.rows(len(sizes))] == sizes
    bus.push(queue, *("y" * size for size in sizes))
    assert [(id, len(value)) for _, id, value in query.rows(len(sizes))] == list(
        enumerate(sizes, len(sizes) + 1)
    )


def test_what_was_fetched_and_not_handed_out_comes_with_the_next_batch(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 10)
    query = live(queue).begin()
    assert ids(query.rows(4)) == [1, 2, 3, 4]
    query.end()
    assert query.positions() == {queue: 4}
    assert ids(query.begin().rows(6)) == [5, 6, 7, 8, 9, 10]


def test_a_batch_in_which_nothing_came_ends_where_it_began(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 2)
    query = live(queue).begin()
    query.rows(2)
    ended = query.end()
    query.begin().rows(1, patience_ms=50)
    assert query.end() == ended


def test_a_driver_that_dies_in_a_batch_repeats_that_batch_and_nothing_else(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 5)
    query = live(queue).begin()
    query.rows(3)
    query.end()
    query.begin().rows(2)
    query.restart()
    bus.fill(queue, 1, first=6)
    assert ids(query.begin().rows(3)) == [4, 5, 6]


def test_latest_means_what_was_newest_when_the_query_began_whenever_its_driver_dies(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 5)
    query = live(queue, startingOffsets="latest", discardBacklog="true").begin()
    bus.fill(queue, 1, first=6)
    assert query.rows(1, patience_ms=100) == []  # the first batch only says where the query begins
    query.end()
    assert query.positions() == {queue: 5}
    query.begin().rows(1)
    query.restart()
    bus.fill(queue, 1, first=7)
    assert ids(query.begin().rows(2)) == [6, 7]


def test_nothing_is_acknowledged_before_its_batch_is_in_the_log_and_readers_do_not_mind_when_it_is(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 6)
    query = live(queue).begin()
    query.rows(4)
    query.end()
    assert bus.ids(queue) == [1, 2, 3, 4, 5, 6]
    query.begin()
    wait_until(lambda: bus.ids(queue) == [5, 6], PATIENCE_S)
    assert ids(query.rows(2)) == [5, 6]
    bus.fill(queue, 3, first=7)
    assert ids(query.rows(3)) == [7, 8, 9]


def test_a_commit_after_the_stop_is_left_to_the_next_run(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 6)
    query = live(queue).begin()
    query.rows(4)
    query.end()
    query.begin()
    wait_until(lambda: bus.ids(queue) == [5, 6], PATIENCE_S)
    query.rows(2)
    query.end()
    query.reader.stop()
    query.reader.commit(query.log[-1])  # as async progress tracking does
    query.restart()
    query.begin()
    wait_until(lambda: bus.ids(queue) == [], PATIENCE_S)


def test_a_stream_that_was_stopped_takes_hold_of_nothing_more(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    query = live(queue)
    query.reader.stop()
    query.reader.commit({"v": 1, "queues": {queue: {"born": "b", "last": 5, "mark": ""}}})
    with pytest.raises(StateError, match="it is stopped"):
        query.begin()
    assert bus("EXISTS", *QueueKeys(queue).all, QueueKeys(queue).lease("")) == 0


def test_a_pattern_that_matches_nothing_has_one_reader_that_sleeps(
    bus: Bus, live: MakeLive, fresh: Fresh
) -> None:
    head = fresh("p")
    query = live(subscribePattern=f"{head}-.*", startingOffsets="latest").begin()
    assert query.readers == 1
    assert query.rows(1, patience_ms=300) == []
    query.end()
    bus.fill(f"{head}-a", 1)
    query.restart()
    query.begin().rows(1, patience_ms=20)
    query.end()
    bus.fill(f"{head}-a", 1, first=2)
    assert ids(query.begin().rows(1)) == [2]


def test_readers_share_queues_when_there_are_more_than_slots_and_starve_none(
    bus: Bus, live: MakeLive, fresh: Fresh
) -> None:
    queues = [fresh("q") for _ in range(7)]
    query = live(",".join(queues)).begin()
    assert query.readers == 2  # the session has two slots
    for turn in range(3):
        for queue in queues:
            bus.fill(queue, 5, first=5 * turn + 1)
        rows = query.rows(35)
        for queue in queues:
            assert [id for name, id, _ in rows if name == queue] == list(
                range(5 * turn + 1, 5 * turn + 6)
            )


def test_min_partitions_is_how_many_readers_there_are_at_most(
    bus: Bus, live: MakeLive, fresh: Fresh
) -> None:
    assert live(f"{fresh('q')},{fresh('q')}", minPartitions=1).begin().readers == 1


def test_more_readers_than_slots_are_refused(bus: Bus, live: MakeLive, queue: str) -> None:
    with pytest.raises(
        ConfigError,
        match=(
            "minPartitions is 3, but there are 2 task slots, and in real-time mode every reader"
            " needs one"
        ),
    ):
        live(queue, minPartitions=3).begin()


def test_a_reader_that_never_gets_a_slot_ends_the_query_instead_of_standing_still(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    query = live(queue)
    for _ in range(2):
        query.begin().end()
    with pytest.raises(
        ConfigError,
        match="1 of 1 readers found no task slot for 3 batches, so their queues stand still",
    ):
        query.begin().end()


def test_a_reader_that_was_late_once_is_no_reason_to_stop(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    query = live(queue)
    for _ in range(3):
        for _ in range(2):
            query.begin().end()
        query.begin().rows(1, patience_ms=1)
        query.end()


def test_a_queue_that_appears_is_read_with_the_next_batch(
    bus: Bus, live: MakeLive, fresh: Fresh
) -> None:
    head = fresh("p")
    bus.fill(f"{head}-a", 1)
    query = live(
        subscribePattern=f"{head}-.*", startingOffsets="latest", discardBacklog="true"
    ).begin()
    query.rows(1, patience_ms=20)
    query.end()
    bus.fill(f"{head}-b", 2)
    query.restart()  # it looks every 2 s
    assert ids(query.begin().rows(2)) == [1, 2]


@kinds
def test_a_reader_notices_what_happens_to_its_queue(
    bus: Bus, live: MakeLive, queue: str, kind: Kind
) -> None:
    bus.fill(queue, 5)
    query = live(queue).begin()
    query.rows(5)
    if kind.harm in (flushed, consumed):
        bus("DEL", QueueKeys(queue).messages)  # the messages read are removed, as after an ack
        bus.fill(queue, 5, first=6)
        query.kill_readers()  # else it would read them at once
    kind.harm(bus, queue)
    if kind.harm in (flushed, consumed):
        query.log.append(
            {
                "v": 1,
                "queues": {
                    queue: {
                        "born": bus("HGET", QueueKeys(queue).metadata, "born").decode(),
                        "last": 5,
                        "mark": "",
                    }
                },
            }
        )
    with pytest.raises(kind.error, match=kind.cause):
        (query.begin() if kind.harm in (flushed, consumed) else query).rows(1)


@pytest.mark.parametrize("size", [1, 1024, 1025], ids="a last message of {} bytes".format)
def test_ids_that_were_given_again_are_noticed_before_one_is_handed_out(
    bus: Bus, live: MakeLive, queue: str, size: int
) -> None:
    keys = QueueKeys(queue)
    bus.push(queue, "a", "b" * size)
    query = live(queue, idlePollMs=600_000).begin()  # so that the window itself must tell
    query.rows(2)
    bus("SET", keys.msgid, 1)
    bus("LTRIM", keys.messages, 0, 1)
    bus.push(queue, "other", "new")
    with pytest.raises(DataLoss, match="now belong to other messages"):
        query.rows(1)


def test_with_fail_on_data_loss_false_a_reader_goes_on_and_counts(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    keys = QueueKeys(queue)
    bus.fill(queue, 2)
    query = live(queue, failOnDataLoss="false").begin()
    query.rows(2)
    bus("DEL", keys.messages)
    bus("INCRBY", keys.msgid, 3)
    bus.fill(queue, 2, first=6)
    assert ids(query.rows(2)) == [6, 7]
    assert query.end()["queues"][queue] | {"mark": ""} == {
        "born": bus("HGET", keys.metadata, "born").decode(),
        "last": 7,
        "mark": "",
        "from": 5,
        "lost": 3,
    }


def test_with_fail_on_data_loss_false_a_new_life_is_read_with_the_next_batch(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 5)
    query = live(queue, failOnDataLoss="false").begin()
    query.rows(5)
    bus.close_queue(queue)
    bus.fill(queue, 2)
    assert query.rows(1, patience_ms=1500) == []
    query.end()
    assert ids(query.begin().rows(2)) == [1, 2]
    assert query.end()["queues"][queue]["lost"] == 1


def test_holes_are_a_loss_and_are_read_around_where_that_is_allowed(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    bus.leave_holes(queue)
    strict = live(queue, ack="none").begin()
    with pytest.raises(DataLoss, match="expected ids from 4 on, found next stored id 6"):
        strict.rows(5)
    lenient = live(queue, ack="none", failOnDataLoss="false").begin()
    assert ids(lenient.rows(5)) == [1, 2, 3, 6, 7]
    assert lenient.end()["queues"][queue]["lost"] == 2


def test_a_message_given_back_that_was_read_before_holds_nothing_up(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    keys = QueueKeys(queue)
    bus.fill(queue, 8)
    query = live(queue, ack="none").begin()
    query.rows(8)
    bus.link.run(core.pop(keys, most=2))
    bus.link.run(core.pop(keys, reliable=True, ttl_s=60))
    bus.link.run(core.pop(keys, most=5))
    bus.link.run(core.ack(keys, 0, ttl_s=60, restore=True))
    bus.fill(queue, 3, first=9)
    assert bus.ids(queue) == [3, 9, 10, 11]
    assert ids(query.rows(3)) == [9, 10, 11]
    bus.fill(queue, 1, first=12)
    assert ids(query.rows(1)) == [12]


def test_a_start_that_one_queue_refuses_leaves_the_others_free(
    bus: Bus, live: MakeLive, fresh: Fresh
) -> None:
    a, b = fresh("a"), fresh("b")
    live(b).begin()
    held = bus("GET", QueueKeys(b).lease(""))
    with pytest.raises(QueueBusy, match=f"'{b}' is read by another query"):
        live(f"{a},{b}").begin()
    assert (bus("GET", QueueKeys(a).lease("")), bus("GET", QueueKeys(b).lease(""))) == (None, held)


def test_an_ack_that_failed_is_tried_again_though_nothing_came_since(
    bus: Bus, live: MakeLive, queue: str
) -> None:
    acks = QueueKeys(queue).acks
    bus.fill(queue, 2)
    query = live(queue).begin()
    query.rows(2)
    query.end()
    bus("CONFIG", "RESETSTAT")
    bus("SET", acks, "no hash")
    query.begin()
    wait_until(lambda: b"errorstat_WRONGTYPE" in bus("INFO", "errorstats"), PATIENCE_S)
    bus("DEL", acks)

    def acknowledged() -> bool:
        query.rows(1, patience_ms=50)
        query.end()
        query.begin()
        return bus.ids(queue) == []

    wait_until(acknowledged, PATIENCE_S)


def test_a_burst_of_large_messages_after_small_ones_comes_in_small_replies(
    bus: Bus, redis_server: EmbeddedRedis, live: MakeLive, queue: str
) -> None:
    bus.fill(queue, 2000)
    query = live(queue).begin()
    query.rows(2000)
    assert query.rows(1, patience_ms=500) == []
    bus.push(queue, *["x" * 300_000] * 60)
    with Monitor(redis_server) as monitor:
        assert len(query.rows(60)) == 60
    asked = [words for words in monitor.words if words[:2] == ["LRANGE", QueueKeys(queue).messages]]
    assert max(int(last) - int(first) + 1 for _, _, first, last in asked) / 2 <= 16


@pytest.mark.only("python", reason="Java goes on in test_realtime_handover")
def test_the_python_source_goes_on_where_a_batch_of_real_time_mode_ended(
    bus: Bus, live: MakeLive, engine: Callable[..., Engine], fresh: Fresh
) -> None:
    a, b = fresh("a"), fresh("b")
    bus.fill(a, 5)
    bus.attach(b)
    query = live(f"{a},{b}").begin()
    query.rows(3)
    end = query.end()
    query.stop()
    python = engine({"redis.url": bus.url, "subscribe": f"{a},{b}"})
    python.planned, python.committed = [end], 1
    bus.fill(b, 2)
    assert sorted((name, id) for batch in python.drain() for name, id, _ in batch) == [
        (a, 4),
        (a, 5),
        (b, 1),
        (b, 2),
    ]
    assert bus.ids(a) == []
