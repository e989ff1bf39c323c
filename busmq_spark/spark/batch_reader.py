"""The batch reader: what the queues hold now, as a snapshot of id ranges. Removes nothing, leases nothing, creates nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from busmq_spark.core.position import Range
from busmq_spark.core.sources import shown, spell, split
from busmq_spark.core.tasks import tasks
from busmq_spark.errors import ConfigError, QueueMissing
from busmq_spark.options import ReadOptions
from busmq_spark.spark.partition import Partition, read_ranges
from busmq_spark.spark.process import freeze
from busmq_spark.spark.stores import patient_store
from busmq_spark.spark.tracebacks import without_traceback
from busmq_spark.store.protocol import QueueCreation


@without_traceback
class BatchReader(DataSourceReader):
    """``spark.read.format("busmq")`` and ``CREATE TEMPORARY VIEW … USING busmq``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        starts = list(options.starting.values()) if isinstance(options.starting, dict) else [options.starting]
        if "latest" in starts + [start for own in starts if isinstance(own, dict) for start in own.values()]:
            raise ConfigError(reason="startingOffsets=latest leaves nothing to a batch read; use earliest, or JSON with ids")
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        freeze()
        options = self._options
        store = patient_store(options)
        try:
            names = [spell(source, queue) for source in options.sources for queue in options.subscribe]
            if options.subscribe_pattern:
                pattern = re.compile(options.subscribe_pattern)
                names = store.discover(lambda name: pattern.fullmatch(split(name)[1]) is not None)
            states = store.states(dict.fromkeys(names, -1))
            if missing := [queue for queue, state in states.items() if not state.exists]:
                raise QueueMissing(queue=shown(missing[0]))
            unnamed = [queue for queue, state in states.items() if not state.born]
            born = {queue: found.born for queue, found in store.attach(unnamed, QueueCreation(allowed=False, ttl_s=options.ttl_s)).items()}
            servers = store.locate(names)
            ranges = [
                Range(queue, state.born or born[queue], first, state.newest, servers[queue])
                for queue, state in states.items()
                if state.count and (first := max(state.oldest, self._after(queue, state.last_id) + 1)) <= state.newest
            ]
        finally:
            store.close()
        return [Partition(part) for part in tasks(ranges, options.min_partitions, options.max_per_partition)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Spark makes one task of None where there are no partitions.
        return read_ranges(self._options, self._schema, partition if isinstance(partition, Partition) else Partition(()))

    def _after(self, queue: str, last_id: int) -> int:
        """The id that startingOffsets says is read already."""
        start = self._options.start_of(*split(queue))
        return min(int(start), last_id) if start != "earliest" else 0
