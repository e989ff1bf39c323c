"""The sink, as Spark calls it: one writer for streams, one for batch writes.

Tasks stage or push messages (tasks.py), or write outcomes of jobs (job_outcomes.py). The driver
commits the staged rows (committer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from busmq_spark.errors import ConfigError
from busmq_spark.extras import DeferredImport
from busmq_spark.options import WriteOptions
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark import compat
from busmq_spark.spark.error_display import without_traceback
from busmq_spark.spark.write.commit_message import SinkCommitMessage, merge_outcomes

if TYPE_CHECKING:
    from busmq_spark.spark.write.job_outcomes import JobOutcomeColumns, JobOutcomeTaskWriter
    from busmq_spark.spark.write.sink_columns import SinkColumns
    from busmq_spark.spark.write.tasks import TaskWriter


_task_writer: DeferredImport[type[TaskWriter]] = DeferredImport("spark.write.tasks", "TaskWriter")
_outcome_writer: DeferredImport[type[JobOutcomeTaskWriter]] = DeferredImport(
    "spark.write.job_outcomes", "JobOutcomeTaskWriter"
)
_commit_stream_batch: DeferredImport[Callable[..., None]] = DeferredImport(
    "spark.write.committer", "commit_stream_batch"
)
_commit_write: DeferredImport[Callable[..., None]] = DeferredImport(
    "spark.write.committer", "commit_write"
)
_discard_staged: DeferredImport[Callable[..., None]] = DeferredImport(
    "spark.write.committer", "discard_staged"
)


class _Writer:
    """The part that both writers share: tasks write rows, and tell the driver what they staged."""

    def __init__(self, options: WriteOptions, columns: SinkColumns | JobOutcomeColumns) -> None:
        self._options = options
        self._columns: Any = columns  # of outcomes exactly with option settle
        self._write_token = new_token()

    def _write_task(self, batches: Iterator[Any]) -> SinkCommitMessage:
        if self._options.settle:
            return _outcome_writer.get()(self._options, self._columns).write(batches)
        return _task_writer.get()(self._options, self._columns, self._write_token).write(batches)

    @property
    def _stages(self) -> bool:
        """Whether tasks stage rows, so that the driver has something to commit."""
        return self._options.delivery == "exactly-once" and not self._options.settle


@without_traceback
class StreamWriter(_Writer, compat.StreamWriterBase):
    """``df.writeStream.format("busmq")``."""

    def __init__(
        self,
        options: WriteOptions,
        columns: SinkColumns | JobOutcomeColumns,
        checkpoint: str = "",
    ) -> None:
        """``checkpoint`` is empty where the query does not say where it is."""
        if options.batch is not None:
            reason = (
                "batchId is for batch writes; Spark numbers the batches of a stream. Leave it out"
            )
            raise ConfigError(reason=reason)
        super().__init__(options, columns)
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._write_task(compat.record_batches(iterator, self._columns.to_record_batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._stages:
            _commit_stream_batch.get()(self._options, self._checkpoint, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query, staged, _ = merge_outcomes(messages)
        if staged and None in messages:  # else a commit was tried, and its record may still arrive
            _discard_staged.get()(self._options, self._options.sink or query, batchId, staged)


@without_traceback
class BatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write.format("busmq")``: one commit of its own."""

    def __init__(
        self,
        options: WriteOptions,
        columns: SinkColumns | JobOutcomeColumns,
        *,
        overwrite: bool,
    ) -> None:
        if overwrite and not options.truncate:
            raise ConfigError(
                reason=(
                    "mode overwrite would delete what the queue holds; say truncate=true if that is"
                    " meant, or use mode append"
                )
            )
        if overwrite and options.batch is not None:
            raise ConfigError(
                reason=(
                    "a batch with a batchId is appended once, and mode overwrite would delete it"
                    " when it comes again; use mode append"
                )
            )
        # Rows that tasks push at once would be stored before the old messages are deleted, and
        # deleted with them.
        super().__init__(
            replace(options, delivery="exactly-once") if overwrite else options, columns
        )
        self._truncate = overwrite

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._write_task(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._stages:
            _commit_write.get()(self._options, self._columns, messages, truncate=self._truncate)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _, staged, _ = merge_outcomes(messages)
        if self._stages and None in messages:  # as in StreamWriter.abort
            _discard_staged.get()(self._options, "", 0, staged)
