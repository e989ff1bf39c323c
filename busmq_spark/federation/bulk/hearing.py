"""Which pushes one bulk connection is notified of: ``listen`` says to which queues, ``wait`` is answered when something was pushed to one of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from busmq_spark.federation.bulk.frames import wrong

if TYPE_CHECKING:
    from busmq_spark.federation.bulk.lane import Lane
    from busmq_spark.topology.pubsub_connection import PubSubConnection

CONFIRM_S = 5.0
"""How long an answer to ``listen`` waits for Redis to confirm."""
MOST_LISTENED = 20_000


class Hearing:
    """Channels of Redis, each at the listener of its server."""

    def __init__(self, ears: list[PubSubConnection], lane: Lane) -> None:
        self._ears, self._lane = ears, lane
        self._heard: dict[str, int] = {}
        self._rung = asyncio.Event()

    async def listen(self, queues: tuple[str, ...]) -> None:
        """Subscribe to exactly these queues; after it has returned every push is noticed."""
        if len(queues) > MOST_LISTENED:
            raise wrong(f"{len(queues)} queues to listen to", f"at most {MOST_LISTENED}")
        store = self._lane.work.store
        places = await self._lane.run(store.locate, queues)
        wanted = {store.keys(queue).available: places[queue] for queue in queues}
        for channel in [channel for channel, ear in self._heard.items() if wanted.get(channel) != ear]:
            self._ears[self._heard.pop(channel)].remove(channel, self._ring)
        new = {channel: ear for channel, ear in wanted.items() if channel not in self._heard}
        self._heard.update(new)
        if adding := [asyncio.create_task(self._add(channel, ear), name="bulk: listening") for channel, ear in new.items()]:
            await asyncio.wait(adding, timeout=CONFIRM_S)  # after a time-out Redis is unreachable: the bell rings when it is back
        self._rung.set()

    async def wait(self, timeout_s: float) -> bool:
        """Whether there was a push within that time, or before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        rung = self._rung.is_set()
        self._rung.clear()
        return rung

    def end(self) -> None:
        """Hear nothing any more."""
        for channel, ear in self._heard.items():
            self._ears[ear].remove(channel, self._ring)

    async def _add(self, channel: str, ear: int) -> None:
        """Ends when Redis has confirmed, or with ``remove``."""
        await self._ears[ear].add(channel, self._ring)
        self._rung.set()

    def _ring(self, _: bytes | None) -> None:
        self._rung.set()
