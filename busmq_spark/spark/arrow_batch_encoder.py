"""Rows of the source as Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from busmq_spark.errors import ConfigError
from busmq_spark.parsers import LOCAL_SOURCE
from busmq_spark.queue.qualified_queue_names import display_name, split_name
from busmq_spark.spark.message_times import TIMESTAMP_ARROW_TYPE, TimestampColumn
from busmq_spark.spark.schema import FIELDS_COLUMN_NAME, TIMESTAMP_COLUMN_NAME
from busmq_spark.spark.stored_job_fields import StoredJobFieldsReader
from busmq_spark.store.protocol import ConsecutiveMessages

BATCH_ROWS = 10_000
"""Rows of one Arrow batch: measured, 5 000 to 20 000 cost Spark the least."""
SHORT_PIECE_ROWS, SHARED_BATCH_BYTES = 1_000, 1024 * 1024
"""Pieces up to so many rows and bytes share a batch of at most so many bytes: one costs Spark as
much as hundreds of rows.
"""


class ArrowBatchEncoder:
    """Turns rows of a store into record batches that match a schema exactly, the cheapest way that
    was measured.

    Values come as an Arrow array and are sliced. Ids follow each other, so they are a range, not
    parsed. Names are repeated, not built row by row.
    """

    def __init__(
        self,
        schema: StructType,
        times: TimestampColumn | None = None,
        jobs: StoredJobFieldsReader | None = None,
    ) -> None:
        """``times`` is needed for the column ``timestamp``, ``jobs`` for the column ``fields``."""
        self._jobs = jobs
        self._times = times or TimestampColumn({}, {})
        self._schema = _arrow_schema(schema)
        self._columns = [(field.name, field.type) for field in self._schema]

    def batches(self, pieces: Iterable[ConsecutiveMessages]) -> Iterator[Any]:
        """Record batches of at most BATCH_ROWS rows, in the order of the pieces; short ones that
        follow each other share one.
        """
        waiting: list[ConsecutiveMessages] = []
        rows = size = 0
        for piece in pieces:
            more, bytes_ = len(piece.values), piece.values.nbytes
            short = more <= SHORT_PIECE_ROWS and bytes_ <= SHARED_BATCH_BYTES
            if waiting and not (
                short and rows + more <= BATCH_ROWS and size + bytes_ <= SHARED_BATCH_BYTES
            ):
                yield self._batch(waiting)
                waiting, rows, size = [], 0, 0
            if short:
                waiting.append(piece)
                rows, size = rows + more, size + bytes_
            else:
                yield from map(self._batch, _split_by_batch_rows(piece))
        if waiting:
            yield self._batch(waiting)

    def _batch(self, pieces: Sequence[ConsecutiveMessages]) -> Any:
        return pa.RecordBatch.from_arrays(
            [_join([self._column(name, kind, p) for p in pieces]) for name, kind in self._columns],
            schema=self._schema,
        )

    def _column(self, name: str, kind: Any, rows: ConsecutiveMessages) -> Any:
        if name == FIELDS_COLUMN_NAME:
            assert self._jobs is not None
            return self._jobs.column(rows, kind)
        return (
            self._times.column(rows) if name == TIMESTAMP_COLUMN_NAME else _column(name, kind, rows)
        )


def _arrow_schema(schema: StructType) -> Any:
    """Return the schema as Spark makes it; some releases must be told a time zone for a timestamp,
    and others cannot be.
    """
    others = iter(
        to_arrow_schema(
            StructType([column for column in schema.fields if column.name != TIMESTAMP_COLUMN_NAME])
        )
    )
    return pa.schema(
        [
            (
                pa.field(TIMESTAMP_COLUMN_NAME, TIMESTAMP_ARROW_TYPE)
                if column.name == TIMESTAMP_COLUMN_NAME
                else next(others)
            )
            for column in schema.fields
        ]
    )


def _split_by_batch_rows(piece: ConsecutiveMessages) -> Iterator[list[ConsecutiveMessages]]:
    for at in range(0, len(piece.values), BATCH_ROWS):
        yield [
            ConsecutiveMessages(piece.queue, piece.first + at, piece.values.slice(at, BATCH_ROWS))
        ]


def _join(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _column(name: str, kind: Any, rows: ConsecutiveMessages) -> Any:
    if name == "value":
        return _cast_values(kind, rows.queue, rows.first, rows.values)
    if name == "id":
        return pa.array(np.arange(rows.first, rows.first + len(rows.values), dtype=np.int64))
    return pa.repeat(
        pa.scalar(_column_value(name, *split_name(rows.queue)), kind), len(rows.values)
    )


def _column_value(name: str, source: str, queue: str) -> str | int:
    """Return the value of a column for a queue."""
    if name == "queue":
        return queue
    if name == "source":
        return source or LOCAL_SOURCE
    topic, _, partition = queue.rpartition("/")
    return topic if name == "topic" else int(partition)


def _cast_values(kind: Any, queue: str, first: int, values: Any) -> Any:
    try:
        return values if values.type == kind else values.cast(kind)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            reason=(
                f"queue {display_name(queue)!r}: a message in ids"
                f" {first}..{first + len(values) - 1} is not UTF-8 text ({error}). Read value as"
                " binary"
            )
        ) from None
