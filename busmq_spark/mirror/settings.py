"""The settings of a mirror, and its status.

The settings of a mirror: its queues, origin and options; values only.

The status of a mirror: for its users, for metrics, and for the report that other processes
read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from busmq_spark.arguments import (
    check_flag,
    check_one_of,
    check_path,
    check_text,
    check_whole,
    join_urls,
)
from busmq_spark.errors import BusError, ConfigError
from busmq_spark.errors.foreign import error_text
from busmq_spark.extras import missing_package
from busmq_spark.metrics import Metrics
from busmq_spark.options import LAYOUTS, RedisOptions
from busmq_spark.queue.keys import QueueKeys, check_name
from busmq_spark.redis_io.layout import redis_layout

if TYPE_CHECKING:
    from busmq_spark.federation.address import FederationAddress
    from busmq_spark.mirror.copy_planning import MirroredQueue


MIRROR_PATIENCE_S = 1.0
"""Seconds for which the links themselves retry a step; then the mirror pauses, and looks anew."""
RETENTIONS, NEW_LIVES = ("origin", "own"), ("stop", "follow")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """``origin`` is ``redis://…`` with the layout and credentials of the servers there, or
    ``wss://…`` with the secret of a federation server.
    """

    origin: str = field(repr=False)
    patterns: tuple[str, ...]
    """Names of queues; ``*``, ``?`` and ``[…]`` stand for parts of names."""
    secret: str = field(default="", repr=False)
    layout: str = "direct"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    master: str = "mymaster"
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    groups: bool = False
    """Whether the origin's group positions are copied."""
    retention: str = "origin"
    """origin: messages that the origin deletes are deleted here, too. own: they stay until the
    readers of the mirror have acked them.
    """
    new_life: str = "stop"
    """The reaction to a queue that was made anew at the origin: stop, which keeps the copy of its
    life before, or follow, which gives it up.
    """
    bytes_per_s: int = 0
    """Most bytes of values a second; 0: as fast as it goes."""
    name: str = ""
    """Of this bus, for the loop guard; '' is its address."""
    origin_name: str = ""
    """Of the bus that is mirrored; '' is its address."""
    replace: bool = False
    """Whether a queue of this bus' own is given up for the copy."""

    def __post_init__(self) -> None:
        self._check_types()
        if not self.patterns:
            raise ConfigError(
                reason=(
                    "no queue is named that shall be mirrored; expected names or patterns such as"
                    " 'orders-*'"
                )
            )
        check_one_of("retention", self.retention, RETENTIONS)
        check_one_of("new_life", self.new_life, NEW_LIVES)
        check_one_of("layout", self.layout, LAYOUTS)
        check_whole("bytes_per_s", self.bytes_per_s)
        if self.is_federated:
            self.federation.check_offline()
        else:
            redis_layout(self.redis)

    def _check_types(self) -> None:
        object.__setattr__(self, "origin", join_urls("the origin", self.origin))
        for pattern in self.patterns:
            check_name("queue to mirror", pattern)
        for name in ("groups", "replace"):
            check_flag(name, getattr(self, name))
        for name in ("secret", "user", "password", "master", "name", "origin_name"):
            unset = None if name in ("user", "password") else ""
            if getattr(self, name) != unset and getattr(self, name) != "":
                check_text(name, getattr(self, name), secret=name in ("secret", "password"))
        for name in ("tls_ca", "tls_certificate", "tls_key"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_path(name, getattr(self, name)))

    @property
    def is_federated(self) -> bool:
        """Whether the origin is a federation server."""
        return self.origin.startswith(("ws://", "wss://"))

    @property
    def redis(self) -> RedisOptions:
        """The origin as servers."""
        return RedisOptions(
            url=self.origin,
            layout=self.layout,
            user=self.user,
            password=self.password,
            master=self.master,
            tls_ca=self.tls_ca,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
        )

    @property
    def federation(self) -> FederationAddress:
        """The origin as a federation server. Raises ToolMissing without the package for web
        sockets.
        """
        try:
            from busmq_spark.federation.address import FederationAddress
        except ModuleNotFoundError as error:
            raise missing_package(error, "federation") from None
        return FederationAddress(
            self.origin,
            self.secret,
            self.tls_ca,
            self.tls_certificate,
            self.tls_key,
            patience_s=MIRROR_PATIENCE_S,
        )

    @property
    def masked_origin(self) -> str:
        """The origin for people, without credentials."""
        return self.origin if self.is_federated else redis_layout(self.redis).masked_url

    @property
    def named_queues(self) -> list[str]:
        """Queues that are named and need not be looked for."""
        return [each for each in self.patterns if not any(sign in each for sign in "*?[")]

    def accepts(self, queue: str) -> bool:
        """Whether a queue is mirrored. Queues of channels and services, which live for moments, are
        accepted only by their name.
        """
        return matches(queue, self.patterns)


def matches(queue: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns is the name of the queue, or stands for it; for queues of
    channels and services only the first counts.
    """
    return queue in patterns or (
        QueueKeys(queue).has_clock and any(fnmatchcase(queue, each) for each in patterns)
    )


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
                queue: (int(ids), float(s), _text_or_none(error))
                for queue, (ids, s, error) in found["odd"].items()
            }
            return cls(
                str(found["from"]),
                tuple(found["patterns"]),
                int(found["queues"]),
                _text_or_none(found["error"]),
                odd,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


def _text_or_none(found: object) -> str | None:
    if found is not None and not isinstance(found, str):
        raise TypeError(found)
    return found


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
