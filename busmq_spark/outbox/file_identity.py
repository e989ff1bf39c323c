"""The identity of a store: an outbox is its file, not its path.

SQLite names its log by the path (``outbox.db-wal``). Under another name the file lacks what the
log holds, and two logs damage it.
"""

from __future__ import annotations

import os
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
