"""What bad input and a bad server get: one error with a code, what was found and what to do; no
secret in it; nothing lost.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import MAX_ID
from tests.spark.conftest import PATIENCE_S, Bus, MakeBus, Sink, Stream
from tests.support import wait_until

SECRET = "hunter2-o-wunder"


def write(frame: DataFrame, options: dict[str, Any]) -> None:
    frame.write.format("busmq").mode("append").options(**options).save()


def read(spark: SparkSession, options: dict[str, Any]) -> list[Any]:
    return spark.read.format("busmq").options(**options).load().collect()


@pytest.fixture
def one_row(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("x",)], "value string").coalesce(1)


# Options and columns, at the first action


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"subscribe": "q", "maxMessagePerTrigger": "5"},
            "unknown option 'maxmessagepertrigger'; did you mean 'maxMessagesPerTrigger'?",
        ),
        (
            {},
            (
                "exactly one of 'subscribe', 'subscribePattern' and 'topic' names the queues to"
                " read; none is given"
            ),
        ),
        (
            {"subscribePattern": "("},
            "option 'subscribePattern' is '('; expected a Python regular expression",
        ),
        (
            {"subscribe": "q", "startingOffsets": "{"},
            "option 'startingOffsets' is '{'; expected earliest, latest, -10m",
        ),
        (
            {"subscribe": "q", "redis.url": f"http://me:{SECRET}@h"},
            "redis.url: it does not begin with a known scheme; expected redis://",
        ),
        (
            {"subscribe": "q", "redis.url": f"redis://:{SECRET}@h:port"},
            "redis.url: its port is not a number from 1 to 65535; expected redis://",
        ),
        (
            {"subscribe": "q", "path": "/data"},
            "unknown option 'path'; name queues with option 'subscribe'",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_source_with_bad_options_never_connects(
    spark: SparkSession, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=r"\[BUSMQ_CONFIG\]") as failed:
        read(spark, {"redis.url": "redis://127.0.0.1:1", **options})
    assert reason in str(failed.value)
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        (
            ("'x' AS value",),
            {},
            "no queue is named: set option 'queue', or give the rows a column queue",
        ),
        (("'x' AS body",), {"queue": "q"}, "column 'value' is missing; the rows have: body"),
        (
            ("1 AS value",),
            {"queue": "q"},
            "column 'value' is int; expected string or binary; use to_json(struct(...))",
        ),
        (("'x' AS value", "1 AS queue"), {}, "column 'queue' is int; expected string"),
        (
            ("'x' AS value", "2 AS n"),
            {"queue": "q"},
            "column 'n' has no place; the sink takes value (string or binary) and queue (string)",
        ),
        (("'x' AS value",), {"que": "q"}, "unknown option 'que'; did you mean 'queue'?"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_sink_with_bad_columns_or_options_never_connects(
    spark: SparkSession, columns: tuple[str, ...], options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=r"\[BUSMQ_CONFIG\]") as failed:
        write(spark.range(1).selectExpr(*columns), {"redis.url": "redis://127.0.0.1:1", **options})
    assert reason in str(failed.value)


def test_a_null_in_a_stream_fails_the_batch_and_nothing_of_it_is_stored(
    spark: SparkSession, bus: Bus, sink: Sink, queue: str
) -> None:
    bus.push(f"{queue}-in", *[str(i) for i in range(10)])
    frame = (
        spark.readStream.format("busmq")
        .options(**{"redis.url": bus.url, "subscribe": f"{queue}-in", "ack": "none"})
        .load()
    )
    broken = frame.selectExpr("CASE WHEN id < 10 THEN value END AS value")
    with pytest.raises(
        StreamingQueryException,
        match=r"\[BUSMQ_MESSAGE_REFUSED\] column 'value' is NULL in 1 of 10 rows; .*coalesce",
    ):
        sink(broken, {"redis.url": bus.url, "queue": queue})
    assert bus.stored(queue) == []
    sink(broken.where("value IS NOT NULL"), {"redis.url": bus.url, "queue": queue})
    assert len(bus.stored(queue)) == 9


# Servers


@pytest.fixture(scope="module")
def locked() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(password=SECRET) as server:
        yield server


def test_a_wrong_password_is_reported_without_it(
    spark: SparkSession, locked: EmbeddedRedis, one_row: DataFrame, stream: Stream
) -> None:
    wrong = {"redis.url": f"redis://:not-{SECRET}@127.0.0.1:{locked.port}"}
    for attempt in (
        lambda: read(spark, {**wrong, "subscribe": "q"}),
        lambda: write(one_row, {**wrong, "queue": "q"}),
        lambda: stream({**wrong, "subscribe": "q"}).wait_for(lambda: False),
        lambda: read(
            spark,
            {
                "redis.url": f"redis://127.0.0.1:{locked.port}",
                "redis.password": f"not-{SECRET}",
                "subscribe": "q",
            },
        ),
    ):
        with pytest.raises(
            Exception,
            match=r"\[BUSMQ_UNAUTHORIZED\] Redis at redis://\S*127\.0\.0\.1:\d+ refused access",
        ) as failed:
            attempt()
        assert SECRET not in str(failed.value)


def test_the_right_password_shows_nowhere(
    spark: SparkSession, locked: EmbeddedRedis, bus_of: MakeBus, stream: Stream, sink: Sink
) -> None:
    bus = bus_of(locked)
    bus.push("in", "1", "2")
    options = {"redis.url": bus.url, "subscribe": "in", "ack": "none"}
    assert SECRET in bus.url
    frame = spark.read.format("busmq").options(**options).load()
    assert SECRET not in frame._jdf.queryExecution().toString() + repr(frame)
    query = stream(options)
    query.wait_rows(2)
    query.wait_for(lambda: query.query.lastProgress)
    source = spark.readStream.format("busmq").options(**options).load().select("value")
    written = sink(source, {"redis.url": bus.url, "queue": "out"})
    for running in (query.query, written):
        explained = running._jsq.explainInternal(True)
        assert explained
        shown = explained + str(running.lastProgress) + str(running.status) + str(running)
        assert SECRET not in shown
    bus("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StreamingQueryException, match="BUSMQ_SERVER_FULL") as failed:
        sink(source, {"redis.url": bus.url, "queue": "other"}, checkpoint="other")
    bus("CONFIG", "SET", "maxmemory", "0")
    assert SECRET not in str(failed.value)


def test_a_redis_that_is_not_there_ends_the_query_with_its_masked_address(stream: Stream) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"redis.url": f"redis://:{SECRET}@127.0.0.1:{port}", "subscribe": "q"}
    with pytest.raises(
        StreamingQueryException,
        match=rf"\[BUSMQ_LINK_LOST\] cannot reach Redis at redis://\*\*\*@127\.0\.0\.1:{port}:",
    ) as failed:
        stream(options).wait_for(lambda: False)
    assert "Check that the server runs" in str(failed.value)
    assert SECRET not in str(failed.value)


def test_a_replica_is_named_as_one_and_its_master_is_asked_for(
    spark: SparkSession, bus_of: MakeBus, one_row: DataFrame, stream: Stream
) -> None:
    with EmbeddedRedis() as master, EmbeddedRedis(replica_of=("127.0.0.1", master.port)) as replica:
        bus_of(master).push("q", "1")
        wait_until(lambda: replica.command("EXISTS", QueueKeys("q").metadata), PATIENCE_S)
        options = {"redis.url": replica.url}
        expected = (
            r"\[BUSMQ_READ_ONLY\] Redis at redis://127\.0\.0\.1:\d+ does not accept writes: .* Name"
            r" the master in redis\.url"
        )
        with pytest.raises(Exception, match=expected):
            write(one_row, {**options, "queue": "q"})
        with pytest.raises(StreamingQueryException, match=expected):
            stream({**options, "subscribe": "q"}).wait_for(lambda: False)
        assert [bytes(r["value"]) for r in read(spark, {**options, "subscribe": "q"})] == [
            b"1"
        ]  # reading alone is fine


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_ids_that_are_used_up_are_an_error_and_nothing_is_stored(
    spark: SparkSession, bus: Bus, queue: str, delivery: str
) -> None:
    bus.push(queue, "first")
    bus("SET", QueueKeys(queue).msgid, str(MAX_ID - 1))
    rows = spark.createDataFrame([("a",), ("b",)], "value string").coalesce(1)
    with pytest.raises(
        Exception,
        match=r"\[BUSMQ_MESSAGE_REFUSED\] the queue has used up its ids .* create it anew",
    ):
        write(rows, {"redis.url": bus.url, "queue": queue, "delivery": delivery})
    assert bus.stored(queue) == [b"first"]


def test_the_largest_id_there_can_be_is_written_and_read(
    spark: SparkSession, bus: Bus, one_row: DataFrame, queue: str, stream: Stream
) -> None:
    bus.attach(queue)
    bus("SET", QueueKeys(queue).msgid, str(MAX_ID - 1))
    write(one_row, {"redis.url": bus.url, "queue": queue})
    query = stream({"redis.url": bus.url, "subscribe": queue})
    query.wait_rows(1)
    assert [r["id"] for r in query.rows] == [MAX_ID]
    query.wait_for(lambda: bus.ids(queue) == [])


def test_a_queue_that_may_not_be_created_is_missed_by_the_sink(
    bus: Bus, one_row: DataFrame, queue: str
) -> None:
    with pytest.raises(
        Exception,
        match=(
            rf"\[BUSMQ_QUEUE_MISSING\] queue '{queue}' does not exist and may not be created here"
        ),
    ):
        write(one_row, {"redis.url": bus.url, "queue": queue, "createQueue": "false"})
    assert bus("EXISTS", QueueKeys(queue).metadata) == 0
