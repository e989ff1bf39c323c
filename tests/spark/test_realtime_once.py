"""Exactly once in real-time mode: what a batch that is run again brings besides is left out, and
what could not be known by its origin is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import Bus
from tests.spark.test_realtime_sink_live import Live, any_sink, live
from tests.spark.topic_tools import make_topic, partitions_of

__all__ = ["any_sink", "live"]
pytestmark = [pytest.mark.usefixtures("shim_jar", "any_sink")]

Pipeline = Callable[[DataFrame], DataFrame]


def as_it_is(source: DataFrame) -> DataFrame:
    return source


def parts(source: DataFrame) -> DataFrame:
    """Three rows of every message but the odd ones."""
    even = source.where("CAST(CAST(value AS STRING) AS INT) % 2 = 0")
    made = F.posexplode(
        F.transform(
            F.sequence(F.lit(0), F.lit(2)),
            lambda part: F.concat(F.col("value").cast("string"), F.lit("."), part),
        )
    )
    return even.select("queue", "id", made.alias("index", "value"))


def once(bus: Bus, queue: str) -> dict[str, str]:
    return {"redis.url": bus.url, "queue": queue, "delivery": "exactly-once"}


@pytest.mark.parametrize("pipeline", [as_it_is, parts])
def test_a_query_that_is_stopped_in_a_long_batch_repeats_nothing(
    bus: Bus, live: Live, queue: str, pipeline: Pipeline
) -> None:
    live.rows = pipeline
    made: list[bytes] = []
    for rows in (1, 2500, 11):
        live.start(once(bus, queue))
        live.feed(rows)
        for number in range(live.fed - rows, live.fed):
            made += (
                [b"%d" % number]
                if pipeline is as_it_is
                else [b"%d.%d" % (number, part) for part in range(3) if number % 2 == 0]
            )
        live.wait_rows(queue, len(made))
        live.stop()
    live.start(once(bus, queue))
    live.feed(
        2
        # The first of them makes rows in either pipeline, and what is behind it would come before
        # them
    )
    live.wait_rows(queue, len(made) + 1)
    assert bus.stored(queue)[: len(made)] == made


def doubled(source: DataFrame) -> DataFrame:
    return source.select("queue", "id", F.explode(F.array("value", "value")).alias("value"))


STREAMING_SHUFFLE = pytest.mark.skipif(
    tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 3),
    reason="before Spark 4.3 rows pass a shuffle when their batch ends",
)


@pytest.mark.parametrize(
    ("pipeline", "options", "why"),
    [
        (
            lambda source: source.select("value"),
            {},
            "rows that do not say which message they were made of.* the rows have: value",
        ),
        (
            lambda source: source.select("queue", "value"),
            {},
            "rows that do not say which message they were made of",
        ),
        pytest.param(
            lambda source: source.repartition(1),
            {},
            "rows of queue '.*' in a task that does not read it",
            marks=STREAMING_SHUFFLE,
        ),
        (
            lambda source: source.withColumn("queue", F.lit("other")),
            {},
            "rows of queue 'other' in a task that does not read it",
        ),
        (
            lambda source: source.withColumn("id", -F.col("id")),
            {},
            "rows in another order than their queue: id -2 of '.*' came after -1",
        ),
        (
            lambda source: source.withColumn("id", F.expr("nullif(id, 1)")),
            {},
            "a NULL in column 'id'",
        ),
        (
            doubled,
            {},
            (
                r"several rows of one message \(id 1 of queue '.*'\) that column index does not"
                r" number upwards"
            ),
        ),
        (as_it_is, {"failOnDataLoss": "false"}, "failOnDataLoss=false at the source"),
    ],
    ids=["no-origin", "no-id", "shuffle", "another-queue", "order", "null", "no-index", "loss"],
)
def test_what_cannot_be_exactly_once_is_refused_and_named(
    bus: Bus, live: Live, queue: str, pipeline: Pipeline, options: dict[str, str], why: str
) -> None:
    live.rows, live.source_options = pipeline, options
    live.feed(3)
    live.start(once(bus, queue))
    with pytest.raises(
        Exception,
        match=(
            r"(?s)\[BUSMQ_CONFIG\] delivery=exactly-once in real-time mode is not possible with"
            rf" {why}"
        ),
    ):
        live.wait_rows(queue, 4)


def test_a_queue_that_two_sources_read_is_refused(
    spark: SparkSession, bus: Bus, live: Live, queue: str
) -> None:
    again = {"redis.url": f"{bus.url}/0", "subscribe": live.source, "ack": "none"}
    live.rows = lambda source: source.union(
        spark.readStream.format("busmq-realtime").options(**again).load()
    )
    live.feed(3)
    live.start(once(bus, queue))
    with pytest.raises(
        Exception, match=r"(?s)not possible with a query that reads queue '.*' twice"
    ):
        live.wait_rows(queue, 4)


def by_number(source: DataFrame) -> DataFrame:
    return source.withColumn("partition", F.expr("CAST(CAST(value AS STRING) AS INT) % 3"))


def test_a_topic_has_each_row_once_in_the_partition_that_the_row_says(
    bus: Bus, live: Live, queue: str
) -> None:
    topic = make_topic(bus, queue, 3)
    live.rows = by_number
    for rows in (3, 2500, 11):
        live.start({"redis.url": bus.url, "topic": topic, "delivery": "exactly-once"})
        live.feed(rows)
        live.wait_for(
            lambda: sum(map(len, partitions_of(bus, topic))) >= live.fed,
            "the rows are in the topic",
        )
        live.stop()
    live.start({"redis.url": bus.url, "topic": topic, "delivery": "exactly-once"})
    live.feed(3)  # what is behind them would come before them
    live.wait_for(
        lambda: (
            {part[-1] for part in partitions_of(bus, topic)}
            == {b"%d" % n for n in range(live.fed - 3, live.fed)}
        ),
        "the last rows",
    )
    assert partitions_of(bus, topic) == [
        [b"%d" % n for n in range(p, live.fed, 3)] for p in range(3)
    ]


@pytest.mark.parametrize(
    "pipeline",
    [as_it_is, lambda source: source.withColumn("key", F.col("value"))],
    ids=["in turn", "by key"],
)
def test_a_partition_that_may_be_another_the_next_time_is_refused(
    bus: Bus, live: Live, queue: str, pipeline: Pipeline
) -> None:
    live.rows = pipeline
    live.feed(1)
    live.start(
        {"redis.url": bus.url, "topic": make_topic(bus, queue, 3), "delivery": "exactly-once"}
    )
    with pytest.raises(
        Exception,
        match=(
            r"not possible with partitions of a topic that the sink chooses.* Give the rows a"
            r" column partition"
        ),
    ):
        live.wait_for(lambda: False, "the query fails")


def test_rows_that_name_their_queue_are_refused(bus: Bus, live: Live) -> None:
    live.rows = as_it_is
    live.feed(1)
    live.start({"redis.url": bus.url, "delivery": "exactly-once"})
    with pytest.raises(
        Exception, match=r"not possible with a column that names where each row goes"
    ):
        live.wait_for(lambda: False, "the query fails")


def test_a_query_with_another_checkpoint_is_another_query(
    spark: SparkSession, bus: Bus, live: Live, queue: str, tmp_path: Path
) -> None:
    live.rows = as_it_is
    live.feed(3)
    live.start(once(bus, queue))
    live.wait_rows(queue, 3)
    live.stop()
    other = Live(spark, bus, live.source, tmp_path / "other")
    try:
        other.rows = as_it_is
        other.start(once(bus, queue))
        other.wait_rows(queue, 6)
    finally:
        other.stop()
