"""The files of an outbox: its identity, and the room that is kept for forwarding.

The identity of a store: an outbox is its file, not its path.

SQLite names its log by the path (``outbox.db-wal``). Under another name the file lacks what the
log holds, and two logs damage it.

Room that is kept for forwarding: SQLite needs some to delete what was confirmed.

Of the disk a file is kept beside the store. While it is not there nothing new is stored. It is
given up when a deletion finds the disk full, and taken again before the next message. Of a file
size limit (``ulimit -f``) the store uses half, so that its log can hold every deletion.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
from pathlib import Path
from typing import NamedTuple

from busmq_spark.errors import OutboxUnusable

LOG_SUFFIXES = ("-wal", "-shm")
"""Of the files that SQLite has beside an open store."""


class FileIdentity(NamedTuple):
    """The device and the inode of a file, the same under all its names."""

    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity | None:
        """Return the identity of the file at a path; return None where there is none."""
        try:
            found = path.stat()
        except OSError:
            return None
        return cls(found.st_dev, found.st_ino)


class OpenFiles:
    """The files of an open store. :meth:`check` finds one that was moved, removed or replaced."""

    def __init__(self, store: Path) -> None:
        self._store = store
        names = (store, *(log_path(store, suffix) for suffix in LOG_SUFFIXES))
        self._files = [(str(name), found) for name in names if (found := FileIdentity.of(name))]

    def check(self) -> None:
        """Raise OutboxUnusable when a file left its path: a crash may lose writes to it."""
        for name, identity in self._files:
            try:
                found = os.stat(name)  # noqa: PTH116  # for each call of the outbox
            except OSError:
                found = None
            if found is None or (found.st_dev, found.st_ino) != identity:
                raise OutboxUnusable(
                    path=str(self._store),
                    found=f"{name} was moved or removed while the outbox is open",
                    expected="the file that was opened, at its path",
                    remedy=(
                        "Move it back, or close this outbox and open it at the new path. Its"
                        " messages are still forwarded"
                    ),
                )

    @property
    def are_in_place(self) -> bool:
        """Whether :meth:`check` raises nothing."""
        try:
            self.check()
        except OutboxUnusable:
            return False
        return True


def real_path(path: Path) -> Path:
    """Return the absolute path without symbolic links and ``..``."""
    return Path(os.path.realpath(path))


def log_path(store: Path, suffix: str = "-wal") -> Path:
    """Return the path of a file that SQLite has beside a store."""
    return store.with_name(store.name + suffix)


def check_is_file(store: Path) -> None:
    """Raise OutboxUnusable for a device, a pipe or a socket."""
    try:
        mode = store.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        found, expected = "it is no regular file", "an outbox, or no file"
        raise OutboxUnusable(
            path=str(store), found=found, expected=expected, remedy="Correct the path"
        )


def check_has_one_name(store: Path) -> None:
    """Raise OutboxUnusable for a file with several hard links."""
    try:
        found = store.stat()
    except OSError:
        return
    names = found.st_nlink
    if names > 1 and stat.S_ISREG(found.st_mode):
        raise OutboxUnusable(
            path=str(store),
            found=f"the file has {names} names (hard links), and its log goes by one of them",
            expected="a file with one name",
            remedy=(
                "Remove the other names (find FOLDER -samefile FILE finds them). A symbolic link,"
                " or a copy of a closed outbox, can be opened"
            ),
        )


def check_home(connection: sqlite3.Connection, store: Path) -> bool:
    """Note where the store is. Returns whether that is new.

    Raises OutboxUnusable where the store was moved without its log. A killed process leaves one.
    """
    known = connection.execute("SELECT value FROM note WHERE name = 'home'").fetchone()
    if known is not None and known[0] == str(store):
        return False
    before = Path(known[0]) if known else store
    log = log_path(before)
    if not FileIdentity.of(before) and _size(log):
        raise OutboxUnusable(
            path=str(store),
            found=f"it was moved from {before} without its log {log}, which has messages of it",
            expected="both in one folder",
            remedy=f"Move the log, too: mv {log} {log_path(store)}",
        )
    connection.execute("INSERT OR REPLACE INTO note VALUES ('home', ?)", (str(store),))
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


RESERVE_BYTES = 8 * 1024 * 1024
"""Twice what SQLite lets its log grow to: that, and the pages of it that are not in the file
yet.
"""
_MAX_PAGES, _PAGE_BYTES = 2**30 - 1, 4096
_CHECKPOINT_PAGES = 1000
"""Pages of the log at which SQLite writes them to the file, as its default is."""


class DiskReserveFile:
    """A file beside the store. Only the owner of the store's lock may use it."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(f"{store.name}.reserve")
        self.held = False

    def try_to_hold(self) -> bool:
        """Whether the room is there."""
        if not self.held:
            try:
                self._allocate()
            except OSError:
                self.release()
            else:
                self.held = True
        return self.held

    def release(self) -> None:
        """Let the room be free."""
        self.held = False
        try:
            self._path.unlink(missing_ok=True)
        except OSError:  # of a disk that is read-only now
            return

    def explain(self) -> str:
        """Return why the disk takes no more, for the message of an error."""
        limit = file_size_limit()
        if limit is not None:
            return f"a file of this process may not exceed {limit:,} bytes (ulimit -f)"
        folder, problem = self._path.parent, ""
        try:
            self._allocate()
        except OSError as error:
            problem = error.strerror or str(error)
        if not self.held:
            self.release()
        try:
            room = os.statvfs(folder)
        except OSError as error:
            return f"{folder}: {error.strerror or error}"
        left = f"{folder} has {room.f_bavail * room.f_frsize >> 20} MB left"
        return f"{problem}, {left}" if problem else left

    def _allocate(self) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, min(RESERVE_BYTES, file_size_limit() or RESERVE_BYTES))
        finally:
            os.close(file)


class FileSizeLimit:
    """The file size limit of this process, as far as SQLite knows it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._applied: int | None = None

    def apply(self) -> None:
        """Let the store use half of the limit, and its log no more than the deletions need."""
        if (limit := file_size_limit()) == self._applied:
            return
        pages = _MAX_PAGES if limit is None else max(1, limit // 2 // _PAGE_BYTES)
        self._connection.execute(f"PRAGMA max_page_count={pages}").fetchall()
        checkpoint = min(_CHECKPOINT_PAGES, max(1, pages // 4))
        self._connection.execute(f"PRAGMA wal_autocheckpoint={checkpoint}").fetchall()
        self._applied = limit


def file_size_limit() -> int | None:
    """Return the most bytes that a file of this process may have; return None where there is no
    limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit
