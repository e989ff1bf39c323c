"""The threads beside a reader: they keep its queues alive and its leases held, and look for queues
that are new, also while a batch runs for hours."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from busmq_spark.errors import BusError
from busmq_spark.redis_io.lease_token import LEASE_MS
from busmq_spark.store.protocol import FailureDomain, PlanningStore

log = logging.getLogger("busmq_spark")

DRIVER_CHECK_INTERVAL_S = 60.0
"""Seconds between two checks whether the driver still lives, at least."""


class ReaderKeepAlive:
    """A daemon thread for each failure domain (server, node of a cluster, link), with a store of
    its own: an unreachable domain delays no other.

    The threads end with the process, with ``stop``, or when the driver that started the process is
    gone.
    """

    def __init__(
        self, open_store: Callable[[], PlanningStore], subscription: str, token: str
    ) -> None:
        self.open_store, self.subscription, self.token = open_store, subscription, token
        self.taken_queue: str | None = None
        """A queue whose lease another reader holds now."""
        self.threads: dict[FailureDomain, KeepAliveThread] = {}
        self._stopped = False
        self._lock = threading.Lock()

    def add_queues(self, ttls: Mapping[str, int], domains: Mapping[str, FailureDomain]) -> None:
        """Keep these queues (name to ttl in seconds) alive from now on, besides those watched
        already. ``domains``: where each of them is.
        """
        with self._lock:
            for domain in set() if self._stopped else {domains[queue] for queue in ttls}:
                if domain not in self.threads:
                    self.threads[domain] = KeepAliveThread(self, domain)
                self.threads[domain].add_queues(
                    {queue: ttl_s for queue, ttl_s in ttls.items() if domains[queue] == domain}
                )

    def stop(self) -> None:
        """End the threads; returns at once."""
        with self._lock:
            self._stopped = True
        for thread in self.threads.values():
            thread.stop()


class KeepAliveThread(threading.Thread):
    """Touches the queues of one failure domain, each time a third of the shortest life is over."""

    def __init__(self, owner: ReaderKeepAlive, domain: FailureDomain) -> None:
        super().__init__(
            name=f"busmq-keep-alive-{'-'.join(str(part) for part in domain if part != '')}",
            daemon=True,
        )
        self._owner, self._domain = owner, domain
        self._queues: dict[str, int] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._parent = os.getppid()

    def add_queues(self, ttls: Mapping[str, int]) -> None:
        """Keep these alive, too."""
        with self._lock:
            self._queues.update(ttls)
        self._wake.set()
        if self.ident is None:
            self.start()

    def stop(self) -> None:
        """End; returns at once."""
        self._stopped = True
        self._wake.set()

    def run(self) -> None:
        store: PlanningStore | None = None
        while not self._stopped and os.getppid() == self._parent:
            with self._lock:
                queues = dict(self._queues)
            try:
                store = store or self._owner.open_store()
                self._touch_queues(store, queues)
            except BusError as error:
                log.warning("keep-alive: %s", error)
            except (
                Exception
            ):  # whatever it is: if this thread ended, queues would expire while they are read
                log.exception("keep-alive met an unexpected error and goes on")
            lease_s = LEASE_MS / 1000 if self._owner.token else DRIVER_CHECK_INTERVAL_S
            self._wake.wait(min(lease_s, *queues.values(), DRIVER_CHECK_INTERVAL_S) / 3)
            # The wake-up is handled from here on, so that no stop and no new queue is missed
            self._wake.clear()
        if store is not None:
            store.close()

    def _touch_queues(self, store: PlanningStore, queues: Mapping[str, int]) -> None:
        store.set_failure_domain(queues, self._domain)
        alive = store.keep_alive(list(queues), self._owner.subscription, self._owner.token)
        self._owner.taken_queue = next(
            (queue for queue, state in alive.items() if state < 0), self._owner.taken_queue
        )
        self._reassign_moved_queues(
            {
                queue: domain
                for queue, domain in store.failure_domains(queues).items()
                if domain != self._domain
            }
        )

    def _reassign_moved_queues(self, moved: Mapping[str, FailureDomain]) -> None:
        """A queue that moved to another node of the cluster does not wait for this one."""
        if moved:
            with self._lock:
                ttls = {queue: self._queues.pop(queue) for queue in moved if queue in self._queues}
            self._owner.add_queues(ttls, moved)


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
