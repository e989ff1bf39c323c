"""Where reading begins and ends by time, and by how many messages: both engines, streams and batch
reads.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busmq_spark.errors import ConfigError, QueueMissing, TimeUnknown, UnreadBacklog
from busmq_spark.queue import queue as flows
from busmq_spark.queue.keys import QueueKeys
from tests.clocks import HOUR, SECOND, noted, npm_push, pass_by
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus
from tests.spark.engine import Engine
from tests.spark.links import SOURCES, ids
from tests.spark.live_engine import LiveEngine
from tests.spark.sink_engines import SinkEngine
from tests.support import wait_until

MakeEngine = Callable[..., Engine]


@pytest.fixture
def hours(bus: Bus, queue: str) -> QueueKeys:
    """A queue with the messages 1..3 of three hours ago, 4..6 of two and 7..9 of one."""
    keys = QueueKeys(queue)
    for first in (1, 4, 7):
        bus.fill(queue, 3, first=first)
        pass_by(bus, keys, HOUR)
    return keys


def read(engine: MakeEngine, bus: Bus, keys: QueueKeys, **options: str) -> list[int]:
    query = engine({"redis.url": bus.url, "subscribe": keys.name, "ack": "none", **options})
    return [id for rows in query.drain() for _, id, _ in rows]


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("-30m", 10),
        ("-90m", 7),
        ("-150m", 4),
        ("-9000s", 4),
        ("-200m", 1),
        ("-30d", 1),
        ("-4 messages", 6),
        ("-1 message", 9),
        ("-99 messages", 1),
    ],
)
def test_a_stream_begins_so_long_before_now_or_with_so_many_messages(
    bus: Bus, engine: MakeEngine, hours: QueueKeys, start: str, first: int
) -> None:
    assert read(engine, bus, hours, startingOffsets=start) == [*range(first, 10)]


def test_each_queue_may_begin_elsewhere(bus: Bus, engine: MakeEngine, hours: QueueKeys) -> None:
    assert read(engine, bus, hours, startingOffsets=f'{{"{hours.name}": "-90m"}}') == [7, 8, 9]
    assert read(engine, bus, hours, startingOffsets=f'{{"{hours.name}": "-2 messages"}}') == [8, 9]


@pytest.mark.parametrize("shape", [iso, str, lambda ms: iso(ms).replace("+00:00", "Z")])
def test_a_stream_begins_with_the_second_of_a_time(
    bus: Bus, engine: MakeEngine, hours: QueueKeys, shape: Callable[[int], str]
) -> None:
    at = next(each.ms for each in noted(bus, hours) if each.id == 6)
    assert read(engine, bus, hours, startingTimestamp=shape(at)) == [4, 5, 6, 7, 8, 9]
    assert read(engine, bus, hours, startingTimestamp=shape(at + SECOND)) == [7, 8, 9]


def test_each_queue_may_begin_at_a_time_of_its_own(
    bus: Bus, engine: MakeEngine, hours: QueueKeys
) -> None:
    at = next(each.ms for each in noted(bus, hours) if each.id == 6)
    assert read(engine, bus, hours, startingOffsets=f'{{"{hours.name}": "{iso(at)}"}}') == [
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    assert read(engine, bus, hours, startingOffsets=iso(at + SECOND)) == [7, 8, 9]


def test_with_acks_it_begins_there_too(bus: Bus, engine: MakeEngine, hours: QueueKeys) -> None:
    bus("HSET", hours.acks, "other", 0, ":born", bus("HGET", hours.metadata, "born"))
    assert read(engine, bus, hours, startingOffsets="-90m", ack="commit", subscription="s") == [
        7,
        8,
        9,
    ]
    assert bus.ids(hours.name) == [*range(1, 10)]


def test_messages_of_peers_are_found_by_when_the_query_saw_them(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    keys = QueueKeys(queue)
    query = engine({"redis.url": bus.url, "subscribe": queue, "ack": "none"})

    def seen(newest: int) -> bool:
        query.step()
        return newest in [each.id for each in noted(bus, keys)]

    for newest in (2, 4):
        query.step()
        npm_push(bus, keys, 2)
        wait_until(lambda newest=newest: seen(newest), PATIENCE_S)  # type: ignore[misc]
        pass_by(bus, keys, HOUR)
    assert read(engine, bus, keys, startingOffsets="-90m") == [3, 4]


def test_messages_of_another_life_of_a_queue_are_seen_too(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    keys = QueueKeys(queue)
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "ack": "none", "failOnDataLoss": "false"}
    )

    def seen(newest: int) -> bool:
        query.step()
        return newest in [each.id for each in noted(bus, keys)]

    for pushed in (5, 2):
        query.step()
        npm_push(bus, keys, pushed)
        wait_until(lambda pushed=pushed: seen(pushed), PATIENCE_S)  # type: ignore[misc]
        bus("DEL", *keys.peer_keys)


def test_where_the_clock_does_not_reach_back_it_says_so_or_begins_as_told(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    keys = QueueKeys(queue)
    engine({"redis.url": bus.url, "subscribe": queue}).step()
    npm_push(bus, keys, 3)
    with pytest.raises(
        TimeUnknown,
        match=f"what queue '{queue}' held at 20.* is not known; of its times are known 20.* to 20",
    ):
        read(engine, bus, keys, startingOffsets="-1d")
    for strategy, expected in (("earliest", [1, 2, 3]), ("latest", [])):
        more = {"startingOffsetsByTimestampStrategy": strategy}
        assert read(engine, bus, keys, startingOffsets="-1d", **more) == expected


@pytest.mark.needs("start")
def test_what_would_be_deleted_unread_is_still_refused(
    bus: Bus, engine: MakeEngine, hours: QueueKeys
) -> None:
    with pytest.raises(UnreadBacklog, match="startingOffsets=-90m"):
        read(engine, bus, hours, startingOffsets="-90m", ack="commit")
    with pytest.raises(UnreadBacklog, match="startingTimestamp=20"):
        read(engine, bus, hours, startingTimestamp=iso(noted(bus, hours)[-1].ms), ack="commit")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"startingTimestamp": "2026-05-01T12:00:00"},
            "without Z or an offset from UTC a time is none",
        ),
        ({"startingTimestamp": "yesterday"}, "expected a time such as"),
        ({"startingTimestamp": str(4_000_000_000_000)}, "is still to come"),
        ({"startingOffsets": "-10x"}, "expected earliest, latest, -10m"),
        ({"startingOffsets": "-0m"}, "expected earliest, latest, -10m"),
        ({"startingOffsets": "-10m", "startingTimestamp": "1"}, "both say where to begin"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "one of error, earliest, latest"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"endingTimestamp": "1"}, "a stream has no end"),
    ],
)
def test_a_bad_start_is_told(
    bus: Bus, engine: MakeEngine, hours: QueueKeys, options: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        read(engine, bus, hours, **options)


@pytest.mark.only("python", reason="only the Python source reads over links of federation")
def test_a_time_is_that_of_each_source(
    linked: MakeEngine, buses: dict[str, Bus], queue: str
) -> None:
    for bus in (buses["eu"], buses["eu"], buses["us"]):
        bus.fill(queue, 2, first=3 if bus.stored(queue) else 1)
        pass_by(bus, QueueKeys(queue), HOUR)
    [rows] = linked(queue, startingOffsets="-90m", ack="none").drain()
    assert {source: ids(rows, source) for source in SOURCES} == {"": [], "eu": [3, 4], "us": [1, 2]}


def test_a_query_in_real_time_begins_there_too(
    bus: Bus, hours: QueueKeys, spark: SparkSession, shim_jar: Path
) -> None:
    assert shim_jar.exists()
    query = LiveEngine(
        spark,
        {"redis.url": bus.url, "subscribe": hours.name, "ack": "none", "startingOffsets": "-90m"},
    )
    query.begin().end()  # the first batch ends at once, so that what the time means is in the log
    assert [id for _, id, _ in query.begin().rows(3)] == [7, 8, 9]
    query.end()
    query.stop()


# The sink


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_what_a_sink_appends_has_a_time(
    sink_engine: Callable[..., SinkEngine], bus: Bus, queue: str, delivery: str
) -> None:
    write = sink_engine({"redis.url": bus.url, "queue": queue, "delivery": delivery})
    write.stage([b"a", b"b", b"c"])
    write.commit()
    first, *between, last = [each.id for each in noted(bus, QueueKeys(queue))]
    assert (first, last) == (0, 3)
    assert between in ([], [1], [2], [1, 2])  # where a second has passed between two pushes


def test_queues_of_services_get_none_from_a_sink_either(
    sink_engine: Callable[..., SinkEngine], bus: Bus, queue: str
) -> None:
    write = sink_engine(
        {"redis.url": bus.url, "queue": f"service:{queue}", "delivery": "at-least-once"}
    )
    write.stage([b"a"])
    write.commit()
    assert (bus.ids(f"service:{queue}"), noted(bus, QueueKeys(f"service:{queue}"))) == ([1], [])


# Batch reads


@pytest.fixture
def snapshot(
    spark: SparkSession, java_spark: SparkSession | None, bus: Bus, hours: QueueKeys
) -> Callable[..., list[int]]:
    """The ids of a batch read, by the source in the language of the test."""

    def load(**options: str) -> list[int]:
        given = {
            "redis.url": bus.url,
            "subscribe": hours.name,
            **{name: text.replace("QUEUE", hours.name) for name, text in options.items()},
        }
        frame = (
            spark.read.format("busmq-realtime" if java_spark else "busmq").options(**given).load()
        )
        return sorted(row["id"] for row in frame.select("id").collect())

    return load


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "-90m"}, [7, 8, 9]),
        ({"endingOffsets": "-90m"}, [1, 2, 3, 4, 5, 6]),
        ({"startingOffsets": "-150m", "endingOffsets": "-90m"}, [4, 5, 6]),
        ({"startingOffsets": "-30m"}, []),
        ({"startingOffsets": "-4 messages", "endingOffsets": "-1 message"}, [6, 7, 8]),
        ({"endingOffsets": "-99 messages"}, []),
        ({"startingOffsets": '{"QUEUE": 2}', "endingOffsets": '{"QUEUE": 5}'}, [3, 4, 5]),
        ({"startingOffsets": '{"QUEUE": "-150m"}', "endingOffsets": '{"QUEUE": 5}'}, [4, 5]),
        ({"startingOffsets": '{"QUEUE": 7}', "endingOffsets": '{"QUEUE": "-1 message"}'}, [8]),
        ({"startingOffsets": '{"QUEUE": 5}', "endingOffsets": '{"QUEUE": 5}'}, []),
    ],
)
def test_a_batch_read_is_from_one_time_to_another(
    snapshot: Callable[..., list[int]], options: dict[str, str], expected: list[int]
) -> None:
    assert snapshot(**options) == expected


def test_batch_reads_of_times_one_behind_the_other_have_each_message_once(
    snapshot: Callable[..., list[int]], bus: Bus, hours: QueueKeys
) -> None:
    at = next(each.ms for each in noted(bus, hours) if each.id == 6)
    before = snapshot(endingTimestamp=iso(at))
    after = snapshot(startingTimestamp=iso(at))
    assert (before, after) == ([1, 2, 3], [4, 5, 6, 7, 8, 9])
    ids = {"startingOffsets": f'{{"{hours.name}": 2}}', "endingOffsets": f'{{"{hours.name}": 5}}'}
    assert snapshot(**ids) == [3, 4, 5]


def test_messages_that_are_named_by_their_ids_must_be_there(
    snapshot: Callable[..., list[int]], bus: Bus, hours: QueueKeys
) -> None:
    with pytest.raises(
        Exception,
        match=(
            r"BUSMQ_CONFIG.*endingOffsets says .* is read up to id 10, but its last id is 9\. Name"
            r" that id or a smaller one"
        ),
    ):
        snapshot(endingOffsets='{"QUEUE": 10}')
    with pytest.raises(
        Exception,
        match=r"BUSMQ_CONFIG.*startingOffsets says .* is read up to id 10, but its last id is 9",
    ):
        snapshot(startingOffsets='{"QUEUE": 10}')
    bus.link.run(flows.trim(hours, 4))
    for start in (0, 3):
        with pytest.raises(
            Exception,
            match=rf"BUSMQ_QUEUE_FLUSHED.*ids from {start + 1} on, as startingOffsets says",
        ):
            snapshot(startingOffsets=f'{{"QUEUE": {start}}}')
    assert snapshot(startingOffsets='{"QUEUE": 4}', endingOffsets='{"QUEUE": 6}') == [5, 6]
    assert snapshot(startingOffsets='{"QUEUE": 3}', endingOffsets='{"QUEUE": 3}') == [], (
        "nothing is asked for that is gone"
    )
    assert snapshot(
        startingOffsets='{"QUEUE": 0}', endingOffsets='{"QUEUE": 6}', failOnDataLoss="false"
    ) == [5, 6]
    assert snapshot(endingOffsets='{"QUEUE": 6}') == [5, 6]


def test_a_list_of_queues_is_read_as_it_is_named(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    """As Kafka's assign: these and no others, each from its own place; none is made."""
    queues = [fresh("exact") for _ in range(3)]
    for queue in queues[:2]:
        bus.fill(queue, 3)
    named = {
        "redis.url": bus.url,
        "subscribe": ",".join(queues[:2]),
        "ack": "none",
        "createQueue": "false",
    }
    query = engine({**named, "startingOffsets": f'{{"{queues[0]}": 2, "{queues[1]}": 1}}'})
    assert [(name, id) for rows in query.drain() for name, id, _ in rows] == [
        (queues[0], 3),
        (queues[1], 2),
        (queues[1], 3),
    ]
    with pytest.raises(QueueMissing):
        engine({**named, "subscribe": ",".join(queues)}).step()
    assert bus("EXISTS", QueueKeys(queues[2]).metadata) == 0
