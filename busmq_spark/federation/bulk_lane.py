"""What one bulk connection works with: stores in threads, and reads that wait for credit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from busmq_spark.federation.bulk_work import Identity, Work
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.topology.address import Address

T = TypeVar("T")


class Lane:
    """A store, used by one thread at a time."""

    def __init__(self, where: Address, pool: ThreadPoolExecutor, identity: Identity | None) -> None:
        self.work = Work(RedisStore(where), identity)
        self._pool = pool
        self._busy: asyncio.Future[Any] | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call it in a thread. Cancelling gives up the result only: the thread comes to its end."""
        return await self.start(function, *arguments)

    def start(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """The same, without waiting yet."""
        self._busy = started = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
        return asyncio.shield(started)

    def close(self) -> None:
        """Close the store as soon as no thread uses it."""
        if self._busy is None or self._busy.done():
            self._close()
        else:
            self._busy.add_done_callback(self._close)

    def _close(self, done: asyncio.Future[Any] | None = None) -> None:
        if done is not None and not done.cancelled():
            done.exception()  # seen
        self.work.store.close()


class Reading:
    """One range read under way."""

    def __init__(self, credit: int) -> None:
        self.task: asyncio.Task[None] | None = None
        self._credit = credit
        self._more = asyncio.Event()

    def grant(self, amount: int) -> None:
        self._credit += amount
        self._more.set()

    async def spend(self, amount: int) -> None:
        """Waits until there is credit; one frame may overdraw it, or a single large message would never pass."""
        while self._credit <= 0:
            self._more.clear()
            await self._more.wait()
        self._credit -= amount
