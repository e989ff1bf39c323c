"""The stores with which the range reads of bulk connections ask Redis, kept for the next read."""

from __future__ import annotations

from busmq_spark.federation.bulk.store_executor import PEER_PATIENCE_S, REPLY_BYTES, StoreExecutor
from busmq_spark.redis_io.redis_layout import RedisLayout
from busmq_spark.store.event_table_cache import EventTableCache
from busmq_spark.store.redis_store import RedisStore


class BulkReadStorePool:
    """Stores for reads, with their connections to Redis: one that has ended its read well is used
    again.
    """

    def __init__(self, layout: RedisLayout, most: int) -> None:
        self._layout, self._most = layout, most
        self._idle: list[RedisStore] = []
        self._event_tables = EventTableCache()

    def take_store(self) -> RedisStore:
        """Return a free store, or a new one. All share one table of subscriptions to events."""
        if self._idle:
            return self._idle.pop()
        made = RedisStore(self._layout, PEER_PATIENCE_S, REPLY_BYTES)
        made.event_tables = self._event_tables
        return made

    def give_back_store(self, executor: StoreExecutor) -> None:
        """The executor has ended, and no thread uses its store."""
        if executor.is_idle and len(self._idle) < self._most:
            self._idle.append(executor.operations.store)
        else:
            executor.close()

    def close(self) -> None:
        """Close the stores that are free."""
        while self._idle:
            self._idle.pop().close()
