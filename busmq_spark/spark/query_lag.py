"""How far a query is behind, as the progress of the query shows it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from busmq_spark.core.position import Position
from busmq_spark.errors import BusError
from busmq_spark.store.protocol import ReadStore

LAG_INTERVAL_S = 1.0
"""How often the stores are asked for ages at most: Spark asks with every poll."""


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far a query is behind: what is stored after the end of its last batch."""

    messages: int
    seconds: int | None
    """Since the oldest of them came, or a little less, as far as that is known; None where it is known of none."""


class QueryLagMeter:
    """Asks the stores how far one query is behind."""

    def __init__(self) -> None:
        self._next = 0.0
        self._seconds: int | None = None

    def measure(self, ends: Mapping[str, Position], last_ids: Mapping[str, int], store: ReadStore) -> QueryLag:
        """``ends`` of the last batch, ``last_ids`` of the last planning. What cannot be asked now is not known."""
        waiting = {queue: end.last + 1 for queue, end in ends.items() if last_ids.get(queue, 0) > end.last}
        if not waiting:
            self._next = 0.0
            return QueryLag(0, 0)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LAG_INTERVAL_S
            try:
                ages = [age for age in store.ages(waiting).values() if age >= 0]
            except BusError:  # also of a federation server that is older than this question; what is wrong comes up where it counts
                ages = []
            self._seconds = max(ages) // 1000 if ages else None
        return QueryLag(sum(last_ids[queue] - ends[queue].last for queue in waiting), self._seconds)
