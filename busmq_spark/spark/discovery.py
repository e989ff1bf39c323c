"""Looks for the queues that match a pattern, or are partitions of a topic: beside the planning, and
slowly where there are many keys.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from busmq_spark.errors import BusError
from busmq_spark.store.protocol import PlanningStore

DISCOVERY_INTERVAL_S = 2.0
"""Pause between two walks over the keys."""
SCAN_STEP_PAUSE_S = 0.05
"""Pause between two steps of 1,000 keys each: a walk takes about a hundredth of the time of a
Redis.
"""
LINK_PAUSE_FACTOR = 19
"""A federation server walks without pauses, so it is left alone for so many times as long as it
took.
"""
FindQueues: TypeAlias = Callable[[PlanningStore, Callable[[], object]], Sequence[str]]
"""Finds the queues of a query. Its argument is called between two steps of a walk over keys, and
waits.
"""
log = logging.getLogger("busmq_spark")


@dataclass(frozen=True, slots=True)
class QueueDiscoveryResult:
    """The result of one walk."""

    queues: Sequence[str] = ()
    listed_sources: Collection[str] = ()
    """The links that have said which queues they have."""


class QueueDiscoveryThread(threading.Thread):
    """A daemon thread with a store of its own. It ends with the process, with ``stop``, or when the
    driver that started the process is gone.
    """

    def __init__(
        self, open_store: Callable[[], PlanningStore], find_queues: FindQueues, *, links: bool
    ) -> None:
        super().__init__(name="busmq-discovery", daemon=True)
        self._open_store, self._find_queues, self._links = open_store, find_queues, links
        self._found = QueueDiscoveryResult()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._parent = os.getppid()

    def take_found_queues(self) -> QueueDiscoveryResult:
        """Return the result of the last walk, once; empty until the next walk has ended."""
        with self._lock:
            found, self._found = self._found, QueueDiscoveryResult()
        return found

    def stop(self) -> None:
        """End; returns at once."""
        self._stopped.set()

    def run(self) -> None:
        store: PlanningStore | None = None
        pause_s, logged = DISCOVERY_INTERVAL_S, ""
        while not self._stopped.wait(pause_s) and os.getppid() == self._parent:
            try:
                store = store or self._open_store()
                pause_s, logged = self._discover_once(store), ""
            except BusError as error:
                if str(error) != logged:
                    log.warning("new queues are not found now: %s", error)
                pause_s, logged = DISCOVERY_INTERVAL_S, str(error)
            except (
                Exception
            ):  # whatever it is: if this thread ended, no new queue would be found any more
                log.exception("looking for new queues met an unexpected error and goes on")
        if store is not None:
            store.close()

    def _discover_once(self, store: PlanningStore) -> float:
        """Look once; the result is how long to pause then."""
        paused_s = 0.0

        def wait_for_next_step() -> None:
            nonlocal paused_s
            began = time.monotonic()
            self._stopped.wait(SCAN_STEP_PAUSE_S)
            paused_s += time.monotonic() - began

        began = time.monotonic()
        found = QueueDiscoveryResult(
            self._find_queues(store, wait_for_next_step), frozenset(store.listed_sources)
        )
        with self._lock:
            self._found = found
        took_s = time.monotonic() - began - paused_s
        return (
            max(DISCOVERY_INTERVAL_S, LINK_PAUSE_FACTOR * took_s)
            if self._links
            else DISCOVERY_INTERVAL_S
        )
