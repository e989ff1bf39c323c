"""The file of an outbox: SQLite in WAL mode, its tables, and what its errors are called here.

Rule 1. A commit returns when the disk has it (``synchronous=FULL``), unless what it holds can be
        found out again.
Rule 2. ``entry`` has each message once, in the order of the calls; its id is never used again, and
        is the number that receivers remember. ``refs`` says for how many queues it is still to be
        confirmed; null: not routed yet.
Rule 3. ``outgoing`` has a row for each queue that a message is to go to. A message that a queue has
        confirmed is deleted; that is its progress.
Rule 4. Each opening of the store has a sender of its own: a copy of the file, or one from a backup,
        numbers other messages with the same numbers.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from busmq_spark.errors import BusError, OutboxFull, OutboxUnusable
from busmq_spark.outbox.file_identity import log_path

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
