"""What rows a sink accepts, and how an Arrow batch becomes values per queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from busmq_spark.errors import ConfigError, MessageRefused

GATHERED_BYTES = 8 * 1024 * 1024
"""Bytes of record batches whose rows are sent together where they name their queues."""
_TYPES = {"value": (StringType, BinaryType), "queue": (StringType,), "id": (LongType,), "source": (StringType,), "index": (IntegerType,)}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where the value and the queue of a row come from. Option ``queue`` wins over the column, as Kafka's ``topic`` does."""

    value: str
    queue_column: str | None
    queue: str | None

    @classmethod
    def of(cls, schema: StructType, queue: str | None) -> SinkColumns:
        """Raises ConfigError for a missing or unknown column, a wrong type, or no queue. ``id``, ``index`` and ``source`` are allowed."""
        found: dict[str, str] = {}
        if "value" not in map(str.lower, schema.names):
            raise ConfigError(reason=f"column 'value' is missing; the rows have: {', '.join(schema.names) or 'no columns'}")
        for column in schema.fields:
            name = column.name.lower()
            types = _TYPES.get(name)
            if types is None:
                raise ConfigError(reason=f"column {column.name!r} has no place; the sink takes value (string or binary) and queue (string)")
            if not isinstance(column.dataType, types):
                wanted = " or ".join(t().simpleString() for t in types)
                kind = column.dataType.simpleString()
                remedy = "; use to_json(struct(...)) for a structured value" if name == "value" else ""
                raise ConfigError(reason=f"column {column.name!r} is {kind}; expected {wanted}{remedy}")
            found[name] = column.name
        if queue is None and "queue" not in found:
            raise ConfigError(reason="no queue is named: set option 'queue', or give the rows a column queue")
        return cls(found["value"], None if queue else found["queue"], queue)

    def gathered(self, batches: Iterable[Any]) -> Iterator[dict[str, list[bytes]]]:
        """The values of record batches per queue, each in row order; of many queues those of several batches at once.

        Spark's batches have 10,000 rows: ten for each of 1,000 queues, and a call to Redis with ten costs nearly as much as one with fifty.
        """
        found: dict[str, list[bytes]] = {}
        size = 0
        for batch in batches:
            for queue, values in self.split(batch):
                found.setdefault(queue, []).extend(values)
            size += batch.nbytes
            if found and (self.queue is not None or size >= GATHERED_BYTES):
                yield found
                found, size = {}, 0
        if found:
            yield found

    def split(self, batch: Any) -> Iterator[tuple[str, list[bytes]]]:
        """The values of a record batch per queue, each in row order. Raises MessageRefused for a NULL."""
        if batch.num_rows == 0:
            return
        values = _column(batch, self.value)
        if self.queue is not None:
            yield self.queue, _bytes(values)
            return
        assert self.queue_column is not None
        names = _column(batch, self.queue_column)
        coded = names.dictionary_encode()
        queues = coded.dictionary.to_pylist()
        if "" in queues:
            raise MessageRefused(reason=f"column {self.queue_column!r} is empty in some rows; expected the name of a queue")
        sorted_values = _bytes(values.take(pc.array_sort_indices(coded.indices)))  # stable: rows of a queue keep their order
        at = 0
        for queue, count in zip(queues, pc.value_counts(coded.indices).field("counts").to_pylist(), strict=True):
            yield queue, sorted_values[at : at + count]
            at += count

    def batch_of(self, rows: Sequence[Any]) -> Any:
        """A record batch of Spark rows, for Spark versions that hand over rows."""
        names = [self.value] + ([self.queue_column] if self.queue_column else [])
        return pa.RecordBatch.from_pydict({name: [row[name] for row in rows] for name in names})


def _column(batch: Any, name: str) -> Any:
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        raise MessageRefused(
            reason=f"column {name!r} is NULL in {column.null_count} of {batch.num_rows} rows; a message cannot be. Filter them, or use coalesce()"
        )
    return column


def _bytes(values: Any) -> list[bytes]:
    if not pa.types.is_binary(values.type):
        values = values.cast(pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary())
    found: list[bytes] = values.to_pylist()
    return found
