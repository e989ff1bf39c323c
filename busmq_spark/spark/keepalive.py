"""The thread beside a reader that keeps queues alive and leases held, also while a batch runs for hours."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from busmq_spark.errors import BusError
from busmq_spark.store.protocol import ReadStore
from busmq_spark.topology.holder import LEASE_MS

log = logging.getLogger("busmq_spark")


class KeepAlive:
    """A daemon thread with a store of its own. It ends with the process, with ``stop``, or when the driver that started the process is gone."""

    def __init__(self, open_store: Callable[[], ReadStore], subscription: str, token: str) -> None:
        self._open_store = open_store
        self._subscription, self._token = subscription, token
        self._queues: dict[str, int] = {}
        self._wake = threading.Event()
        self._stopped = False
        self._parent = os.getppid()
        self._thread: threading.Thread | None = None
        self.taken: str | None = None
        """A queue whose lease somebody else holds now."""

    def watch(self, ttls: dict[str, int]) -> None:
        """Keep these queues (name to ttl in seconds) alive from now on, besides those watched already."""
        self._queues = {**self._queues, **ttls}  # replaced, not changed: the thread reads it without a lock
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="busmq-keep-alive", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; returns at once."""
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        store = self._open_store()
        while not self._stopped and os.getppid() == self._parent:
            queues = self._queues
            try:
                alive = store.keep_alive(list(queues), self._subscription, self._token)
            except BusError as error:
                log.warning("keep-alive: %s", error)
            else:
                self.taken = next((queue for queue, state in alive.items() if state < 0), self.taken)
            lease_s = LEASE_MS / 1000 if self._token else float("inf")
            self._wake.wait(min(lease_s, *queues.values()) / 3)
            self._wake.clear()  # what woke it is looked at from here on, so that no stop and no new queue is slept through
        store.close()
