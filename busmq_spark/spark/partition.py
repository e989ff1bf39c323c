"""What one task reads, and the reading of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from busmq_spark.core.position import Position, Range
from busmq_spark.options import ReadOptions
from busmq_spark.spark.planned import read_planned
from busmq_spark.spark.process import freeze
from busmq_spark.spark.schema import ArrowRows
from busmq_spark.spark.stores import task_store
from busmq_spark.store.protocol import ReadStore, Rows


class Partition(InputPartition):
    """What one task reads: values only, no client. Some of it may have been fetched already."""

    def __init__(
        self,
        ranges: tuple[Range, ...],
        prefetched: Mapping[Range, Sequence[Rows]] = MappingProxyType({}),
        ends: Mapping[str, Position] = MappingProxyType({}),
    ) -> None:
        self.ranges = ranges
        self.prefetched = {part: prefetched[part] for part in ranges if part in prefetched}
        self.ends = {part.queue: ends[part.queue] for part in ranges if part.queue in ends}


def read_ranges(options: ReadOptions, schema: StructType, partition: Partition) -> Iterator[Any]:
    """The record batches of a task."""
    freeze()
    return ArrowRows(schema).batches(_rows(task_store(options), partition, options.fail_on_data_loss))


def _rows(store: ReadStore, partition: Partition, strict: bool) -> Iterator[Rows]:
    for prefetched, group in groupby(partition.ranges, key=partition.prefetched.__contains__):
        parts = list(group)
        yield from (
            chain.from_iterable(partition.prefetched[part] for part in parts) if prefetched else read_planned(store, parts, partition.ends, strict)
        )
