"""The jar on each Spark it is made for: make test-sparks runs these on every minor version, each of
which has interfaces of its own.

4.2.0 asks a reader of real-time mode by another method than 4.1, 4.3 by either; 4.3 commits once
more when a query is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from busmq_spark import realtime
from tests.conftest import Fresh
from tests.spark.conftest import Bus
from tests.support import PATIENCE_S, wait_until

SETTINGS = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.streaming.realTimeMode.minBatchDuration": "100",
}
Start = Callable[..., StreamingQuery]

pytestmark = [pytest.mark.usefixtures("shim_jar")]


@pytest.fixture
def out(fresh: Fresh) -> str:
    """The queue that the queries write."""
    return fresh("out")


@pytest.fixture
def start(spark: SparkSession, bus: Bus, queue: str, out: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a query that copies ``queue`` into ``out`` by the jar: a batch of real-time mode lasts
    so long, without one it is AvailableNow.
    """
    started: list[StreamingQuery] = []

    def make(batch: str = "") -> StreamingQuery:
        rows = (
            spark.readStream.format("busmq-realtime")
            .options(**{"redis.url": bus.url, "subscribe": queue})
            .load()
            .select("value")
        )
        writer: Any = rows.writeStream.format("busmq-realtime").options(
            **{"redis.url": bus.url, "queue": out}
        )
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint {batch}"))
        started.append(
            (realtime(writer, batch) if batch else writer.trigger(availableNow=True)).start()
        )
        return started[-1]

    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield make
    for query in started:
        query.stop()
    for name in SETTINGS:
        spark.conf.unset(name)


def values(first: int, last: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, last + 1)]


def push(bus: Bus, queue: str, first: int, last: int) -> None:
    bus.push(queue, *values(first, last))


def test_micro_batches_go_through_once_and_are_acknowledged_over_a_restart(
    bus: Bus, start: Start, queue: str, out: str
) -> None:
    for first in (1, 51):
        push(bus, queue, first, first + 49)
        assert start().awaitTermination(int(PATIENCE_S))
        assert bus.stored(out) == values(1, first + 49)
    assert bus.ids(queue) in (
        [],
        [*range(51, 101)],
    )  # up to Spark 4.1 the last batch is acknowledged with the next one


def test_rows_of_real_time_mode_arrive_while_their_batch_runs(
    bus: Bus, start: Start, queue: str, out: str
) -> None:
    bus.attach(queue)
    query = start("1 hour")
    for first, last in ((1, 1), (2, 101), (102, 102)):
        push(bus, queue, first, last)
        wait_until(
            lambda last=last: failed(query) or len(bus.ids(out)) >= last,
            PATIENCE_S,
            "the rows have arrived",
        )  # type: ignore[misc]
    assert bus.stored(out) == values(1, 102)


def test_batches_of_real_time_mode_follow_each_other_and_acknowledge_what_they_read(
    bus: Bus, start: Start, queue: str, out: str
) -> None:
    query = start("500 milliseconds")
    for first in (1, 11):
        push(bus, queue, first, first + 9)
        wait_until(
            lambda: failed(query) or bus.ids(queue) == [], PATIENCE_S, "the batches have ended"
        )
    query.stop()
    assert bus.stored(out) == values(1, 20)


def test_a_batch_write_and_a_batch_read(spark: SparkSession, bus: Bus, queue: str) -> None:
    at = {"redis.url": bus.url}
    spark.range(1, 11, 1, 2).selectExpr("cast(id AS string) AS value").write.format(
        "busmq-realtime"
    ).mode("append").options(**at, queue=queue).save()
    assert bus.stored(queue) == values(1, 10)
    read = spark.read.format("busmq").options(**at, subscribe=queue).load()
    assert [row["id"] for row in read.collect()] == [*range(1, 11)]


def test_one_name_is_served_by_either_engine_and_so_is_a_checkpoint(
    spark: SparkSession, bus: Bus, queue: str, out: str, tmp_path: Path
) -> None:
    bus.attach(queue)
    for turn, engine in enumerate(("java", "python", "java")):
        at = {"redis.url": bus.url, "engine": engine}
        frame = spark.createDataFrame([(str(turn),)], "value string")
        frame.write.format("busmq").mode("append").options(**at, queue=queue).save()
        writer = (
            spark.readStream.format("busmq")
            .options(**at, subscribe=queue)
            .load()
            .select("value")
            .writeStream.format("busmq")
        )
        query = (
            writer.options(**at, queue=out)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(2 * PATIENCE_S))
        assert ("engine=java" in query.lastProgress.sources[0].description) == (engine == "java")
        assert bus.stored(out) == values(0, turn)
    read = spark.read.format("busmq").options(**{"redis.url": bus.url, "subscribe": out})
    assert (
        read.option("engine", "python").load().collect()
        == read.option("engine", "java").load().collect()
    )


def failed(query: StreamingQuery) -> bool:
    """Never true: an error of the query comes up here."""
    if error := query.exception():
        raise error
    return False
