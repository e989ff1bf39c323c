"""The half of a sink that the driver runs: it makes a staged batch visible at once, in order,
exactly once (rules in writing/sink.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql.datasource import WriterCommitMessage

from busmq_spark.errors import (
    BatchChanged,
    BusError,
    ConfigError,
    QueueMissing,
    SinkTargetsError,
    StagingLost,
    StaleBatch,
    StaleRun,
)
from busmq_spark.groups.topic import partition_queues, topic_partition
from busmq_spark.options import WriteOptions
from busmq_spark.spark.checkpoint_offset_log import (
    find_checkpoint,
    read_batch_span,
    sync_batch_to_disk,
)
from busmq_spark.spark.gc_freeze import freeze_imports
from busmq_spark.spark.sink_commit_message import base_location, merge_outcomes
from busmq_spark.spark.sink_queue_options import full_queue_wait, queue_creation
from busmq_spark.spark.sink_schema import SinkColumns
from busmq_spark.spark.stores import sink_store
from busmq_spark.store.protocol import WriteStore
from busmq_spark.writing.sink import StagedList, by_queue, targets, targets_changed
from busmq_spark.writing.sink_runs import SinkRun

log = logging.getLogger("busmq_spark")


class SinkCommitter:
    """The driver's half of exactly-once."""

    def __init__(self, options: WriteOptions, store: WriteStore) -> None:
        self._options = options
        self._store = store

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
                "Sink %s wrote its last batch to %s and writes to queue %r now: what it wrote"
                " before stays where it is, and of a batch that was recorded then, what is missing"
                " still goes there. With a new checkpoint everything goes to the new queue",
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
        except (BatchChanged, SinkTargetsError, StaleBatch, StaleRun, StagingLost) as error:
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
            held = self._store.record(sink, batch, staged, query, span, epoch)
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
    committer = SinkCommitter(options, sink_store(options))
    checkpoint = find_checkpoint(checkpoint, base_location(messages), query)
    sync_batch_to_disk(checkpoint, batch)
    committer.commit(
        options.sink or query, batch, staged, query, read_batch_span(checkpoint, batch), run
    )


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
