"""``busmq_spark.observe``: metrics and spans of streaming queries."""

from __future__ import annotations

import http.client
import json
import logging
import subprocess
import sys
import uuid
from socket import create_connection, socket
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

import busmq_spark
from busmq_spark.errors import BusError, ConfigError, LinkLost
from busmq_spark.spark.observe import MAX_QUERIES, QueryListener, _QuerySeries
from tests.spark.conftest import Bus, Stream
from tests.support import wait_until

ID, RUN = uuid.uuid4(), uuid.uuid4()


def series_of(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(s.labels[n] for n in sorted(s.labels)): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
    }


def fetch(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    link = http.client.HTTPConnection(url.split("/")[2].replace("0.0.0.0", "127.0.0.1"), timeout=60)
    link.request("GET", "/metrics")
    return series_of(link.getresponse().read().decode())


def progress(batch: int = 3, rows: int = 20, **source: Any) -> QueryProgressEvent:
    told = {
        "description": "busmq",
        "startOffset": None,
        "endOffset": json.dumps({"v": 1, "queues": {"a": {"lost": 2}, "b": {"lost": 5}}}),
        "latestOffset": json.dumps({"sources": {"lag": {"last": 9}}, "lag": 7, "lag_s": 4}),
        "numInputRows": rows,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "metrics": {},
    } | source
    return QueryProgressEvent(
        StreamingQueryProgress.fromJson(
            {
                "id": str(ID),
                "runId": str(RUN),
                "name": "orders",
                "timestamp": "2026-01-02T03:04:05.678Z",
                "batchId": batch,
                "batchDuration": 250,
                "durationMs": {"addBatch": 200, "latestOffset": 20},
                "eventTime": {},
                "stateOperators": [],
                "sources": [told],
                "sink": {"description": "x", "numOutputRows": -1, "metrics": {}},
                "numInputRows": rows,
                "inputRowsPerSecond": 1.0,
                "processedRowsPerSecond": 1.0,
                "observedMetrics": {},
            }
        )
    )


def started(name: str | None = "orders", id: uuid.UUID = ID) -> QueryStartedEvent:
    return QueryStartedEvent(id, RUN, name, "2026-01-02T03:04:05.678Z", set())


def values_of(series: _QuerySeries) -> dict[str, dict[tuple[str, ...], float]]:
    return series_of(series.text())


def test_a_batch_of_the_python_engine() -> None:
    series = _QuerySeries()
    listener = QueryListener(series, None)
    listener.onQueryStarted(started())
    listener.onQueryProgress(progress())
    listener.onQueryProgress(progress(4, 5))
    found = values_of(series)
    assert found["busmq_query_batch"] == {("orders",): 4}
    assert found["busmq_query_batch_rows"] == {("orders",): 5}
    assert found["busmq_query_rows"] == {("orders",): 25}
    assert found["busmq_query_batch_seconds"] == {("orders",): 0.25}
    assert found["busmq_query_phase_seconds"]["addBatch", "orders"] == 0.2
    assert found["busmq_query_lag_messages"] == {("orders",): 7}
    assert found["busmq_query_lag_seconds"] == {("orders",): 4}
    assert found["busmq_query_lost_messages"] == {("orders",): 7}
    assert found["busmq_query_restarts"] == {("orders",): 0}


def lost_of(*counts: int) -> str:
    return json.dumps({"v": 1, "queues": {f"q{i}": {"lost": n} for i, n in enumerate(counts)}})


def test_each_loss_counts_once() -> None:
    series = _QuerySeries()
    listener = QueryListener(series, None)
    listener.onQueryStarted(started())
    assert values_of(series)["busmq_query_lost"] == {("orders",): 0}
    listener.onQueryProgress(progress(startOffset=lost_of(4), endOffset=lost_of(4)))
    assert values_of(series)["busmq_query_lost"] == {("orders",): 0}
    listener.onQueryProgress(progress(startOffset=lost_of(4), endOffset=lost_of(5, 2)))
    listener.onQueryStarted(started())
    found = values_of(series)
    assert found["busmq_query_lost"] == {("orders",): 3}
    assert found["busmq_query_lost_messages"] == {("orders",): 7}


def test_offsets_as_the_repr_of_a_dict() -> None:
    series = _QuerySeries()
    told = {"sources": {"lag": {"last": 9}}, "lag": 7, "lag_s": 4}
    start, end = json.loads(lost_of(1)), json.loads(lost_of(3))
    offsets = {"startOffset": str(start), "endOffset": str(end), "latestOffset": str(told)}
    QueryListener(series, None).onQueryProgress(progress(**offsets))
    found = values_of(series)
    assert found["busmq_query_lag_messages"] == {("orders",): 7}
    assert found["busmq_query_lag_seconds"] == {("orders",): 4}
    assert found["busmq_query_lost_messages"] == {("orders",): 3}
    assert found["busmq_query_lost"] == {("orders",): 2}


def test_a_query_that_ran_before_the_observation_gets_its_name() -> None:
    series = _QuerySeries()
    listener = QueryListener(series, None)
    listener.onQueryIdle(QueryIdleEvent(ID, RUN, "2026-01-02T03:04:05.678Z"))
    listener.onQueryTerminated(QueryTerminatedEvent(uuid.uuid4(), RUN, None, None))
    listener.onQueryProgress(progress())
    found = values_of(series)
    assert found["busmq_query_running"] == {("orders",): 1}
    assert set(found["busmq_query_last_progress_timestamp_seconds"]) == {("orders",)}


def test_a_session_that_takes_no_listener_leaves_no_page() -> None:
    class Streams:
        def addListener(self, _: object) -> None:
            raise RuntimeError("no listener")

    class Session:
        streams = Streams()

    with socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RuntimeError, match="no listener") as caught:
        busmq_spark.observe(Session(), prometheus=address)
    host, _, port = address.partition(":")
    with pytest.raises(ConnectionRefusedError):
        create_connection((host, int(port)))
    assert caught.traceback  # it keeps what failed, as a notebook does


def test_a_batch_of_the_java_engine_and_one_of_another_source() -> None:
    series = _QuerySeries()
    listener = QueryListener(series, None)
    told = {"lag": "12", "lag_s": "3", "gap_ms": "1500"}
    listener.onQueryProgress(progress(latestOffset=None, metrics=told))
    found = values_of(series)
    assert found["busmq_query_lag_messages"] == {("orders",): 12}
    assert found["busmq_query_lag_seconds"] == {("orders",): 3}
    assert found["busmq_query_gap_seconds"] == {("orders",): 1.5}
    series = _QuerySeries()
    QueryListener(series, None).onQueryProgress(progress(latestOffset="17"))
    assert values_of(series)["busmq_query_lag_messages"] == {}


def test_restarts_and_the_error_of_the_last_run() -> None:
    series = _QuerySeries()
    listener = QueryListener(series, None)
    text = "org.apache.spark: [BUSMQ_QUEUE_BUSY] queue 'q' is read by another"
    listener.onQueryStarted(started())
    listener.onQueryTerminated(QueryTerminatedEvent(ID, RUN, text, None))
    found = values_of(series)
    assert found["busmq_query_running"] == {("orders",): 0}
    assert found["busmq_query_error"] == {("BUSMQ_QUEUE_BUSY", "orders"): 1}
    listener.onQueryStarted(started())
    found = values_of(series)
    assert found["busmq_query_running"] == {("orders",): 1}
    assert found["busmq_query_restarts"] == {("orders",): 1}
    assert found["busmq_query_error"] == {}


def test_the_number_of_series_is_bounded() -> None:
    series = _QuerySeries()
    listener = QueryListener(series, None)
    for number in range(MAX_QUERIES + 50):
        listener.onQueryStarted(started(f"q{number}", uuid.uuid4()))
    running = values_of(series)["busmq_query_running"]
    assert len(running) == MAX_QUERIES + 1
    assert ("other",) in running


def test_an_error_of_ours_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    listener = QueryListener(_QuerySeries(), None)
    with caplog.at_level(logging.ERROR, "busmq_spark"):
        for _ in range(3):
            listener.onQueryProgress(object())
    assert len(caplog.records) == 1


def test_a_batch_is_a_span() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    QueryListener(_QuerySeries(), provider.get_tracer("t")).onQueryProgress(progress())
    [span] = exporter.get_finished_spans()
    assert span.name == "busmq batch"
    assert span.end_time - span.start_time == 250_000_000
    assert span.start_time == 1767323045678000000
    assert span.attributes["busmq.query"] == "orders"
    assert span.attributes["busmq.rows"] == 20


def test_a_live_query(spark: SparkSession, bus: Bus, queue: str, stream: Stream) -> None:
    observation = busmq_spark.observe(spark, prometheus="127.0.0.1:0")
    try:
        bus.push(queue, b"a", b"b")
        query = stream({"redis.url": bus.url, "subscribe": queue})
        query.wait_rows(2)
        label = str(query.query.id)
        wait_until(
            lambda: fetch(observation.url)["busmq_query_rows"].get((label,)) == 2, 60, "2 rows"
        )
        found = fetch(observation.url)
        assert found["busmq_query_lag_messages"][label,] == 0
        assert found["busmq_query_phase_seconds"]["addBatch", label] > 0
        assert found["busmq_query_lost_messages"][label,] == 0
        query.query.stop()
        wait_until(
            lambda: fetch(observation.url)["busmq_query_running"][label,] == 0, 60, "its end"
        )
        with pytest.raises(LinkLost):
            busmq_spark.observe(spark, prometheus=observation.url.split("/")[2])
    finally:
        observation.stop()


@pytest.mark.parametrize("given", ["", "x", "host", "host:x", ":70000", 9465])
def test_a_bad_address_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="9465"):
        busmq_spark.observe(None, prometheus=given)
    with pytest.raises(ConfigError, match="nothing to do"):
        busmq_spark.observe(None)


def test_without_the_api_of_opentelemetry_the_error_names_the_extra() -> None:
    script = """
import sys
sys.modules["opentelemetry"] = None
import busmq_spark
try:
    busmq_spark.observe(None, otel=True)
except busmq_spark.BusError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert "busmq_spark[otel]" in done.stdout, done.stderr
    assert issubclass(LinkLost, BusError)
