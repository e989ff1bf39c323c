"""The database of an outbox: its SQLite file, its tables and all its SQL.

The file of an outbox: SQLite in WAL mode, its tables, and what its errors are called here.

Rule 1. A commit returns when the disk has it (``synchronous=FULL``), unless what it holds can be
        found out again.
Rule 2. ``entry`` has each message once, in the order of the calls; its id is never used again, and
        is the number that receivers remember. ``refs`` says for how many queues it is still to be
        confirmed; null: not routed yet.
Rule 3. ``outgoing`` has a row for each queue that a message is to go to. A message that a queue has
        confirmed is deleted; that is its progress.
Rule 4. Each opening of the store has a sender of its own: a copy of the file, or one from a backup,
        numbers other messages with the same numbers.

All SQL of an outbox. Each function is a part of a transaction that its caller begins and
ends.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from busmq_spark.errors import BusError, OutboxFull, OutboxUnusable
from busmq_spark.outbox.files import log_path

APPLICATION_ID, SCHEMA_VERSION = 0x62716F62, 1
"""In the file's header: that it is an outbox, and of which version."""
_CREATE_TABLES = """
CREATE TABLE opening(id INTEGER PRIMARY KEY AUTOINCREMENT, sender TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE entry(
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind INTEGER NOT NULL, target TEXT,
    opening INTEGER NOT NULL, at REAL NOT NULL, refs INTEGER, value BLOB
);
CREATE INDEX unrouted ON entry(id) WHERE refs IS NULL;
CREATE TABLE destination(
    id INTEGER PRIMARY KEY, queue TEXT NOT NULL UNIQUE, error TEXT, since REAL
);
CREATE TABLE outgoing(
    destination INTEGER NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY(destination, entry)
) WITHOUT ROWID;
CREATE TABLE subscription(
    pattern TEXT NOT NULL, queue TEXT NOT NULL, PRIMARY KEY(pattern, queue)
) WITHOUT ROWID;
CREATE TABLE made(
    pattern TEXT NOT NULL, queue TEXT NOT NULL, PRIMARY KEY(pattern, queue)
) WITHOUT ROWID;
CREATE TABLE note(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""
_BUSY_TIMEOUT_S = 5.0
_CACHE_KB = 16_000
_FULL_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_CODES = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
}
_REMEDIES = {
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened",
        "a file that this user may read and write, in a folder that exists",
        "Make the folder, or correct the path or its rights",
    ),
    sqlite3.SQLITE_READONLY: (
        "it may not be written to",
        "a file and a folder that this user may write to",
        "Correct their owner or mode",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "its contents are damaged",
        "what SQLite has written",
        (
            "Keep a copy of the file, look at the disk, and save what can be read with: sqlite3"
            " FILE .recover"
        ),
    ),
    sqlite3.SQLITE_NOTADB: (
        "it is no SQLite file",
        "an outbox, or no file",
        "Correct the path; nothing was written to it",
    ),
    sqlite3.SQLITE_BUSY: (
        "another program has locked its tables",
        "to be the only writer",
        "End that program (sqlite3, a backup)",
    ),
}
_IS_FOLDER = "it cannot be opened, as it is a folder", "a file", "Correct the path"


def create_or_open(path: Path) -> sqlite3.Connection:
    """The store, to write to; a new one where there is none. The caller has the lock. Raises
    OutboxUnusable, OutboxFull.
    """
    with translating_errors(path):
        fresh = not path.exists() or path.stat().st_size == 0
        if fresh:
            os.close(
                os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )  # SQLite gives its other files the same mode
        connection = _connect(path, "rwc")
        try:
            if fresh:
                _initialize_file(connection, path)
            else:
                _check_is_outbox(connection, path)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            connection.execute("PRAGMA secure_delete=FAST")  # where it costs no write of its own
        except BaseException:
            connection.close()
            raise
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """The store as it is, also while another process writes to it; nothing can be written. Raises
    OutboxUnusable.
    """
    if not os.access(
        path, os.R_OK
    ):  # asked, not tried: to close a file that SQLite has open here is to lose its locks
        raise unreadable_error(path)
    with translating_errors(path):
        try:
            return _open_read_only(path, "ro")
        except sqlite3.OperationalError:
            # In a folder that may not be written to SQLite makes no log; where there is none, the
            # store is not open.
            if log_path(path).exists():
                raise
            return _open_read_only(path, "ro&immutable=1")


def _open_read_only(path: Path, mode: str) -> sqlite3.Connection:
    connection = _connect(path, mode)
    try:
        connection.execute("PRAGMA query_only=1")
        _check_is_outbox(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def unreadable_error(path: Path) -> OutboxUnusable:
    """The error for a file that is not there, or that this user may not read."""
    found, expected, remedy = "there is no such file", "an outbox", "Correct the path"
    try:
        missing = not path.exists()
    except PermissionError:  # for a folder on the way
        missing = False
    if not missing:
        found, expected = "this user may not read it", "a file that this user may read"
        remedy = (
            "Do this as the user whose outbox it is, or correct the rights of the file and its"
            " folder"
        )
    return OutboxUnusable(path=str(path), found=found, expected=expected, remedy=remedy)


@contextmanager
def translating_errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and the file system as errors of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, path) from error
    except OSError as error:
        raise _translate_os_error(error, path) from error


def translate_sqlite_error(error: sqlite3.Error, path: Path) -> BusError:
    """The error of ours for one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code in _FULL_CODES:
        return OutboxFull(path=str(path), reason=f"{error}")
    found, expected, remedy = _REMEDIES.get(
        code & 0xFF, (f"SQLite says: {error}", "to read and write it", "See the state of the disk")
    )
    with suppress(OSError):
        if path.is_dir():
            found, expected, remedy = _IS_FOLDER
    return OutboxUnusable(path=str(path), found=found, expected=expected, remedy=remedy)


def _translate_os_error(error: OSError, path: Path) -> BusError:
    if error.errno in _FULL_ERRNO:
        return OutboxFull(path=str(path), reason=error.strerror or str(error))
    known = {
        errno.EROFS: sqlite3.SQLITE_READONLY,
        errno.EACCES: sqlite3.SQLITE_READONLY,
        errno.ENOENT: sqlite3.SQLITE_CANTOPEN,
    }
    code = known.get(error.errno or 0, sqlite3.SQLITE_CANTOPEN)
    found, expected, remedy = _REMEDIES[code]
    found = f"{found} ({error.strerror or error})"
    if error.errno == errno.EISDIR:
        found, expected, remedy = _IS_FOLDER
    return OutboxUnusable(path=str(path), found=found, expected=expected, remedy=remedy)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # Used by one thread at a time; which one, the owner sees to.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        _BUSY_TIMEOUT_S,
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )


def _initialize_file(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _CREATE_TABLES.split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_is_outbox(connection: sqlite3.Connection, path: Path) -> None:
    [application], [version] = (
        connection.execute("PRAGMA application_id").fetchone(),
        connection.execute("PRAGMA user_version").fetchone(),
    )
    if application != APPLICATION_ID:
        with closing(connection.execute("SELECT count(*) FROM sqlite_master")) as found:
            empty = found.fetchone() == (0,)
        if empty and version == 0 and not connection.execute("PRAGMA query_only").fetchone()[0]:
            _initialize_file(
                connection, path
            )  # the process that made the file died before it was done
            return
        raise OutboxUnusable(
            path=str(path),
            found=(
                "there is nothing in it yet" if empty else "it is an SQLite file of something else"
            ),
            expected="an outbox, or no file",
            remedy="Correct the path",
        )
    if version != SCHEMA_VERSION:
        raise OutboxUnusable(
            path=str(path),
            found=f"it is of version {version}",
            expected=f"version {SCHEMA_VERSION}",
            remedy=(
                "Open it with the busmq_spark that wrote it, let that forward everything (busmq"
                " outbox drain), then remove the file"
            ),
        )


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
