"""Rows of the source as Arrow, and what a sink accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType

from busmq_spark.core.once import Remembered
from busmq_spark.errors import ConfigError
from busmq_spark.options import LOCAL
from busmq_spark.store.protocol import Rows
from busmq_spark.store.sources import shown, split

SOURCE_SCHEMA = "queue string, id long, value binary"
LINKED_SCHEMA = f"{SOURCE_SCHEMA}, source string"
"""With federation.url. Redis itself is called ``local`` there."""
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "queue": (StringType,),
    "id": (LongType,),
    "value": (BinaryType, StringType),
    "source": (StringType,),
}
BATCH_ROWS = 10_000
"""Rows of one Arrow batch: measured, 5 000 to 20 000 cost Spark the least."""


def check_source_schema(schema: StructType, known: str = SOURCE_SCHEMA) -> None:
    """Raises ConfigError unless the schema a user asked for has only columns of ``known`` with types they can have, in any order."""
    for column in schema.fields:
        types = _TYPES.get(column.name)
        if types is None or f"{column.name} " not in known:
            raise ConfigError(reason=f"column {column.name!r} does not exist; the source has: {known} (value may be string)")
        if not isinstance(column.dataType, types):
            wanted = " or ".join(t().simpleString() for t in types)
            raise ConfigError(reason=f"column {column.name!r} is {column.dataType.simpleString()}; expected {wanted}")


class ArrowRows:
    """Turns rows of a store into record batches that match a schema exactly, the cheapest way that was measured.

    Values come as an Arrow array and are sliced. Ids follow each other, so they are a range, not parsed. The queue's name is built once and
    sliced.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema)
        self._columns = [(field.name, field.type) for field in self._schema]

    def batches(self, rows: Rows) -> Iterator[Any]:
        """Record batches of at most BATCH_ROWS rows."""
        values = rows.values
        for at in range(0, len(values), BATCH_ROWS):
            part = values.slice(at, BATCH_ROWS)
            columns = [self._column(name, kind, rows.queue, rows.first + at, part) for name, kind in self._columns]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, kind: Any, queue: str, first: int, values: Any) -> Any:
        if name == "value":
            return _values(kind, queue, first, values)
        if name == "id":
            return _range(first, len(values))
        source, own = split(queue)
        return _names(own if name == "queue" else source or LOCAL, kind).slice(0, len(values))


def _values(kind: Any, queue: str, first: int, values: Any) -> Any:
    try:
        return values if values.type == kind else values.cast(kind)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            reason=f"queue {shown(queue)!r}: a message in ids {first}..{first + len(values) - 1} is not UTF-8 text ({error}). Read value as binary"
        ) from None


def _range(first: int, rows: int) -> Any:
    return pa.array(np.arange(first, first + rows, dtype=np.int64))


def _name_column(queue: str, kind: Any) -> Any:
    return pa.array([queue] * BATCH_ROWS, kind)


_names = Remembered(_name_column, 256)
