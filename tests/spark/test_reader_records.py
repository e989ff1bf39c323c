"""A query names itself beside its lease, in both engines with the same words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busmq_spark import __version__
from busmq_spark.errors import QueueBusy
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.readers import ReaderStatus, read_readers
from tests.spark.conftest import Bus
from tests.spark.engine import Engine
from tests.support import PATIENCE_S, wait_until

MakeEngine = Callable[..., Engine]


def only_reader(bus: Bus, queue: str) -> ReaderStatus:
    [found] = bus.link.run(read_readers([QueueKeys(queue)]))
    return found


def test_a_query_is_named_with_its_last_batches(
    bus: Bus, engine: MakeEngine, queue: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["to_lake.py"])  # a worker of xdist has none
    bus.fill(queue, 3)
    options: dict[str, Any] = {"redis.url": bus.url, "subscribe": queue, "subscription": "billing"}
    query = engine(options)
    query.step()
    found = only_reader(bus, queue)
    assert (found.kind, found.reader, found.held, found.damaged) == (
        "query",
        "billing",
        True,
        False,
    )
    record = found.record
    assert record is not None
    assert (record.engine, record.version) == (language, __version__)
    assert record.name == "to_lake.py" if language == "python" else record.name
    assert record.host
    assert record.pid
    assert abs(found.records[0].clock_off_ms) < 60_000
    words = rf"as subscription 'billing' \(query {re.escape(repr(record.name))}, process \d+ of"
    with pytest.raises(QueueBusy, match=words):
        engine(options).step()
    bus.fill(queue, 2, first=4)
    query.drain()

    def renewed() -> bool:
        last = only_reader(bus, queue).record
        return last is not None and last.planned is not None and last.committed is not None

    wait_until(renewed)


@pytest.mark.only("java", reason="Spark tells a Python source neither the query nor its name")
def test_a_query_has_the_name_and_the_ids_that_spark_gave_it(
    bus: Bus, queue: str, java_spark: SparkSession, tmp_path: Path
) -> None:
    bus.fill(queue, 3)
    rows = (
        java_spark.readStream.format("busmq")
        .options(**{"redis.url": bus.url, "subscribe": queue, "engine": "java"})
        .load()
    )
    writer = rows.writeStream.format("noop").queryName("to-lake")
    query = (
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(int(2 * PATIENCE_S))
    found = only_reader(bus, queue)
    record = found.record
    assert record is not None
    assert (found.state, record.name, record.engine) == ("gone", "to-lake", "java")
    assert (record.query, record.run) == (query.id, query.runId)
    assert record.app == java_spark.sparkContext.applicationId
    assert record.checkpoint.endswith(f"{tmp_path}/c")
