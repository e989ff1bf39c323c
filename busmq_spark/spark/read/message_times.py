"""The column ``timestamp``: the second in which a message was there at the latest, by the clock of
its queue (reading/times_of_ids.py).

Times within a second are left out: the clock is right to the second, and rows that are read again
shall not differ by less.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from busmq_spark.errors import (
    ProtocolError,
    RemoteError,
    ServerRefused,
    Unauthorized,
)
from busmq_spark.queue.position import Range
from busmq_spark.reading import times_of_ids
from busmq_spark.reading.times_of_ids import TimesOfIds, TimesOfIdsCollector
from busmq_spark.spark.schema import TIMESTAMP_COLUMN_NAME
from busmq_spark.store.protocol import ConsecutiveMessages, ReadStore

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
