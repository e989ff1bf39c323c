"""Counters, gauges and histograms of prometheus-client, and the pages that Prometheus reads.

    metrics = Metrics()
    refused = metrics.counter("busmq_refused_total", "Refused", reason=("path", "secret"))
    refused.add(reason="secret")

Every label is declared with all of its values. A value that was not declared counts as ``other``:
whatever a peer sends, the number of series stays the same, and no text of the peer is ever printed.

prometheus-client belongs to the extras ``metrics``, ``cli`` and ``federation``. Without it nothing
is counted, and :meth:`Metrics.text` raises ToolMissing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from busmq_spark.errors import LinkLost
from busmq_spark.errors.foreign import error_text, exc_info
from busmq_spark.extras import missing_package

if TYPE_CHECKING:
    from prometheus_client import Metric

OTHER_LABEL = "other"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HEALTH_PATH, LIVE_PATH, READY_PATH, METRICS_PATH = "/healthz", "/livez", "/readyz", "/metrics"
CALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
log = logging.getLogger("busmq_spark")


Series: TypeAlias = Mapping[tuple[str, ...], float]
"""Values by the values of labels."""


class MetricsSource(Protocol):
    """An object that makes metrics whenever the text is asked for."""

    def text(self) -> str:
        """Return the metrics of this moment, as :func:`series_text` writes them."""
        ...


def series_text(kind: str, name: str, doc: str, labels: Sequence[str], series: Series) -> str:
    """Return the text of a metric. prometheus-client takes four times as long, and an exporter has
    thousands of series.
    """
    shown = f"{name}_total" if kind == "counter" else name
    pairs = ",".join(label + '="%s"' for label in labels)
    form = f"{{{pairs}}} " if labels else " "
    lines = [f"# HELP {shown} {doc}\n# TYPE {shown} {kind}\n"]
    for values, number in series.items():
        escaped = tuple(map(_escape_label, values))
        lines.append(f"{shown}{form % escaped}{number!r}\n")
    return "".join(lines)


def _escape_label(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text


class MetricFamily:
    """A metric of prometheus-client with declared label values. Each series is 0 from the
    beginning. Safe to use from any thread.
    """

    def __init__(self, metric: Any, labels: dict[str, tuple[str, ...]]) -> None:
        """``metric`` is None without prometheus-client: nothing is counted then."""
        self._names, self._metric = tuple(labels), metric
        self._children: dict[tuple[str, ...], Any] = {}
        if metric is not None:
            values = product(*(dict.fromkeys((*values, OTHER_LABEL)) for values in labels.values()))
            self._children = {key: metric.labels(*key) if key else metric for key in values}
        self._allowed = {label: frozenset(values) for label, values in labels.items()}

    def add(self, amount: float = 1, /, **labels: str) -> None:
        """Count up; a gauge may also go down. Raises ValueError for a counter that goes down."""
        if self._metric is not None:
            self._child(labels).inc(amount)

    def set(self, value: float, /, **labels: str) -> None:
        """Set the present value of a gauge."""
        if self._metric is not None:
            self._child(labels).set(value)

    def observe(self, value: float, /, **labels: str) -> None:
        """Count one value of a histogram."""
        if self._metric is not None:
            self._child(labels).observe(value)

    def _child(self, given: dict[str, str]) -> Any:
        if given.keys() != self._allowed.keys():
            raise ValueError(f"this metric has the labels {self._names}, not {sorted(given)}")
        return self._children[
            tuple(
                given[label] if given[label] in values else OTHER_LABEL
                for label, values in self._allowed.items()
            )
        ]


class Metrics:
    """A set of metrics. Asking again for a name gives the same one."""

    def __init__(self) -> None:
        self._families: dict[str, MetricFamily] = {}
        self._measured: list[Callable[[], None]] = []
        self._missing: Exception | None = None
        try:
            import prometheus_client
        except ImportError as error:
            self._missing = missing_package(error, "the text of metrics")
        else:
            self._client, self._registry = prometheus_client, prometheus_client.CollectorRegistry()
            self._sources: list[MetricsSource] = []

    def counter(self, name: str, doc: str, **labels: tuple[str, ...]) -> MetricFamily:
        """Add a value that only goes up; its name ends in ``_total``."""
        return self._family("Counter", name, doc, labels)

    def gauge(self, name: str, doc: str, **labels: tuple[str, ...]) -> MetricFamily:
        """Add a value that goes up and down."""
        return self._family("Gauge", name, doc, labels)

    def histogram(
        self,
        name: str,
        doc: str,
        buckets: Sequence[float] = CALL_BUCKETS_S,
        **labels: tuple[str, ...],
    ) -> MetricFamily:
        """Add the distribution of a value; ``buckets`` are upper bounds."""
        return self._family("Histogram", name, doc, labels, buckets=buckets)

    def _family(
        self, kind: str, name: str, doc: str, labels: dict[str, tuple[str, ...]], **options: Any
    ) -> MetricFamily:
        if name not in self._families:
            metric = None
            if self._missing is None:
                make = getattr(self._client, kind)
                metric = make(name, doc, tuple(labels), registry=self._registry, **options)
            self._families[name] = MetricFamily(metric, labels)
        return self._families[name]

    def before_text(self, measure: Callable[[], None]) -> None:
        """Call ``measure`` whenever the text is asked for: it sets gauges that are not kept up to
        date otherwise.
        """
        self._measured.append(measure)

    def require_client(self) -> None:
        """Raise ToolMissing without prometheus-client."""
        if self._missing is not None:
            raise self._missing

    def add_source(self, source: MetricsSource) -> None:
        """Add metrics that are made when the text is asked for. Raises ToolMissing."""
        self.require_client()
        self._sources.append(source)

    def text(self, without: str = "", *, sources: bool = True) -> str:
        """Return the text of all of them, sorted by name; then that of the sources, if asked for.
        Raises ToolMissing.

        Series ``other`` show once they have counted something. ``without`` is a label that is left
        out: series that differ only in it become their sum.
        """
        self.require_client()
        for measure in self._measured:
            try:
                measure()
            except Exception as error:
                log.error(
                    "a metric could not be measured: %s",
                    error_text(error),
                    exc_info=exc_info(error),
                )
        shown = [_shown_samples(family, without) for family in self._registry.collect()]
        found = _CollectedMetrics(sorted(shown, key=lambda family: family.name))
        own = self._client.generate_latest(found).decode()
        return "".join([own, *(source.text() for source in self._sources if sources)])


class _CollectedMetrics:
    """Metrics that ``generate_latest`` takes for a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _shown_samples(family: Metric, without: str) -> Metric:
    """Return the metric without the times at which its series began, and without label
    ``without``.
    """
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        if sample.name != f"{family.name}_created":
            pairs = tuple(pair for pair in sample.labels.items() if pair[0] != without)
            sums[sample.name, pairs] = sums.get((sample.name, pairs), 0.0) + sample.value
    counted = {_without_bucket(pairs) for (_, pairs), number in sums.items() if number}
    family.samples = []
    for (name, pairs), number in sums.items():
        rest = _without_bucket(pairs)
        if rest in counted or OTHER_LABEL not in dict(rest).values():
            family.add_sample(name, dict(pairs), number)
    return family


def _without_bucket(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in pairs if pair[0] != "le")


@contextmanager
def serve_pages(
    host: str,
    port: int,
    metrics: Metrics,
    not_ready: Callable[[], str | None] = lambda: None,
) -> Iterator[str]:
    """Serve /metrics, /livez and /readyz while the block runs, and yield the URL of /metrics.

    ``not_ready`` returns the reason for a 503 at /readyz, or None. Raises LinkLost for an address
    that is taken or not of this machine.
    """
    import socket
    from http.server import ThreadingHTTPServer

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            log.debug("a reader of a page is gone")

    try:
        server = Server((host, port), _page_handler(metrics, not_ready))
    except OSError as error:
        reason = f"the pages cannot be served there ({error.strerror or error})"
        raise LinkLost(url=f"{host}:{port}", reason=reason) from None
    with server:
        Thread(target=server.serve_forever, args=(0.1,), name="busmq-pages", daemon=True).start()
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
        try:
            yield f"http://{shown}:{server.server_port}{METRICS_PATH}"
        finally:
            server.shutdown()


def _page_handler(metrics: Metrics, not_ready: Callable[[], str | None]) -> Any:
    """Return the class that answers requests for the pages."""
    from http.server import BaseHTTPRequestHandler

    class Page(BaseHTTPRequestHandler):
        timeout = 10  # a client that sends nothing frees its thread

        def do_GET(self) -> None:
            status, kind, text = 200, "text/plain", "ok\n"
            try:
                if self.path == METRICS_PATH:
                    text, kind = metrics.text(), CONTENT_TYPE
                elif self.path in {READY_PATH, HEALTH_PATH}:
                    reason = not_ready()
                    status, text = (200, text) if reason is None else (503, f"{reason}\n")
                elif self.path != LIVE_PATH:
                    status, text = 404, "not here\n"
            except Exception as error:
                log.error("a page failed: %s", error_text(error), exc_info=exc_info(error))
                status, kind, text = 500, "text/plain", "see the log\n"
            body = text.encode("utf-8", "replace")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Page
