"""The reply queues of a provider's requesters, kept attached for a while so that the next reply
costs one call (protocol 4.3).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from busmq_spark.bus.queue.base_queue import DEFAULT_QUEUE_TTL_S

if TYPE_CHECKING:
    from busmq_spark.bus.queue.queue import Queue

IDLE_REPLY_QUEUE_S = 3600.0
"""npm busmq stays attached to a requester's queue for an hour after its last request."""


@dataclass(slots=True)
class _Entry:
    queue: Queue
    users: int = 0
    used: float = 0.0
    attaching: asyncio.Lock = field(default_factory=asyncio.Lock)


class ProviderReplyQueues:
    """At most ``most`` queues, the one used longest ago leaves first. A list in use stays."""

    def __init__(
        self, make_queue: Callable[[str], Queue], most: int, idle_s: float = IDLE_REPLY_QUEUE_S
    ) -> None:
        self._make_queue, self._most, self._idle_s = make_queue, most, idle_s
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Queue]:
        """The queue, attached at least until the block ends."""
        if (entry := self._entries.get(name)) is None:
            entry = self._entries[name] = _Entry(self._make_queue(name))
        entry.users += 1
        self._entries.move_to_end(name)
        try:
            async with entry.attaching:
                if not entry.queue.attached:
                    await entry.queue.attach(
                        ttl_s=DEFAULT_QUEUE_TTL_S
                    )  # the requester may have gone, and the reply would stay unread for ever
            yield entry.queue
        finally:
            entry.users -= 1
            entry.used = asyncio.get_running_loop().time()
            await self._detach(
                [name for name, other in self._entries.items() if not other.users][
                    : max(0, len(self) - self._most)
                ]
            )

    async def sweep(self) -> None:
        """Detach the reply queues that have been idle for long, until cancelled."""
        while True:
            await asyncio.sleep(self._idle_s / 4)
            long_ago = asyncio.get_running_loop().time() - self._idle_s
            await self._detach(
                [
                    name
                    for name, entry in self._entries.items()
                    if not entry.users and entry.used < long_ago
                ]
            )

    async def close(self) -> None:
        """Leave every queue; one that is being used then, when its user is done."""
        self._most = 0
        await self._detach([name for name, entry in self._entries.items() if not entry.users])

    async def _detach(self, names: list[str]) -> None:
        async with AsyncExitStack() as stack:
            for name in names:
                stack.push_async_callback(self._entries.pop(name).queue.detach)
