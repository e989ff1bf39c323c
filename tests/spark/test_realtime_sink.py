"""The sink of the Java module with ordinary triggers, and a checkpoint that it shares with the
Python sink. Its rows are lines of files.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from busmq_spark.embedded import EmbeddedStandaloneServers
from busmq_spark.queue import queue as core
from busmq_spark.queue.keys import QueueKeys, sink_record
from tests.conftest import Fresh
from tests.spark.conftest import Bus, MakeBus
from tests.spark.lines import Lines
from tests.support import PATIENCE_S, wait_until

JAVA, PYTHON = "busmq-realtime", "busmq"

pytestmark = [pytest.mark.usefixtures("shim_jar")]


def number(values: list[bytes]) -> list[int]:
    return [int(value) for value in values]


def staged(bus: Bus, queue: str) -> Any:
    return bus("KEYS", QueueKeys(queue).stage("*"))


# What goes where


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_column_names_the_queue_of_each_row_on_whatever_server_it_is(
    three_servers: EmbeddedStandaloneServers,
    bus_of: MakeBus,
    lines: Lines,
    fresh: Fresh,
    delivery: str,
) -> None:
    base = fresh("out")
    buses = [bus_of(url) for url in three_servers.urls]
    buses[2].attach(f"{base}-0")  # where it is, not where its name would put it
    lines.add(*range(30))
    lines.add(*range(30, 60))
    columns = (
        "cast(value AS binary) AS value",
        f"concat('{base}-', cast(cast(value AS int) % 3 AS string)) AS queue",
    )
    lines.drain(
        JAVA,
        {"redis.url": ",".join(three_servers.urls), "delivery": delivery},
        *columns,
        per_batch=1,
    )
    assert number(buses[2].stored(f"{base}-0")) == list(range(0, 60, 3))
    for rest in (1, 2):
        [where] = [bus for bus in buses if bus.stored(f"{base}-{rest}")]
        assert number(where.stored(f"{base}-{rest}")) == list(range(rest, 60, 3))
    assert [key for bus in buses for key in staged(bus, f"{base}-*")] == []


def test_a_created_queue_has_the_ttl_and_maxsize_of_the_options_or_is_not_created(
    bus: Bus, lines: Lines, fresh: Fresh
) -> None:
    made, refused = fresh("made"), fresh("refused")
    lines.add(1)
    lines.drain(JAVA, {"redis.url": bus.url, "queue": made, "ttl": "90s", "maxsize": 7})
    assert bus("HMGET", QueueKeys(made).metadata, "ttl", "maxsize") == [b"90", b"7"]
    with pytest.raises(
        StreamingQueryException,
        match=(
            rf"\[BUSMQ_QUEUE_MISSING\] queue '{refused}' does not exist and may not be created here"
        ),
    ):
        lines.drain(
            JAVA, {"redis.url": bus.url, "queue": refused, "createQueue": "false"}, checkpoint="2"
        )
    assert bus("EXISTS", QueueKeys(refused).metadata) == 0


def test_rows_and_options_that_do_not_fit_are_refused_before_anything_is_connected(
    lines: Lines, queue: str
) -> None:
    lines.add(1)
    nowhere = {"redis.url": "redis://127.0.0.1:1"}
    with pytest.raises(
        StreamingQueryException,
        match=r"\[BUSMQ_CONFIG\] column 'value' is int; expected string or binary; use to_json",
    ):
        lines.drain(JAVA, {**nowhere, "queue": queue}, "cast(value AS int) AS value")
    with pytest.raises(
        StreamingQueryException,
        match=r"\[BUSMQ_CONFIG\] unknown option 'quue'; did you mean 'queue'\?",
    ):
        lines.drain(JAVA, {**nowhere, "quue": queue}, checkpoint="2")


def test_a_row_that_is_refused_leaves_nothing_staged(bus: Bus, lines: Lines, queue: str) -> None:
    lines.add(*range(5000), "no")
    with pytest.raises(
        StreamingQueryException,
        match=r"\[BUSMQ_MESSAGE_REFUSED\] column 'value' is NULL in row 5001 of its task",
    ):
        lines.drain(
            JAVA, {"redis.url": bus.url, "queue": queue}, "if(value = 'no', null, value) AS value"
        )
    wait_until(lambda: staged(bus, queue) == [], PATIENCE_S)
    assert bus.stored(queue) == []


# A full queue


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_full_queue_blocks_until_a_consumer_makes_room(
    bus: Bus, lines: Lines, queue: str, delivery: str
) -> None:
    bus.attach(queue, maxsize=30)
    lines.add(*range(100))
    query = lines.start(
        JAVA, lines.frame(), {"redis.url": bus.url, "queue": queue, "delivery": delivery}
    )
    assert bus.take_when_full(queue, 30, 100, query) == list(range(100))


# Exactly once, by either implementation


@pytest.mark.parametrize(
    "turns", [(PYTHON, JAVA), (JAVA, PYTHON)], ids=["Python first", "Java first"]
)
def test_either_sink_goes_on_with_the_checkpoint_and_the_half_appended_batch_of_the_other(
    bus: Bus, lines: Lines, queue: str, turns: tuple[str, str]
) -> None:
    """The batch is on record when the queue is full: which rows it has is decided, and the next run
    appends the rest of them.
    """
    bus.attach(queue, maxsize=30)
    options = {"redis.url": bus.url, "queue": queue, "onFull": "fail"}
    lines.add(*range(80))
    found: list[int] = []
    for sink, left in zip(turns, (50, 20), strict=True):
        with pytest.raises(
            StreamingQueryException,
            match=(
                rf"\[BUSMQ_QUEUE_FULL\] queue '{queue}' holds its maxsize of 30.*{left} rows are"
                r" not stored"
            ),
        ):
            lines.drain(sink, options)
        found += [
            int(message.value) for message in bus.link.run(core.pop(QueueKeys(queue), most=100))
        ]
    for sink in turns:
        lines.drain(sink, options)
    lines.add(*range(80, 85))
    lines.drain(turns[1], options)
    lines.forget_commit()
    lines.drain(turns[0], options)
    assert found + number(bus.stored(queue)) == list(range(85))
    assert staged(bus, queue) == []


def test_a_batch_that_runs_again_after_its_commit_is_appended_once(
    bus: Bus, lines: Lines, queue: str
) -> None:
    options = {"redis.url": bus.url, "queue": queue}
    lines.add(*range(2500))
    lines.drain(JAVA, options)
    lines.forget_commit()
    lines.drain(JAVA, options)
    assert number(bus.stored(queue)) == list(range(2500))
    assert staged(bus, queue) == []


def test_a_new_checkpoint_with_the_same_sink_id_is_refused(
    bus: Bus, lines: Lines, queue: str
) -> None:
    options = {"redis.url": bus.url, "queue": queue, "sinkId": queue}
    lines.add(1)
    lines.drain(PYTHON, options)
    with pytest.raises(
        StreamingQueryException,
        match=rf"\[BUSMQ_STALE_BATCH\] sink {queue}: batch 0 was offered .* a new sinkId",
    ):
        lines.drain(JAVA, options, checkpoint="2")
    assert number(bus.stored(queue)) == [1]


def test_exactly_once_is_refused_where_batches_run_before_they_are_logged(
    bus: Bus, lines: Lines, queue: str
) -> None:
    """A user of real-time mode may have left these on: a batch would be appended as recorded, and
    be another after a restart.
    """
    lines.add(1)
    options = {
        "redis.url": bus.url,
        "queue": queue,
        "asyncProgressTrackingEnabled": True,
        "_asyncProgressTrackingOverrideSinkSupportCheck": True,
    }
    query = lines.start(JAVA, lines.frame(), options, trigger={"processingTime": "0 seconds"})
    with pytest.raises(
        StreamingQueryException,
        match=r"\[BUSMQ_CONFIG\] delivery=exactly-once is not possible with asyncProgressTracking",
    ):
        query.awaitTermination(int(PATIENCE_S))
    assert bus.stored(queue) == []


# Batches


def batch(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(str(value),) for value in values], "value string").coalesce(1)


def test_a_batch_write_appends_and_leaves_nothing_else_behind(
    spark: SparkSession, bus: Bus, queue: str
) -> None:
    before = bus(
        "KEYS", sink_record("write-*")
    )  # of writes that other tests have ended in the middle
    for _ in range(2):
        batch(spark, 1, 2, 3).write.format(JAVA).options(
            **{"redis.url": bus.url, "queue": queue}
        ).mode("append").save()
    assert number(bus.stored(queue)) == [1, 2, 3] * 2
    assert staged(bus, queue) == bus("HKEYS", QueueKeys(queue).sinks) == []
    assert set(bus("KEYS", sink_record("write-*"))) <= set(before)


def test_an_overwrite_deletes_what_the_queue_holds_only_where_that_is_said(
    spark: SparkSession, bus: Bus, queue: str
) -> None:
    def writer() -> Any:
        return (
            batch(spark, 4, 5)
            .write.format(JAVA)
            .options(**{"redis.url": bus.url, "queue": queue})
            .mode("overwrite")
        )

    bus.push(queue, "1", "2")
    with pytest.raises(
        Exception,
        match=(
            r"\[BUSMQ_CONFIG\] mode overwrite would delete what the queue holds; say truncate=true"
        ),
    ):
        writer().save()
    assert number(bus.stored(queue)) == [1, 2]
    writer().option("truncate", "true").save()
    assert number(bus.stored(queue)) == [4, 5]
    assert bus.ids(queue) == [3, 4]
