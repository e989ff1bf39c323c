"""The part of its sources that a batch covers, as the offset log of the checkpoint has it: it
identifies a batch that comes again.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from busmq_spark.writing.sink import make_span

log = logging.getLogger("busmq_spark")
BASE_SETTING = "spark.sql.streaming.checkpointLocation"
"""The setting for the checkpoints of queries without the option: each in a folder of its own
below.
"""
MAX_SHOWN_CHARACTERS = 2000
"""Characters of the end offsets that are recorded, to be shown in an error; the digest in front of
them covers everything.
"""


@dataclass(frozen=True, slots=True)
class BaseLocation:
    """The folder that the setting of a session names, and the name of the query, if it has one."""

    folder: str = ""
    query_name: str = ""

    @classmethod
    def of_task(cls, query: str, local_property: Callable[[str], str]) -> BaseLocation:
        """Return what the properties of a task of the query say: Spark copies settings there.

        The description of the job begins with the name, if there is one, and goes on with the id.
        """
        name, named, _ = local_property("spark.job.description").partition(f"<br/>id = {query}")
        return cls(local_property(BASE_SETTING), name if named else "")


def find_checkpoint(option: str, base: BaseLocation, query: str) -> str:
    """Return the checkpoint of a query; empty where it is not known.

    Spark takes it from the option, else makes a folder below the one of the setting: with the name
    of the query, or with a random one, which is found by the id in it.
    """
    if option or not base.folder:
        found = option
    else:
        key = query, base
        found = _found_checkpoints.get(key) or _search_below(base, query)
        if found:
            _found_checkpoints[key] = found
    if not found and query not in _unknown_checkpoints:
        _unknown_checkpoints.add(query)
        log.warning(
            "the checkpoint of query %s is not found from here, so the offsets of a batch are not"
            " known to its sink: a batch that comes again must have the same rows, or the query"
            " stops (BUSMQ_BATCH_CHANGED). Name the checkpoint with option checkpointLocation",
            query,
        )
    return found


_found_checkpoints: dict[tuple[str, BaseLocation], str] = {}
_unknown_checkpoints: set[str] = set()
"""Queries that were warned."""


def _search_below(base: BaseLocation, query: str) -> str:
    if base.query_name:
        return f"{base.folder}/{base.query_name}"
    folder = _local_folder(base.folder)
    with suppress(OSError):
        found = [each for each in folder.iterdir() if _query_id(each) == query] if folder else []
        if len(found) == 1:  # one of several is a copy, and they do not say which
            return str(found[0])
    return ""


def _query_id(checkpoint: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((checkpoint / "metadata").read_text("utf-8"))["id"])
    return ""


def read_batch_span(checkpoint: str, batch: int) -> str:
    """Return the span (writing/sink.py) of a batch of the query with this checkpoint.

    It is empty where the log cannot be read from here (HDFS, S3 …).
    """
    folder = _local_folder(checkpoint)
    if folder is None or (end := _read_planned_offsets(folder, batch)) is None:
        return ""
    both = "\n\n".join((_read_planned_offsets(folder, batch - 1) or "", end))
    place = os.path.realpath(folder).encode("utf-8", "surrogateescape")
    return make_span(_short_digest(both.encode()), end[:MAX_SHOWN_CHARACTERS], _short_digest(place))


def _short_digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:32]


def sync_batch_to_disk(checkpoint: str, batch: int) -> None:
    """Put on the disk what says that this query planned this batch: its id, and the entry of the
    offset log, with their checksums and names.

    Spark's own checkpoint managers sync nothing. A loss of power would take them back after the
    rows are appended, and a query that starts again as another one, or with another batch of this
    number, would append the rows twice. Nothing is done, and no error is raised, where the
    checkpoint is not a folder of this machine, or its disk syncs nothing.
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
"""Files with query ids that this process has synced. The id in a checkpoint never changes."""


def _file_identity(path: Path) -> tuple[str, int, int, int] | None:
    """A file as it is now: another one of its name, a copy that was put in its place, or one that
    was changed is not equal. Return None when there is no such file.
    """
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
    """Return where a checkpoint is on this machine, if it is: a path, or a URI such as file:/x or
    file://host/x.
    """
    scheme, colon, rest = checkpoint.partition(":/")
    if not checkpoint or not colon:
        return Path(checkpoint) if checkpoint else None
    place = "/" + (
        rest.removeprefix("/").partition("/")[2] if re.match("/[^/]", rest) else rest.lstrip("/")
    )
    return {"file": Path(place), "dbfs": Path(f"/dbfs{place}")}.get(scheme)


def _read_planned_offsets(folder: Path, batch: int) -> str | None:
    """The offsets in an entry of the log, without the version and the metadata, which has the time
    of planning.
    """
    with suppress(OSError, ValueError):
        return (folder / "offsets" / str(batch)).read_text("utf-8").split("\n", 2)[2]
    return None
