"""Which pushes one bulk connection is notified of: ``listen`` says to which queues, ``wait`` is
answered when something was pushed to one of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from busmq_spark.bus.wait_at_most import wait_at_most
from busmq_spark.federation.bulk.frames import make_wire_error

if TYPE_CHECKING:
    from busmq_spark.federation.bulk.store_executor import StoreExecutor
    from busmq_spark.redis_io.pubsub_connection import PubSubConnection

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
