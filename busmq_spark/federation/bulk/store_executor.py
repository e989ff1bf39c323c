"""The work of one bulk connection: stores in threads, and the pushes it is notified of.

The stores of one bulk connection in threads, its reads that wait for credit, and the clients
whose work a thread does.

Rule 1. An executor is one store and has one call under way at most.
Rule 2. A closed executor sends nothing more to Redis: its peer may already have repeated elsewhere
        the call that a thread here still tries.
Rule 3. A client that comes back on a new connection is answered once its old executor's call has
        ended, since that one may be on its way to Redis.

Which pushes one bulk connection is notified of: ``listen`` says to which queues, ``wait`` is
answered when something was pushed to one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import LinkLost
from busmq_spark.federation.bulk.frames import make_wire_error
from busmq_spark.federation.bulk.rpc_handler import BulkRpcHandler
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuota
from busmq_spark.federation.gate.rights import Identity
from busmq_spark.options import MEMORY, Durability
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.layout import RedisLayout
from busmq_spark.store.event_subscriptions import EventTableCache
from busmq_spark.store.redis_store import MAX_CACHED_LOCATIONS, RedisStore

if TYPE_CHECKING:
    from busmq_spark.redis_io.pubsub_connection import PubSubConnection


T = TypeVar("T")
MAX_THREADS, MAX_THREADS_OF_SILENT_REDIS = 128, 32
"""In all, and of them for executors whose Redis did not answer last time: one that is silent holds
up its own queues only.
"""
PEER_PATIENCE_S = 1.0
"""Seconds for which a step is retried while Redis is unreachable. Short, since peers share few
threads: the peer itself retries, without a thread here.
"""
REPLY_BYTES = 2 * 1024 * 1024
"""Of values in one reply of Redis, and so in one frame. A read holds about nine times as much; with
1 MB it takes a quarter longer (measured).
"""


class StoreThreadPool(ThreadPoolExecutor):
    """The threads in which stores wait for Redis. Some are reserved for stores whose last call got
    a reply.
    """

    def __init__(
        self, threads: int = MAX_THREADS, doubtful: int = MAX_THREADS_OF_SILENT_REDIS
    ) -> None:
        super().__init__(threads, "busmq-bulk")
        self.doubtful = asyncio.Semaphore(doubtful)


class StoreExecutor:
    """A store, used by one thread at a time."""

    def __init__(
        self,
        layout: RedisLayout,
        pool: StoreThreadPool,
        identity: Identity,
        limits: PeerLimits,
        quota: PerSecretQuota,
        store: RedisStore | None = None,
    ) -> None:
        self.operations = BulkRpcHandler(
            store or RedisStore(layout, PEER_PATIENCE_S, REPLY_BYTES), identity, limits
        )
        self._pool, self._quota = pool, quota
        self._current_call: Future[Any] | None = None
        self._doubtful = False

    async def run_in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call it in a thread. Cancelling gives up the result only: the thread comes to its end."""
        async with self._quota.threads, self._pool.doubtful if self._doubtful else nullcontext():
            self._quota.working += 1
            try:
                found = await self.start_in_thread(function, *arguments)
            except LinkLost:
                self._doubtful = True
                raise
            finally:
                self._quota.working -= 1
            self._doubtful = False
            return found

    def start_in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Begin a call in a thread of the pool; the future is its result."""
        self._current_call = begun = self._pool.submit(function, *arguments)
        ending = asyncio.wrap_future(begun)
        ending.add_done_callback(_mark_exception_retrieved)
        return asyncio.shield(ending)

    @property
    def is_idle(self) -> bool:
        """Whether no thread uses the store."""
        return self._current_call is None or self._current_call.done()

    def stop_calls(self) -> None:
        """A call that waits for a thread never gets one, one under way is not repeated any more,
        and no other reaches Redis.
        """
        self.operations.store.stop()
        if self._current_call is not None:
            self._current_call.cancel()

    async def wait_until_idle(self) -> None:
        """Until no thread uses the store."""
        if self._current_call is not None and not self._current_call.done():
            ending = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._current_call.add_done_callback(lambda _: loop.call_soon_threadsafe(ending.set))
            await ending.wait()

    def close(self) -> None:
        """Stop, and close the store as soon as no thread uses it."""
        self.stop_calls()
        if self._current_call is None:
            self.operations.store.close()
        else:
            self._current_call.add_done_callback(lambda _: self.operations.store.close())


def _mark_exception_retrieved(done: asyncio.Future[Any]) -> None:
    """Mark the exception of a call that no caller awaits any more as retrieved, or asyncio logs
    it.
    """
    if not done.cancelled():
        done.exception()


class CreditedRead:
    """A range read under way."""

    def __init__(self, credit: int) -> None:
        self.task: asyncio.Task[None] | None = None
        self._credit = credit
        self._more = asyncio.Event()

    def grant_credit(self, amount: int) -> None:
        self._credit += amount
        self._more.set()

    async def spend_credit(self, amount: int) -> None:
        """Waits until there is credit; one frame may overdraw it, or a single large message would
        never pass.
        """
        while self._credit <= 0:
            self._more.clear()
            await self._more.wait()
        self._credit -= amount


class StoreExecutorByClient:
    """Which executor works for which client, so that one client never has two of them at work."""

    def __init__(self) -> None:
        self._executors: dict[tuple[str, str], tuple[StoreExecutor, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._executors)

    async def replace_executor(
        self, client: tuple[str, str], executor: StoreExecutor, leave: Callable[[], None]
    ) -> None:
        """From now on the client's executor is this one; ``leave`` is called when yet another
        comes. Returns once no other is at work.
        """
        while (before := self._executors.get(client)) is None or before[0] is not executor:
            if before is not None:
                before[1]()
                before[0].stop_calls()
                await before[0].wait_until_idle()
            if self._executors.get(client) is before:
                self._executors[client] = (executor, leave)

    def forget_executor(self, client: tuple[str, str], executor: StoreExecutor) -> None:
        """The connection is gone, and its executor no longer at work."""
        if (found := self._executors.get(client)) is not None and found[0] is executor:
            del self._executors[client]


class QueueServerCache:
    """Which server has a queue, as reads found out: to ask all of them for every read would let a
    silent one hold up readers of the others.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int] = {}

    def locate_ranges(self, store: RedisStore, parts: Sequence[Range]) -> list[Range]:
        """Return the ranges with the server of each queue: a client does not know the servers of
        this site.
        """
        known = [self._known.get((part.queue, part.born)) for part in parts]
        unknown = [part.queue for part, server in zip(parts, known, strict=True) if server is None]
        asked = store.locate(unknown) if unknown else {}
        return [
            part._replace(server=asked[part.queue] if server is None else server)
            for part, server in zip(parts, known, strict=True)
        ]

    def remember_server(self, part: Range) -> None:
        """Remember the server that the rows came from: a queue stays on it until the queue ends."""
        if len(self._known) >= MAX_CACHED_LOCATIONS:
            self._known.clear()
        self._known[part.queue, part.born] = part.server


class BulkReadStorePool:
    """Stores for reads, with their connections to Redis: one that has ended its read well is used
    again.
    """

    def __init__(self, layout: RedisLayout, most: int, durability: Durability = MEMORY) -> None:
        self._layout, self._most, self._durability = layout, most, durability
        self._idle: list[RedisStore] = []
        self._event_tables = EventTableCache()

    def take_store(self) -> RedisStore:
        """Return a free store, or a new one. All share one table of subscriptions to events."""
        if self._idle:
            return self._idle.pop()
        made = RedisStore(self._layout, PEER_PATIENCE_S, REPLY_BYTES, self._durability)
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


CONFIRM_TIMEOUT_S = 5.0
"""Seconds for which an answer to ``listen`` waits for Redis to confirm."""
MAX_LISTENED_QUEUES = 20_000


class BulkPushSubscriptions:
    """Channels of Redis, each at the listener of its server."""

    def __init__(self, connections: list[PubSubConnection], executor: StoreExecutor) -> None:
        self._connections, self._executor = connections, executor
        self._servers: dict[str, int] = {}
        self._notified = asyncio.Event()

    async def replace_queues(self, queues: tuple[str, ...]) -> None:
        """Subscribe to exactly these queues; after it has returned every push is noticed."""
        if len(queues) > MAX_LISTENED_QUEUES:
            raise make_wire_error(
                f"{len(queues)} queues to listen to", f"at most {MAX_LISTENED_QUEUES}"
            )
        store = self._executor.operations.store
        places = await self._executor.run_in_thread(store.locate, queues)
        wanted = {store.keys(queue).available: places[queue] for queue in queues}
        for channel in [
            channel for channel, server in self._servers.items() if wanted.get(channel) != server
        ]:
            self._connections[self._servers.pop(channel)].unsubscribe(channel, self._on_push)
        new = {
            channel: server for channel, server in wanted.items() if channel not in self._servers
        }
        self._servers.update(new)
        if adding := [
            asyncio.create_task(self._subscribe(channel, server), name="bulk: listening")
            for channel, server in new.items()
        ]:
            await asyncio.wait(
                adding, timeout=CONFIRM_TIMEOUT_S
            )  # after a time-out Redis is unreachable: ``_notified`` is set when it is back
        self._notified.set()

    async def wait_for_push(self, timeout_s: float) -> bool:
        """Whether there was a push within that time, or before."""
        await wait_at_most(timeout_s, self._notified.wait)
        notified = self._notified.is_set()
        self._notified.clear()
        return notified

    def unsubscribe_all(self) -> None:
        """Unsubscribe from everything."""
        for channel, server in self._servers.items():
            self._connections[server].unsubscribe(channel, self._on_push)

    async def _subscribe(self, channel: str, server: int) -> None:
        """Ends when Redis has confirmed, or with ``unsubscribe``."""
        await self._connections[server].subscribe(channel, self._on_push)
        self._notified.set()

    def _on_push(self, _: bytes | None) -> None:
        self._notified.set()
