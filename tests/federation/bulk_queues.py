"""Queues with known messages, and what a store reads of them."""

from __future__ import annotations

from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.queue.message import Range
from busmq_spark.store.protocol import FullQueueWait, QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore

Store = RedisStore | FederationBulkStore
HOUR = QueueCreateOptions(allowed=True, ttl_s=3600)
NEVER = FullQueueWait(0)


def filled(
    store: Store, queue: str, values: list[bytes], creation: QueueCreateOptions = HOUR
) -> Range:
    """A queue with these values, and the range of all of them."""
    there = store.attach([queue], creation)[queue]
    store.appender().push(queue, values, NEVER)
    return Range(queue, there.born, 1, len(values))


def read(store: Store, part: Range, *, strict: bool = True) -> list[tuple[int, bytes]]:
    return [
        (piece.first + i, value)
        for piece in store.read(part, strict)
        for i, value in enumerate(piece.values.to_pylist())
    ]
