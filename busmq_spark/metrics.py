"""Counters and gauges, and their text for Prometheus (exposition format 0.0.4).

    metrics = Metrics() refused = metrics.counter("busmq_refused_total", "Handshakes refused",
    reason=("path", "secret")) refused.add(reason="secret")

Every label is declared with all of its values. A value that was not declared counts as ``other``:
whatever a peer sends, the number of series stays the same, and no text of the peer is ever printed.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from itertools import product
from threading import Lock

from busmq_spark.errors.foreign import error_text, exc_info

OTHER_LABEL = "other"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
log = logging.getLogger("busmq_spark")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class MetricFamily:
    """A name and its series, each 0 from the beginning. Safe to use from any thread."""

    def __init__(self, kind: str, name: str, doc: str, labels: dict[str, tuple[str, ...]]) -> None:
        for word in (name, *labels):
            if not _NAME.fullmatch(word):
                raise ValueError(f"{word!r} is not a name for a metric or label")
        self.kind, self.name, self.doc = kind, name, doc
        self._allowed = {label: frozenset(values) for label, values in labels.items()}
        self._lock = Lock()
        self._series: dict[tuple[str, ...], float] = dict.fromkeys(
            product(*(dict.fromkeys((*values, OTHER_LABEL)) for values in labels.values())), 0.0
        )

    def add(self, amount: float = 1, /, **labels: str) -> None:
        """Count up; a gauge may also go down."""
        if amount < 0 and self.kind == "counter":
            raise ValueError(f"counter {self.name} only goes up")
        key = self._key(labels)
        with self._lock:
            self._series[key] += amount

    def set(self, value: float, /, **labels: str) -> None:
        """The value as it is now; for gauges."""
        if self.kind == "counter":
            raise ValueError(f"{self.name} is a counter: add to it")
        key = self._key(labels)
        with self._lock:
            self._series[key] = value

    def lines(self, without: str = "") -> list[str]:
        """The lines of this family in the text. Series ``other`` show once they have counted
        something.

        ``without``: a label that is left out. Series that differ in it are one, their sum.
        """
        names = [name for name in self._allowed if name != without]
        with self._lock:
            series = list(self._series.items())
        if without in self._allowed:
            at, sums = list(self._allowed).index(without), Counter[tuple[str, ...]]()
            for values, number in series:
                # A gauge may have parts
                sums[values[:at] + values[at + 1 :]] += number  # type: ignore[assignment]
            series = list(sums.items())
        shown = [
            (values, number) for values, number in series if number or OTHER_LABEL not in values
        ]
        head = [f"# HELP {self.name} {_escape(self.doc)}", f"# TYPE {self.name} {self.kind}"]
        return [
            *head,
            *(
                f"{self.name}{_format_labels(names, values)} {_format_number(number)}"
                for values, number in shown
            ),
        ]

    def _key(self, given: dict[str, str]) -> tuple[str, ...]:
        if given.keys() != self._allowed.keys():
            raise ValueError(
                f"metric {self.name} has the labels {sorted(self._allowed)}, not {sorted(given)}"
            )
        return tuple(
            given[label] if given[label] in values else OTHER_LABEL
            for label, values in self._allowed.items()
        )


class Metrics:
    """A set of metrics. Asking again for a name gives the same one."""

    def __init__(self) -> None:
        self._metrics: dict[str, MetricFamily] = {}
        self._measured: list[Callable[[], None]] = []

    def counter(self, name: str, doc: str, **labels: tuple[str, ...]) -> MetricFamily:
        """Add a value that only goes up; its name ends in ``_total``."""
        return self._metrics.setdefault(name, MetricFamily("counter", name, doc, labels))

    def gauge(self, name: str, doc: str, **labels: tuple[str, ...]) -> MetricFamily:
        """Add a value that goes up and down."""
        return self._metrics.setdefault(name, MetricFamily("gauge", name, doc, labels))

    def before_text(self, measure: Callable[[], None]) -> None:
        """Call ``measure`` whenever the text is asked for: it sets gauges that are not kept up to
        date otherwise.
        """
        self._measured.append(measure)

    def text(self, without: str = "") -> str:
        """All of them, by name. ``without``: a label that is left out, as of
        :meth:`MetricFamily.lines`.
        """
        for measure in self._measured:
            try:
                measure()
            except Exception as error:
                log.error(
                    "a metric could not be measured: %s",
                    error_text(error),
                    exc_info=exc_info(error),
                )
        return "".join(
            line + "\n"
            for _, metric in sorted(self._metrics.items())
            for line in metric.lines(without)
        )


def _format_labels(names: list[str], values: tuple[str, ...]) -> str:
    pairs = [
        f'{name}="{_escape(value, quoted=True)}"' for name, value in zip(names, values, strict=True)
    ]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escape(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
