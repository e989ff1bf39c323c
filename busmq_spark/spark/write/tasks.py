"""The half of a sink that tasks run: rows into staged lists, or straight into queues."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.options import WriteOptions
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark.compat import freeze_imports
from busmq_spark.spark.stores import full_queue_wait, new_sink_store, queue_creation, sink_store
from busmq_spark.spark.write.commit_message import BaseLocation, SinkCommitMessage
from busmq_spark.spark.write.sink_columns import SinkColumns, TopicPartitioner
from busmq_spark.store.protocol import SinkAppender, WriteStore
from busmq_spark.writing.sink import STAGE_TTL_S
from busmq_spark.writing.sink import attempt_name as attempt_of
from busmq_spark.writing.sink_runs import SinkRun

if TYPE_CHECKING:
    pass

log = logging.getLogger("busmq_spark")

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


RENEWAL_INTERVAL_S = STAGE_TTL_S / 4
"""Seconds between two renewals of a task. Most tasks end before that, and have opened no connection
for it.
"""
RENEWAL_RETRY_S = 60.0
"""Seconds until the next try after an error."""


class StagingRenewal:
    """A daemon thread with a store of its own, since the one of the task has chunks under way. Use
    it as a context manager.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.run: SinkRun | None = None
        """The run to renew; it is None until the task stages."""
        self._options = options
        self._ended = Event()

    def __enter__(self) -> StagingRenewal:
        Thread(target=self._renew_regularly, name="busmq-staged", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _renew_regularly(self) -> None:
        pause_s = RENEWAL_INTERVAL_S
        while not self._ended.wait(pause_s):
            if self.run is not None:
                pause_s = (
                    RENEWAL_INTERVAL_S
                    if self._renew(self.run)
                    else min(RENEWAL_RETRY_S, RENEWAL_INTERVAL_S)
                )

    def _renew(self, run: SinkRun) -> bool:
        store = new_sink_store(self._options)
        try:
            store.renew(run)
            return True
        except BusError as error:
            log.warning(
                "what sink %s has staged could not be renewed, and is tried again: %s",
                run.sink,
                error,
            )
            return False
        finally:
            store.close()
