"""The sinks, as Spark calls them: tasks stage or push rows (tasks.py); the driver commits the
staged rows (committer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from busmq_spark.deferred_import import DeferredImport
from busmq_spark.errors import ConfigError
from busmq_spark.options import WriteOptions
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark import compat
from busmq_spark.spark.error_display import without_traceback
from busmq_spark.spark.write.commit_message import merge_outcomes

if TYPE_CHECKING:
    from busmq_spark.spark.write.sink_columns import SinkColumns
    from busmq_spark.spark.write.tasks import TaskWriter


_task_writer: DeferredImport[type[TaskWriter]] = DeferredImport("spark.write.tasks", "TaskWriter")
_commit_stream_batch: DeferredImport[Callable[..., None]] = DeferredImport(
    "spark.write.committer", "commit_stream_batch"
)
_commit_write: DeferredImport[Callable[..., None]] = DeferredImport(
    "spark.write.committer", "commit_write"
)
_discard_staged: DeferredImport[Callable[..., None]] = DeferredImport(
    "spark.write.committer", "discard_staged"
)


@without_traceback
class _StreamSink:
    """The part that both streaming writers share: everything but the shape of the rows."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, checkpoint: str) -> None:
        self._options = options
        self._columns = columns
        self._checkpoint = checkpoint
        self._write_token = new_token()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _task_writer.get()(self._options, self._columns, self._write_token).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.delivery == "exactly-once":
            _commit_stream_batch.get()(self._options, self._checkpoint, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query, staged, _ = merge_outcomes(messages)
        if staged and None in messages:  # else a commit was tried, and its record may still arrive
            _discard_staged.get()(self._options, self._options.sink or query, batchId, staged)


@without_traceback
class RowStreamWriter(_StreamSink, DataSourceStreamWriter):
    """For Spark 4.0, which hands over rows."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return super().write(map(self._columns.to_record_batch, compat.row_slices(iterator)))


def stream_writer(
    options: WriteOptions, columns: SinkColumns, checkpoint: str
) -> DataSourceStreamWriter:
    """The streaming writer for the Spark that runs here. ``checkpoint`` is empty where the query
    does not say where it is.
    """
    if options.batch is not None:
        raise ConfigError(
            reason=(
                "batchId is for batch writes; Spark numbers the batches of a stream. Leave it out"
            )
        )
    if compat.StreamArrowWriter is None:
        return RowStreamWriter(options, columns, checkpoint)
    return ArrowStreamWriter(options, columns, checkpoint)


if compat.StreamArrowWriter is not None:

    class ArrowStreamWriter(
        _StreamSink, compat.StreamArrowWriter
    ):  # the base is not there before Spark 4.1
        """Takes Arrow batches as they come."""


@without_traceback
class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("busmq")``: one commit of its own."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, *, overwrite: bool) -> None:
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
        self._options = replace(options, delivery="exactly-once") if overwrite else options
        self._columns = columns
        self._truncate = overwrite
        self._write_token = new_token()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _task_writer.get()(self._options, self._columns, self._write_token).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit_write.get()(self._options, self._columns, messages, truncate=self._truncate)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _, staged, _ = merge_outcomes(messages)
        if None in messages:  # as in _StreamSink.abort
            _discard_staged.get()(self._options, "", 0, staged)
