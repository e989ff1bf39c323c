"""Topics as a sink: which partition a row goes to, exactly once and in order in each. Both
engines.
"""

from __future__ import annotations

from typing import Any, Protocol
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from busmq_spark.errors import MessageRefused
from busmq_spark.groups.topic import key_hashes, partition_of, partition_queue
from busmq_spark.queue.keys import QueueKeys, TopicKeys
from busmq_spark.spark.write.sink_columns import SinkColumns, TopicColumns, TopicPartitioner
from tests.conftest import Fresh
from tests.spark.conftest import Bus
from tests.spark.lines import Lines
from tests.spark.topic_tools import grow, make_topic, partitions_of


@pytest.fixture
def topic(bus: Bus, fresh: Fresh) -> str:
    """Four partitions without messages."""
    return make_topic(bus, fresh("t"), 4)


class Write(Protocol):
    """Writes rows, in one task unless said otherwise."""

    def __call__(
        self,
        rows: list[tuple[Any, ...]] | DataFrame,
        schema: str = "",
        mode: str = "append",
        **options: Any,
    ) -> None: ...


@pytest.fixture
def write(spark: SparkSession, language: str, java_spark: object, bus: Bus) -> Write:
    def run(
        rows: list[tuple[Any, ...]] | DataFrame,
        schema: str = "",
        mode: str = "append",
        **options: Any,
    ) -> None:
        frame = spark.createDataFrame(rows, schema).coalesce(1) if isinstance(rows, list) else rows
        frame.write.format("busmq").mode(mode).options(
            **{"redis.url": bus.url, "engine": language, **options}
        ).save()

    return run


def places(keys: list[str], partitions: int) -> list[list[bytes]]:
    """What is in each partition when the values are the keys."""
    return [
        [key.encode() for key in keys if partition_of(key, partitions) == p]
        for p in range(partitions)
    ]


KEYS = [f"key {n % 40}, ä{n % 7}" for n in range(200)]


@pytest.mark.parametrize("kind", ["string", "binary"])
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_key_chooses_the_partition_as_it_does_on_the_bus(
    bus: Bus, write: Write, topic: str, kind: str, delivery: str
) -> None:
    rows = [(key if kind == "string" else key.encode(), key) for key in KEYS]
    write(rows, f"key {kind}, value string", topic=topic, delivery=delivery)
    assert partitions_of(bus, topic) == places(KEYS, 4)


def test_a_column_partition_goes_before_a_key(bus: Bus, write: Write, topic: str) -> None:
    write(
        [(None, 2, "a"), ("k", 0, "b"), ("k", 2, "c")],
        "key string, partition int, value string",
        topic=topic,
    )
    assert partitions_of(bus, topic) == [[b"b"], [], [b"a", b"c"], []]


def test_a_column_names_the_topic_of_each_row(
    bus: Bus, write: Write, topic: str, fresh: Fresh
) -> None:
    other = make_topic(bus, fresh("t"), 2)
    write(
        [(topic if n % 2 else other, key, key) for n, key in enumerate(KEYS)],
        "topic string, key string, value string",
    )
    assert partitions_of(bus, topic) == places(KEYS[1::2], 4)
    assert partitions_of(bus, other) == places(KEYS[0::2], 2)


def test_the_option_goes_before_the_columns_and_rows_of_a_source_can_be_written_as_they_are(
    spark: SparkSession, language: str, bus: Bus, write: Write, topic: str, fresh: Fresh
) -> None:
    source = make_topic(bus, fresh("t"), 3, "a")
    options = {"redis.url": bus.url, "topic": source, "includeTopic": "true", "engine": language}
    frame = spark.read.format("busmq").options(**options).load()
    write(frame, topic=topic)
    assert partitions_of(bus, topic) == [[b"0a"], [b"1a"], [b"2a"], []]
    write(frame, queue=f"{topic}/3")
    assert sorted(bus.stored(f"{topic}/3")) == [b"0a", b"1a", b"2a"]


def test_without_a_key_tasks_and_batches_fill_partitions_in_turn(
    spark: SparkSession, bus: Bus, write: Write, topic: str
) -> None:
    write(spark.range(0, 8, 1, 4).selectExpr("cast(id AS string) AS value"), topic=topic)
    assert partitions_of(bus, topic) == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"], [b"6", b"7"]]
    for batch in range(3):
        write([(str(batch),)], "value string", topic=topic, sinkId=f"sink-{topic}", batchId=batch)
    assert [found[2:] for found in partitions_of(bus, topic)] == [[b"0"], [b"1"], [b"2"], []]


def test_a_task_with_many_rows_fills_several_partitions(
    spark: SparkSession, bus: Bus, write: Write, topic: str
) -> None:
    write(spark.range(0, 25_000, 1, 1).selectExpr("cast(id AS string) AS value"), topic=topic)
    found = partitions_of(bus, topic)
    assert [len(part) for part in found] == [10_000, 10_000, 5_000, 0]
    assert [int(value) for part in found for value in part] == list(range(25_000))


def test_tasks_append_to_each_partition_in_their_order(
    spark: SparkSession, bus: Bus, write: Write, topic: str
) -> None:
    write(
        spark.range(0, 4000, 1, 4).selectExpr(
            "cast(id % 10 AS string) AS key", "cast(id AS string) AS value"
        ),
        topic=topic,
    )
    wanted = [
        [b"%d" % n for n in range(4000) if partition_of(str(n % 10), 4) == p] for p in range(4)
    ]
    assert partitions_of(bus, topic) == wanted


def test_a_stream_writes_exactly_once_whenever_its_driver_ends(
    bus: Bus, lines: Lines, language: str, java_spark: object, topic: str
) -> None:
    """Batch after batch; the last one comes again, as after a driver that died before its commit
    log.
    """
    options = {"redis.url": bus.url, "topic": topic, "engine": language}
    columns = ("value", "value AS key")
    keys = [str(n) for n in range(300)]
    for first in range(0, 300, 100):
        lines.add(*keys[first : first + 100])
        lines.drain("busmq", options, *columns)
        assert partitions_of(bus, topic) == places(keys[: first + 100], 4)
        lines.forget_commit()
        lines.drain("busmq", options, *columns)
        assert partitions_of(bus, topic) == places(keys[: first + 100], 4)


@pytest.mark.jvm
@pytest.mark.parametrize("first", ["java", "python"])
def test_a_batch_that_one_engine_recorded_is_the_same_in_the_other(
    bus: Bus, lines: Lines, shim_jar: object, topic: str, first: str
) -> None:
    second = "python" if first == "java" else "java"
    keys = [str(n) for n in range(100)]
    lines.add(*keys)
    for engine in (first, second):
        lines.drain(
            "busmq",
            {"redis.url": bus.url, "topic": topic, "engine": engine},
            "value",
            "cast(value AS binary) AS key",
        )
        assert partitions_of(bus, topic) == places(keys, 4)
        lines.forget_commit()


def test_a_topic_that_grew_gets_rows_in_its_new_partitions(
    bus: Bus, lines: Lines, language: str, java_spark: object, topic: str
) -> None:
    options = {"redis.url": bus.url, "topic": topic, "engine": language}
    keys = [str(n) for n in range(40)]
    for partitions in (4, 6):
        grow(bus, topic, partitions)
        lines.add(*keys)
        lines.drain("busmq", options, "value", "value AS key")
    found = partitions_of(bus, topic)
    assert [
        part[len(before) :] for part, before in zip(found, [*places(keys, 4), [], []], strict=True)
    ] == places(keys, 6)


def test_a_recorded_batch_stays_in_its_partitions_when_the_topic_has_grown_before_it_comes_again(
    bus: Bus, lines: Lines, language: str, java_spark: object, topic: str
) -> None:
    options = {"redis.url": bus.url, "topic": topic, "engine": language}
    keys = [str(n) for n in range(100)]
    lines.add(*keys)
    lines.drain("busmq", options, "value", "value AS key")
    lines.forget_commit()
    grow(bus, topic, 7)
    lines.drain("busmq", options, "value", "value AS key")
    assert partitions_of(bus, topic) == [*places(keys, 4), [], [], []]


def test_a_topic_is_created_where_the_number_of_its_partitions_is_given(
    bus: Bus, write: Write, fresh: Fresh
) -> None:
    name = fresh("t")
    with pytest.raises(Exception, match=rf"\[BUSMQ_TOPIC_MISSING\] topic '{name}' does not exist"):
        write([("k", "v")], "key string, value string", topic=name)
    assert bus("EXISTS", TopicKeys(name).base) == 0
    write([("k", "v")], "key string, value string", topic=name, partitions=5, ttl="90s")
    assert partitions_of(bus, name)[partition_of("k", 5)] == [b"v"]
    assert (
        bus("HGET", QueueKeys(partition_queue(name, partition_of("k", 5))).metadata, "ttl") == b"90"
    )
    write([("k", "v")], "key string, value string", topic=name, partitions=9)
    assert len(partitions_of(bus, name)) == 5


def test_overwrite_empties_every_partition(bus: Bus, write: Write, topic: str) -> None:
    for p in range(4):
        bus.push(f"{topic}/{p}", "old")
    write([(1, "new")], "partition int, value string", "overwrite", topic=topic, truncate=True)
    assert partitions_of(bus, topic) == [[], [b"new"], [], []]


@pytest.mark.parametrize(
    ("rows", "schema", "reason"),
    [
        (
            [("a", "1"), (None, "2")],
            "key string, value string",
            r"column 'key' is NULL in .*; the key of a message cannot be.* or leave the column out",
        ),
        (
            [(None, "2")],
            "partition int, value string",
            "column 'partition' is NULL in .*; a message cannot be",
        ),
        (
            [(1, "2"), (4, "2")],
            "partition int, value string",
            "column 'partition' is 4 in some rows; topic '.*' has the partitions 0 to 3",
        ),
        ([(-1, "2")], "partition int, value string", "column 'partition' is -1 in some rows"),
        ([("k", None)], "key string, value string", "column 'value' is NULL in"),
    ],
)
def test_a_row_that_goes_nowhere_is_refused_and_nothing_is_written(
    bus: Bus, write: Write, topic: str, rows: list[Any], schema: str, reason: str
) -> None:
    with pytest.raises(Exception, match=rf"\[BUSMQ_MESSAGE_REFUSED\] {reason}"):
        write(rows, schema, topic=topic)
    assert partitions_of(bus, topic) == [[], [], [], []]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (None, "column 'topic' is NULL in"),
        ("", "column 'topic' is empty in some rows; expected the name of a"),
    ],
)
def test_a_row_without_a_topic_is_refused(write: Write, name: str | None, reason: str) -> None:
    with pytest.raises(Exception, match=rf"\[BUSMQ_MESSAGE_REFUSED\] {reason}"):
        write([(name, "v")], "topic string, value string")


def test_a_partition_that_came_while_the_task_ran_is_found(
    bus: Bus, write: Write, topic: str, spark: SparkSession
) -> None:
    grow(bus, topic, 5)
    write([(4, "v")], "partition int, value string", topic=topic)
    assert partitions_of(bus, topic)[4] == [b"v"]


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        (
            "key string, value string",
            {"queue": "q"},
            "column 'key' chooses a partition of a topic, and these rows go to queues",
        ),
        (
            "queue string, partition int, value string",
            {},
            "column 'partition' chooses a partition of a topic",
        ),
        (
            "queue string, topic string, value string",
            {},
            "columns 'queue' and 'topic' both say where a row goes",
        ),
        (
            "key long, value string",
            {"topic": "t"},
            "column 'key' is bigint; expected string or binary",
        ),
        (
            "partition long, value string",
            {"topic": "t"},
            "column 'partition' is bigint; expected int",
        ),
        ("topic binary, value string", {}, "column 'topic' is binary; expected string"),
        (
            "value string",
            {"topic": "t", "queue": "q"},
            "option 'queue' names a queue for every row, and option 'topic' is for topics",
        ),
        (
            "value string",
            {},
            "no queue is named: set option 'queue', .* for a topic option or column topic",
        ),
        (
            "value string",
            {"topic": "a:members:b"},
            "the name of the topic is 'a:members:b'; expected a text without spaces",
        ),
    ],
)
def test_columns_and_options_that_do_not_fit_are_refused(
    spark: SparkSession, write: Write, schema: str, options: dict[str, str], reason: str
) -> None:
    frame = spark.range(1).selectExpr(
        *(
            f"cast('1' AS {column.split()[1]}) AS {column.split()[0]}"
            for column in schema.split(", ")
        )
    )
    with pytest.raises(Exception, match=rf"\[BUSMQ_CONFIG\] {reason}"):
        write(frame, **options)


# The columns of Python's sink alone


@given(st.lists(st.binary(max_size=20)), st.integers(1, 1000))
def test_the_hash_of_a_key_is_that_of_the_bus(keys: list[bytes], partitions: int) -> None:
    assert [found % partitions for found in key_hashes(keys)] == [
        partition_of(key, partitions) for key in keys
    ]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=2)), min_size=1),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)),
)
def test_every_row_goes_to_the_partition_of_its_key_in_the_order_of_the_rows(
    rows: list[tuple[str, bytes]], sizes: dict[str, int]
) -> None:
    topics, keys = zip(*rows, strict=True)
    batch = pa.RecordBatch.from_pydict(
        {"topic": topics, "key": keys, "value": [str(n) for n in range(len(rows))]}
    )
    columns = SinkColumns("value", None, None, TopicColumns(None, "topic", None, "key"))
    found = list(
        columns.values_of_batch_by_queue(
            batch, TopicPartitioner(columns.topic, lambda topic: sizes.get(topic, 3), 0)
        )
    )
    wanted: dict[str, list[bytes]] = {}
    for n, (topic, key) in enumerate(rows):
        wanted.setdefault(f"{topic}/{crc32(key) % sizes.get(topic, 3)}", []).append(b"%d" % n)
    assert found == list(wanted.items()), "the queue of the first row comes first, too"


def test_a_partition_is_looked_up_again_before_it_is_refused() -> None:
    sizes = iter([2, 4])
    rows = TopicPartitioner(
        TopicColumns("t", None, "partition", None), lambda topic: next(sizes), 0
    )
    batch = pa.RecordBatch.from_arrays([pa.array([3, 0], pa.int32())], ["partition"])
    assert [(queue, list(at)) for queue, at in rows.rows_by_queue(batch)] == [
        ("t/3", [0]),
        ("t/0", [1]),
    ]


def test_rows_of_spark_4_0_bring_the_columns_of_a_topic() -> None:
    columns = SinkColumns("value", None, None, TopicColumns(None, "topic", "partition", None))
    batch = columns.to_record_batch([{"value": "v", "topic": "t", "partition": 1, "id": 1}])
    assert list(
        columns.values_of_batch_by_queue(batch, TopicPartitioner(columns.topic, lambda topic: 2, 0))
    ) == [("t/1", [b"v"])]


def test_one_that_does_not_come_is_refused() -> None:
    rows = TopicPartitioner(TopicColumns("t", None, "partition", None), lambda topic: 2, 0)
    with pytest.raises(
        MessageRefused,
        match="column 'partition' is 3 in some rows; topic 't' has the partitions 0 to 1",
    ):
        list(
            rows.rows_by_queue(
                pa.RecordBatch.from_arrays([pa.array([3, 0], pa.int32())], ["partition"])
            )
        )
