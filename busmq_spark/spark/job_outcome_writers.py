"""The writers of outcomes that Spark sees; the work is in job_outcome_task_writer.py. Tasks do all
of it: there is nothing to commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from busmq_spark.options import WriteOptions
from busmq_spark.spark import compat
from busmq_spark.spark.gc_freeze import freeze_imports
from busmq_spark.spark.job_outcome_task_writer import (
    AttachedJobQueue,
    JobOutcomeColumns,
    JobOutcomeTaskWriter,
)
from busmq_spark.spark.tracebacks import without_traceback


@without_traceback
class _OutcomeWriterBase:
    """The part that all writers share."""

    def __init__(self, options: WriteOptions, columns: JobOutcomeColumns) -> None:
        self._options, self._columns = options, columns
        self._lives: dict[str, AttachedJobQueue] = {}

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        freeze_imports()
        JobOutcomeTaskWriter(self._options, self._columns, self._lives).write(iterator)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Nothing is left to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Written outcomes stay, and the repeated batch leaves them unchanged."""


class JobOutcomeBatchWriter(_OutcomeWriterBase, DataSourceArrowWriter):
    """``df.write`` of rows that are outcomes of jobs."""

    def __init__(self, options: WriteOptions, columns: JobOutcomeColumns) -> None:
        super().__init__(options, columns)
        if columns.queue is not None:  # else each row says which message it answers
            self._lives[columns.queue] = AttachedJobQueue.fetch(columns.queue, options)


@without_traceback
class _RowStreamWriter(_OutcomeWriterBase, DataSourceStreamWriter):
    """For Spark 4.0, which hands over rows."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return super().write(
            pa.RecordBatch.from_pylist([row.asDict() for row in rows])
            for rows in compat.row_slices(iterator)
        )


def outcome_stream_writer(
    options: WriteOptions, columns: JobOutcomeColumns
) -> DataSourceStreamWriter:
    """The streaming writer for the Spark that runs here."""
    return (_RowStreamWriter if compat.StreamArrowWriter is None else _ArrowStreamWriter)(
        options, columns
    )


if compat.StreamArrowWriter is not None:

    class _ArrowStreamWriter(_OutcomeWriterBase, compat.StreamArrowWriter):
        """Takes Arrow batches as they come."""
