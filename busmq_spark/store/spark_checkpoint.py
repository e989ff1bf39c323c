"""The checkpoint of a Spark query, read without Spark: its logs of planned and of committed
batches. Both engines write the same offsets.

    metadata       {"id": the id of the query}
    offsets/<n>    v1, a line about the batch, then a line for each source; written before batch n
    commits/<n>    written after batch n
    state/         of a query that keeps state

A checkpoint is never changed here: ``write_rewound`` writes another folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from busmq_spark.errors import CheckpointUnusable, ConfigError
from busmq_spark.errors.foreign import error_text
from busmq_spark.queue.message import Position
from busmq_spark.reading import offsets

T = TypeVar("T")
MAX_LOG_ENTRY_BYTES = 64 * 1024 * 1024
"""Bytes of the largest log entry that is read: 100,000 queues have 10 MB."""
TRIES_OF_LISTING = 5
"""Reads of the logs of a running query, which deletes old entries meanwhile."""
_NO_OFFSET = "-"
_OLD_FORM = "an entry of Spark's offset log: v1, a line about the batch, a line for each source"
_MAYBE_OTHER = "the checkpoint of a query that reads busmq queues"


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """An entry of the offset log: ``lines`` are its text, ``sources`` the index of each line that
    holds busmq offsets, with the positions in it.
    """

    number: int
    lines: tuple[str, ...]
    sources: Mapping[int, Mapping[str, Position]]

    @property
    def other_sources(self) -> list[str]:
        """Return the lines with offsets of sources that are not ours."""
        lines = enumerate(self.lines[2:], 2)
        return [
            line
            for index, line in lines
            if line and line != _NO_OFFSET and index not in self.sources
        ]

    @property
    def positions(self) -> dict[str, Position]:
        """Return the position in each queue of all sources, the lowest where two read one queue."""
        found: dict[str, Position] = {}
        for positions in self.sources.values():
            for queue, position in positions.items():
                before = found.get(queue)
                if before is None or position.last < before.last:
                    found[queue] = position
        return found


@dataclass(frozen=True, slots=True)
class SparkCheckpoint:
    """The last entries of the logs of a query. ``planned`` is the newest batch, which may be
    committed; ``done`` is None before the first commit.
    """

    folder: CheckpointFolder
    query: str
    planned: PlannedBatch
    before: PlannedBatch | None
    """The entry before ``planned``."""
    done: PlannedBatch | None
    """The newest entry whose batch is committed."""
    has_state: bool

    @property
    def is_committed(self) -> bool:
        """Whether the newest planned batch is in the commit log."""
        return self.committed == self.planned.number

    @property
    def committed(self) -> int | None:
        """Return the number of the newest committed batch."""
        return None if self.done is None else self.done.number

    def planned_ranges(self) -> dict[str, tuple[int, int]]:
        """Return first and last id of each queue in the newest batch, of queues with messages."""
        start = self.before.positions if self.before else {}
        found = {}
        for queue, end in self.planned.positions.items():
            first = offsets.last_id_before_batch(start.get(queue), end) + 1
            if first <= end.last:
                found[queue] = first, end.last
        return found


class CheckpointFolder:
    """A folder on this machine, or on a file system of pyarrow: ``s3://``, ``gs://``, ``hdfs://``,
    ``abfss://`` or ``file://``. ``s3a://`` and ``s3n://`` are Hadoop's names of ``s3://``.
    """

    def __init__(self, place: str) -> None:
        """Nothing is read yet. Raises ConfigError for a place that is none."""
        from pyarrow import ArrowInvalid
        from pyarrow import fs as pyarrow_fs  # no other command needs it

        if not place or "\0" in place:
            raise ConfigError(reason=f"the checkpoint is {place!r}; expected a folder")
        self.place = place.rstrip("/") or place
        self.shown = _without_secrets(self.place)
        """The place as texts show it: without credentials."""
        url = re.sub(r"^s3[an]://", "s3://", self.place)
        try:
            self._files: Any
            self._root: str
            self._files, self._root = (
                pyarrow_fs.FileSystem.from_uri(url)
                if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", url)
                else (pyarrow_fs.LocalFileSystem(), url)
            )
        except ArrowInvalid as error:
            raise ConfigError(
                reason=(
                    f"the checkpoint {self.shown!r} is on no file system that pyarrow knows"
                    f" ({self._describe(error, url)}); expected a path of this machine, file://, s3://,"
                    " gs://, hdfs:// or abfss://"
                )
            ) from None
        except OSError as error:
            raise self.unusable(self._describe(error, url), "a reachable file system") from None

    def _describe(self, error: Exception, url: str) -> str:
        return error_text(error).replace(url, self.shown)

    def check_new(self) -> None:
        """Raises CheckpointUnusable where the folder exists."""
        if self.names() is not None:
            raise self.unusable("a folder of this name", "none", "Name another one with --into")

    def sibling(self, ending: str) -> CheckpointFolder:
        """Return the folder beside this one with ``ending`` after its name."""
        if "://" not in self.place:
            return CheckpointFolder(self.place + ending)
        path, mark, options = self.place.partition("?")
        return CheckpointFolder(f"{path.rstrip('/')}{ending}{mark}{options}")

    def unusable(self, found: str, expected: str, remedy: str = "") -> CheckpointUnusable:
        """Return the error about this folder."""
        return CheckpointUnusable(
            folder=self.shown, found=found, expected=expected, remedy=remedy and f". {remedy}"
        )

    def names(self, below: str = "") -> dict[str, bool] | None:
        """Return the names in the folder, and whether each is a folder; None when it is missing."""
        from pyarrow import fs as pyarrow_fs

        path = f"{self._root}/{below}" if below else self._root
        info = self._try(lambda: self._files.get_file_info(path))
        if info.type == pyarrow_fs.FileType.File:
            raise self.unusable(f"{below or 'it'} is a file", "a folder")
        listed = self._try(
            lambda: self._files.get_file_info(pyarrow_fs.FileSelector(path, allow_not_found=True))
        )
        if not listed and info.type == pyarrow_fs.FileType.NotFound:
            return None
        return {each.base_name: each.type == pyarrow_fs.FileType.Directory for each in listed}

    def read(self, name: str) -> str | None:
        """Return the text of a file; None when it is missing."""

        def content() -> bytes:
            with self._files.open_input_stream(f"{self._root}/{name}") as file:
                return bytes(file.read(MAX_LOG_ENTRY_BYTES + 1))

        try:
            found = content()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.unusable(f"{name} cannot be read: {error_text(error)}", "a file") from None
        if len(found) > MAX_LOG_ENTRY_BYTES:
            raise self.unusable(f"{name} has more than {MAX_LOG_ENTRY_BYTES} bytes", "a log entry")
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError:
            raise self.unusable(f"{name} is not UTF-8 text", "a log entry") from None

    def write(self, name: str, text: str) -> None:
        """Write a file and the folders above it."""

        def store() -> None:
            path = f"{self._root}/{name}"
            self._files.create_dir(path.rpartition("/")[0], recursive=True)
            with self._files.open_output_stream(path) as file:
                file.write(text.encode())

        self._try(store)

    def copy_tree(self, below: str, to: CheckpointFolder) -> None:
        """Copy the files below a folder to the same place in another checkpoint, without Hadoop's
        checksums.
        """
        for name, is_folder in (self.names(below) or {}).items():
            path = f"{below}/{name}"
            if is_folder:
                self.copy_tree(path, to)
            elif re.fullmatch(r"\..*\.crc", name):
                continue
            elif (text := self.read(path)) is not None:
                to.write(path, text)

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except OSError as error:
            raise self.unusable(error_text(error), "a readable folder") from None


def _without_secrets(place: str) -> str:
    """Return a place without the credentials of a URL: ``key:secret@``, and options such as
    ``client_secret``. A secret of S3 may have a slash that should have been escaped.
    """
    place = re.sub(r"^(s3[an]?:/+)[^@?]*:[^@?]*@", r"\1***@", place)
    place = re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*:/+)[^/@?]*:[^/@?]*@", r"\1***@", place)
    return re.sub(r"(?i)([?&][a-z_]*(?:secret|password|key|token)[a-z_]*=)[^&]*", r"\1***", place)


def read_checkpoint(folder: CheckpointFolder) -> SparkCheckpoint:
    """Return the newest entries of the logs; the query may run. Raises CheckpointUnusable."""
    for _ in range(TRIES_OF_LISTING):
        if (found := _try_to_read(folder)) is not None:
            return found
    raise folder.unusable(
        "entries that vanish while they are read", "an offset log", "Try again in a moment"
    )


def read_batch(folder: CheckpointFolder, number: int) -> PlannedBatch | None:
    """Return an entry of the offset log; None when it is missing."""
    text = folder.read(f"offsets/{number}")
    return None if text is None else _decode_entry(folder, number, text)


def batch_numbers(folder: CheckpointFolder, log: str) -> list[int]:
    """Return the numbers in a log of the checkpoint, rising."""
    names = folder.names(log) or {}
    return sorted(
        int(name) for name, is_folder in names.items() if name.isdecimal() and not is_folder
    )


def write_rewound(
    old: SparkCheckpoint, to: CheckpointFolder, positions: Mapping[str, Position]
) -> None:
    """Write a checkpoint of the same query in which the batch after the newest planned one begins
    at ``positions``. The folder must be new (``check_new``).

    The number of the batch is above those that its sink has recorded, so the sink takes it. The
    commit is written last: a query cannot begin with a half of the folder.
    """
    number, lines = old.planned.number, list(old.planned.lines)
    for index, found in old.planned.sources.items():
        links = offsets.links_of(json.loads(lines[index]))
        moved = {queue: positions.get(queue, at) for queue, at in found.items()}
        lines[index] = json.dumps(offsets.encode(moved, links), separators=(",", ":"))
    old.folder.copy_tree("sources", to)
    for entry in range(max(0, number - 1), number + 1):  # Spark reads the entry before, too
        to.write(f"offsets/{entry}", "\n".join(lines))
    to.write("metadata", json.dumps({"id": old.query}))
    commit = old.folder.read(f"commits/{old.committed}") if old.committed is not None else None
    to.write(f"commits/{number}", commit or "v1\n{}")


def _try_to_read(folder: CheckpointFolder) -> SparkCheckpoint | None:
    """Return None where an entry vanished meanwhile."""
    names = folder.names()
    if names is None:
        raise folder.unusable("no such folder", "the folder of option checkpointLocation")
    query = _query_id(folder, names)
    planned = batch_numbers(folder, "offsets")
    if not planned:
        raise folder.unusable(
            "no batch in its offset log", "a query that has planned a batch", "Start the query"
        )
    committed = {*batch_numbers(folder, "commits")} & {*planned}
    wanted = {*planned[-2:], max(committed, default=planned[-1])}
    found = {number: read_batch(folder, number) for number in wanted}
    newest, before = found[planned[-1]], found.get(planned[-2]) if len(planned) > 1 else None
    if newest is None or None in found.values():
        return None
    done = found[max(committed)] if committed else None
    return SparkCheckpoint(folder, query, newest, before, done, "state" in names)


def _query_id(folder: CheckpointFolder, names: Mapping[str, bool]) -> str:
    """Return the id of the query. Raises CheckpointUnusable where the folder has no metadata."""
    text = folder.read("metadata") if "metadata" in names else None
    if text is None:
        found = "no metadata" if names else "an empty folder"
        below = next((name for name in names if names[name] and not name.startswith(".")), "")
        raise folder.unusable(
            f"{found}{f' (it has {below!r})' if below else ''}",
            "the checkpoint of a Spark query: metadata, offsets, commits",
            "Name the folder of option checkpointLocation",
        )
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError):
        raise folder.unusable(
            f"metadata with {text[:60]!r}", 'metadata with {"id": …}', "It is half written"
        ) from None


def _decode_entry(folder: CheckpointFolder, number: int, text: str) -> PlannedBatch:
    name, lines = f"offsets/{number}", text.split("\n")
    if not re.fullmatch(r"v\d+", lines[0]):
        raise folder.unusable(f"{name} begins with {lines[0][:40]!r}", _OLD_FORM, _half_written())
    if lines[0] != "v1":
        raise folder.unusable(
            f"{name} in version {lines[0]}", "version v1", "Use a busmq_spark that knows it"
        )
    if len(lines) < 3:
        raise folder.unusable(f"{name} with {len(lines)} lines", _OLD_FORM, _half_written())
    sources = {}
    for index, line in enumerate(lines[2:], 2):
        if line == _NO_OFFSET or not line:
            continue
        try:
            offset = json.loads(line)
        except ValueError:
            raise folder.unusable(
                f"{name} with the line {line[:60]!r}", _OLD_FORM, _half_written()
            ) from None
        if isinstance(offset, dict) and "v" in offset and {*offset} <= _OFFSET_FIELDS:
            try:
                sources[index] = offsets.decode(offset)
            except ConfigError as error:
                raise folder.unusable(
                    f"{name}: {error.details['reason']}", "offsets of this version"
                ) from None
    if not sources:
        raise folder.unusable(
            f"offsets of another source, {lines[2][:60]!r}",
            _MAYBE_OTHER,
            "Of Kafka and files this command knows nothing",
        )
    return PlannedBatch(number, tuple(lines), sources)


_OFFSET_FIELDS = {"v", "queues", "sources", "idle"}


def _half_written() -> str:
    return "It is half written: restore the file, or delete it if the query has begun it just now"
