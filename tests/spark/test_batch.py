"""Batch reads and writes, from Python and SQL."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from busmq_spark.embedded import EmbeddedStandaloneServers
from busmq_spark.queue.keys import QueueKeys
from tests.conftest import Fresh
from tests.spark.conftest import Bus, MakeBus


def read(spark: SparkSession, **options: Any) -> DataFrame:
    return (
        spark.read.format("busmq")
        .options(**{name.replace("redis_", "redis."): value for name, value in options.items()})
        .load()
    )


def rows(frame: DataFrame) -> list[tuple[str, int, str]]:
    return [(r["queue"], r["id"], bytes(r["value"]).decode()) for r in frame.collect()]


def numbered(queue: str, first: int, last: int) -> list[tuple[str, int, str]]:
    return [(queue, i, f"{queue}:{i}") for i in range(first, last + 1)]


# Read


def test_a_frame_is_what_was_stored_at_its_first_use_and_reading_it_removes_nothing(
    spark: SparkSession, bus: Bus, fresh: Fresh
) -> None:
    a, b = fresh("a"), fresh("b")
    bus.fill(a, 3)
    bus.fill(b, 2)
    frame = read(spark, redis_url=bus.url, subscribe=f"{a},{b}")
    assert rows(frame) == numbered(a, 1, 3) + numbered(b, 1, 2)
    bus.fill(b, 1, first=3)
    assert frame.count() == 5  # Spark plans a frame once
    assert read(spark, redis_url=bus.url, subscribe=f"{a},{b}").count() == 6
    assert (bus.ids(a), bus.ids(b)) == ([1, 2, 3], [1, 2, 3])
    assert bus("EXISTS", QueueKeys(a).lease(""), QueueKeys(a).acks) == 0


def test_a_batch_read_goes_beside_a_running_query(
    spark: SparkSession, bus: Bus, queue: str
) -> None:
    bus.fill(queue, 3)
    bus("SET", QueueKeys(queue).lease(""), "a query somewhere")
    assert rows(read(spark, redis_url=bus.url, subscribe=queue)) == numbered(queue, 1, 3)


def test_a_batch_read_takes_the_queues_of_a_pattern_on_every_server(
    spark: SparkSession, three_servers: EmbeddedStandaloneServers, bus_of: MakeBus, fresh: Fresh
) -> None:
    base = fresh("p")
    for number, url in enumerate(three_servers.urls):
        bus_of(url).fill(f"{base}-{number}", 2)
    found = rows(read(spark, redis_url=",".join(three_servers.urls), subscribePattern=f"{base}-."))
    assert found == [row for number in range(3) for row in numbered(f"{base}-{number}", 1, 2)]


def test_a_batch_read_from_an_id_on(spark: SparkSession, bus: Bus, fresh: Fresh) -> None:
    a, b = fresh("a"), fresh("b")
    bus.fill(a, 5)
    bus.fill(b, 5)
    found = read(spark, redis_url=bus.url, subscribe=f"{a},{b}", startingOffsets=json.dumps({a: 3}))
    assert rows(found) == numbered(a, 4, 5) + numbered(b, 1, 5)


def test_a_read_that_stops_early_does_not_disturb_the_next_one(
    spark: SparkSession, bus: Bus, fresh: Fresh
) -> None:
    queue = fresh()
    bus.push(queue, *[f"{i}" * 100 for i in range(3000)])
    frame = read(spark, redis_url=bus.url, subscribe=queue, minPartitions=3)
    for _ in range(3):
        assert [r["id"] for r in frame.limit(2).collect()] == [1, 2]
    assert frame.count() == 3000


def test_a_queue_that_peers_created_gets_its_name_of_life_and_nothing_else(
    spark: SparkSession, bus: Bus, queue: str
) -> None:
    keys = QueueKeys(queue)
    bus("HSET", keys.metadata, "ttl", 60, "source", "local", "discover", "false", "maxsize", 0)
    bus("RPUSH", keys.messages, "7", "hello")
    bus("SET", keys.msgid, "7")
    assert rows(read(spark, redis_url=bus.url, subscribe=queue)) == [(queue, 7, "hello")]
    assert sorted(bus("HKEYS", keys.metadata)) == [
        b"born",
        b"discover",
        b"maxsize",
        b"source",
        b"ttl",
    ]


def test_an_empty_queue_is_an_empty_frame(spark: SparkSession, bus: Bus, queue: str) -> None:
    bus.attach(queue)
    assert rows(read(spark, redis_url=bus.url, subscribe=queue)) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"subscribe": "no-such-queue"},
            "[BUSMQ_QUEUE_MISSING] queue 'no-such-queue' does not exist",
        ),
        (
            {"subscribe": "q", "startingOffsets": "latest"},
            "startingOffsets=latest leaves nothing to a batch read",
        ),
    ],
)
def test_a_batch_read_that_cannot_be_says_why(
    spark: SparkSession, bus: Bus, options: dict[str, str], reason: str
) -> None:
    bus.attach("q")
    with pytest.raises(Exception, match="BUSMQ") as failed:
        read(spark, redis_url=bus.url, **options).collect()
    assert reason in str(failed.value)


def test_sql_reads_queues_as_a_view(spark: SparkSession, bus: Bus, queue: str) -> None:
    bus.push(queue, '{"price": 3}', '{"price": 4}')
    view = queue.replace("-", "_")
    spark.sql(
        f"CREATE TEMPORARY VIEW {view} USING busmq OPTIONS (`redis.url` '{bus.url}', subscribe"
        f" '{queue}')"
    )
    [total] = spark.sql(
        f"SELECT sum(get_json_object(cast(value AS string), '$.price')) AS total FROM {view}"
    ).collect()
    assert total["total"] == 7
    bus.push(queue, '{"price": 5}')
    assert spark.table(view).count() == 2  # a view is planned once, too
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {view} USING busmq OPTIONS (`redis.url` '{bus.url}',"
        f" subscribe '{queue}')"
    )
    assert spark.table(view).count() == 3
    spark.catalog.dropTempView(view)


# Write


def write(frame: DataFrame, mode: str = "append", **options: Any) -> None:
    frame.write.format("busmq").mode(mode).options(
        **{name.replace("redis_", "redis."): value for name, value in options.items()}
    ).save()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_batch_write_appends_in_partition_order_and_leaves_nothing_else_behind(
    spark: SparkSession, bus: Bus, queue: str, delivery: str
) -> None:
    bus.push(queue, "first")
    before = set(bus("KEYS", "*stage*")) | set(bus("KEYS", "bus:sink:*"))
    frame = spark.range(0, 3000, 1, 1 if delivery == "at-least-once" else 3).selectExpr(
        "cast(id AS string) AS value"
    )
    write(frame, redis_url=bus.url, queue=queue, delivery=delivery)
    assert bus.stored(queue) == [b"first", *[b"%d" % i for i in range(3000)]]
    assert bus.ids(queue) == list(range(1, 3002))
    assert set(bus("KEYS", "*stage*")) | set(bus("KEYS", "bus:sink:*")) == before
    assert bus("EXISTS", QueueKeys(queue).sinks) == 0


def test_rows_of_one_queue_can_be_written_to_others_by_their_column(
    spark: SparkSession, bus: Bus, fresh: Fresh
) -> None:
    a, b = fresh("a"), fresh("b")
    frame = spark.createDataFrame(
        [(b, b"\x00\xff"), (a, b"1"), (b, b"2")], "queue string, value binary"
    ).coalesce(1)
    write(frame, redis_url=bus.url)
    assert (bus.stored(a), bus.stored(b)) == ([b"1"], [b"\x00\xff", b"2"])
    write(read(spark, redis_url=bus.url, subscribe=b), redis_url=bus.url, queue=a)
    assert bus.stored(a) == [b"1", b"\x00\xff", b"2"]


def test_overwrite_is_refused_unless_truncate_says_that_deleting_is_meant(
    spark: SparkSession, bus: Bus, queue: str
) -> None:
    bus.push(queue, "old")
    frame = spark.createDataFrame([("new",)], "value string")
    with pytest.raises(
        Exception, match="mode overwrite would delete what the queue holds; say truncate=true"
    ):
        write(frame, "overwrite", redis_url=bus.url, queue=queue)
    assert bus.stored(queue) == [b"old"]
    write(
        frame, "overwrite", redis_url=bus.url, queue=queue, truncate=True, delivery="at-least-once"
    )
    assert bus.stored(queue) == [b"new"]
    assert bus.ids(queue) == [2]


@pytest.mark.parametrize("source", ["busmq", "busmq-realtime"])
@pytest.mark.parametrize("mode", [None, "errorifexists", "ignore"])
def test_modes_that_spark_refuses_for_sources_of_this_kind(
    spark: SparkSession, bus: Bus, queue: str, mode: str | None, source: str
) -> None:
    writer = (
        spark.createDataFrame([("new",)], "value string")
        .write.format(source)
        .options(**{"redis.url": bus.url, "queue": queue})
    )
    with pytest.raises(
        AnalysisException,
        match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*\"Append\" or \"Overwrite\" mode instead",
    ):
        (writer.mode(mode) if mode else writer).save()
    assert bus("EXISTS", QueueKeys(queue).metadata) == 0


def test_a_write_that_fails_in_one_task_stores_nothing_and_leaves_nothing_for_ever(
    spark: SparkSession, bus: Bus, queue: str
) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr(
        "CASE WHEN id < 9 THEN cast(id AS string) END AS value"
    )
    before = set(bus("KEYS", "*stage*"))
    with pytest.raises(
        Exception, match=r"\[BUSMQ_MESSAGE_REFUSED\] column 'value' is NULL in 1 of 5 rows"
    ):
        write(frame, redis_url=bus.url, queue=queue)
    assert bus.stored(queue) == []
    # Spark aborts while the other task may still run: what that one stages is removed by its ttl.
    assert all(bus("TTL", key) != -1 for key in set(bus("KEYS", "*stage*")) - before)


def test_sql_writes_into_a_queue(spark: SparkSession, bus: Bus, queue: str) -> None:
    table = f"t_{queue.replace('-', '_')}"
    spark.sql(
        f"CREATE TEMPORARY VIEW {table} USING busmq OPTIONS (`redis.url` '{bus.url}', subscribe"
        f" '{queue}')"
    )
    write(spark.sql("SELECT 'from sql' AS value"), redis_url=bus.url, queue=queue)
    assert [bytes(r["value"]) for r in spark.table(table).collect()] == [b"from sql"]
    spark.catalog.dropTempView(table)
