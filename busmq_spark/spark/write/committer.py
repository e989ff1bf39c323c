"""The half of a sink that the driver runs: it makes a staged batch visible at once, in order,
exactly once. The rules are in writing/sink.py.

Spark calls ``commit`` when all tasks have staged their rows. The state of a batch is in Redis, so
each step may be repeated, by this driver, by the next one, or by both at once:

========== ======================================== ============================================
state      what is stored                           a crash here leaves
========== ======================================== ============================================
planned    the end offset, in Spark's offset log    nothing in Redis
staged     lists that no consumer reads, noted in   lists; the next run of the sink removes them,
           ``stages`` of their queues               else they expire
recorded   the record of the sink names the lists   the batch. It comes again under its number:
           of the batch, in order                   its new lists are discarded, and the recorded
                                                    ones are appended
appending  rows in queues, and in ``sinks`` of each  the same; a queue goes on after its progress,
           queue how many of them                   which each chunk moves with its rows
done       the progress of each queue is ``done``   the same; nothing is appended again
committed  the batch, in Spark's commit log         nothing to do
========== ======================================== ============================================

``commit_stream_batch`` goes from staged to done in this order:

1. Sync the id of the query and the offsets of the batch to the disk. Else a loss of power could
   take back the batch of a number that the record has.
2. Record the lists: the commit point. A batch without rows is not recorded.
3. Discard the lists that the record does not name.
4. Append to each queue. The commit waits for room in a full queue, or the query fails; its restart
   goes on here.
5. Note the batch in the checkpoint. Step 2 records nothing where Redis does not know the noted
   batch (committed_batch.py).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage

from busmq_spark import tracing
from busmq_spark.errors import (
    BatchChanged,
    BusError,
    ConfigError,
    QueueMissing,
    SinkRolledBack,
    SinkTargetsError,
    StagingLost,
    StaleBatch,
    StaleRun,
)
from busmq_spark.groups.topic import partition_queues, topic_partition
from busmq_spark.options import WriteOptions
from busmq_spark.spark.compat import freeze_imports
from busmq_spark.spark.stores import full_queue_wait, queue_creation, sink_store
from busmq_spark.spark.write.commit_message import BaseLocation, base_location, merge_outcomes
from busmq_spark.spark.write.committed_batch import CommittedBatchNote
from busmq_spark.spark.write.sink_columns import SinkColumns
from busmq_spark.store.protocol import WriteStore
from busmq_spark.writing.sink import StagedList, by_queue, make_span, targets, targets_changed
from busmq_spark.writing.sink_runs import SinkRun

log = logging.getLogger("busmq_spark")


_NOT_RECORDED = (
    BatchChanged,
    SinkRolledBack,
    SinkTargetsError,
    StaleBatch,
    StaleRun,
    StagingLost,
)
"""Errors after which none of the lists that were offered is on record."""


class SinkCommitter:
    """The driver's half of exactly-once."""

    def __init__(self, options: WriteOptions, store: WriteStore, least: int = -1) -> None:
        """``least``: a batch that the record of the sink must still have (committed_batch.py)."""
        self._options = options
        self._store = store
        self._least = least

    def commit(
        self,
        sink: str,
        batch: int,
        staged: Sequence[StagedList],
        query: str = "",
        span: str = "",
        run: SinkRun | None = None,
    ) -> tuple[StagedList, ...]:
        """Append the batch; the result is what it consisted of. Safe to repeat: rows already
        appended are not appended again.
        """
        if not sink:
            raise ConfigError(
                reason=(
                    "Spark gave the tasks no id of their query, so the sink has no name; set option"
                    " sinkId, one for each query"
                )
            )
        self._warn_if_queue_changed(sink, run)
        held = self._record(sink, batch, staged, query, span, run.epoch if run else 0)
        kept = {s.key for s in held}
        self._store.discard(
            [s for s in staged if s.key not in kept]
        )  # before a full queue may end this
        parts = by_queue(held)
        done = self._store.commit_many(sink, batch, held) if len(parts) > 1 else {}
        for queue, part in parts.items():
            if done.get(queue, part) is not None:
                self._append(queue, sink, batch, part)
        return held

    def _warn_if_queue_changed(self, sink: str, run: SinkRun | None) -> None:
        queue = self._options.queue
        if run is not None and run.before and queue is not None and queue not in run.before:
            log.warning(
                "Sink %s wrote its last batch to %s and writes to queue %r now. Rows that"
                " were written stay there. If a batch was recorded before the change, its missing"
                " rows go there, too. With a new checkpoint everything goes to the new queue",
                *(sink, ", ".join(map(repr, run.before[:5])), queue),
            )

    def _record(
        self, sink: str, batch: int, staged: Sequence[StagedList], query: str, span: str, epoch: int
    ) -> tuple[StagedList, ...]:
        if not staged:
            # A batch without rows is not recorded: the record of the last one with rows stays. Rows
            # that were recorded under its number are appended.
            return self._store.recorded(sink, batch)
        try:
            return self._record_for_targets(sink, batch, staged, query, span, epoch)
        except _NOT_RECORDED as error:
            if self._options.on_changed_batch == "keep" and error.details.get("by") == "rows":
                log.warning("%s. What was recorded first is kept", error)
                return self._store.recorded(sink, batch)
            with suppress(BusError):
                self._store.discard(staged)
            raise

    def _record_for_targets(
        self, sink: str, batch: int, staged: Sequence[StagedList], query: str, span: str, epoch: int
    ) -> tuple[StagedList, ...]:
        """Record the batch. Raises SinkTargetsError where the record is for other targets."""
        try:
            held = self._store.record(sink, batch, staged, query, span, epoch, least=self._least)
        except (BatchChanged, StaleBatch) as error:
            found = int(error.details["found"]) if isinstance(error, StaleBatch) else batch
            self._check_targets(sink, found, self._store.recorded(sink, found), staged, query)
            raise
        self._check_targets(sink, batch, held, staged, query)
        return held

    def _check_targets(
        self,
        sink: str,
        batch: int,
        held: Sequence[StagedList],
        staged: Sequence[StagedList],
        query: str,
    ) -> None:
        """Compare what is on record with a write whose options name its target.

        Rows of a query that name their queues may differ when a batch comes again:
        ``record`` compares these, where another checkpoint has recorded them.
        """
        options = self._options
        if query and options.queue is None and options.topic is None:
            return
        before, now = (targets(lists, topics=options.queue is None) for lists in (held, staged))
        if before and now and not {*before} & {*now}:
            raise targets_changed(sink, batch, before, now)

    def abort(self, sink: str, batch: int, staged: Sequence[StagedList]) -> None:
        """Remove staged rows that were not recorded. A recorded batch stays: the next run of the
        query goes on with it.
        """
        kept = {s.key for s in self._store.recorded(sink, batch)} if sink else set()
        self._store.discard([s for s in staged if s.key not in kept])

    def _append(self, queue: str, sink: str, batch: int, staged: Sequence[StagedList]) -> None:
        full = full_queue_wait(self._options)
        while True:
            try:
                rest = self._store.commit(queue, sink, batch, staged)
            except QueueMissing:
                self._store.attach([queue], queue_creation(self._options))
                continue
            if rest is None:
                return
            full.wait_for_room(queue, rest.maxsize, rest.left)


def commit_stream_batch(
    options: WriteOptions,
    checkpoint: str,
    batch: int,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    """Commit the lists that the tasks of a batch have staged."""
    freeze_imports()
    query, staged, run = merge_outcomes(messages)
    store, sink = sink_store(options), options.sink or query
    checkpoint = find_checkpoint(checkpoint, base_location(messages), query)
    sync_batch_to_disk(checkpoint, batch)
    note = CommittedBatchNote(_local_folder(checkpoint), sink)
    try:
        check = note.check(store, options, batch)
    except SinkRolledBack:
        with suppress(BusError):
            store.discard(staged)
        raise
    with tracing.span("busmq sink commit", sink=sink, batch=batch):
        held = SinkCommitter(options, store, check.least).commit(
            sink, batch, staged, query, read_batch_span(checkpoint, batch), run
        )
    note.write(batch, held, check)


def commit_write(
    options: WriteOptions,
    columns: SinkColumns,
    messages: Sequence[WriterCommitMessage | None],
    *,
    truncate: bool,
) -> None:
    """Commit the lists that the tasks of a batch write have staged. ``truncate``: into queues that
    are emptied before.
    """
    freeze_imports()
    store = sink_store(options)
    _, staged, run = merge_outcomes(messages)
    if truncate:
        store.truncate(_queues_to_empty(options, columns, store, staged))
    if options.batch is not None:
        SinkCommitter(options, store).commit(options.sink, options.batch, staged, run=run)
    elif run is not None:
        SinkCommitter(options, store).commit(run.sink, 0, staged, run=run)
        store.forget(run.sink, staged)


def discard_staged(
    options: WriteOptions, sink: str, batch: int, staged: Sequence[StagedList]
) -> None:
    """Only tidying up: staged lists expire by themselves, and a second error must not hide the
    first.
    """
    with suppress(BusError):
        SinkCommitter(options, sink_store(options)).abort(sink, batch, staged)


def _queues_to_empty(
    options: WriteOptions, columns: SinkColumns, store: WriteStore, staged: Sequence[StagedList]
) -> list[str]:
    """Return the queues that mode overwrite empties: each queue that gets rows, or the one of the
    option; of a topic each partition.
    """
    named = dict.fromkeys([s.queue for s in staged] or ([columns.queue] if columns.queue else []))
    if columns.topic is None:
        return list(named)
    topics = {
        place[0]: None for queue in named if (place := topic_partition(queue))
    } or dict.fromkeys(filter(None, [columns.topic.topic]))
    return [
        queue
        for topic in topics
        for queue in partition_queues(topic, store.partitions(topic, options.partitions))
    ]


MAX_SHOWN_CHARACTERS = 2000
"""Characters of the end offsets that are recorded, to be shown in an error; the digest in front of
them covers everything.
"""


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
