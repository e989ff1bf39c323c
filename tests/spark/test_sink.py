"""The streaming sink in a real Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from busmq_spark.embedded import EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.errors import ConfigError
from busmq_spark.queue import queue as core
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.spark.data_source import BusmqDataSource
from tests.conftest import Fresh
from tests.spark.conftest import Bus, MakeBus, Sink


@pytest.fixture
def rows(spark: SparkSession, bus: Bus, fresh: Fresh) -> Callable[..., DataFrame]:
    """A stream of these values, each time it is drained those that are new; columns as an
    expression says.
    """
    source = fresh("in")

    def make(
        *values: str | bytes, columns: tuple[str, ...] = ("value",), **options: Any
    ) -> DataFrame:
        bus.push(source, *values)
        frame = (
            spark.readStream.format("busmq")
            .options(**{"redis.url": bus.url, "subscribe": source, "ack": "none", **options})
            .load()
        )
        return frame.selectExpr(*columns)

    return make


def number(values: list[bytes]) -> list[int]:
    return [int(value) for value in values]


def numbers(first: int, last: int) -> list[str]:
    return [str(i) for i in range(first, last + 1)]


# What goes where


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize(
    "column", ["value", "cast(value AS string) AS value"], ids=["binary", "string"]
)
def test_rows_become_messages_in_their_order_batch_after_batch(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str, delivery: str, column: str
) -> None:
    sink(
        rows(*numbers(1, 10), columns=(column,), maxMessagesPerTrigger=4),
        {"redis.url": bus.url, "queue": queue, "delivery": delivery},
    )
    assert number(bus.stored(queue)) == list(range(1, 11))
    assert bus.ids(queue) == list(range(1, 11))


def test_a_restarted_query_goes_on_where_it_stopped(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str
) -> None:
    options = {"redis.url": bus.url, "queue": queue}
    sink(rows(*numbers(1, 5)), options)
    sink(rows(*numbers(6, 8)), options)
    sink(rows(), options)
    assert number(bus.stored(queue)) == list(range(1, 9))


def test_many_tasks_append_in_the_order_of_their_partitions(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str
) -> None:
    sink(rows(*numbers(1, 4000), minPartitions=4), {"redis.url": bus.url, "queue": queue})
    assert number(bus.stored(queue)) == list(range(1, 4001))
    assert bus("KEYS", QueueKeys(queue).stage("*")) == []


def test_a_column_names_the_queue_of_each_row_on_whatever_server_it_is(
    three_servers: EmbeddedStandaloneServers,
    bus_of: MakeBus,
    rows: Callable[..., DataFrame],
    sink: Sink,
    fresh: Fresh,
) -> None:
    base = fresh("out")
    buses = [bus_of(url) for url in three_servers.urls]
    buses[2].attach(f"{base}-0")  # where it is, not where its name would put it
    frame = rows(
        *numbers(0, 29), columns=("value", f"concat('{base}-', cast(value AS string) % 3) AS queue")
    ).selectExpr("value", "replace(queue, '.0', '') AS queue")
    sink(frame, {"redis.url": ",".join(three_servers.urls)})
    assert number(buses[2].stored(f"{base}-0")) == list(range(0, 30, 3))
    for rest in (1, 2):
        assert sorted(len(bus.stored(f"{base}-{rest}")) for bus in buses) == [0, 0, 10]
        [where] = [bus for bus in buses if bus.stored(f"{base}-{rest}")]
        assert number(where.stored(f"{base}-{rest}")) == list(range(rest, 30, 3))


def test_the_option_queue_wins_over_the_column(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str
) -> None:
    sink(rows("1", columns=("queue", "id", "value")), {"redis.url": bus.url, "queue": queue})
    assert bus.stored(queue) == [b"1"]


def test_batches_without_rows_are_fine(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str
) -> None:
    sink(
        rows(*numbers(1, 6), maxMessagesPerTrigger=2).where(
            "cast(cast(value AS string) AS int) > 4"
        ),
        {"redis.url": bus.url, "queue": queue},
    )
    assert number(bus.stored(queue)) == [5, 6]


def test_a_queue_that_is_created_gets_the_ttl_and_maxsize_of_the_options(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str
) -> None:
    sink(rows("1"), {"redis.url": bus.url, "queue": queue, "ttl": "90s", "maxsize": 7})
    assert bus("HMGET", QueueKeys(queue).metadata, "ttl", "maxsize") == [b"90", b"7"]


# A full queue


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_full_queue_blocks_until_a_consumer_makes_room(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str, delivery: str
) -> None:
    bus.attach(queue, maxsize=30)
    query = sink(
        rows(*numbers(1, 100)),
        {"redis.url": bus.url, "queue": queue, "delivery": delivery},
        wait=False,
    )
    assert bus.take_when_full(queue, 30, 100, query) == list(range(1, 101))


@pytest.mark.parametrize("how", [{"onFull": "fail"}, {"fullTimeoutMs": 300}], ids=str)
def test_a_queue_that_stays_full_fails_the_query_and_nothing_is_lost_or_twice(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str, how: dict[str, Any]
) -> None:
    bus.attach(queue, maxsize=30)
    options = {"redis.url": bus.url, "queue": queue, **how}
    frame = rows(*numbers(1, 100))
    found: list[int] = []
    for left in (70, 40, 10):
        with pytest.raises(
            StreamingQueryException,
            match=(
                rf"\[BUSMQ_QUEUE_FULL\] queue '{queue}' holds its maxsize of 30.*{left} rows are"
                r" not stored"
            ),
        ):
            sink(frame, options)
        found += [
            int(message.value) for message in bus.link.run(core.pop(QueueKeys(queue), most=100))
        ]
    sink(frame, options)
    found += number(bus.stored(queue))
    assert found == list(range(1, 101))


# A full Redis


def test_a_redis_out_of_memory_fails_the_query_and_nothing_is_lost_or_twice(
    bus_of: MakeBus, rows: Callable[..., DataFrame], sink: Sink
) -> None:
    with EmbeddedRedis() as server:
        full = bus_of(server)
        full.push("out", "first")
        full("CONFIG", "SET", "maxmemory", "1")
        frame = rows(*numbers(1, 100))
        options = {"redis.url": full.url, "queue": "out"}
        with pytest.raises(
            StreamingQueryException,
            match=r"\[BUSMQ_SERVER_FULL\] Redis at redis://127\.0\.0\.1:\d+ is out of memory",
        ):
            sink(frame, options)
        assert full.stored("out") == [b"first"]
        full("CONFIG", "SET", "maxmemory", "0")
        sink(frame, options)
        assert full.stored("out") == [b"first", *map(str.encode, numbers(1, 100))]


# Exactly once


def test_a_new_checkpoint_with_the_same_sink_id_is_refused_after_several_batches(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str
) -> None:
    options = {"redis.url": bus.url, "queue": queue, "sinkId": queue}
    frame = rows(*numbers(1, 6), maxMessagesPerTrigger=2)
    sink(frame, options)
    with pytest.raises(
        StreamingQueryException,
        match=rf"\[BUSMQ_STALE_BATCH\] sink {queue}: batch 0 was offered .* a new sinkId",
    ):
        sink(frame, options, checkpoint="new")
    assert number(bus.stored(queue)) == list(range(1, 7))


def test_a_new_checkpoint_with_the_same_sink_id_is_refused_after_one_batch(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str
) -> None:
    """Its batch 0 must not be taken for a repeat of the batch 0 that is there: the rows would be
    gone without a word.
    """
    options = {"redis.url": bus.url, "queue": queue, "sinkId": queue}
    sink(rows("1"), options)
    with pytest.raises(StreamingQueryException, match=rf"\[BUSMQ_STALE_BATCH\] sink {queue}"):
        sink(rows("2"), options, checkpoint="new")
    assert number(bus.stored(queue)) == [1]


def test_two_queries_write_one_queue_each_exactly_once(
    bus: Bus, rows: Callable[..., DataFrame], sink: Sink, queue: str
) -> None:
    options = {"redis.url": bus.url, "queue": queue}
    frame = rows(*numbers(1, 5))
    sink(frame, options, checkpoint="a")
    sink(frame, options, checkpoint="b")
    assert number(bus.stored(queue)) == [1, 2, 3, 4, 5] * 2


def test_batches_that_run_before_they_are_logged_are_refused() -> None:
    """Run again such a batch holds other rows, the record of the first time would stand for them,
    and rows would be missing.
    """
    schema = StructType([StructField("value", BinaryType())])
    given = {
        "redis.url": "redis://127.0.0.1:1",
        "queue": "q",
        "asyncProgressTrackingEnabled": "True",
    }
    with pytest.raises(ConfigError, match="a batch runs before it is logged"):
        BusmqDataSource(given).streamWriter(schema, False)
