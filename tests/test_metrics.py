"""Counters and the text that Prometheus reads."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from busmq_spark.errors import LinkLost
from busmq_spark.federation.bulk.server import BulkServerCounters
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuotas
from busmq_spark.federation.serve.server import ServerCounters
from busmq_spark.metrics import Metrics, series_text, serve_pages
from busmq_spark.mirror.settings import MirrorMetrics

GOLDEN = Path(__file__).parent / "golden"


def count_some(metrics: Metrics) -> None:
    server, bulk = ServerCounters(metrics), BulkServerCounters(metrics)
    quotas = PerSecretQuotas(PeerLimits(), metrics, ("payments", "reports"))
    quotas.quota_of("payments").sockets = 2
    quotas.quota_of("a stranger").sockets = 3
    server.accepted.add(2, protocol="busmq")
    server.refused.add(reason="secret")
    server.cut_off.add(reason="unheard of")
    server.waiting.set(1.5)
    bulk.calls.add(operation="states")
    bulk.rows.add(12_345_678)
    mirror = MirrorMetrics(metrics)
    mirror.messages.add(20)
    mirror.breaks.add(side="here")
    mirror.behind_s.set(0.25)


@pytest.mark.parametrize(
    ("file", "without"), [("metrics-v1.txt", ""), ("metrics-without-secret-v1.txt", "secret")]
)
def test_names_help_labels_and_values_are_those_of_version_1(file: str, without: str) -> None:
    def parsed(text: str) -> list[Metric]:
        return list(text_string_to_metric_families(text))

    metrics = Metrics()
    count_some(metrics)
    found = parsed(metrics.text(without))
    old = parsed((GOLDEN / file).read_text())
    new = {"busmq_federation_call_seconds"}
    assert [family for family in found if family.name not in new] == old
    assert {family.name for family in found} == {family.name for family in old} | new


def test_the_text_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.counter("busmq_refused_total", "Handshakes refused", reason=("path", "secret")).add(
        2, reason="secret"
    )
    metrics.gauge("busmq_connections", 'Open "connections"\nnow \\').set(1.5)
    assert (
        metrics.text() == '# HELP busmq_connections Open "connections"\\nnow \\\\\n'
        "# TYPE busmq_connections gauge\n"
        "busmq_connections 1.5\n"
        "# HELP busmq_refused_total Handshakes refused\n"
        "# TYPE busmq_refused_total counter\n"
        'busmq_refused_total{reason="path"} 0.0\n'
        'busmq_refused_total{reason="secret"} 2.0\n'
    )


@given(st.lists(st.text(), min_size=1, max_size=20))
def test_what_a_peer_sends_never_becomes_a_series(values: list[str]) -> None:
    metrics = Metrics()
    calls = metrics.counter("busmq_calls_total", "Calls", method=("push", "pop"))
    for value in values:
        calls.add(method=value)
    assert len(metrics.text().splitlines()) <= 5
    others = sum(value not in ("push", "pop") for value in values)
    assert (f'busmq_calls_total{{method="other"}} {others}.0' in metrics.text().splitlines()) == (
        others > 0
    )


def test_a_histogram_hides_what_it_never_counted_and_sums_over_a_label() -> None:
    metrics = Metrics()
    calls = metrics.histogram("busmq_s", "S", [1], protocol=("a",), secret=("x", "y"))
    for secret in "xy":
        calls.observe(0.5, protocol="a", secret=secret)
    lines = metrics.text("secret").splitlines()[2:]
    assert lines == [
        'busmq_s_bucket{le="1.0",protocol="a"} 2.0',
        'busmq_s_bucket{le="+Inf",protocol="a"} 2.0',
        'busmq_s_count{protocol="a"} 2.0',
        'busmq_s_sum{protocol="a"} 1.0',
    ]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(allow_nan=False))
def test_the_text_of_a_series_is_read_as_it_was_meant(label: str, number: float) -> None:
    text = series_text("counter", "a", "A", ("x", "y"), {(label, "%s"): number})
    [family] = text_string_to_metric_families(text)
    [sample] = family.samples
    assert (sample.name, family.type) == ("a_total", "counter")
    assert sample.labels == {"x": label, "y": "%s"}
    assert sample.value == number


def test_a_gauge_goes_down_and_a_counter_does_not() -> None:
    metrics = Metrics()
    gauge, counter = metrics.gauge("open", "Open"), metrics.counter("done_total", "Done")
    gauge.add(3)
    gauge.add(-1)
    assert "open 2.0\n" in metrics.text()
    with pytest.raises(ValueError, match="only be incremented"):
        counter.add(-1)


def test_names_and_labels_are_checked() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="has the labels"):
        metrics.counter("a_total", "x", kind=("q",)).add(knd="q")


def test_the_same_name_is_the_same_metric_and_text_asks_before() -> None:
    metrics = Metrics()
    metrics.before_text(lambda: metrics.gauge("now", "Now").set(7))
    assert "now 7.0\n" in metrics.text()
    assert metrics.gauge("now", "Now") is metrics.gauge("now", "Now")


def test_threads_may_count_together() -> None:
    metrics = Metrics()
    counter = metrics.counter("busmq_x_total", "X")
    threads = [Thread(target=lambda: [counter.add() for _ in range(20_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "busmq_x_total 80000.0\n" in metrics.text()


def test_without_prometheus_client_nothing_is_counted_and_the_text_names_the_remedy() -> None:
    script = """
import sys
sys.modules["prometheus_client"] = None
from busmq_spark.errors import ToolMissing
from busmq_spark.metrics import Metrics
metrics = Metrics()
metrics.counter("a_total", "A", kind=("x",)).add(kind="x")
metrics.gauge("b", "B").set(1)
try:
    metrics.text()
except ToolMissing as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert "pip install 'busmq_spark[metrics]'" in done.stdout, done.stderr


def test_import_does_not_load_prometheus_client() -> None:
    script = "import busmq_spark.metrics, sys; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def fetch(url: str, path: str) -> tuple[int, str]:
    link = http.client.HTTPConnection(url.split("/")[2], timeout=30)
    link.request("GET", path)
    answer = link.getresponse()
    return answer.status, answer.read().decode()


def test_pages_of_a_command() -> None:
    metrics, reasons = Metrics(), ["no Redis"]
    metrics.gauge("now", "Now").set(7)
    not_ready: Callable[[], str | None] = lambda: reasons[0] if reasons else None  # noqa: E731
    with serve_pages("127.0.0.1", 0, metrics, not_ready) as url:
        assert "now 7.0\n" in fetch(url, "/metrics")[1]
        assert fetch(url, "/livez") == (200, "ok\n")
        assert fetch(url, "/readyz") == (503, "no Redis\n")
        reasons.clear()
        assert fetch(url, "/readyz") == (200, "ok\n")
        assert fetch(url, "/else")[0] == 404
        port = int(url.split(":")[2].partition("/")[0])
        with (
            pytest.raises(LinkLost, match="cannot be served"),
            serve_pages("127.0.0.1", port, metrics),
        ):
            pass
