"""A batch number that the sink has seen comes again: the same batch, or another one in its place.
Both engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import parse
from busmq_spark.options import WriteOptions
from busmq_spark.queue.keys import QueueKeys, sink_record
from busmq_spark.spark.realtime import SESSION_SETTINGS, realtime
from busmq_spark.spark.write.committer import SinkCommitter
from busmq_spark.store.redis_store import open_store
from busmq_spark.writing.sink import split_span
from tests.spark.conftest import Bus
from tests.spark.lines import Lines
from tests.support import PATIENCE_S, wait_until

JAVA, PYTHON = "busmq-realtime", "busmq"

pytestmark = [pytest.mark.usefixtures("shim_jar")]


@pytest.fixture(params=[PYTHON, JAVA])
def via(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def number(values: list[bytes]) -> list[int]:
    return [int(value) for value in values]


def staged(bus: Bus, queue: str) -> Any:
    return bus("KEYS", QueueKeys(queue).stage("*"))


def test_a_checkpoint_that_is_a_batch_behind_the_sink_stops_the_query_and_no_row_vanishes(
    bus: Bus, lines: Lines, queue: str, via: str
) -> None:
    """The batch is planned anew, with what came meanwhile."""
    options = {"redis.url": bus.url, "queue": queue}
    lines.add(*range(5))
    lines.drain(via, options)
    lines.add(*range(5, 12))
    lines.drain(via, options)
    lines.forget_batch()
    lines.add(*range(12, 15))
    with pytest.raises(
        StreamingQueryException,
        match=(
            r"\[BUSMQ_BATCH_CHANGED\] sink .*: batch 1 is recorded with other offsets .*new"
            r" checkpoint"
        ),
    ):
        lines.drain(via, options)
    assert number(bus.stored(queue)) == list(range(12))
    assert staged(bus, queue) == []
    assert not (lines.checkpoint / "commits" / "1").exists(), "its sources are not acknowledged"


def test_a_batch_of_the_same_offsets_is_the_same_whatever_rows_it_has_this_time(
    bus: Bus, lines: Lines, queue: str, via: str
) -> None:
    options = {"redis.url": bus.url, "queue": queue}
    lines.add(*range(5))
    lines.drain(via, options, "uuid() AS value")
    first = bus.stored(queue)
    lines.forget_commit()
    lines.drain(via, options, "uuid() AS value")
    assert bus.stored(queue) == first


def test_either_engine_knows_the_offsets_that_the_other_has_recorded(
    bus: Bus, lines: Lines, queue: str, via: str
) -> None:
    options, other = {"redis.url": bus.url, "queue": queue}, PYTHON if via == JAVA else JAVA
    lines.add(*range(5))
    lines.drain(via, options)
    recorded = bus("HGET", sink_record(lines.query_id), "span")
    lines.forget_commit()
    lines.drain(other, options)
    assert number(bus.stored(queue)) == list(range(5))
    lines.forget_batch()
    lines.add(5)
    with pytest.raises(StreamingQueryException, match=r"\[BUSMQ_BATCH_CHANGED\]"):
        lines.drain(other, options)
    digest, end, checkpoint = split_span(recorded.decode())
    assert len(digest) == len(checkpoint) == 32
    assert end == '{"logOffset":0}'


@pytest.fixture
def foreach(spark: SparkSession, bus: Bus, queue: str, via: str, lines: Lines) -> Any:
    """Drains the lines through foreachBatch and a batch write that names its sink and batch."""

    def drain(*columns: str, **options: str) -> None:
        def write(frame: DataFrame, batch: int) -> None:
            writer = (
                frame.write.format(via)
                .mode("append")
                .options(**{"redis.url": bus.url, "queue": queue, "sinkId": queue, **options})
            )
            writer.option("batchId", batch).save()

        query = (
            lines.frame(*columns)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(lines.checkpoint))
        )
        assert query.trigger(availableNow=True).start().awaitTermination(int(PATIENCE_S))

    return drain


def test_a_batch_write_that_names_sink_and_batch_is_appended_once(
    bus: Bus, lines: Lines, queue: str, foreach: Any
) -> None:
    for rows in (range(3), range(3, 6)):
        lines.add(*rows)
        foreach()
        lines.forget_commit()
        foreach()
    assert number(bus.stored(queue)) == list(range(6))
    assert staged(bus, queue) == []


def test_other_rows_under_a_done_number_are_refused_or_kept_out_without_known_offsets(
    bus: Bus, lines: Lines, queue: str, foreach: Any
) -> None:
    lines.add(*range(3))
    foreach()
    lines.forget_commit()
    with pytest.raises(
        StreamingQueryException,
        match=(
            r"\[BUSMQ_BATCH_CHANGED\] .* recorded 3 rows for .*; now 3 rows for"
            r" .*onChangedBatch=keep"
        ),
    ):
        foreach("concat(value, '0') AS value")
    foreach("concat(value, '0') AS value", onChangedBatch="keep")
    assert number(bus.stored(queue)) == list(range(3))
    assert staged(bus, queue) == []


def test_rows_in_another_order_are_the_same_batch(
    bus: Bus, lines: Lines, queue: str, foreach: Any
) -> None:
    lines.add(*range(30))
    foreach()
    lines.forget_commit()
    lines.reorder()
    foreach()
    assert number(bus.stored(queue)) == list(range(30))


@pytest.mark.parametrize(
    "options", [{"batchId": "1"}, {"batchId": "1", "sinkId": "s", "delivery": "at-least-once"}]
)
def test_a_batch_number_without_its_sink_is_refused(
    spark: SparkSession, queue: str, via: str, options: dict[str, str]
) -> None:
    writer = (
        spark.range(1).selectExpr("cast(id AS string) AS value").write.format(via).mode("append")
    )
    with pytest.raises(
        Exception, match=r"\[BUSMQ_CONFIG\] batchId numbers the batches of a sink: it needs sinkId"
    ):
        writer.options(**{"redis.url": "redis://127.0.0.1:1", "queue": queue, **options}).save()


def test_a_sink_without_a_name_is_refused(bus: Bus, queue: str) -> None:
    options = parse(WriteOptions, {"redis.url": bus.url, "queue": queue})
    with pytest.raises(ConfigError, match="set option sinkId"):
        SinkCommitter(options, open_store(options)).commit("", 0, [])


class BothWays:
    """A query over the queue ``<queue>-in`` that runs exactly once and in real time by turns, with
    one checkpoint.
    """

    def __init__(self, spark: SparkSession, bus: Bus, queue: str, checkpoint: Path) -> None:
        self._spark, self._bus, self._queue, self._checkpoint = spark, bus, queue, checkpoint

    def start(self, *columns: str, sink: dict[str, str], real_time: str = "") -> Any:
        options = {"redis.url": self._bus.url, "subscribe": f"{self._queue}-in", "ack": "none"}
        rows = self._spark.readStream.format(JAVA).options(**options).load().selectExpr(*columns)
        writer = rows.writeStream.format(JAVA).options(
            **{"redis.url": self._bus.url, "asyncProgressTrackingEnabled": "false", **sink}
        )
        writer = writer.option("checkpointLocation", str(self._checkpoint)).outputMode("update")
        return (
            realtime(writer, real_time) if real_time else writer.trigger(availableNow=True)
        ).start()

    def drain(self, *columns: str, sink: dict[str, str]) -> None:
        assert self.start(*columns, sink=sink).awaitTermination(int(PATIENCE_S))

    def forget_after(self, batch: int) -> None:
        """The checkpoint is restored to an older state."""
        for log in ("commits", "offsets"):
            for file in (self._checkpoint / log).iterdir():
                if int(file.name.removeprefix(".").partition(".")[0]) > batch:
                    file.unlink()


@pytest.fixture
def both_ways(spark: SparkSession, bus: Bus, queue: str, tmp_path: Path) -> Iterator[BothWays]:
    settings = {
        **SESSION_SETTINGS,
        "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield BothWays(spark, bus, queue, tmp_path / "c")
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def test_after_real_time_mode_a_recorded_batch_does_not_stand_for_another(
    bus: Bus, queue: str, both_ways: BothWays
) -> None:
    """Exactly once dies between record and commit log, a real-time run ends before its first
    checkpoint, and exactly once goes on.
    """
    sink = {"queue": queue}
    bus.push(f"{queue}-in", *map(str, range(3)))
    both_ways.drain("value", sink=sink)
    both_ways.forget_after(-1)
    bus.push(f"{queue}-in", *map(str, range(3, 5)))
    live = both_ways.start("value", sink=sink, real_time="1 hour")
    wait_until(lambda: live.exception() or bus.stored(queue)[-1:] == [b"4"], PATIENCE_S)
    assert live.exception() is None
    live.stop()
    both_ways.forget_after(-1)
    bus.push(f"{queue}-in", *map(str, range(5, 9)))
    both_ways.drain("value", sink=sink)
    assert sorted(set(number(bus.stored(queue)))) == list(range(9))


def test_after_real_time_mode_progress_that_the_last_record_did_not_name_is_void(
    bus: Bus, queue: str, both_ways: BothWays
) -> None:
    """The checkpoint goes back by two batches, and the number that comes again was the last one
    with rows for its queue.
    """
    columns = ("value", f"concat('{queue}-', substring(cast(value AS string), 1, 1)) AS queue")
    for row in ("a0", "a1", "b2"):
        bus.push(f"{queue}-in", row)
        both_ways.drain(*columns, sink={})
    both_ways.forget_after(0)
    live = both_ways.start(*columns, sink={}, real_time="1 hour")
    wait_until(lambda: live.exception() or bus.stored(f"{queue}-b") == [b"b2"] * 2, PATIENCE_S)
    assert live.exception() is None
    live.stop()
    both_ways.forget_after(0)
    bus.push(f"{queue}-in", "a3", "b4")
    both_ways.drain(*columns, sink={})
    assert bus.stored(f"{queue}-a")[-2:] == [b"a1", b"a3"]
    assert bus.stored(f"{queue}-b")[-2:] == [b"b2", b"b4"]
