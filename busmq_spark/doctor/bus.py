"""Checks of the queues, subscriptions, sinks, mirrors and outboxes of a bus. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from busmq_spark.doctor.findings import Finding, Level, capped, codes_of, unknown
from busmq_spark.mirror.settings import MirrorReport
from busmq_spark.reading.queue_health import DamagedQueue, QueueHealth
from busmq_spark.writing.sink import STAGE_TTL_S

NEARLY_FULL = 0.8
EXPIRES_WITHIN_S = 24 * 3600
KEPT_ALIVE_PART = 0.6
"""Clients renew the ttl of a queue each third of it: below this part of it, none has for long."""
UNRENEWED_TTL_S = STAGE_TTL_S / 2
"""A run renews its staged lists each quarter of their ttl: a list with less has missed one."""
OLD_LETTER_S = 24 * 3600
OUTBOX_WAITS_S = 3600
MAX_MEASURED = 20
"""Abandoned subscriptions whose bytes are measured: those that keep the most messages."""


@dataclass(frozen=True, slots=True)
class AbandonedSubscription:
    """A subscription without a reader for a day, for which messages stay stored."""

    queue: str
    name: str
    messages: int
    idle_s: int
    bytes: int | None = None
    """The bytes of these messages, estimated for many; not measured: None."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Staged lists of a queue that no run has renewed for half of their ttl."""

    queue: str
    lists: int
    bytes: int
    """Of up to MAX_MEASURED lists."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a queue. The age is None where it is not known."""

    queue: str
    count: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class OutboxFacts:
    """An outbox file. ``unusable``: why it cannot be read."""

    path: str
    unusable: str = ""
    waiting: int = 0
    oldest_s: float | None = None
    open: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class BusFacts:
    """The facts of the queues of some servers. ``error``: why they could not be read."""

    where: str
    error: str = ""
    queues: Sequence[QueueHealth] = ()
    damaged: Sequence[DamagedQueue] = ()
    abandoned: Sequence[AbandonedSubscription] = ()
    staged: Sequence[StagedRows] = ()
    letters: Sequence[DeadLetters] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """Queue that is a mirror → its origin, masked."""
    reports: Sequence[MirrorReport] = ()


def check_bus(facts: BusFacts) -> list[Finding]:
    """Return the findings of a bus: one or more of each code but ``outbox``."""
    if facts.error:
        codes = [code for code in codes_of("bus") if code != "outbox"]
        return unknown(codes, facts.where, facts.error)
    return [
        each
        for code, fine, check in _CHECKS
        for each in capped(check(facts), facts.where) or [Finding(code, "ok", facts.where, fine)]
    ]


def _nearly_full(facts: BusFacts) -> list[Finding]:
    full = sorted(
        (
            (each.state.waiting / each.state.maxsize, each)
            for each in facts.queues
            if each.state.maxsize and each.state.waiting >= NEARLY_FULL * each.state.maxsize
        ),
        key=lambda pair: (-pair[0], pair[1].name),
    )
    return [
        Finding(
            "queue-nearly-full",
            "failure" if part >= 1 else "warning",
            each.name,
            f"{each.state.waiting:,} of at most {each.state.maxsize:,} messages ({part:.0%})",
            f"busmq lag {quote(each.name)}",
        )
        for part, each in full
    ]


def _expires(facts: BusFacts) -> list[Finding]:
    soon = sorted(
        (
            each
            for each in facts.queues
            if 0 <= each.expires_s < EXPIRES_WITHIN_S
            and each.expires_s < KEPT_ALIVE_PART * each.state.ttl_s
            and each.state.waiting
            and not each.name.startswith(("channel:", "service:"))
        ),
        key=lambda each: (each.expires_s, each.name),
    )
    return [
        Finding(
            "queue-expires",
            "warning",
            each.name,
            f"{each.state.waiting:,} messages expire in {each.expires_s // 60:,} minutes, and"
            " no client keeps the queue alive",
            f"busmq retain {quote(each.name)}",
        )
        for each in soon
    ]


def _damaged(facts: BusFacts) -> list[Finding]:
    return [
        Finding(
            "queue-damaged", "failure", each.name, each.reason, f"busmq info {quote(each.name)}"
        )
        for each in facts.damaged
    ]


def _abandoned(facts: BusFacts) -> list[Finding]:
    found = sorted(facts.abandoned, key=lambda each: (-(each.bytes or 0), -each.messages))
    return [
        Finding(
            "subscription-abandoned",
            "warning",
            each.queue,
            f"{each.messages:,} messages"
            + (f" ({each.bytes / 1024**2:,.1f} MB)" if each.bytes is not None else "")
            + f" stay stored for subscription {each.name!r}, unused for"
            f" {each.idle_s // 3600:,} hours",
            f"busmq unsubscribe {quote(each.queue)} {quote(each.name)}",
        )
        for each in found
    ]


def _staged(facts: BusFacts) -> list[Finding]:
    return [
        Finding(
            "staged-rows",
            "warning",
            each.queue,
            f"{each.lists:,} staged lists ({each.bytes / 1024**2:,.1f} MB) that no run renews",
            "restart the query of the sink: its next run removes them",
        )
        for each in sorted(facts.staged, key=lambda each: -each.bytes)
    ]


def _dead_letters(facts: BusFacts) -> list[Finding]:
    return [
        Finding(
            "dead-letters",
            "warning",
            each.queue,
            f"{each.count:,} dead letters; the oldest is {each.oldest_s / 3600:,.0f} hours old",
            f"busmq dead list {quote(each.queue)}",
        )
        for each in sorted(facts.letters, key=lambda each: -(each.oldest_s or 0))
        if each.oldest_s is not None and each.oldest_s >= OLD_LETTER_S
    ]


def _mirrors(facts: BusFacts) -> list[Finding]:
    found: list[Finding] = []
    for queue, origin in sorted(facts.mirrors.items()):
        reports = [each for each in facts.reports if each.origin == origin]
        stopped = [
            error for each in reports for name, (*_, error) in each.odd.items() if name == queue
        ]
        error = next((text for text in (*stopped, *(each.error for each in reports)) if text), "")
        level: Level = "failure" if stopped and stopped[0] else "warning"
        if not reports or error:
            text = error or f"no process copies it from {origin}"
            fix = f"busmq mirror status {quote(queue)}"
            found.append(Finding("mirror-stopped", level, queue, text, fix))
    return found


_CHECKS: tuple[tuple[str, str, Callable[[BusFacts], list[Finding]]], ...] = (
    ("queue-nearly-full", "each queue has room", _nearly_full),
    ("queue-expires", "no queue with unread messages expires soon", _expires),
    ("queue-damaged", "the keys of all queues are sound", _damaged),
    ("subscription-abandoned", "no subscription is abandoned", _abandoned),
    ("staged-rows", "no staged list is left over", _staged),
    ("dead-letters", "no dead letter is old", _dead_letters),
    ("mirror-stopped", "no mirror is stopped", _mirrors),
)


def check_outboxes(facts: Sequence[OutboxFacts]) -> list[Finding]:
    """Return the findings of outbox files: one of each file."""
    return [_check_outbox(each) for each in facts]


def _check_outbox(each: OutboxFacts) -> Finding:
    shown = quote(each.path)
    if each.unusable:
        return Finding("outbox", "failure", each.path, each.unusable, f"ls -l {shown}")
    old = each.waiting and (each.oldest_s or 0) >= OUTBOX_WAITS_S
    if not each.error and not old:
        return Finding("outbox", "ok", each.path, f"{each.waiting:,} messages wait")
    text = (
        f"{each.waiting:,} messages wait, the oldest for {(each.oldest_s or 0) / 60:,.0f} minutes"
    )
    text += f": {each.error}" if each.error else "" if each.open else "; no process has it open"
    fix = f"busmq outbox status {shown}" if each.open else f"busmq outbox drain {shown}"
    return Finding("outbox", "failure" if each.error else "warning", each.path, text, fix)
