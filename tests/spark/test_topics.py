"""Topics as a source: their partitions are the queues, and new ones are found. Both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busmq_spark.errors import ConfigError, QueueExpired, TopicMissing
from busmq_spark.groups import topic as core
from busmq_spark.option_parsing import parse
from busmq_spark.options import MAX_PARTITIONS, ReadOptions
from busmq_spark.queue.keys import QueueKeys, TopicKeys
from busmq_spark.spark.read import reader_threads
from tests.conftest import Fresh
from tests.spark.conftest import Bus, Stream
from tests.spark.engine import Engine, Row
from tests.spark.jvm_engine import JvmEngine
from tests.spark.live_engine import LiveEngine
from tests.spark.topic_tools import grow, make_topic
from tests.support import wait_until

MakeEngine = Callable[..., Engine]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_threads, "DISCOVERY_INTERVAL_S", 0.02)


@pytest.fixture
def topic(bus: Bus, fresh: Fresh) -> str:
    """Three partitions with two messages each."""
    return make_topic(bus, fresh("t"), 3, "a", "b")


def all_of(topic: str, partitions: int = 3) -> set[Row]:
    return {
        (f"{topic}/{p}", id, b"%d%s" % (p, value))
        for p in range(partitions)
        for id, value in ((1, b"a"), (2, b"b"))
    }


def rows(query: Engine) -> set[Row]:
    return {row for batch in query.drain() for row in batch}


def test_its_partitions_are_read_and_acknowledged(bus: Bus, engine: MakeEngine, topic: str) -> None:
    query = engine({"redis.url": bus.url, "topic": topic})
    assert rows(query) == all_of(topic)
    query.reader.commit(query.planned[-1])
    assert [bus.ids(f"{topic}/{p}") for p in range(3)] == [[], [], []]
    assert query.positions() == {f"{topic}/{p}": 2 for p in range(3)}


def test_several_topics_are_read_and_a_name_before_another_crosses_no_other(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    base = fresh("t")
    for name, partitions in ((base, 12), (f"{base}/1", 2), (f"{base}x", 1)):
        make_topic(bus, name, partitions, "a")
    found = rows(engine({"redis.url": bus.url, "topic": base, "ack": "none"}))
    assert {queue for queue, _, _ in found} == {f"{base}/{p}" for p in range(12)}
    both = rows(engine({"redis.url": bus.url, "topic": f'["{base}/1", "{base}x"]', "ack": "none"}))
    assert {queue for queue, _, _ in both} == {f"{base}/1/0", f"{base}/1/1", f"{base}x/0"}


def test_partitions_that_come_later_are_read_from_their_beginning(
    bus: Bus, engine: MakeEngine, topic: str
) -> None:
    query = engine(
        {
            "redis.url": bus.url,
            "topic": topic,
            "startingOffsets": "latest",
            "ack": "none",
            "idlePollMs": "1",
        }
    )
    assert rows(query) == set()
    grow(bus, topic, 5)
    bus.push(f"{topic}/4", "new")
    bus.push(f"{topic}/1", "more")
    found: list[Row] = []
    wait_until(lambda: found.extend(query.step() or []) or len(found) == 2, 60)
    assert set(found) == {(f"{topic}/4", 1, b"new"), (f"{topic}/1", 3, b"more")}
    assert bus("EXISTS", QueueKeys(f"{topic}/3").metadata) == 1


def test_a_query_that_reads_what_is_there_now_reads_no_later_partition(
    bus: Bus, engine: MakeEngine, topic: str
) -> None:
    query = engine({"redis.url": bus.url, "topic": topic, "ack": "none"})
    query.reader.prepareForTriggerAvailableNow()
    query.step()
    grow(bus, topic, 4)
    bus.push(f"{topic}/3", "late")
    query.drain()
    assert set(query.positions()) == {f"{topic}/{p}" for p in range(3)}


def test_a_topic_that_does_not_exist_is_an_error_unless_the_number_of_its_partitions_is_given(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    name = fresh("t")
    options = {"redis.url": bus.url, "topic": name}
    with pytest.raises(TopicMissing, match=rf"topic '{name}' does not exist"):
        engine(options).step()
    assert bus("EXISTS", TopicKeys(name).base) == 0
    query = engine({**options, "partitions": "2", "ttl": "77"})
    query.step()
    assert bus.link.run(core.read_topic(TopicKeys(name))).partitions == 2
    assert [bus("HGET", QueueKeys(f"{name}/{p}").metadata, "ttl") for p in range(2)] == [
        b"77",
        b"77",
    ]
    assert rows(engine({**options, "partitions": "5", "ack": "none"})) == set()
    assert bus.link.run(core.read_topic(TopicKeys(name))).partitions == 2, (
        "one that exists stays as it is"
    )


def test_a_partition_that_nobody_has_written_to_is_created_or_left_out_until_it_is_there(
    bus: Bus, engine: MakeEngine, topic: str
) -> None:
    bus.close_queue(f"{topic}/1")
    query = engine({"redis.url": bus.url, "topic": topic, "createQueue": "false", "ack": "none"})
    assert len(rows(query)) == 4
    assert bus("EXISTS", QueueKeys(f"{topic}/1").metadata) == 0
    bus.push(f"{topic}/1", "new")
    found: list[Row] = []
    wait_until(lambda: found.extend(query.step() or []) or found, 60)
    assert found == [(f"{topic}/1", 1, b"new")]
    bus.close_queue(f"{topic}/0")
    assert rows(engine({"redis.url": bus.url, "topic": topic, "ack": "none"})) > {
        (f"{topic}/1", 1, b"new")
    }
    assert bus("EXISTS", QueueKeys(f"{topic}/0").metadata) == 1


@pytest.mark.needs("start")
def test_a_partition_of_the_checkpoint_that_is_gone_is_a_loss(
    bus: Bus, engine: MakeEngine, topic: str
) -> None:
    query = engine({"redis.url": bus.url, "topic": topic})
    rows(query)
    query.kill()
    bus.close_queue(f"{topic}/2")
    with pytest.raises(QueueExpired, match=f"{topic}/2"):
        query.step()


def test_a_topic_lives_as_long_as_it_is_read(bus: Bus, engine: MakeEngine, topic: str) -> None:
    query = engine({"redis.url": bus.url, "topic": topic, "ack": "none"})
    query.step()
    bus("EXPIRE", TopicKeys(topic).base, 100)
    wait_until(lambda: bus("TTL", TopicKeys(topic).base) > 100, 60, "its ttl begins anew")


def test_reading_may_begin_elsewhere_in_each_topic_and_partition(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    one, two = (make_topic(bus, fresh("t"), 2, "a", "b") for _ in range(2))
    starts = f'{{"{one}": "latest", "{one}/1": 1, "{two}": "-1 message"}}'
    query = engine(
        {"redis.url": bus.url, "topic": f"{one},{two}", "startingOffsets": starts, "ack": "none"}
    )
    assert {(queue, id) for queue, id, _ in rows(query)} == {
        (f"{one}/1", 2),
        (f"{two}/0", 2),
        (f"{two}/1", 2),
    }


@pytest.mark.jvm
@pytest.mark.parametrize("first", ["java", "python"])
def test_a_checkpoint_goes_on_in_the_other_engine(
    spark: SparkSession, shim_jar: Path, bus: Bus, topic: str, first: str
) -> None:
    options = {"redis.url": bus.url, "topic": topic}
    queries = {"java": JvmEngine(spark, options), "python": Engine(options)}
    one, other = queries.pop(first), *queries.values()
    try:
        assert rows(one) == all_of(topic)
        one.kill()
        bus.push(f"{topic}/1", "c")
        other.planned, other.committed = one.planned[: one.committed], one.committed
        assert rows(other) == {(f"{topic}/1", 3, b"c")}
    finally:
        one.kill()
        other.kill()


# Columns, batch reads, views


@pytest.fixture
def read(
    spark: SparkSession, language: str, java_spark: object, bus: Bus
) -> Callable[..., list[tuple[Any, ...]]]:
    """The rows of a batch read, sorted."""

    def run(schema: str = "", **options: str) -> list[tuple[Any, ...]]:
        reader = spark.read.format("busmq").options(
            **{"redis.url": bus.url, "engine": language, **options}
        )
        return sorted(
            tuple(row) for row in (reader.schema(schema) if schema else reader).load().collect()
        )

    return run


Read = Callable[..., list[tuple[Any, ...]]]


def test_a_batch_read_sees_all_partitions_and_makes_nothing(
    bus: Bus, read: Read, topic: str, fresh: Fresh
) -> None:
    assert read(topic=topic) == [
        (f"{topic}/{p}", id, b"%d%s" % (p, value))
        for p in range(3)
        for id, value in ((1, b"a"), (2, b"b"))
    ]
    assert read(
        "value string",
        topic=topic,
        startingOffsets=f'{{"{topic}/0": 2, "{topic}/1": 1}}',
        endingOffsets=f'{{"{topic}/2": 1}}',
    ) == [
        ("1b",),
        ("2a",),
    ]
    bus.close_queue(f"{topic}/1")
    assert len(read(topic=topic)) == 4
    assert bus("EXISTS", QueueKeys(f"{topic}/1").metadata) == 0
    with pytest.raises(Exception, match=r"\[BUSMQ_TOPIC_MISSING\]"):
        read(topic=fresh("none"), partitions="3")


def test_topic_and_partition_are_columns_on_request(read: Read, topic: str) -> None:
    assert read(topic=topic, includeTopic="true")[-1] == (f"{topic}/2", 2, b"2b", topic, 2)
    assert read("partition int, value string, topic string", topic=topic)[0] == (0, "0a", topic)


def test_columns_of_topics_are_refused_without_one(read: Read, bus: Bus, topic: str) -> None:
    with pytest.raises(
        Exception,
        match=(
            r"\[BUSMQ_CONFIG\] column 'topic' does not exist; the source has: queue string, id"
            r" long, value binary"
        ),
    ):
        read("topic string, value string", subscribe=f"{topic}/0")
    with pytest.raises(
        Exception, match=r"\[BUSMQ_CONFIG\] column 'partition' is bigint; expected int"
    ):
        read("partition long", topic=topic)
    with pytest.raises(
        Exception,
        match=r"\[BUSMQ_CONFIG\] column 'price' does not exist; .* topic string, partition int",
    ):
        read("price long", topic=topic)


def test_a_view_of_a_topic(
    spark: SparkSession, language: str, java_spark: object, bus: Bus, topic: str
) -> None:
    view = f"v_{topic}_{language}".replace("-", "_")
    more = f"engine '{language}', includeTopic 'true'"
    spark.sql(
        f"CREATE TEMPORARY VIEW {view} USING busmq OPTIONS (`redis.url` '{bus.url}', topic"
        f" '{topic}', {more})"
    )
    found = spark.sql(
        f"SELECT partition, count(*) FROM {view} WHERE topic = '{topic}' GROUP BY partition ORDER"
        " BY partition"
    ).collect()
    assert [tuple(row) for row in found] == [(0, 2), (1, 2), (2, 2)]
    spark.catalog.dropTempView(view)


def test_a_stream_has_them_too(
    stream: Stream, language: str, java_spark: object, bus: Bus, topic: str
) -> None:
    query = stream(
        {"redis.url": bus.url, "topic": topic, "includeTopic": "true", "engine": language}
    )
    query.wait_rows(6)
    found = {(row["queue"], row["id"], bytes(row["value"])) for row in query.rows}
    assert found == all_of(topic)
    assert all(
        row["queue"] == f"{row['topic']}/{row['partition']}" and row["topic"] == topic
        for row in query.rows
    )


# Real time


@pytest.fixture
def live(spark: SparkSession, shim_jar: Path, bus: Bus, topic: str) -> Iterator[LiveEngine]:
    made = LiveEngine(spark, {"redis.url": bus.url, "topic": topic})
    yield made
    made.kill_readers()
    made.reader.stop()


def test_partitions_are_followed_in_real_time_and_new_ones_from_the_next_batch_on(
    bus: Bus, live: LiveEngine, topic: str
) -> None:
    assert set(live.begin().rows(6)) == all_of(topic)
    live.end()
    grow(bus, topic, 4)
    bus.push(f"{topic}/3", "new")
    found: list[Row] = []

    def seen() -> bool:
        found.extend(live.begin().rows(1, 200))
        live.end()
        return bool(found)

    wait_until(seen, 60)
    assert found == [(f"{topic}/3", 1, b"new")]


# Options


def test_both_layers_know_the_same_number_of_partitions() -> None:
    assert MAX_PARTITIONS == core.MAX_PARTITIONS


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topic": "t", "subscribe": "q"}, "subscribe and topic are given"),
        ({"topic": "t", "subscribePattern": "q"}, "subscribePattern and topic are given"),
        ({"topic": " , "}, "option 'topic' is ' , '; expected queue names"),
        (
            {"topic": "t", "partitions": "0"},
            "option 'partitions' is '0'; expected a whole number from 1 to 1000",
        ),
        ({"topic": "t", "partitions": "1001"}, "from 1 to 1000"),
        (
            {"topic": "t", "partitions": "2", "createQueue": "false"},
            "option 'partitions' has no meaning with it",
        ),
        (
            {"topic": "t", "includeTopic": "yes"},
            "option 'includeTopic' is 'yes'; expected true or false",
        ),
        (
            {"subscribe": "q", "includeTopic": "true"},
            "option 'includeTopic' is for topics, and none is named",
        ),
        (
            {"subscribe": "q", "partitions": "2"},
            "option 'partitions' is for topics, and none is named",
        ),
        (
            {"topic": "t", "startingOffsets": '{"u": "latest"}'},
            "startingOffsets names 'u', which is neither in topic nor a partition queue of it",
        ),
        (
            {"topic": "t", "endingOffsets": '{"t/x": "latest"}'},
            "endingOffsets names 't/x', which is neither",
        ),
        (
            {"topic": "t", "startingOffsets": '{"t": 4}'},
            "startingOffsets has an id for topic 't', and an id is one of a queue",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_connection(
    given: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(ReadOptions, given)


def test_a_name_that_no_topic_can_have_is_refused(engine: MakeEngine, bus: Bus) -> None:
    with pytest.raises(ConfigError, match="the name of the topic is 'a:members:b'"):
        engine({"redis.url": bus.url, "topic": "a:members:b"}).step()
