"""The batch reader: a snapshot of the queues, as id ranges. Removes nothing, leases nothing,
creates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from busmq_spark.errors import ConfigError, QueueMissing
from busmq_spark.options import ReadOptions
from busmq_spark.queue.keys import display_name, qualified_name, split_name
from busmq_spark.queue.message import Range
from busmq_spark.reading.batch_planner import check_given, loss_before_start, tasks, without_times
from busmq_spark.reading.reader_operations import QueueState
from busmq_spark.spark.compat import freeze_imports
from busmq_spark.spark.error_display import without_traceback
from busmq_spark.spark.read.acquisition import find_queues
from busmq_spark.spark.read.tasks import RangePartition, note_times_if_allowed, read_partition
from busmq_spark.spark.schema import TIMESTAMP_COLUMN_NAME
from busmq_spark.spark.stores import patient_store
from busmq_spark.starting_offsets import NewestMessages, OffsetBound
from busmq_spark.store.loss_errors import loss_error
from busmq_spark.store.protocol import QueueCreateOptions, ReadStore

if TYPE_CHECKING:
    pass


@without_traceback
class BatchReader(DataSourceReader):
    """``spark.read.format("busmq")`` and ``CREATE TEMPORARY VIEW … USING busmq``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        starts = (
            list(options.starting.values())
            if isinstance(options.starting, dict)
            else [options.starting]
        )
        if "latest" in starts + [
            start for own in starts if isinstance(own, dict) for start in own.values()
        ]:
            raise ConfigError(
                reason=(
                    "startingOffsets=latest leaves nothing to a batch read; use earliest, or JSON"
                    " with ids"
                )
            )
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        freeze_imports()
        options = self._options
        store = patient_store(options)
        try:
            names = [
                qualified_name(source, queue)
                for source in options.sources
                for queue in options.subscribe
            ]
            if not options.subscribe:
                names = find_queues(replace(options, partitions=None), store)
            states = store.states(dict.fromkeys(names, -1))
            if missing := [queue for queue, state in states.items() if not state.exists]:
                if not options.topic:
                    raise QueueMissing(queue=display_name(missing[0]))
                states = {
                    queue: state for queue, state in states.items() if state.exists
                }  # the others have never been written to
            unnamed = [queue for queue, state in states.items() if not state.born]
            born = {
                queue: found.born
                for queue, found in store.attach(
                    unnamed, QueueCreateOptions(allowed=False, ttl_s=options.ttl_s)
                ).items()
            }
            servers = store.locate(names)
            if TIMESTAMP_COLUMN_NAME in self._schema.names:
                note_times_if_allowed(store, names)
            windows = _windows(options, store, states)
            for queue, state in states.items():
                self._check_ids(queue, state, windows[queue], store)
            ranges = [
                Range(queue, state.born or born[queue], first, last, servers[queue])
                for queue, state in states.items()
                if state.count
                and (first := max(state.oldest, windows[queue][0] + 1))
                <= (last := min(state.newest, windows[queue][1]))
            ]
        finally:
            store.close()
        return [
            RangePartition(part)
            for part in tasks(ranges, options.min_partitions, options.max_per_partition)
        ]

    def _check_ids(
        self, queue: str, state: QueueState, window: tuple[int, int], store: ReadStore
    ) -> None:
        """Check that the ids in the options are stored. Raises ConfigError, DataLoss."""
        start, last = window
        if type(self._options.end_of(*split_name(queue))) is int:
            check_given("endingOffsets", queue, last, state)
        if type(self._options.asked_start(*split_name(queue))) is int:
            check_given("startingOffsets", queue, start, state)
            if (
                (loss := loss_before_start(start, state))
                and start < last
                and self._options.fail_on_data_loss
            ):
                raise loss_error(display_name(queue), loss, store.traces(queue))

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Spark makes one task of None where there are no partitions.
        return read_partition(
            self._options,
            self._schema,
            partition if isinstance(partition, RangePartition) else RangePartition(()),
        )


def _windows(
    options: ReadOptions, store: ReadStore, states: Mapping[str, QueueState]
) -> dict[str, tuple[int, int]]:
    """Return by queue the last id before the read messages, and the last one of them."""
    starts = without_times(
        {queue: options.start_of(*split_name(queue)) for queue in states},
        store.find_times,
        options.timestamp_strategy,
    )
    ends = without_times(
        {queue: options.end_of(*split_name(queue)) for queue in states}, store.find_times
    )
    return {
        queue: (_id(starts[queue], state), _id(ends[queue], state))
        for queue, state in states.items()
    }


def _id(start: OffsetBound, state: QueueState) -> int:
    if isinstance(start, NewestMessages):
        return state.last_id - start.count
    last = {"earliest": 0, "latest": state.newest}.get(str(start), start)
    assert isinstance(last, int), "a time was looked up"
    return last
