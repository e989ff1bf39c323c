"""Room on the disk that is kept for forwarding: SQLite needs some to delete what was confirmed, and a disk that messages have filled has none.

While the room is not there nothing new is stored; it is given up when a deletion finds the disk full, and taken again before the next message.
"""

from __future__ import annotations

import os
from pathlib import Path

RESERVE_BYTES = 8 * 1024 * 1024
"""Twice what SQLite lets its log grow to: that, and the pages of it that are not in the file yet."""


class DiskReserveFile:
    """A file beside the store. Only who has the store's lock may use it."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(f"{store.name}.reserve")
        self.held = False

    def try_to_hold(self) -> bool:
        """Whether the room is there."""
        if not self.held:
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(file, 0, RESERVE_BYTES)
                finally:
                    os.close(file)
            except OSError:
                self.release()
            else:
                self.held = True
        return self.held

    def release(self) -> None:
        """Let the room be free."""
        self.held = False
        self._path.unlink(missing_ok=True)
