"""The status of a mirror: for its users, for metrics, and for the report that other processes
read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from busmq_spark.errors import BusError
from busmq_spark.errors.foreign import error_text
from busmq_spark.metrics import Metrics

if TYPE_CHECKING:
    from busmq_spark.mirror.copy_planning import MirroredQueue

MAX_QUEUES_IN_REPORT = 1_000
"""Queues that a report names at most."""


@dataclass(frozen=True, slots=True)
class MirroredQueueStatus:
    """A queue of a mirror."""

    queue: str
    born: str
    """The life that is copied; empty before the first look at it."""
    last: int
    """Copied up to this id."""
    behind: int
    """Ids that the origin has given and that are not copied."""
    behind_s: float
    """For how long that has been so; 0 when nothing is missing."""
    copied: int
    """Messages that this process has copied."""
    skipped: int
    """Ids that were gone at the origin before they were copied: taken by a consumer there, acked,
    or never stored.
    """
    error: BusError | None
    """Why it is mirrored no further."""


def status_of(queue: MirroredQueue, now: float) -> MirroredQueueStatus:
    """``now`` by the clock of :meth:`MirroredQueue.note_last_id`."""
    behind_s = 0.0 if queue.behind_since is None else max(0.0, now - queue.behind_since)
    return MirroredQueueStatus(
        queue.name,
        queue.born,
        queue.last,
        queue.behind,
        behind_s,
        queue.copied,
        queue.skipped,
        queue.stopped,
    )


def encode_report(
    origin: str,
    patterns: Sequence[str],
    error: BusError | None,
    queues: Iterable[MirroredQueueStatus],
) -> str:
    """Return the report of a process for Redis: queues that lag or are stopped by name, all others
    only in the number.
    """
    all_ = list(queues)
    odd = sorted(
        (each for each in all_ if each.behind or each.error), key=lambda each: -each.behind_s
    )[:MAX_QUEUES_IN_REPORT]
    said = {
        each.queue: [
            each.last + each.behind,
            round(each.behind_s, 1),
            str(each.error) if each.error else None,
        ]
        for each in odd
    }
    return json.dumps(
        {
            "from": origin,
            "patterns": patterns,
            "queues": len(all_),
            "error": error_text(error) if error else None,
            "odd": said,
        }
    )


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """The report of a process; ``odd``: queue → last id that the origin has given, seconds for
    which the copy has lagged, error.
    """

    origin: str
    patterns: tuple[str, ...]
    queues: int
    error: str | None
    odd: Mapping[str, tuple[int, float, str | None]]

    @classmethod
    def parse(cls, text: bytes) -> MirrorReport | None:
        """Return None for text that no process of ours has written."""
        try:
            found = json.loads(text)
            odd = {
                queue: (int(ids), float(s), error)
                for queue, (ids, s, error) in found["odd"].items()
            }
            return cls(
                str(found["from"]),
                tuple(found["patterns"]),
                int(found["queues"]),
                found["error"],
                odd,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


class MirrorMetrics:
    """The counters of a process."""

    def __init__(self, metrics: Metrics) -> None:
        self.messages = metrics.counter("busmq_mirror_messages_total", "Messages copied")
        self.bytes = metrics.counter("busmq_mirror_bytes_total", "Bytes of their values")
        self.skipped = metrics.counter(
            "busmq_mirror_skipped_total", "Ids that were gone at the origin before they were copied"
        )
        self.lives = metrics.counter(
            "busmq_mirror_lives_total", "Queues that were made anew at the origin, and so here"
        )
        self.breaks = metrics.counter(
            "busmq_mirror_breaks_total",
            "Times that the origin or the servers here were away, by side",
            side=("origin", "here"),
        )
        self.queues = metrics.gauge("busmq_mirror_queues", "Queues that are mirrored")
        self.stopped = metrics.gauge(
            "busmq_mirror_queues_stopped",
            "Queues that are mirrored no further, see the log or busmq mirror status",
        )
        self.behind = metrics.gauge(
            "busmq_mirror_behind_messages",
            "Ids that the origin has given and that are not copied, of all queues",
        )
        self.behind_s = metrics.gauge(
            "busmq_mirror_behind_seconds", "For how long the queue that is worst has been behind"
        )

    def measure(self, queues: Iterable[MirroredQueueStatus]) -> None:
        """Set the gauges."""
        all_ = list(queues)
        self.queues.set(len(all_))
        self.stopped.set(sum(each.error is not None for each in all_))
        self.behind.set(sum(each.behind for each in all_))
        self.behind_s.set(max((each.behind_s for each in all_), default=0.0))
