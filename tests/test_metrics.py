"""Counters and the text that Prometheus reads."""

from __future__ import annotations

from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.metrics import Metrics


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
        'busmq_refused_total{reason="path"} 0\n'
        'busmq_refused_total{reason="secret"} 2\n'
    )


@given(st.lists(st.text(), min_size=1, max_size=20))
def test_what_a_peer_sends_never_becomes_a_series(values: list[str]) -> None:
    metrics = Metrics()
    calls = metrics.counter("busmq_calls_total", "Calls", method=("push", "pop"))
    for value in values:
        calls.add(method=value)
    assert len(metrics.text().splitlines()) <= 5
    others = sum(value not in ("push", "pop") for value in values)
    assert (f'busmq_calls_total{{method="other"}} {others}' in metrics.text().splitlines()) == (
        others > 0
    )


def test_a_gauge_goes_down_and_a_counter_does_not() -> None:
    metrics = Metrics()
    gauge, counter = metrics.gauge("open", "Open"), metrics.counter("done_total", "Done")
    gauge.add(3)
    gauge.add(-1)
    assert gauge.lines()[-1] == "open 2"
    with pytest.raises(ValueError, match="only goes up"):
        counter.add(-1)
    with pytest.raises(ValueError, match="counter"):
        counter.set(1)


def test_names_and_labels_are_checked() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="not a name"):
        metrics.counter("a b", "x")
    with pytest.raises(ValueError, match="has the labels"):
        metrics.counter("a_total", "x", kind=("q",)).add(knd="q")


def test_the_same_name_is_the_same_metric_and_text_asks_before() -> None:
    metrics = Metrics()
    metrics.before_text(lambda: metrics.gauge("now", "Now").set(7))
    assert "now 7\n" in metrics.text()
    assert metrics.gauge("now", "Now") is metrics.gauge("now", "Now")


def test_threads_may_count_together() -> None:
    counter = Metrics().counter("busmq_x_total", "X")
    threads = [Thread(target=lambda: [counter.add() for _ in range(20_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.lines()[-1] == "busmq_x_total 80000"
