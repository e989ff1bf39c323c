"""The ranges of one task, and their reading while they are still the planned ones: a Redis that
lost its tail gives the same ids to other messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from busmq_spark.options import ReadOptions
from busmq_spark.queue.position import Position, Range
from busmq_spark.queue.qualified_queue_names import display_name
from busmq_spark.reading.loss import loss_between
from busmq_spark.reading.times_of_ids import TimesOfIds
from busmq_spark.spark.arrow_batch_encoder import ArrowBatchEncoder
from busmq_spark.spark.gc_freeze import freeze_imports
from busmq_spark.spark.message_times import TimestampColumn
from busmq_spark.spark.schema import FIELDS_COLUMN_NAME, TIMESTAMP_COLUMN_NAME
from busmq_spark.spark.stored_job_fields import StoredJobFieldsReader
from busmq_spark.spark.stores import task_store
from busmq_spark.store.loss_errors import loss_error
from busmq_spark.store.protocol import ConsecutiveMessages, LossCauseEvidence, ReadStore

log = logging.getLogger("busmq_spark")
ROWS_PER_CHECK, BYTES_PER_CHECK = 2_500, 1024 * 1024
"""With failOnDataLoss=false, as many rows as one round trip brings of short ranges, or such values,
wait for the check of their queues.
"""


class RangePartition(InputPartition):
    """The ranges of one task: values only, no client. Some of it may have been fetched already."""

    def __init__(
        self,
        ranges: tuple[Range, ...],
        prefetched: Mapping[Range, Sequence[ConsecutiveMessages]] = MappingProxyType({}),
        ends: Mapping[str, Position] = MappingProxyType({}),
        times: Mapping[str, TimesOfIds] = MappingProxyType({}),
    ) -> None:
        self.ranges = ranges
        self.prefetched = {part: prefetched[part] for part in ranges if part in prefetched}
        self.ends = {part.queue: ends[part.queue] for part in ranges if part.queue in ends}
        self.times = {
            part.queue: times[part.queue] for part in self.prefetched if part.queue in times
        }

    def __getstate__(self) -> tuple[Any, ...]:
        """Plain tuples: named ones take several times as long to pickle, and the driver waits for a
        range and a position of every queue.
        """
        prefetched = [(tuple(part), rows) for part, rows in self.prefetched.items()]
        return (
            list(map(tuple, self.ranges)),
            prefetched,
            {queue: tuple(end) for queue, end in self.ends.items()},
            self.times,
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        ranges, prefetched, ends, self.times = state
        self.ranges = tuple(Range(*part) for part in ranges)
        self.prefetched = {Range(*part): rows for part, rows in prefetched}
        self.ends = {queue: Position(*end) for queue, end in ends.items()}


def read_partition(
    options: ReadOptions, schema: StructType, partition: RangePartition
) -> Iterator[Any]:
    """The record batches of a task."""
    freeze_imports()
    store = task_store(options)
    times = (
        TimestampColumn.fetch(store, partition.ranges, partition.times)
        if TIMESTAMP_COLUMN_NAME in schema.names and partition.ranges
        else None
    )
    jobs = (
        StoredJobFieldsReader(store, options.job_fields)
        if FIELDS_COLUMN_NAME in schema.names
        else None
    )
    return ArrowBatchEncoder(schema, times, jobs).batches(
        _rows(store, partition, options.fail_on_data_loss)
    )


def _rows(
    store: ReadStore, partition: RangePartition, strict: bool
) -> Iterator[ConsecutiveMessages]:
    for prefetched, group in groupby(partition.ranges, key=partition.prefetched.__contains__):
        parts = list(group)
        yield from (
            chain.from_iterable(partition.prefetched[p] for p in parts)
            if prefetched
            else read_checked_ranges(store, parts, partition.ends, strict)
        )


def read_checked_ranges(
    store: ReadStore, parts: Sequence[Range], ends: Mapping[str, Position], strict: bool
) -> Iterator[ConsecutiveMessages]:
    """The messages of ranges while the last message of the batch is still the one that was planned,
    whose fingerprint ``ends`` has.

    ``strict`` raises DataLoss, at the latest after the last row, so that the batch fails. Else a
    queue that changed gives no further row, since its next batch begins with its oldest message;
    rows are checked again before they are handed out.
    """
    sound = {
        queue: ends[queue] for queue in dict.fromkeys(part.queue for part in parts) if queue in ends
    }
    changed = _find_changed_queues(store, sound, strict)
    found = store.read_many([part for part in parts if part.queue not in changed], strict)
    if strict:
        yield from found
        _find_changed_queues(store, sound, strict)
        return
    for some in _group_for_check(found):
        queues = {rows.queue for rows in some} - changed
        changed |= _find_changed_queues(
            store, {queue: sound[queue] for queue in queues if queue in sound}, strict
        )
        yield from (rows for rows in some if rows.queue not in changed)


def _group_for_check(found: Iterable[ConsecutiveMessages]) -> Iterator[list[ConsecutiveMessages]]:
    """Short ranges of many queues together: to ask for each queue alone takes one round trip for
    each.
    """
    group: list[ConsecutiveMessages] = []
    count = size = 0
    for rows in found:
        group.append(rows)
        count, size = count + len(rows.values), size + rows.values.nbytes
        if count >= ROWS_PER_CHECK or size >= BYTES_PER_CHECK:
            yield group
            group, count, size = [], 0, 0
    if group:
        yield group


def _find_changed_queues(store: ReadStore, ends: Mapping[str, Position], strict: bool) -> set[str]:
    """The queues whose messages up to the end of the batch are others now."""
    found = set()
    for queue, state in (
        store.states({queue: end.last for queue, end in ends.items()}).items() if ends else ()
    ):
        loss = loss_between(ends[queue], state)
        if loss is None or loss.kind not in {"rolled-back", "reissued"}:
            continue  # the reader of the range says the rest
        error = loss_error(display_name(queue), loss, LossCauseEvidence(None, 0, empty=False))
        if strict:
            raise error
        log.warning("%s; its rows of this batch are skipped", error)
        found.add(queue)
    return found
