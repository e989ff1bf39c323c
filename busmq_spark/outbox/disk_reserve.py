"""Room that is kept for forwarding: SQLite needs some to delete what was confirmed.

Of the disk a file is kept beside the store. While it is not there nothing new is stored. It is
given up when a deletion finds the disk full, and taken again before the next message. Of a file
size limit (``ulimit -f``) the store uses half, so that its log can hold every deletion.
"""

from __future__ import annotations

import os
import resource
import sqlite3
from pathlib import Path

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
