"""The tasks of a read: they read the planned id ranges, and encode the rows as Arrow.

The column ``timestamp``: the second in which a message was there at the latest, by the clock of
its queue (reading/times_of_ids.py).

Times within a second are left out: the clock is right to the second, and rows that are read again
shall not differ by less.

The tasks of a read: they read id ranges while these are still the planned ones, and encode the
rows as Arrow. A Redis that lost its tail gives the same ids to other messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from busmq_spark.errors import (
    ConfigError,
    MessageRefused,
    ProtocolError,
    RemoteError,
    ServerRefused,
    Unauthorized,
)
from busmq_spark.groups import job as flows
from busmq_spark.option_parsing import LOCAL_SOURCE
from busmq_spark.options import ReadOptions
from busmq_spark.queue.keys import JobKeys, display_name, split_name
from busmq_spark.queue.message import Position, Range
from busmq_spark.reading import times_of_ids
from busmq_spark.reading.loss import loss_between
from busmq_spark.reading.times_of_ids import TimesOfIds, TimesOfIdsCollector
from busmq_spark.spark.compat import freeze_imports
from busmq_spark.spark.schema import FIELDS_COLUMN_NAME, TIMESTAMP_COLUMN_NAME
from busmq_spark.spark.stores import task_store
from busmq_spark.store.loss_errors import loss_error
from busmq_spark.store.protocol import ConsecutiveMessages, LossCauseEvidence, ReadStore
from busmq_spark.store.redis_store import RedisStore

log = logging.getLogger("busmq_spark")

TIMESTAMP_ARROW_TYPE = pa.timestamp("us", tz="UTC")
MS_PER_SECOND, US_PER_MS = 1000, 1000


class TimestampColumn:
    """The column for the ranges of one task; the store is asked once, before rows are read."""

    def __init__(self, found: Mapping[str, TimesOfIds], born: Mapping[str, str]) -> None:
        # Of another life than the range, the times are of other messages.
        own = {
            queue: times.pairs
            for queue, times in found.items()
            if times.born == born[queue] and times.pairs
        }
        self._times = {queue: np.array(pairs, np.int64).T for queue, pairs in own.items()}

    @classmethod
    def fetch(
        cls,
        store: ReadStore,
        parts: Sequence[Range],
        known: Mapping[str, TimesOfIds] = MappingProxyType({}),
    ) -> TimestampColumn:
        """The times of all messages of ranges, as far as they are known. ``known``: of queues that
        need not be asked about.
        """
        found = fetch_times(store, [part for part in parts if part.queue not in known])
        return cls({**found, **known}, {part.queue: part.born for part in parts})

    def column(self, rows: ConsecutiveMessages) -> Any:
        """The column of consecutive messages; NULL where a time is not known."""
        count = len(rows.values)
        if rows.queue not in self._times:
            return pa.nulls(count, TIMESTAMP_ARROW_TYPE)
        ms, ids = self._times[rows.queue]
        at = np.searchsorted(ids, np.arange(rows.first, rows.first + count))
        unknown = (at == 0) | (at == len(ids))
        seconds = ms[np.where(unknown, 0, at)] // MS_PER_SECOND * MS_PER_SECOND
        return pa.array(seconds * US_PER_MS, pa.int64(), mask=unknown).cast(TIMESTAMP_ARROW_TYPE)


def fetch_times(store: ReadStore, parts: Sequence[Range]) -> dict[str, TimesOfIds]:
    """Return the times of the messages of ranges; queues of sources that cannot be asked now are
    left out.

    At a federation server that is too old for the question, nothing is known.
    """
    wanted: dict[str, tuple[int, int]] = {}
    for part in parts:
        first, last = wanted.get(part.queue, (part.first, part.last))
        wanted[part.queue] = (min(first, part.first), max(last, part.last))
    gathering = TimesOfIdsCollector(wanted)
    away: set[str] = set()
    try:
        while gathering.wanted:
            answers = store.times(gathering.wanted)
            away.update(gathering.wanted.keys() - answers.keys())
            gathering.add(answers)
    except (ProtocolError, RemoteError) as error:
        log.warning(
            "the column %s is NULL: the times of messages are not known there (%s)",
            TIMESTAMP_COLUMN_NAME,
            error,
        )
        return dict.fromkeys(wanted, TimesOfIds("", ()))
    return {queue: times for queue, times in gathering.found.items() if queue not in away}


class IdTimeRecorder:
    """Notes times for one reader: one call a second at most, and none while no id has moved."""

    def __init__(self) -> None:
        self._last_ids: Mapping[str, int] = {}
        self._noted: dict[str, int] = {}
        self._next = 0.0

    def note_new_times(
        self, last_ids: Mapping[str, int], store: ReadStore, *, at_once: bool = False
    ) -> None:
        """Note the last ids of queues, as far as they are news; the same object as before has none.
        ``at_once``: however soon after the last time.

        A note that Redis refuses is left out; the clock is then less exact.
        """
        now = time.monotonic()
        if last_ids is self._last_ids or (now < self._next and not at_once):
            return
        self._last_ids = last_ids
        moved = {queue: id for queue, id in last_ids.items() if 0 < id != self._noted.get(queue)}
        if moved:
            self._next = now + times_of_ids.NOTE_TIME_INTERVAL_S
            self._noted.update(moved)
            note_times_if_allowed(store, list(moved))


def note_times_if_allowed(store: ReadStore, queues: Sequence[str]) -> None:
    """Note the times of the newest ids, as far as the store lets: an older federation server does
    not know the question.
    """
    with suppress(ProtocolError, RemoteError, ServerRefused, Unauthorized):
        store.note_times(queues)


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
    _log_if_repeated(partition.ranges)
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


MAX_SHOWN_RANGES = 20


def _log_if_repeated(ranges: Sequence[Range]) -> None:
    """Name the ids of a task whose try before has failed, perhaps at one of its rows: an error of
    the rows' later functions is raised in another process, which does not know them.
    """
    task = TaskContext.get()
    if task is None or not task.attemptNumber():
        return
    shown = ", ".join(
        f"queue {display_name(part.queue)!r} ids {part.first}..{part.last}"
        for part in ranges[:MAX_SHOWN_RANGES]
    )
    more = f" and {len(ranges) - MAX_SHOWN_RANGES} more" if len(ranges) > MAX_SHOWN_RANGES else ""
    log.warning("task runs again, try %d: it reads %s%s", task.attemptNumber() + 1, shown, more)


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


MESSAGES_PER_CALL = 500


class StoredJobFieldsReader:
    """Asked for in one round trip for each 500 messages."""

    def __init__(self, store: ReadStore, names: Sequence[str]) -> None:
        assert isinstance(store, RedisStore), "links are refused"
        self._store, self._names = store, check_job_field_names(names)

    def column(self, rows: ConsecutiveMessages, kind: Any) -> Any:
        """For each message a map: field → its bytes, or its JSON as text; without those that are
        missing. NULL for a message that names no job.
        """
        found: list[list[tuple[str, bytes]] | None] = []
        for at in range(0, len(rows.values), MESSAGES_PER_CALL):
            jobs = [
                _job_id(value) for value in rows.values.slice(at, MESSAGES_PER_CALL).to_pylist()
            ]
            stored = iter(self._read_fields(rows.queue, [job for job in jobs if job is not None]))
            found += [None if job is None else self._present_fields(next(stored)) for job in jobs]
        return pa.array(found, kind)

    def _read_fields(self, queue: str, jobs: Sequence[str]) -> list[list[bytes | None]]:
        cluster = self._store.keys(queue).cluster
        return self._store.run(
            queue, flows.read_fields_of([JobKeys(job, cluster) for job in jobs], self._names)
        )

    def _present_fields(self, stored: Sequence[bytes | None]) -> list[tuple[str, bytes]]:
        return [
            (name, flows.field_bytes(name, value))
            for name, value in zip(self._names, stored, strict=True)
            if value is not None
        ]


def _job_id(value: bytes) -> str | None:
    try:
        return flows.decode_reference(value, "")[0]
    except MessageRefused:
        return None


def check_job_field_names(names: Sequence[str]) -> Sequence[str]:
    """Raises ConfigError for what can be no field."""
    try:
        return [flows.check_field(name) for name in names]
    except ConfigError as error:
        raise ConfigError(reason=f"option 'jobFields': {error.details['reason']}") from None
