"""The ceiling of a Python source and sink: the same Arrow batches, ready-made in memory, and
dropped rows, so that all the time is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from busmq_spark.spark.compat import StreamWriterBase, freeze_imports
from busmq_spark.spark.read.tasks import BATCH_ROWS, ArrowBatchEncoder
from busmq_spark.spark.schema import SOURCE_SCHEMA
from busmq_spark.store.protocol import ConsecutiveMessages


@lru_cache(maxsize=1)
def batch(size: int, rows: int) -> Any:
    """One record batch of ``rows`` values of ``size`` bytes."""
    schema = StructType().add("queue", "string").add("id", "long").add("value", "binary")
    return next(
        ArrowBatchEncoder(schema).batches(
            [ConsecutiveMessages("bench", 1, pa.array([b"x" * size] * rows, pa.binary()))]
        )
    )


class CeilingReader(DataSourceStreamReader):
    """Option ``rows`` rows of ``size`` bytes, in ``tasks`` tasks: once, or in each batch where
    ``endless`` is given.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._size, self._rows, self._tasks = (
            int(options["size"]),
            int(options["rows"]),
            int(options["tasks"]),
        )
        self._endless, self._batches = "endless" in options, 0
        self._per_batch = min(BATCH_ROWS, max(1, 3 * 1024 * 1024 // self._size))
        freeze_imports()

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        self._batches += 1 if self._endless or not self._batches else 0
        return {"at": self._batches * self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [
            InputPartition((end["at"] - start["at"]) // self._tasks) for _ in range(self._tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        freeze_imports()
        left = partition.value
        while left > 0:
            rows = min(left, self._per_batch)
            yield batch(self._size, self._per_batch).slice(0, rows)
            left -= rows

    def commit(self, end: dict[str, int]) -> None:
        pass


class CeilingWriter(StreamWriterBase):
    """Takes the rows, and drops them."""

    def __init__(self) -> None:
        freeze_imports()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        freeze_imports()
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        freeze_imports()

    def abort(self, messages: Any, batchId: int) -> None:
        pass


class Ceiling(DataSource):
    """``format("busmq_ceiling")``."""

    @classmethod
    def name(cls) -> str:
        return "busmq_ceiling"

    def schema(self) -> str:
        return SOURCE_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CeilingReader(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> CeilingWriter:
        return CeilingWriter()
