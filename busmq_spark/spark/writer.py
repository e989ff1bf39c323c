"""The sinks: tasks stage or push rows; the driver makes a staged batch visible at once, in order, exactly once (rules in core/sink.py)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from busmq_spark.core.sink import StagedList, by_queue
from busmq_spark.core.sink import attempt_name as attempt_of
from busmq_spark.core.staging import SinkRun
from busmq_spark.core.topic import partition_queues, topic_partition
from busmq_spark.errors import BatchChanged, BusError, ConfigError, LinkLost, QueueMissing, StagingLost, StaleBatch, StaleRun
from busmq_spark.options import WriteOptions
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark import compat
from busmq_spark.spark.gc_freeze import freeze_imports
from busmq_spark.spark.offset_log import read_batch_span, sync_batch_to_disk
from busmq_spark.spark.sink_schema import SinkColumns
from busmq_spark.spark.staging_renewal import StagingRenewal
from busmq_spark.spark.stores import sink_store
from busmq_spark.spark.topic_routing import TopicPartitioner
from busmq_spark.spark.tracebacks import without_traceback
from busmq_spark.store.protocol import FullQueueWait, QueueAppender, QueueCreateOptions, WriteStore

RUN_ID_PROPERTY = "spark.jobGroup.id"
"""Local property: of a stream's tasks the id of the run of the query."""
log = logging.getLogger("busmq_spark")


class TaskOutcome(WriterCommitMessage):
    """What a task did: the query it belongs to, the lists it staged, and under which run (None where it staged nothing)."""

    def __init__(self, query: str, staged: tuple[StagedList, ...], run: SinkRun | None = None) -> None:
        self.query = query
        self.staged = staged
        self.run = run


class TaskWriter:
    """Rows of one task into staged lists, or straight into queues."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, write_token: str) -> None:
        """``write_token``: what the driver has called this write, unlike any other."""
        self._options = options
        self._columns = columns
        self._write_token = write_token

    def write(self, batches: Iterator[Any]) -> TaskOutcome:
        """Runs in a task; Spark repeats it as a whole when it raises."""
        freeze_imports()
        if self._options.delivery == "exactly-once":
            with StagingRenewal(self._options) as renewal:
                return self._stage(batches, renewal)
        return self._push(batches)

    def _push(self, batches: Iterator[Any]) -> TaskOutcome:
        store = sink_store(self._options, task=True)
        appender = store.appender()
        full = full_queue_policy(self._options)
        attached: set[str] = set()
        try:
            for parts in self._columns.values_by_queue(batches, self._topic_rows(store, appender)):
                if new := [queue for queue in parts if queue not in attached]:
                    store.attach(new, queue_creation(self._options))
                    attached.update(new)
                appender.push_each(parts, full)
            appender.finish()
            return TaskOutcome("", ())
        finally:
            appender.abandon()

    def _stage(self, batches: Iterator[Any], renewal: StagingRenewal) -> TaskOutcome:
        context = TaskContext.get()
        query = _local_property(context, "sql.streaming.queryId")
        batch = _local_property(context, "streaming.sql.batchId") or str(self._options.batch or 0)
        attempt = attempt_of(query, batch, context.partitionId() if context else 0, new_token())
        if query:
            sink, run = self._options.sink or query, _local_property(context, RUN_ID_PROPERTY) or self._write_token
        else:
            sink, run = self._options.sink if self._options.batch is not None else f"write-{self._write_token}", self._write_token
        store = sink_store(self._options, task=True)
        appender = store.appender()
        attached: set[str] = set()
        try:
            for parts in self._columns.values_by_queue(batches, self._topic_rows(store, appender)):
                if new := [queue for queue in parts if queue not in attached]:
                    appender.wait_until_stored()
                    begun = store.begin(sink, run, new)
                    renewal.run = renewal.run or begun
                    store.attach(new, queue_creation(self._options))
                    attached.update(new)
                for queue, values in parts.items():
                    appender.stage(queue, store.keys(queue).stage(attempt), values, renewal.run)
            return TaskOutcome(query, tuple(appender.finish()), renewal.run)
        except LinkLost:
            raise
        except BaseException:
            # A query that is started again and again on the same bad row, or on a full Redis, must not fill Redis with what it staged.
            with suppress(BusError):
                appender.discard()
            raise
        finally:
            appender.abandon()

    def _topic_rows(self, store: WriteStore, appender: QueueAppender) -> TopicPartitioner | None:
        """Where rows for topics go. Tasks, and the batches of a query, begin with different partitions."""
        if self._columns.topic is None:
            return None
        context = TaskContext.get()
        batch = int(_local_property(context, "streaming.sql.batchId") or self._options.batch or 0)

        def count_partitions(topic: str) -> int:
            appender.wait_until_stored()
            return store.partitions(topic, self._options.partitions)

        return TopicPartitioner(self._columns.topic, count_partitions, batch + (context.partitionId() if context else 0))


class SinkCommitter:
    """The driver's half of exactly-once."""

    def __init__(self, options: WriteOptions, store: WriteStore) -> None:
        self._options = options
        self._store = store

    def commit(
        self, sink: str, batch: int, staged: Sequence[StagedList], query: str = "", span: str = "", run: SinkRun | None = None
    ) -> tuple[StagedList, ...]:
        """Append the batch; the result is what it consisted of. Safe to repeat: rows already appended are not appended again."""
        if not sink:
            raise ConfigError(reason="Spark gave the tasks no id of their query, so the sink has no name; set option sinkId, one for each query")
        self._warn_if_queue_changed(sink, run)
        held = self._record(sink, batch, staged, query, span, run.epoch if run else 0)
        kept = {s.key for s in held}
        self._store.discard([s for s in staged if s.key not in kept])  # before a full queue may end this
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
                "Sink %s wrote its last batch to %s and writes to queue %r now: what it wrote before stays where it is, and of a batch that was "
                "recorded then, what is missing still goes there. With a new checkpoint everything goes to the new queue",
                *(sink, ", ".join(map(repr, run.before[:5])), queue),
            )

    def _record(self, sink: str, batch: int, staged: Sequence[StagedList], query: str, span: str, epoch: int) -> tuple[StagedList, ...]:
        if not staged:
            # A batch without rows is not recorded: the record of the last one with rows stays. Rows that were recorded under its number are appended.
            return self._store.recorded(sink, batch)
        try:
            return self._store.record(sink, batch, staged, query, span, epoch)
        except (BatchChanged, StaleBatch, StaleRun, StagingLost) as error:
            if self._options.on_changed_batch == "keep" and error.details.get("by") == "rows":
                log.warning("%s. What was recorded first is kept", error)
                return self._store.recorded(sink, batch)
            with suppress(BusError):
                self._store.discard(staged)
            raise

    def abort(self, sink: str, batch: int, staged: Sequence[StagedList]) -> None:
        """Remove staged rows that were not recorded. A recorded batch stays: the next run of the query goes on with it."""
        kept = {s.key for s in self._store.recorded(sink, batch)} if sink else set()
        self._store.discard([s for s in staged if s.key not in kept])

    def _append(self, queue: str, sink: str, batch: int, staged: Sequence[StagedList]) -> None:
        full = full_queue_policy(self._options)
        while True:
            try:
                rest = self._store.commit(queue, sink, batch, staged)
            except QueueMissing:
                self._store.attach([queue], queue_creation(self._options))
                continue
            if rest is None:
                return
            full.wait_for_room(queue, rest.maxsize, rest.left)


@without_traceback
class _StreamSink:
    """What both streaming writers share: everything but the shape of the rows."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, checkpoint: str) -> None:
        self._options = options
        self._columns = columns
        self._checkpoint = checkpoint
        self._write_token = new_token()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return TaskWriter(self._options, self._columns, self._write_token).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        freeze_imports()
        query, staged, run = _merge_outcomes(messages)
        if self._options.delivery == "exactly-once":
            committer = SinkCommitter(self._options, sink_store(self._options))
            sync_batch_to_disk(self._checkpoint, batchId)
            committer.commit(self._options.sink or query, batchId, staged, query, read_batch_span(self._checkpoint, batchId), run)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query, staged, _ = _merge_outcomes(messages)
        if staged and None in messages:  # else a commit was tried, and its record may still arrive
            # Only tidying up: staged lists end by themselves, and the error that led here must not be hidden behind a second one.
            with suppress(BusError):
                SinkCommitter(self._options, sink_store(self._options)).abort(self._options.sink or query, batchId, staged)


@without_traceback
class RowStreamWriter(_StreamSink, DataSourceStreamWriter):
    """For Spark 4.0, which hands over rows."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return super().write(map(self._columns.to_record_batch, compat.row_slices(iterator)))


def stream_writer(options: WriteOptions, columns: SinkColumns, checkpoint: str) -> DataSourceStreamWriter:
    """The streaming writer for the Spark that runs here. ``checkpoint`` is empty where the query does not say where it is."""
    if options.batch is not None:
        raise ConfigError(reason="batchId is for batch writes; Spark numbers the batches of a stream. Leave it out")
    if compat.StreamArrowWriter is None:
        return RowStreamWriter(options, columns, checkpoint)
    return ArrowStreamWriter(options, columns, checkpoint)


if compat.StreamArrowWriter is not None:

    class ArrowStreamWriter(_StreamSink, compat.StreamArrowWriter):  # the base is not there before Spark 4.1
        """Takes Arrow batches as they come."""


@without_traceback
class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("busmq")``: one commit of its own."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, *, overwrite: bool) -> None:
        if overwrite and not options.truncate:
            raise ConfigError(reason="mode overwrite would delete what the queue holds; say truncate=true if that is meant, or use mode append")
        if overwrite and options.batch is not None:
            raise ConfigError(
                reason="a batch with a batchId is appended once, and mode overwrite would delete it when it comes again; use mode append"
            )
        # What tasks push at once would be there before the old messages are deleted, and deleted with them.
        self._options = replace(options, delivery="exactly-once") if overwrite else options
        self._columns = columns
        self._truncate = overwrite
        self._write_token = new_token()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return TaskWriter(self._options, self._columns, self._write_token).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        freeze_imports()
        store = sink_store(self._options)
        _, staged, run = _merge_outcomes(messages)
        if self._truncate:
            store.truncate(self._queues_to_empty(store, staged))
        if self._options.batch is not None:
            SinkCommitter(self._options, store).commit(self._options.sink, self._options.batch, staged, run=run)
        elif run is not None:
            SinkCommitter(self._options, store).commit(run.sink, 0, staged, run=run)
            store.forget(run.sink, staged)

    def _queues_to_empty(self, store: WriteStore, staged: Sequence[StagedList]) -> list[str]:
        """What mode overwrite empties: every queue that gets rows, or the one of the option; of a topic every partition."""
        named = dict.fromkeys([s.queue for s in staged] or ([self._columns.queue] if self._columns.queue else []))
        if self._columns.topic is None:
            return list(named)
        topics = {place[0]: None for queue in named if (place := topic_partition(queue))} or dict.fromkeys(filter(None, [self._columns.topic.topic]))
        return [queue for topic in topics for queue in partition_queues(topic, store.partitions(topic, self._options.partitions))]

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _, staged, _ = _merge_outcomes(messages)
        if None in messages:  # as in _StreamSink.abort
            with suppress(BusError):
                SinkCommitter(self._options, sink_store(self._options)).abort("", 0, staged)


def queue_creation(options: WriteOptions) -> QueueCreateOptions:
    """What a sink writes when a queue does not exist."""
    return QueueCreateOptions(options.create, options.ttl_s, options.maxsize)


def full_queue_policy(options: WriteOptions) -> FullQueueWait:
    """What a sink does while a queue is full."""
    return FullQueueWait(options.full_timeout_ms if options.on_full == "block" else 0)


def _local_property(context: TaskContext | None, name: str) -> str:
    return (context and context.getLocalProperty(name)) or ""


def _merge_outcomes(messages: Sequence[WriterCommitMessage | None]) -> tuple[str, list[StagedList], SinkRun | None]:
    """The query, all staged lists in partition order (Spark aligns the messages with the partitions), and their run."""
    outcomes = [m for m in messages if isinstance(m, TaskOutcome)]
    runs = [m.run for m in outcomes if m.run is not None]
    run = next((run for run in runs if run.before), runs[0] if runs else None)
    return next((m.query for m in outcomes if m.query), ""), [s for m in outcomes for s in m.staged], run
