"""Rows of the Java sink that go straight into their queues: what Redis refuses of one queue does
not concern the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue.keys import QueueKeys
from tests.conftest import Fresh
from tests.spark.conftest import Bus, MakeBus
from tests.support import PATIENCE_S, wait_until


@pytest.fixture
def own(bus_of: MakeBus) -> Iterator[Bus]:
    """A server whose statistics are this test's alone."""
    with EmbeddedRedis() as server:
        yield bus_of(server)


@pytest.fixture
def sink(spark: SparkSession, shim_jar: Path, own: Bus) -> Iterator[Any]:
    """A sink that pushes, as a task has one in real-time mode."""
    jvm: Any = spark._jvm
    options = jvm.java.util.HashMap()
    options.put("redis.url", own.url)
    options.put("queue", "unused")
    options.put("delivery", "at-least-once")
    made = jvm.busmq.spark.sink.TaskSink.toQueues(
        jvm.busmq.spark.options.WriteOptions.parse(options)
    )
    yield made
    made.close()


def refusals(bus: Bus) -> int:
    """How often Redis has said that a key is of the wrong kind."""
    found = [
        line
        for line in bus("INFO", "errorstats").decode().splitlines()
        if line.startswith("errorstat_WRONGTYPE")
    ]
    return int(found[0].partition("count=")[2]) if found else 0


def test_rows_that_redis_refuses_are_tried_again_and_the_others_of_the_round_arrive_once(
    own: Bus, sink: Any, fresh: Fresh
) -> None:
    first, good, bad = fresh("first"), fresh("good"), fresh("bad")
    for queue in (first, good, bad):
        own.attach(queue)
    own("SET", QueueKeys(bad).messages, "no list")
    own("CONFIG", "RESETSTAT")
    own(
        "CLIENT", "PAUSE", 1000, "WRITE"
    )  # the first row is under way meanwhile, and the others gather
    sink.add(first, b"0")
    sink.add(good, b"1")
    sink.add(bad, b"2")
    wait_until(lambda: refusals(own) >= 3, PATIENCE_S, "the row was tried three times")
    assert (own.stored(first), own.stored(good)) == ([b"0"], [b"1"])
    with pytest.raises(IllegalArgumentException, match=r"\[BUSMQ_SERVER_REFUSED\].*WRONGTYPE"):
        sink.add(good, b"not taken over")
    own("DEL", QueueKeys(bad).messages)
    wait_until(lambda: own("LLEN", QueueKeys(bad).messages), PATIENCE_S, "the row has arrived")
    wait_until(lambda: takes(sink, good, b"3"), PATIENCE_S, "the sink knows that it was stored")
    sink.finish()
    assert (own.stored(first), own.stored(good), own.stored(bad)) == ([b"0"], [b"1", b"3"], [b"2"])


def takes(sink: Any, queue: str, row: bytes) -> bool:
    """Whether the sink takes one more row: not while it knows of one that was refused."""
    try:
        sink.add(queue, row)
        return True
    except IllegalArgumentException:
        return False
