"""Wakes a planner when something is pushed to its queues, whichever servers they are on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from busmq_spark.redis_io.push_listener import RedisPushListenerThread
from busmq_spark.store.redis_store import RedisStore


class RedisPushListeners:
    """A listener for each server. Satisfies PushListeners."""

    def __init__(self, store: RedisStore, notified: Any) -> None:
        self._store = store
        self._listeners = [
            RedisPushListenerThread(endpoint, notified) for endpoint in store.endpoints
        ]

    def listen(self, queues: Sequence[str]) -> None:
        """Listen to exactly these queues from now on."""
        servers = self._store.locate(queues)
        for index, listener in enumerate(self._listeners):
            listener.listen(
                [self._store.keys(queue).available for queue in queues if servers[queue] == index]
            )

    def stop(self) -> None:
        """End the threads; returns at once."""
        for listener in self._listeners:
            listener.stop()
