"""Waiting messages of a store: listed, removed and replaced before they are forwarded.

A message that is on its way at that moment may arrive unchanged. A message that a queue has
confirmed waits no more.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from busmq_spark.arguments import check_text, check_whole
from busmq_spark.errors import ConfigError
from busmq_spark.outbox import report, sql
from busmq_spark.outbox.files import real_path
from busmq_spark.outbox.lock import OutboxFileLock
from busmq_spark.outbox.sql import (
    OutboxDestinationQueue,
    OutboxEntryKind,
    confirm_sent,
)
from busmq_spark.queue.message import encode_value
from busmq_spark.routing.cloud_event import Event

T = TypeVar("T")
_EVERYTHING = 2**62
_WITH_ENVELOPE = (OutboxEntryKind.SEND, OutboxEntryKind.PUBLISH)


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that is not in all its queues yet."""

    number: int
    kind: str
    id: str
    """Of an event or a command; empty for a message of ``push``, which has none before it
    arrives.
    """
    queues: tuple[str, ...]
    """The queues that it waits for; empty for an event that is not routed yet."""
    keys: tuple[str, ...]
    """Of an event."""
    value: bytes
    at: float
    """The time at which it was stored, in seconds since 1970."""


def waiting_messages(
    connection: sqlite3.Connection, queue: str | None = None, most: int = 1000
) -> list[WaitingMessage]:
    """Return the oldest messages that wait, or those that wait for one queue."""
    asked = "SELECT id, kind, target, value, at FROM entry WHERE kind <= ? ORDER BY id LIMIT ?"
    args: tuple[object, ...] = (OutboxEntryKind.PUBLISH, check_whole("most", most))
    if queue is not None:
        asked = (
            "SELECT e.id, e.kind, e.target, e.value, e.at FROM destination d "
            "JOIN outgoing o ON o.destination = d.id JOIN entry e ON e.id = o.entry "
            "WHERE d.queue = ? ORDER BY e.id LIMIT ?"
        )
        args = (check_text("queue", queue), most)
    return [_waiting_message(connection, *row) for row in connection.execute(asked, args)]


def read_messages(path: Path, queue: str | None = None, most: int = 1000) -> list[WaitingMessage]:
    """Return the oldest waiting messages of a store, open or not. Raises OutboxUnusable."""
    with report.open_snapshot(path) as connection:
        return waiting_messages(connection, queue, most)


def remove(connection: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Delete entries by number. Returns how many of them were waiting."""
    found = 0
    for number in numbers:
        check_whole("number", number)
    for number in numbers:
        connection.execute("DELETE FROM outgoing WHERE entry = ?", (number,))
        found += connection.execute("DELETE FROM entry WHERE id = ?", (number,)).rowcount
    return found


def purge(connection: sqlite3.Connection, queue: str | None = None) -> int:
    """Delete everything that waits, or all that waits for one queue. Returns how many entries."""
    if queue is not None:
        check_text("queue", queue)
    else:
        connection.execute("DELETE FROM outgoing")
        return connection.execute("DELETE FROM entry").rowcount
    row = connection.execute("SELECT id FROM destination WHERE queue = ?", (queue,)).fetchone()
    if row is None:
        return 0
    asked = "SELECT count(*) FROM outgoing WHERE destination = ?"
    [count] = connection.execute(asked, row).fetchone()
    confirm_sent(connection, OutboxDestinationQueue(row[0], queue), _EVERYTHING)
    return int(count)


def replacement(
    number: int, value: object, data: object = None
) -> Callable[[sqlite3.Connection], bool]:
    """Return the work that replaces a message. Its result is whether the message was waiting.

    A message of ``push`` becomes ``value``. An event or command keeps its id and its keys, and gets
    ``data`` (None: ``value``). Raises MessageRefused, ConfigError.
    """
    check_whole("number", number)
    plain, data = encode_value(value), value if data is None else data

    def work(connection: sqlite3.Connection) -> bool:
        row = connection.execute("SELECT kind, value FROM entry WHERE id = ?", (number,)).fetchone()
        if row is None:
            return False
        if row[0] > OutboxEntryKind.PUBLISH:
            what = "a subscription, which has no data"
            raise ConfigError(reason=f"number {number} is {what}; expected a message")
        stored = plain
        if row[0] in _WITH_ENVELOPE:
            stored = replace(Event.decode(row[1]), data=data).encode()
        connection.execute("UPDATE entry SET value = ? WHERE id = ?", (stored, number))
        return True

    return work


@contextmanager
def open_to_edit(path: Path) -> Iterator[Callable[[Callable[[sqlite3.Connection], T]], T]]:
    """A store that no process has open; calls run in one transaction each.

    Raises OutboxBusy, OutboxUnusable, OutboxFull.
    """
    report.read_status(path)  # raises for a file that is not there, or no outbox
    path = real_path(path)
    lock = OutboxFileLock(path)
    try:
        lock.write_owner()
        with closing(sql.create_or_open(path)) as connection:

            def run(work: Callable[[sqlite3.Connection], T]) -> T:
                with sql.translating_errors(path):
                    connection.execute("BEGIN IMMEDIATE")
                    try:
                        found = work(connection)
                    except BaseException:
                        connection.execute("ROLLBACK")
                        raise
                    connection.execute("COMMIT")
                return found

            yield run
    finally:
        lock.release()


def _waiting_message(
    connection: sqlite3.Connection,
    number: int,
    kind: int,
    target: str | None,
    value: bytes,
    at: float,
) -> WaitingMessage:
    asked = (
        "SELECT d.queue FROM outgoing o JOIN destination d ON d.id = o.destination WHERE o.entry ="
        " ? ORDER BY d.queue"
    )
    queues = tuple(queue for (queue,) in connection.execute(asked, (number,)))
    keys = tuple(json.loads(target)) if target else ()
    id = Event.decode(value).id if kind in _WITH_ENVELOPE else ""
    names = {OutboxEntryKind.PUSH: "message", OutboxEntryKind.SEND: "command"}
    return WaitingMessage(
        number, names.get(OutboxEntryKind(kind), "event"), id, queues, keys, value, at
    )
