"""The lag of a query, for its progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from busmq_spark.errors import BusError
from busmq_spark.queue.position import Position
from busmq_spark.store.protocol import ReadStore

LAG_INTERVAL_S = 1.0
"""Seconds between two reads of ages, at least: Spark asks with every poll."""


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The lag of a query: the messages stored after the end of its last batch."""

    messages: int
    seconds: int | None
    """Since the oldest of them came, or a little less, as far as that is known; the age is None
    where it is known of none.
    """


class QueryLagMeter:
    """A meter of the lag of one query."""

    def __init__(self) -> None:
        self._next = 0.0
        self._seconds: int | None = None

    def measure(
        self, ends: Mapping[str, Position], last_ids: Mapping[str, int], store: ReadStore
    ) -> QueryLag:
        """``ends`` of the last batch, ``last_ids`` of the last planning. A lag that cannot be read
        now is unknown.
        """
        waiting = {
            queue: end.last + 1 for queue, end in ends.items() if last_ids.get(queue, 0) > end.last
        }
        if not waiting:
            self._next = 0.0
            return QueryLag(0, 0)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LAG_INTERVAL_S
            try:
                ages = [age for age in store.ages(waiting).values() if age >= 0]
            # Also of a federation server that is older than this question; an error comes up where
            # it counts
            except BusError:
                ages = []
            self._seconds = max(ages) // 1000 if ages else None
        return QueryLag(sum(last_ids[queue] - ends[queue].last for queue in waiting), self._seconds)
