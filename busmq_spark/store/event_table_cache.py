"""The table of subscriptions to events, as several threads of one process use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from busmq_spark.queue.grouping import slices
from busmq_spark.routing.event_routing import EventRoutingTable, read_subscribers

EVENTS_PER_STEP = 100
"""Events that are looked up before another thread has its turn."""


class EventTableCache:
    """The table, brought up to date with each use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: EventRoutingTable | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pattern with a queue that is subscribed with it, as it was when last used."""
        with self._lock:
            return self._table.pairs if self._table is not None else []

    def is_of_peers(self, queue: str, run: Callable[[Any], EventRoutingTable]) -> bool:
        """Whether the queue is subscribed, and by peers alone."""
        with self._lock:
            self._table = run(read_subscribers(self._table))
            return self._table.is_of_peers(queue)

    def owners_by_queue(
        self, events: Sequence[Sequence[str]], run: Callable[[Any], EventRoutingTable]
    ) -> list[dict[str, frozenset[str]]]:
        """For each event, with its keys, the queues it goes to and who has subscribed them."""
        with self._lock:
            self._table = run(read_subscribers(self._table))
        found: list[dict[str, frozenset[str]]] = []
        for some in slices(events, EVENTS_PER_STEP):
            with self._lock:
                found += [self._table.owners_by_queue(keys) for keys in some]
        return found
