"""What must work on every Spark we support, in a dozen tests, for those where no others run: make
test-spark40 runs them on 4.0, the oldest.

Before 4.2 Spark asks for the latest offset without saying where the query stands, and its
AvailableNow is one batch (so a cap and AvailableNow do not go together there); 4.0 hands a sink
rows, not Arrow.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from busmq_spark.queue.keys import QueueKeys
from tests.conftest import Fresh
from tests.jvm import module
from tests.peers.node import need
from tests.spark.conftest import ROOT, Bus, Sink, Stream
from tests.spark.test_installed import clean


def numbers(first: int, last: int) -> list[str]:
    return [str(i) for i in range(first, last + 1)]


def encoded(first: int, last: int) -> list[bytes]:
    return [text.encode() for text in numbers(first, last)]


@pytest.fixture
def read(bus: Bus, queue: str) -> dict[str, Any]:
    return {"redis.url": bus.url, "subscribe": queue}


def test_a_batch_write_and_a_batch_read(
    spark: SparkSession, bus: Bus, read: dict[str, Any], queue: str
) -> None:
    frame = spark.range(1, 101, 1, 2).selectExpr("cast(id AS string) AS value")
    frame.write.format("busmq").mode("append").options(
        **{"redis.url": bus.url, "queue": queue}
    ).save()
    assert bus.stored(queue) == encoded(1, 100)
    found = spark.read.format("busmq").options(**read).load()
    assert [(r["queue"], r["id"], bytes(r["value"])) for r in found.collect()] == [
        (queue, i, b"%d" % i) for i in range(1, 101)
    ]


def test_an_empty_queue_reads_as_no_rows(
    spark: SparkSession, bus: Bus, read: dict[str, Any], queue: str
) -> None:
    bus.attach(queue)
    assert spark.read.format("busmq").options(**read).load().collect() == []


def test_available_now_reads_everything_in_order_and_a_restart_reads_only_what_is_new(
    bus: Bus, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.push(queue, *numbers(1, 50))
    assert drain(read).values == encoded(1, 50)
    bus.push(queue, *numbers(51, 60))
    assert drain(read).values == encoded(51, 60)
    assert drain(read).values == []


def test_a_running_stream_sees_what_is_pushed_and_acknowledges(
    bus: Bus, stream: Stream, read: dict[str, Any], queue: str
) -> None:
    query = stream(read)
    for first in (1, 11, 21):
        bus.push(queue, *numbers(first, first + 9))
        query.wait_rows(first + 9)
    assert query.values == encoded(1, 30)
    query.wait_for(lambda: bus.ids(queue) == [], "the last batch is acknowledged, too")


def test_latest_skips_messages_before_the_first_start_and_none_while_the_query_is_down(
    bus: Bus, stream: Stream, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.push(queue, *numbers(1, 5))
    read = {**read, "startingOffsets": "latest", "discardBacklog": "true"}
    assert drain(read).values == []
    bus.push(queue, *numbers(6, 8))
    assert drain(read).values == encoded(6, 8)
    bus.push(queue, *numbers(9, 10))
    query = stream(read)
    query.wait_rows(2)
    assert query.values == encoded(9, 10)


@pytest.mark.parametrize("ack", ["commit", "none"])
def test_a_cap_never_moves_the_checkpoint_back(
    bus: Bus, stream: Stream, read: dict[str, Any], queue: str, ack: str
) -> None:
    read = {**read, "ack": ack, "maxMessagesPerTrigger": 3}
    bus.push(queue, *numbers(1, 10))
    first = stream(read)
    first.wait_rows(10)
    first.wait_for(lambda: len(first.query.recentProgress) >= len(first.batches))
    first.query.stop()
    bus.push(queue, *numbers(11, 20))
    second = stream(read)
    second.wait_rows(10)
    assert first.values + second.values == encoded(1, 20)


def test_a_pattern_finds_queues_while_it_runs(bus: Bus, stream: Stream, fresh: Fresh) -> None:
    base = fresh("orders")
    query = stream({"redis.url": bus.url, "subscribePattern": f"{base}-.*"})
    query.wait_for(lambda: query.batches)
    bus.push(f"{base}-1", "hello")
    query.wait_rows(1)


def test_a_stream_into_queues_is_exactly_once_over_a_restart(
    spark: SparkSession, bus: Bus, read: dict[str, Any], sink: Sink, fresh: Fresh
) -> None:
    a, b = fresh("a"), fresh("b")
    frame = spark.readStream.format("busmq").options(**read).load()
    routed = frame.selectExpr("value", f"CASE WHEN id % 2 = 0 THEN '{a}' ELSE '{b}' END AS queue")
    for first in (1, 21):
        bus.push(read["subscribe"], *numbers(first, first + 19))
        sink(routed, {"redis.url": bus.url})
    assert bus.stored(a) == [b"%d" % i for i in range(2, 41, 2)]
    assert bus.stored(b) == [b"%d" % i for i in range(1, 41, 2)]
    assert bus("KEYS", QueueKeys(a).stage("*")) == []


def test_a_batch_that_failed_half_way_is_there_once_after_the_restart(
    spark: SparkSession, bus: Bus, read: dict[str, Any], sink: Sink, fresh: Fresh
) -> None:
    out = fresh("out")
    bus.attach(out, maxsize=30)
    bus.push(read["subscribe"], *numbers(1, 50))
    frame = spark.readStream.format("busmq").options(**read).load().select("value")
    options = {"redis.url": bus.url, "queue": out, "onFull": "fail"}
    with pytest.raises(StreamingQueryException, match="BUSMQ_QUEUE_FULL"):
        sink(frame, options)
    assert bus.stored(out) == encoded(1, 30)
    bus("HSET", QueueKeys(out).metadata, "maxsize", 0)
    sink(frame, options)
    assert bus.stored(out) == encoded(1, 50)


def test_at_least_once_and_null(
    spark: SparkSession, bus: Bus, read: dict[str, Any], sink: Sink, fresh: Fresh
) -> None:
    out = fresh("out")
    bus.push(read["subscribe"], *numbers(1, 20))
    frame = spark.readStream.format("busmq").options(**read, ack="none").load()
    sink(frame, {"redis.url": bus.url, "queue": out, "delivery": "at-least-once"})
    assert bus.stored(out) == encoded(1, 20)
    with pytest.raises(
        StreamingQueryException,
        match=r"\[BUSMQ_MESSAGE_REFUSED\] column 'value' is NULL in 20 of 20 rows",
    ):
        sink(
            frame.selectExpr("cast(NULL AS string) AS value"),
            {"redis.url": bus.url, "queue": out},
            checkpoint="null",
        )


def test_messages_that_are_gone_stop_the_query(
    bus: Bus, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.push(queue, *numbers(1, 5))
    drain(read)
    bus.push(queue, *numbers(6, 9))
    bus("DEL", QueueKeys(queue).messages)
    bus.push(queue, "10")
    with pytest.raises(StreamingQueryException, match=r"\[BUSMQ_QUEUE_FLUSHED\]"):
        drain(read)
    assert drain({**read, "failOnDataLoss": "false"}).values == [b"10"]


def test_a_setting_that_does_not_exist_is_named(stream: Stream, read: dict[str, Any]) -> None:
    with pytest.raises(
        Exception,
        match=(
            r"\[BUSMQ_CONFIG\] unknown option 'maxmessagepertrigger'; did you mean"
            r" 'maxMessagesPerTrigger'"
        ),
    ):
        stream({**read, "maxMessagePerTrigger": 5}).wait_for(lambda: False)


PROGRAM = """
import sys
from pyspark.sql import SparkSession

url, queue, jar = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jar).getOrCreate()
spark.range(3).selectExpr("cast(id AS string) AS value").write.format("busmq").mode("append").options(**{"redis.url": url, "queue": queue}).save()
for name, engine in (("busmq", "auto"), ("busmq", "java"), ("busmq-realtime", "auto")):
    try:
        rows = spark.read.format(name).options(**{"redis.url": url, "subscribe": queue, "engine": engine}).load().collect()
        print("\\nSAID", len(rows))
    except Exception as error:
        print("\\nSAID", str(error).replace("\\n", " "))
"""  # noqa: E501


@pytest.mark.skipif(
    not pyspark.__version__.startswith("4.0."), reason="later Sparks have what the jar builds on"
)
def test_the_jar_leaves_everything_to_python_and_says_so(
    spark: SparkSession, bus: Bus, queue: str, tmp_path: Path
) -> None:
    need(module.missing())
    command = [sys.executable, "-c", PROGRAM, bus.url, queue, str(module.built())]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=clean(str(ROOT)), cwd=tmp_path
    )
    by_python, refused, realtime = (
        line for line in done.stdout.splitlines() if line.startswith("SAID")
    )
    assert by_python == "SAID 3"
    assert "[BUSMQ_ENGINE] engine=java is not possible: this is Spark 4.0." in refused
    assert "[BUSMQ_ENGINE] engine=java is not possible: this is Spark 4.0." in realtime
    assert "Traceback" not in done.stdout
