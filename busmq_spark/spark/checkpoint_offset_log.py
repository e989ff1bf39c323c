"""Which part of its sources a batch covers, as the offset log of the checkpoint says: what makes a batch that comes again the same one."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

MAX_SHOWN_CHARACTERS = 2000
"""Characters of the end offsets that are recorded, to be shown in an error; the digest in front of them covers everything."""


def read_batch_span(checkpoint: str, batch: int) -> str:
    """``<digest>:<end offsets>`` of a batch of the query with this checkpoint; empty where the log cannot be read from here (HDFS, S3 …)."""
    folder = _local_folder(checkpoint)
    if folder is None or (end := _read_planned_offsets(folder, batch)) is None:
        return ""
    both = "\n\n".join((_read_planned_offsets(folder, batch - 1) or "", end))
    return f"{sha256(both.encode()).hexdigest()[:32]}:{end[:MAX_SHOWN_CHARACTERS]}"


def sync_batch_to_disk(checkpoint: str, batch: int) -> None:
    """Put on the disk what says that this query planned this batch: its id, and the entry of the offset log, with their checksums and names.

    Spark's own checkpoint managers sync nothing. A loss of power would take them back after the rows are appended, and a query that starts
    again as another one, or with another batch of this number, would append the rows twice. Nothing is done, and no error is raised, where
    the checkpoint is not a folder of this machine, or its disk syncs nothing.
    """
    folder = _local_folder(checkpoint)
    if folder is None:
        return
    log = folder / "offsets"
    for path in (log / str(batch), log / f".{batch}.crc", log):
        _sync_path(path)
    query = _file_identity(folder / "metadata")
    if query is not None and query in _synced_files:
        return
    _sync_path(folder / ".metadata.crc")
    kept = [_sync_path(path) for path in (folder / "metadata", folder, folder.parent)]
    if query is not None and all(kept):
        _synced_files.add(query)


_synced_files: set[tuple[str, int, int, int]] = set()
"""The files with ids of queries that this process has put on the disk, with their names: what a checkpoint has of the query never changes."""


def _file_identity(path: Path) -> tuple[str, int, int, int] | None:
    """A file as it is now: another one of its name, a copy that was put in its place, or one that was changed is not equal. None: there is none."""
    with suppress(OSError):
        found = path.stat()
        return str(path), found.st_dev, found.st_ino, found.st_ctime_ns
    return None


def _sync_path(path: Path) -> bool:
    """Put a file or the names of a folder on the disk; false where that cannot be done."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        return True
    return False


def _local_folder(checkpoint: str) -> Path | None:
    """Where a checkpoint is on this machine, if it is."""
    scheme, colon, rest = checkpoint.partition(":/")
    if not checkpoint or not colon:
        return Path(checkpoint) if checkpoint else None
    place = "/" + rest.lstrip("/")
    return {"file": Path(place), "dbfs": Path(f"/dbfs{place}")}.get(scheme)


def _read_planned_offsets(folder: Path, batch: int) -> str | None:
    """The offsets in an entry of the log, without the version and the metadata, which has the time of planning."""
    with suppress(OSError, ValueError):
        return (folder / "offsets" / str(batch)).read_text("utf-8").split("\n", 2)[2]
    return None
