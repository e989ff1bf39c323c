"""The contents of a store, for people and programs: read beside the process that has it open, and
changing nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from busmq_spark.outbox import lock, sql
from busmq_spark.outbox.files import (
    LOG_SUFFIXES,
    FileIdentity,
    check_has_one_name,
    log_path,
    real_path,
)
from busmq_spark.outbox.lock import OutboxLockOwner
from busmq_spark.outbox.sql import OutboxEntryKind, unrouted_entries
from busmq_spark.routing.cloud_event import Event
from busmq_spark.routing.event_patterns import matches


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """A store as a whole. Times are seconds."""

    owner: OutboxLockOwner | None
    """The process that has it open."""
    incoming: int
    """Events and subscriptions of which it is not known yet where they go."""
    outgoing: int
    """Messages that wait for a queue; one that goes to three counts three times."""
    oldest_s: float | None
    """For how long the oldest of them has waited."""
    bytes: int
    """Of the file, with what SQLite has beside it."""
    error: str
    """Why the oldest does not go out; '' when nothing failed."""


@dataclass(frozen=True, slots=True)
class EntryAwaitingRouting:
    """An event of which it is not known yet where it goes, or a subscription."""

    number: int
    kind: str
    keys: tuple[str, ...]
    queue: str
    age_s: float
    id: str
    """Of an event."""
    value: bytes
    """The event; empty for a subscription."""


@dataclass(frozen=True, slots=True)
class OutboxQueueStatus:
    """The waiting messages of one queue."""

    queue: str
    messages: int
    oldest_s: float
    error: str
    failing_s: float | None
    """Seconds since sends began to fail; the value is None when no send failed."""


def read_status(path: Path) -> OutboxStatus:
    """The store as it is. Raises OutboxUnusable."""
    with open_snapshot(path) as connection:
        incoming = _query_number(connection, "SELECT count(*) FROM entry WHERE refs IS NULL")
        outgoing = _query_number(connection, "SELECT count(*) FROM outgoing")
        oldest = connection.execute("SELECT at FROM entry ORDER BY id LIMIT 1").fetchone()
        failing = connection.execute(
            "SELECT error FROM destination WHERE error IS NOT NULL ORDER BY since LIMIT 1"
        ).fetchone()
        notes = dict(
            connection.execute("SELECT name, value FROM note WHERE name LIKE '%_error'").fetchall()
        )
    path = real_path(path)
    size = sum(
        each.stat().st_size
        for each in (path, *(log_path(path, suffix) for suffix in LOG_SUFFIXES))
        if each.exists()
    )
    error = (
        notes.get("forwarder_error") or notes.get("routing_error") or (failing and failing[0]) or ""
    )
    return OutboxStatus(
        lock.find_owner(path),
        incoming,
        outgoing,
        _seconds_since(oldest[0]) if oldest else None,
        size,
        error,
    )


def read_incoming(path: Path, most: int = 1000) -> list[EntryAwaitingRouting]:
    """The oldest events and subscriptions that are not routed yet."""
    with open_snapshot(path) as connection:
        found = unrouted_entries(connection, most)
        values = {
            each.id: value
            for each in found
            for (value,) in connection.execute("SELECT value FROM entry WHERE id = ?", (each.id,))
        }
    names = {
        OutboxEntryKind.PUBLISH: "event",
        OutboxEntryKind.SUBSCRIBE: "subscribe",
        OutboxEntryKind.UNSUBSCRIBE: "unsubscribe",
    }
    ids = {number: Event.decode(value).id for number, value in values.items() if value}
    return [
        EntryAwaitingRouting(
            each.id,
            names[each.kind],
            each.keys,
            each.queue,
            _seconds_since(each.at),
            ids.get(each.id, ""),
            values[each.id],
        )
        for each in found
    ]


def read_outgoing(path: Path) -> list[OutboxQueueStatus]:
    """The queues that something waits for, by name."""
    asked = (
        "SELECT d.queue, count(*), min(o.entry), d.error, d.since "
        "FROM destination d JOIN outgoing o ON o.destination = d.id GROUP BY d.id ORDER BY d.queue"
    )
    with open_snapshot(path) as connection:
        found = []
        for queue, count, first, error, since in connection.execute(asked).fetchall():
            [at] = connection.execute("SELECT at FROM entry WHERE id = ?", (first,)).fetchone()
            found.append(
                OutboxQueueStatus(
                    queue,
                    count,
                    _seconds_since(at),
                    error or "",
                    None if since is None else _seconds_since(since),
                )
            )
    return found


def read_subscriptions(
    path: Path, key: str | None = None
) -> tuple[list[tuple[str, str]], float | None]:
    """Pattern and queue of the subscriptions as the forwarder saw them last, and how many seconds
    ago; with ``key`` those that take it.
    """
    with open_snapshot(path) as connection:
        table = connection.execute(
            "SELECT pattern, queue FROM subscription UNION SELECT pattern, queue FROM made ORDER BY"
            " 1, 2"
        ).fetchall()
        seen = connection.execute(
            "SELECT value FROM note WHERE name = 'subscriptions_at'"
        ).fetchone()
    return [row for row in table if key is None or matches(row[0], key)], (
        _seconds_since(seen[0]) if seen else None
    )


@contextmanager
def open_snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a snapshot of the store. Raises OutboxUnusable for a name without the log of the
    store.
    """
    path = real_path(path)
    if FileIdentity.of(path) and not FileIdentity.of(log_path(path)):
        check_has_one_name(path)
        if lock.is_open_under_another_name(path):
            raise lock.busy_error(path)
    with closing(sql.open_to_read(path)) as connection, sql.translating_errors(path):
        connection.execute("BEGIN")
        yield connection


def _query_number(connection: sqlite3.Connection, asked: str) -> int:
    return int(connection.execute(asked).fetchone()[0])


def _seconds_since(at: float) -> float:
    return max(0.0, time.time() - at)
