"""The record of a reader of this process (reading/reader_record.py), made anew for each renewal of
its lease.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from busmq_spark import __version__
from busmq_spark.environment import read_variable
from busmq_spark.errors.foreign import error_text
from busmq_spark.reading.reader_record import Announcement, BatchMark, ReaderRecord, id_of

_OWN_START_MS = int(1000 * time.time())
MAX_ANCESTORS = 3
"""A planner of Spark is started by a JVM, and that by the program."""


class ReaderAnnouncer:
    """Makes the announcements of one reader. Its fields may be set from any thread."""

    def __init__(self, kind: str, token: str, *, default_name: str | None = None) -> None:
        """``default_name``: the name without BUSMQ_CLIENT_NAME; by default the name of the
        program.
        """
        self.kind, self.id = kind, id_of(token)
        name = read_variable("BUSMQ_CLIENT_NAME")
        self.name = name or (_program_name() if default_name is None else default_name)
        self.error = ""
        self.planned: BatchMark | None = None
        self.committed: BatchMark | None = None
        self.own: Mapping[str, int] = MappingProxyType({})
        self._host, self._app = socket.gethostname(), os.environ.get("SPARK_APPLICATION_ID", "")

    def note_planned(self, rows: int) -> None:
        """A batch of so many rows begins."""
        self.planned = BatchMark(_now_ms(), rows)

    def note_committed(self, rows: int) -> None:
        """A batch of so many rows is done."""
        self.committed, self.error = BatchMark(_now_ms(), rows), ""

    def note_error(self, error: BaseException) -> None:
        """The next record has this error."""
        self.error = error_text(error)

    def announcement(self, field: str, hold_ms: int = 0) -> Announcement:
        """Return the present record for a renewal."""
        record = ReaderRecord(
            kind=self.kind,
            name=self.name,
            id=self.id,
            app=self._app,
            host=self._host,
            pid=os.getpid(),
            engine="python",
            version=__version__,
            started=_OWN_START_MS,
            at=_now_ms(),
            planned=self.planned,
            committed=self.committed,
            error=self.error,
        )
        return Announcement(field, record.encode(), self.own, hold_ms)


def _now_ms() -> int:
    return int(1000 * time.time())


def _program_name() -> str:
    """The file of this program, or of the program that has started this process; empty where
    neither is known.
    """
    own = Path(sys.argv[0] if sys.argv else "")
    if own.name not in ("", "-c", "daemon.py"):
        return own.parent.name if own.name == "__main__.py" else own.name
    pid = os.getppid()
    for _ in range(MAX_ANCESTORS):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
            pid = int(stat.rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break
        if scripts := [word for word in words[1:] if word.endswith((".py", ".ipynb"))]:
            return Path(scripts[0]).name
    return ""
