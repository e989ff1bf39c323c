"""``busmq_spark.observe(spark)``: the batches of streaming queries as metrics and spans.

Spark calls the listener after a batch, in a thread of its own, so no query waits for it. An error
of the listener is logged once and otherwise ignored.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import wraps
from threading import Lock
from time import time
from typing import Any, TypeVar

from pyspark.sql.streaming.listener import StreamingQueryListener

from busmq_spark.errors import ConfigError
from busmq_spark.errors.foreign import error_text, exc_info
from busmq_spark.extras import missing_package
from busmq_spark.metrics import OTHER_LABEL, Metrics, series_text, serve_pages

MAX_QUERIES = 200
"""Queries with series of their own; those that start later are counted as ``other``."""
QUERY = ("query",)
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "busmq_query_running": (QUERY, "Whether the query runs"),
    "busmq_query_batch": (QUERY, "Number of the last batch"),
    "busmq_query_batch_rows": (QUERY, "Rows of the last batch"),
    "busmq_query_batch_seconds": (QUERY, "Time that the last batch took"),
    "busmq_query_phase_seconds": (("query", "phase"), "Time that a phase of the last batch took"),
    "busmq_query_lag_messages": (QUERY, "Messages after the last batch"),
    "busmq_query_lag_seconds": (QUERY, "Age of the oldest of them"),
    "busmq_query_gap_seconds": (QUERY, "Time in which a queue had no reader, in real-time mode"),
    "busmq_query_lost_messages": (QUERY, "Messages lost since the checkpoint began"),
    "busmq_query_last_progress_timestamp_seconds": (QUERY, "Time of the last progress"),
    "busmq_query_error": (("query", "code"), "1 for the error that ended the last run"),
}
COUNTERS: dict[str, tuple[tuple[str, ...], str]] = {
    "busmq_query_rows": (QUERY, "Rows since the observation began"),
    "busmq_query_batches": (QUERY, "Batches with rows since the observation began"),
    "busmq_query_restarts": (QUERY, "Starts after the first one"),
    "busmq_query_lost": (QUERY, "Messages lost since the observation began"),
}
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]*)):(\d{1,5})")
_CODE = re.compile(r"\bBUSMQ_[A-Z_]+")
# Over Spark Connect an older pyspark gives the repr of a dict for an offset.
_LAG = re.compile(r"""["']lag["']\s*:\s*(\d+)""")
_LAG_S = re.compile(r"""["']lag_s["']\s*:\s*(\d+)""")
_LOST = re.compile(r"""["']lost["']\s*:\s*(\d+)""")
log = logging.getLogger("busmq_spark")
F = TypeVar("F", bound=Callable[..., None])


def observe(spark: Any, prometheus: str | None = None, *, otel: bool = False) -> Observation:
    """Observe the streaming queries of a session, from now until ``stop()``.

    ```python
    observation = busmq_spark.observe(spark, prometheus=":9465", otel=True)
    ```

    Args:
        spark: A session of classic Spark or of Spark Connect.
        prometheus: ``HOST:PORT`` to serve /metrics at; without a host every interface, with port 0
            a free one.
        otel: Make a span of each batch with the API of OpenTelemetry.

    Raises:
        ConfigError: Neither is asked for, or the address cannot be read.
        LinkLost: The address is taken.
        ToolMissing: prometheus-client or opentelemetry-api is missing.
    """
    if prometheus is None and not otel:
        raise ConfigError(reason="observe has nothing to do. Give prometheus=':9465' or otel=True")
    return Observation(spark, None if prometheus is None else _parse_address(prometheus), otel)


class Observation:
    """The listener of :func:`observe`; ``url`` is that of /metrics, or empty."""

    def __init__(self, spark: Any, address: tuple[str, int] | None, otel: bool) -> None:
        self._spark, self._stack, self.url = spark, ExitStack(), ""
        series, tracer = _QuerySeries(), _tracer() if otel else None
        if address is not None:
            metrics = Metrics()
            metrics.add_source(series)
            self.url = self._stack.enter_context(serve_pages(*address, metrics))
        self.listener = QueryListener(series, tracer)
        try:
            spark.streams.addListener(self.listener)
        except BaseException:
            self._stack.close()
            raise

    def stop(self) -> None:
        """Observe no more, and free the address."""
        try:
            self._spark.streams.removeListener(self.listener)
        finally:
            self._stack.close()


class _QuerySeries:
    """The series of all queries. Safe to use from any thread."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {
            name: {} for name in (*GAUGES, *COUNTERS)
        }
        self._labels: dict[str, str] = {}
        self.lock = Lock()

    def label(self, id: str, name: str | None = None) -> str:
        """Return the label of a query: its name, else its id; ``other`` beyond the limit."""
        if id not in self._labels and len(self._labels) >= MAX_QUERIES:
            return OTHER_LABEL
        if name and id not in self._labels:
            self._labels[id] = name if name.isprintable() else repr(name)[1:-1]
        return self._labels.setdefault(id, id)

    def knows(self, id: str) -> bool:
        """Return whether the query has a label. An event without the name of its query must not
        give it one.
        """
        return id in self._labels or len(self._labels) >= MAX_QUERIES

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set the value of a series."""
        self._values[name][labels] = value

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add to a series."""
        series = self._values[name]
        series[labels] = series.get(labels, 0.0) + value

    def has(self, name: str, *labels: str) -> bool:
        """Whether a series has a value."""
        return labels in self._values[name]

    def clear(self, name: str, query: str) -> None:
        """Remove the series of a query."""
        series = self._values[name]
        for labels in [each for each in series if each[0] == query]:
            del series[labels]

    def text(self) -> str:
        """Return the text of all series."""
        with self.lock:
            return "".join(
                series_text(kind, name, doc, labels, self._values[name])
                for kind, table in (("gauge", GAUGES), ("counter", COUNTERS))
                for name, (labels, doc) in table.items()
            )


def _harmless(handle: F) -> F:
    """Return ``handle`` without its exceptions: the first one of a listener is logged."""

    @wraps(handle)
    def run(self: QueryListener, event: Any) -> None:
        try:
            handle(self, event)
        except Exception as error:
            if not self.has_failed:
                self.has_failed = True
                log.error(
                    "observe: an event of a query is not shown: %s",
                    error_text(error),
                    exc_info=exc_info(error),
                )

    return run  # type: ignore[return-value]


class QueryListener(StreamingQueryListener):
    """Notes each event of a query."""

    def __init__(self, series: _QuerySeries, tracer: Any) -> None:
        self._series, self._tracer, self.has_failed = series, tracer, False

    @_harmless
    def onQueryStarted(self, event: Any) -> None:
        """Called by Spark."""
        series = self._series
        with series.lock:
            query = series.label(str(event.id), event.name)
            started = series.has("busmq_query_running", query)
            series.add("busmq_query_restarts", 1 if started else 0, query)
            series.add("busmq_query_lost", 0, query)
            series.set("busmq_query_running", 1, query)
            series.clear("busmq_query_error", query)

    @_harmless
    def onQueryProgress(self, event: Any) -> None:
        """Called by Spark."""
        progress, series = event.progress, self._series
        with series.lock:
            query = series.label(str(progress.id), progress.name)
            rows, took_ms = progress.numInputRows, progress.batchDuration
            series.set("busmq_query_running", 1, query)
            series.set("busmq_query_batch", progress.batchId, query)
            series.set("busmq_query_batch_rows", rows, query)
            series.set("busmq_query_batch_seconds", took_ms / 1000, query)
            series.set("busmq_query_last_progress_timestamp_seconds", time(), query)
            series.add("busmq_query_rows", rows, query)
            series.add("busmq_query_batches", 1 if rows else 0, query)
            for phase, ms in progress.durationMs.items():
                series.set("busmq_query_phase_seconds", ms / 1000, query, phase)
            lags = _lag_of(progress.sources)
            for name, value in lags.items():
                series.set(name, value, query)
            lost = _lost_in(progress.sources) if "busmq_query_lost_messages" in lags else 0
            series.add("busmq_query_lost", lost, query)
        if self._tracer is not None:
            self._make_span(progress, query)

    @_harmless
    def onQueryIdle(self, event: Any) -> None:
        """Called by Spark."""
        series = self._series
        with series.lock:
            if series.knows(str(event.id)):
                query = series.label(str(event.id))
                series.set("busmq_query_last_progress_timestamp_seconds", time(), query)

    @_harmless
    def onQueryTerminated(self, event: Any) -> None:
        """Called by Spark."""
        series = self._series
        with series.lock:
            if not series.knows(str(event.id)):
                return
            query = series.label(str(event.id))
            series.set("busmq_query_running", 0, query)
            if event.exception:
                code = _CODE.search(event.exception)
                name = code[0] if code else event.errorClassOnException or OTHER_LABEL
                series.set("busmq_query_error", 1, query, name)

    def _make_span(self, progress: Any, query: str) -> None:
        began = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).astimezone(UTC)
        start_ns = int(began.timestamp() * 1_000_000) * 1000
        made = self._tracer.start_span(
            "busmq batch",
            start_time=start_ns,
            attributes={
                "busmq.query": query,
                "busmq.query_id": str(progress.id),
                "busmq.batch": progress.batchId,
                "busmq.rows": progress.numInputRows,
            },
        )
        made.end(start_ns + progress.batchDuration * 1_000_000)


def _lag_of(sources: list[Any]) -> dict[str, float]:
    """Return the lag of the sources of this package, in gauges: sums, and the longest times."""
    found: dict[str, float] = {}
    for source in sources:
        told, latest = source.metrics or {}, source.latestOffset or ""
        at = max(latest.rfind('"lag"'), latest.rfind("'lag'"))
        tail = latest[at:] if at >= 0 else ""
        lag, lag_s = _LAG.match(tail), _LAG_S.search(tail)
        for name, value in (
            ("busmq_query_lag_messages", told.get("lag") or (lag and lag[1])),
            ("busmq_query_lag_seconds", told.get("lag_s") or (lag_s and lag_s[1])),
            ("busmq_query_gap_seconds", told.get("gap_ms")),
        ):
            if value:
                number = float(value) / (1000 if name.endswith("gap_seconds") else 1)
                join = sum if name.endswith("messages") else max
                found[name] = join((found.get(name, 0.0), number))
        if lag or "lag" in told:
            lost = _lost_until(source.endOffset)
            found["busmq_query_lost_messages"] = found.get("busmq_query_lost_messages", 0) + lost
    return found


def _lost_in(sources: list[Any]) -> int:
    """Return how many messages the batch lost."""
    ends = ((source.startOffset, source.endOffset) for source in sources)
    return sum(max(0, _lost_until(end) - _lost_until(start)) for start, end in ends)


def _lost_until(offset: str | None) -> int:
    return sum(map(int, _LOST.findall(offset or "")))


def _tracer() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise missing_package(error, "observe(otel=True)") from None
    return trace.get_tracer("busmq_spark")


def _parse_address(text: object) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[3]) > 65535:
        raise ConfigError(
            reason=f"prometheus is {text!r}; expected HOST:PORT or :PORT, such as ':9465'"
        )
    return found[1] or found[2], int(found[3])
