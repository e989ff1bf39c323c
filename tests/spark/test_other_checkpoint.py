"""A query that starts with the checkpoint of another, or with other queues than before, says which
it drops and which it adds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Fresh
from tests.spark.conftest import Bus
from tests.spark.engine import Engine
from tests.spark.java_log import java_log

MakeEngine = Callable[..., Engine]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        text.partition(". If the")[0]
        for text in caplog.messages
        if "the checkpoint is of other queues" in text
    ]


@pytest.mark.parametrize("crash", ["", "planned"])
def test_queues_that_are_dropped_and_added_are_named_once(
    bus: Bus, engine: MakeEngine, fresh: Fresh, caplog: pytest.LogCaptureFixture, crash: str
) -> None:
    ours, theirs, kept = fresh("ours"), fresh("theirs"), fresh("kept")
    bus.fill(theirs, 2)
    query = engine({"redis.url": bus.url, "subscribe": f"{theirs},{kept}", "idlePollMs": "1"})
    query.drain()
    bus.fill(theirs, 1, first=3)
    query.step(crash)
    query.restart(subscribe=f"{kept},{ours}")
    bus.fill(ours, 3)
    rows = [row for batch in query.drain() for row in batch]
    assert [id for queue, id, _ in rows if queue == ours] == [1, 2, 3]
    [text] = said(caplog)
    assert f"dropped {theirs}, added {ours}. This query neither reads" in text


def test_the_same_queues_are_not_mentioned(
    bus: Bus, engine: MakeEngine, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    base = fresh("q")
    bus.fill(f"{base}-1", 2)
    query = engine({"redis.url": bus.url, "subscribe": f"{base}-1,{base}-2", "idlePollMs": "1"})
    query.drain()
    query.restart()
    query.drain()
    other = engine({"redis.url": bus.url, "subscribePattern": f"{base}-.", "ack": "none"})
    other.drain()
    bus.fill(f"{base}-3", 2)
    other.restart()
    other.drain()
    assert said(caplog) == []


@pytest.mark.usefixtures("shim_jar")
@pytest.mark.parametrize(
    ("lasting", "ack", "warnings"), [(False, "commit", 1), (True, "commit", 0), (False, "none", 0)]
)
def test_a_java_query_without_checkpoint_location_says_once_that_it_acknowledges(
    spark: SparkSession, bus: Bus, tmp_path: Path, lasting: bool, ack: str, warnings: int
) -> None:
    """A reader in Python is not told where the checkpoint is; `docs/options.md` says it."""
    queue = f"look_{lasting}_{ack}"
    bus.fill(queue, 3)
    with java_log(spark) as log:
        frame = (
            spark.readStream.format("busmq-realtime")
            .options(**{"redis.url": bus.url, "subscribe": queue, "ack": ack})
            .load()
        )
        writer = frame.writeStream.format("memory").queryName(queue)
        query = (
            writer.option("checkpointLocation", str(tmp_path / "c")) if lasting else writer
        ).start()
        query.processAllAvailable()
        query.stop()
    found = [text for text in log.messages if "no checkpointLocation" in text]
    assert len(found) == warnings
    assert all("Set ack=none" in text for text in found)
