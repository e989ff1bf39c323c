"""The target of an outbox: Redis, a federation server of ours, or one of npm busmq. Only one thread
may use one.

Towards Redis and servers of ours each message is appended once (writing/idempotent_push.py). An npm
server takes text only, at least once, and knows of no subscriptions: there those count that were
made with this outbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from busmq_spark.errors import LinkLost, QueueMissing
from busmq_spark.options import MEMORY, Durability
from busmq_spark.outbox.sql import OutboxChunk
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.redis_io.layout import RedisLayout
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore

TARGET_PATIENCE_S = 0.0
"""A step that failed is tried again by the forwarder, which has others to do meanwhile."""
QUEUE_CREATION = QueueCreateOptions(True, MIN_RECORD_TTL_S)
EventKeys: TypeAlias = Sequence[str]
SubscriptionTable: TypeAlias = list[tuple[str, str]]
"""Pattern and queue."""


class OutboxTarget(Protocol):
    """A place to forward to."""

    def push(self, queue: str, chunk: OutboxChunk) -> tuple[int, int]:
        """Append messages to a queue, which is made where there is none: how many of them, from the
        first on, are there now, and the maxsize that was in the way (0: none).
        """
        ...

    def failure_domain(self, queue: str) -> str:
        """Return the failure domain of the queue; '' where that is not known, or is everything."""
        ...

    def route(
        self, events: Sequence[EventKeys], made_here: SubscriptionTable
    ) -> tuple[list[list[str]], SubscriptionTable]:
        """The queues for events with such keys, and the subscriptions that were looked at, for
        people. ``made_here``: those made with this outbox.
        """
        ...

    def is_of_peers(self, queue: str) -> bool:
        """Whether peers of a federation server alone have subscribed the queue, as far as is known
        here.
        """
        ...

    def set_subscription(self, patterns: EventKeys, queue: str, *, end: bool) -> None:
        """Begin subscriptions, or end them. Repeating it changes nothing."""
        ...

    def stop(self) -> None:
        """From any thread: nothing more is sent."""
        ...

    def close(self) -> None: ...


class BaseOutboxTarget:
    """Pushes to queues of a store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._commanded: set[str] = set()

    def push(self, queue: str, chunk: OutboxChunk) -> tuple[int, int]:
        """See Target."""
        try:
            return self._push(queue, chunk)
        except QueueMissing:
            self._commanded.discard(queue)
            self._store.attach([queue], QUEUE_CREATION)
            return self._push(queue, chunk)

    def _push(self, queue: str, chunk: OutboxChunk) -> tuple[int, int]:
        if chunk.commands and queue not in self._commanded:
            self._store.take_commands(queue)
            self._commanded.add(queue)
        found: tuple[int, int] = self._store.push_from(
            queue, chunk.sender, chunk.numbers, chunk.values
        )
        return found

    def is_of_peers(self, queue: str) -> bool:  # noqa: ARG002  # as the protocol has it
        """See Target."""
        return False

    def set_subscription(self, patterns: EventKeys, queue: str, *, end: bool) -> None:
        """See Target."""
        self._store.subscribe_events(queue, patterns, end)

    def close(self) -> None:
        """See Target."""
        self._store.close()


class RedisOutboxTarget(BaseOutboxTarget):
    """The servers of a bus."""

    def __init__(self, servers: RedisLayout, durability: Durability = MEMORY) -> None:
        super().__init__(RedisStore(servers, TARGET_PATIENCE_S, durability=durability))
        self._cluster = servers.cluster

    def failure_domain(self, queue: str) -> str:
        if not self._cluster:
            return ""
        try:
            return str(self._store.failure_domains([queue])[queue][2])
        except LinkLost:
            return ""

    def route(
        # As the protocol has it
        self,
        events: Sequence[EventKeys],
        made_here: SubscriptionTable,  # noqa: ARG002
    ) -> tuple[list[list[str]], SubscriptionTable]:
        return self._store.route_events(events), self._store.event_tables.pairs

    def is_of_peers(self, queue: str) -> bool:
        """See Target."""
        return bool(self._store.is_of_peers(queue))

    def stop(self) -> None:
        self._store.stop()
