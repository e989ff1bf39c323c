"""All SQL of an outbox. Each function is a part of a transaction that its caller begins and
ends.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import IntEnum

MAX_EVENTS_ROUTED_AT_ONCE = 500
"""Events whose queues are found out in one transaction."""
MAX_FREE_PAGES = 2000
"""Pages of the file (4 KB) that may be free before some are given back to the file system."""


class OutboxEntryKind(IntEnum):
    """The kinds of entries."""

    PUSH = 0
    """Append its value to the queue that ``outgoing`` names."""
    SEND = 1
    """A command: the queue takes one group only."""
    PUBLISH = 2
    """Append it to every queue that is subscribed to its keys, which ``target`` has; they are in
    ``outgoing`` once they are known.
    """
    SUBSCRIBE = 3
    UNSUBSCRIBE = 4
    """``target`` has patterns and a queue."""


@dataclass(frozen=True, slots=True)
class EntryAwaitingRouting:
    """An entry of which it is not known yet where it goes."""

    id: int
    kind: OutboxEntryKind
    keys: tuple[str, ...]
    """Of an event, or the patterns of a subscription."""
    queue: str
    """To subscribe."""
    at: float


@dataclass(frozen=True, slots=True)
class OutboxDestinationQueue:
    """A queue that something goes to."""

    id: int
    queue: str


@dataclass(frozen=True, slots=True)
class OutboxChunk:
    """Messages for one queue that go together: of one sender, in order, all of them commands or
    none.
    """

    opening: int
    sender: str
    """Empty where the opening is not known any more (:func:`add_opening`)."""
    commands: bool
    numbers: Sequence[int]
    values: list[bytes]
    more: bool = False
    """Whether later messages wait."""


def begin_opening(connection: sqlite3.Connection, sender: str) -> int:
    """A new opening of the store. Senders whose last message is gone are forgotten, as are queues
    that nothing waits for.
    """
    first = connection.execute("SELECT opening FROM entry ORDER BY id LIMIT 1").fetchone()
    connection.execute("DELETE FROM opening WHERE id < ?", first or (2**62,))
    connection.execute(
        "DELETE FROM destination WHERE NOT EXISTS (SELECT 1 FROM outgoing WHERE destination ="
        " destination.id)"
    )
    return (
        connection.execute(
            "INSERT INTO opening(sender, at) VALUES (?, ?)", (sender, time.time())
        ).lastrowid
        or 0
    )


def add_opening(connection: sqlite3.Connection, opening: int, sender: str) -> None:
    """Give a sender to messages whose opening was forgotten.

    Older versions let a second process open the file, which forgot the opening of the first.
    No message of an opening is sent here: it is forgotten only when nothing of it waits.
    """
    connection.execute(
        "INSERT OR IGNORE INTO opening(id, sender, at) VALUES (?, ?, ?)",
        (opening, sender, time.time()),
    )


def find_or_add_destination(connection: sqlite3.Connection, queue: str) -> OutboxDestinationQueue:
    """The destination of this name, which is noted if it is new."""
    connection.execute("INSERT OR IGNORE INTO destination(queue) VALUES (?)", (queue,))
    [id] = connection.execute("SELECT id FROM destination WHERE queue = ?", (queue,)).fetchone()
    return OutboxDestinationQueue(id, queue)


def store_messages(
    connection: sqlite3.Connection,
    opening: int,
    kind: OutboxEntryKind,
    to: OutboxDestinationQueue,
    values: Sequence[bytes],
) -> int:
    """Messages or commands for one queue. The number of the last."""
    last = _store_entries(connection, kind, None, opening, 1, values)
    connection.execute(
        "INSERT INTO outgoing SELECT ?, id FROM entry WHERE id > ?", (to.id, last - len(values))
    )
    return last


def store_events(
    connection: sqlite3.Connection, opening: int, keys: Sequence[str], values: Sequence[bytes]
) -> int:
    """Events with these keys. The number of the last."""
    return _store_entries(
        connection, OutboxEntryKind.PUBLISH, json.dumps([*keys]), opening, None, values
    )


def store_subscriptions(
    connection: sqlite3.Connection, opening: int, patterns: Sequence[str], queue: str, *, end: bool
) -> int:
    """A subscription that is to begin, or to ``end``. Its number."""
    kind = OutboxEntryKind.UNSUBSCRIBE if end else OutboxEntryKind.SUBSCRIBE
    return _store_entries(connection, kind, json.dumps([*patterns, queue]), opening, None, [b""])


def _store_entries(
    connection: sqlite3.Connection,
    kind: OutboxEntryKind,
    target: str | None,
    opening: int,
    refs: int | None,
    values: Sequence[bytes],
) -> int:
    asked = "INSERT INTO entry(kind, target, opening, at, refs, value) VALUES (?, ?, ?, ?, ?, ?)"
    about = (int(kind), target, opening, time.time(), refs)
    *others, last = values
    if others:
        connection.executemany(asked, [(*about, value) for value in others])
    return connection.execute(asked, (*about, last)).lastrowid or 0


def unrouted_entries(
    connection: sqlite3.Connection, most: int = MAX_EVENTS_ROUTED_AT_ONCE
) -> list[EntryAwaitingRouting]:
    """The oldest entries of which it is not known where they go."""
    found = connection.execute(
        "SELECT id, kind, target, at FROM entry WHERE refs IS NULL ORDER BY id LIMIT ?", (most,)
    ).fetchall()
    return [_unrouted_entry(*row) for row in found]


def _unrouted_entry(id: int, kind: int, target: str, at: float) -> EntryAwaitingRouting:
    words = tuple(json.loads(target))
    return EntryAwaitingRouting(
        id,
        OutboxEntryKind(kind),
        words if kind == OutboxEntryKind.PUBLISH else words[:-1],
        "" if kind == OutboxEntryKind.PUBLISH else words[-1],
        at,
    )


def routed_upto(connection: sqlite3.Connection) -> int:
    """The number up to which every entry is routed. No later entry is sent: something before it may
    be for the same queue.
    """
    [first] = connection.execute("SELECT min(id) FROM entry WHERE refs IS NULL").fetchone()
    return 2**62 if first is None else int(first) - 1


def route_event(
    connection: sqlite3.Connection, id: int, queues: Iterable[str]
) -> list[OutboxDestinationQueue]:
    """Record an event's destination queues; without any, delete the event."""
    found = [find_or_add_destination(connection, queue) for queue in dict.fromkeys(queues)]
    if not found:
        delete_entry(connection, id)
    elif connection.execute(
        "UPDATE entry SET refs = ? WHERE id = ?", (len(found), id)
    ).rowcount:  # else removed meanwhile
        connection.executemany(
            "INSERT OR IGNORE INTO outgoing VALUES (?, ?)", [(each.id, id) for each in found]
        )
    return found


def delete_entry(connection: sqlite3.Connection, id: int) -> None:
    """Delete an entry that has nothing left to deliver."""
    connection.execute("DELETE FROM entry WHERE id = ?", (id,))


def waiting_destinations(connection: sqlite3.Connection) -> list[OutboxDestinationQueue]:
    """The destinations that something waits for."""
    asked = (
        "SELECT id, queue FROM destination WHERE EXISTS (SELECT 1 FROM outgoing WHERE destination ="
        " destination.id)"
    )
    return [OutboxDestinationQueue(id, queue) for id, queue in connection.execute(asked)]


def next_chunk(
    connection: sqlite3.Connection,
    to: OutboxDestinationQueue,
    behind: int,
    most: int,
    most_bytes: int,
) -> OutboxChunk | None:
    """Return the messages for a queue after a number: at most so many, of one sender, none after
    the one that reaches ``most_bytes``.
    """
    upto = routed_upto(connection)
    asked = (
        "SELECT min(entry), max(entry), count(*) FROM (SELECT entry FROM outgoing WHERE destination"
        " = ? AND entry > ? AND entry <= ? LIMIT ?)"
    )
    first, last, count = connection.execute(asked, (to.id, behind, upto, most)).fetchone()
    if not count:
        return None
    even = last - first + 1 == count and _read_chunk_of_one_queue(
        connection, first, last, most_bytes
    )
    chunk = even or _read_chunk_of_queue(connection, to, first, last, most_bytes)
    return replace(chunk, more=count == most or chunk.numbers[-1] < last)


def count_events(connection: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Return the number of messages, from the first on, that are events; fewer where others of
    other queues lie between.
    """
    asked = "SELECT min(id) FROM entry WHERE id BETWEEN ? AND ? AND kind != ?"
    (other,) = connection.execute(
        asked, (numbers[0], numbers[-1], OutboxEntryKind.PUBLISH)
    ).fetchone()
    return len(numbers) if other is None else sum(number < other for number in numbers)


def _read_chunk_of_one_queue(
    connection: sqlite3.Connection, first: int, last: int, most_bytes: int
) -> OutboxChunk | None:
    """Return all entries between two numbers, if they may go together.

    This is the usual case: all calls are for one queue. It costs half.
    """
    asked = (  # the opening never falls: a value at both ends is the value of all
        "SELECT (SELECT opening FROM entry WHERE id = ?2), (SELECT opening FROM entry WHERE id ="
        " ?3), sum(kind = ?1), sum(length(value)) FROM entry WHERE id BETWEEN ?2 AND ?3"
    )
    low, high, commands, size = connection.execute(
        asked, (OutboxEntryKind.SEND, first, last)
    ).fetchone()
    if low != high or 0 < commands <= last - first or size > most_bytes:
        return None
    values = [
        value
        for (value,) in connection.execute(
            "SELECT value FROM entry WHERE id BETWEEN ? AND ? ORDER BY id", (first, last)
        ).fetchall()
    ]
    return OutboxChunk(
        low, _read_sender(connection, low), bool(commands), range(first, last + 1), values
    )


def _read_chunk_of_queue(
    connection: sqlite3.Connection,
    to: OutboxDestinationQueue,
    first: int,
    last: int,
    most_bytes: int,
) -> OutboxChunk:
    """Return the messages for a queue between two numbers that may go together; the first number is
    for it.
    """
    asked = (
        "SELECT e.id, e.opening, e.kind = ?, e.value FROM outgoing o CROSS JOIN entry e ON e.id ="
        " o.entry WHERE o.destination = ? AND o.entry BETWEEN ? AND ? ORDER BY o.entry"
    )
    numbers: list[int] = []
    values: list[bytes] = []
    of: tuple[int, int] | None = None
    with closing(connection.execute(asked, (OutboxEntryKind.SEND, to.id, first, last))) as found:
        for number, opening, is_command, value in found:
            most_bytes -= len(value)
            if values and (most_bytes < 0 or of != (opening, is_command)):
                break
            of = (opening, is_command)
            numbers.append(number)
            values.append(value)
    assert of is not None
    return OutboxChunk(of[0], _read_sender(connection, of[0]), bool(of[1]), numbers, values)


def _read_sender(connection: sqlite3.Connection, opening: int) -> str:
    found = connection.execute("SELECT sender FROM opening WHERE id = ?", (opening,)).fetchone()
    return str(found[0]) if found else ""


def confirm_sent(connection: sqlite3.Connection, to: OutboxDestinationQueue, upto: int) -> None:
    """A queue has everything that was for it up to a number."""
    asked = (to.id, upto)
    of = "FROM outgoing WHERE destination = ? AND entry <= ?"  # no text from outside
    first, last, count = connection.execute(
        f"SELECT min(entry), max(entry), count(*) {of}", asked
    ).fetchone()
    if count and last - first + 1 == count:
        deleted = connection.execute(
            "DELETE FROM entry WHERE id BETWEEN ? AND ? AND refs = 1", (first, last)
        ).rowcount
    else:
        deleted = connection.execute(
            f"DELETE FROM entry WHERE refs = 1 AND id IN (SELECT entry {of})",  # noqa: S608
            asked,
        ).rowcount
    if deleted < count:
        connection.execute(
            f"UPDATE entry SET refs = refs - 1 WHERE id IN (SELECT entry {of})",  # noqa: S608
            asked,
        )
    connection.execute(f"DELETE {of}", asked)
    connection.execute(
        "UPDATE destination SET error = NULL, since = NULL WHERE id = ? AND error IS NOT NULL",
        (to.id,),
    )


def record_failure(connection: sqlite3.Connection, to: OutboxDestinationQueue, error: str) -> None:
    """Why nothing goes to a queue now; how long that has been so stays noted."""
    connection.execute(
        "UPDATE destination SET error = ?, since = coalesce(since, ?) WHERE id = ?",
        (error, time.time(), to.id),
    )


def set_note(connection: sqlite3.Connection, name: str, value: str | float | None) -> None:
    """Something about the whole store, for people."""
    connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, value))


def note_subscriptions(connection: sqlite3.Connection, table: Iterable[tuple[str, str]]) -> None:
    """Store the last known subscriptions."""
    connection.execute("DELETE FROM subscription")
    connection.executemany("INSERT OR IGNORE INTO subscription VALUES (?, ?)", table)
    set_note(connection, "subscriptions_at", time.time())


def note_subscription_made(
    connection: sqlite3.Connection, patterns: Iterable[str], queue: str, *, end: bool
) -> None:
    """A subscription was begun, or ended, with this outbox."""
    asked = (
        "DELETE FROM made WHERE pattern = ? AND queue = ?"
        if end
        else "INSERT OR IGNORE INTO made VALUES (?, ?)"
    )
    connection.executemany(asked, [(pattern, queue) for pattern in patterns])


def subscriptions_made(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Pattern and queue of the subscriptions that were made with this outbox."""
    return connection.execute("SELECT pattern, queue FROM made").fetchall()


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether everything was forwarded."""
    return connection.execute("SELECT 1 FROM entry LIMIT 1").fetchone() is None


def release_free_pages(connection: sqlite3.Connection) -> bool:
    """Some of the free pages of the file become free space of the disk. Whether there are more."""
    [spare] = connection.execute("PRAGMA freelist_count").fetchone()
    if spare > MAX_FREE_PAGES:
        connection.execute(f"PRAGMA incremental_vacuum({MAX_FREE_PAGES})").fetchall()
    return int(spare) > 2 * MAX_FREE_PAGES
