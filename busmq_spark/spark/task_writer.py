"""The half of a sink that tasks run: rows into staged lists, or straight into queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pyspark import TaskContext

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.options import WriteOptions
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark.checkpoint_offset_log import BaseLocation
from busmq_spark.spark.gc_freeze import freeze_imports
from busmq_spark.spark.sink_commit_message import SinkCommitMessage
from busmq_spark.spark.sink_queue_options import full_queue_wait, queue_creation
from busmq_spark.spark.sink_schema import SinkColumns
from busmq_spark.spark.staging_renewal import StagingRenewal
from busmq_spark.spark.stores import sink_store
from busmq_spark.spark.topic_partitioner import TopicPartitioner
from busmq_spark.store.protocol import SinkAppender, WriteStore
from busmq_spark.writing.sink import attempt_name as attempt_of

RUN_ID_PROPERTY = "spark.jobGroup.id"
"""Local property: of a stream's tasks the id of the run of the query."""


class TaskWriter:
    """Rows of one task into staged lists, or straight into queues."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, write_token: str) -> None:
        """``write_token`` is the driver's unique name of this write."""
        self._options = options
        self._columns = columns
        self._write_token = write_token

    def write(self, batches: Iterator[Any]) -> SinkCommitMessage:
        """Runs in a task; Spark repeats it as a whole when it raises."""
        freeze_imports()
        if self._options.delivery == "exactly-once":
            with StagingRenewal(self._options) as renewal:
                return self._stage(batches, renewal)
        return self._push(batches)

    def _push(self, batches: Iterator[Any]) -> SinkCommitMessage:
        store = sink_store(self._options, task=True)
        appender = store.appender()
        full = full_queue_wait(self._options)
        attached: set[str] = set()
        try:
            for parts in self._columns.values_by_queue(batches, self._topic_rows(store, appender)):
                if new := [queue for queue in parts if queue not in attached]:
                    store.attach(new, queue_creation(self._options))
                    attached.update(new)
                appender.push_each(parts, full)
            appender.finish()
            return SinkCommitMessage("", ())
        finally:
            appender.abandon()

    def _stage(self, batches: Iterator[Any], renewal: StagingRenewal) -> SinkCommitMessage:
        context = TaskContext.get()
        query = _local_property(context, "sql.streaming.queryId")
        batch = _local_property(context, "streaming.sql.batchId") or str(self._options.batch or 0)
        attempt = attempt_of(query, batch, context.partitionId() if context else 0, new_token())
        if query:
            sink, run = (
                self._options.sink or query,
                _local_property(context, RUN_ID_PROPERTY) or self._write_token,
            )
        else:
            sink, run = (
                (
                    self._options.sink
                    if self._options.batch is not None
                    else f"write-{self._write_token}"
                ),
                self._write_token,
            )
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
            base = (
                BaseLocation.of_task(query, lambda name: _local_property(context, name))
                if query
                else None
            )
            return SinkCommitMessage(query, tuple(appender.finish()), renewal.run, base)
        except LinkLost:
            raise
        except BaseException:
            # A query that is started again and again on the same bad row, or on a full Redis, must
            # not fill Redis with what it staged.
            with suppress(BusError):
                appender.discard()
            raise
        finally:
            appender.abandon()

    def _topic_rows(self, store: WriteStore, appender: SinkAppender) -> TopicPartitioner | None:
        """Return the partitioner of rows for topics. Tasks, and the batches of a query, begin with
        different partitions.
        """
        if self._columns.topic is None:
            return None
        context = TaskContext.get()
        batch = int(_local_property(context, "streaming.sql.batchId") or self._options.batch or 0)

        def count_partitions(topic: str) -> int:
            appender.wait_until_stored()
            return store.partitions(topic, self._options.partitions)

        return TopicPartitioner(
            self._columns.topic, count_partitions, batch + (context.partitionId() if context else 0)
        )


def _local_property(context: TaskContext | None, name: str) -> str:
    return (context and context.getLocalProperty(name)) or ""
