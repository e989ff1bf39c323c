"""Keeps attached queues alive: many in one call, each every third of its ttl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from busmq_spark.core.flow import Call, command
from busmq_spark.core.keys import NOTIFICATIONS, pubsub_channel
from busmq_spark.core.state import keep_alive
from busmq_spark.errors import BusError
from busmq_spark.topology.holder import LEASE_MS

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.bus.queue import Queue

TICK_S = 0.25
"""How often it looks who is due: a queue may live for as little as one second."""


class Keeper:
    """One task per bus. A server that does not answer is asked again at the next tick; meanwhile its queues live for what is left of their ttl."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._due: dict[Queue, float] = {}

    def add(self, queue: Queue) -> None:
        """Touch the queue from now on; it has just been touched."""
        self._due[queue] = asyncio.get_running_loop().time() + _interval_s(queue)

    def remove(self, queue: Queue) -> None:
        """Touch it no more."""
        self._due.pop(queue, None)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            groups: dict[tuple[int, bool], list[Queue]] = {}
            for queue, due in self._due.items():
                if due <= now:
                    groups.setdefault((queue.server, queue.leased), []).append(queue)
            if groups:
                await asyncio.gather(*(self._touch(server, part, leased) for (server, leased), part in groups.items()))

    async def _touch(self, server: int, queues: Sequence[Queue], leased: bool) -> None:
        token = self._bus.token if leased else ""
        link = self._bus.servers.commands[server]
        try:
            found = await link.run(keep_alive([queue.keys for queue in queues], "", token, LEASE_MS))
        except BusError as error:
            for queue in queues:
                queue.not_touched(error)
            return
        now = asyncio.get_running_loop().time()
        for queue, status in zip(queues, found, strict=True):
            if queue in self._due:
                self._due[queue] = now + _interval_s(queue)
                queue.touched(status)
        await self._announce([queue for queue in queues if queue.discoverable])

    async def _announce(self, queues: Sequence[Queue]) -> None:
        """Tell federating buses that these queues are here (protocol 1.11); a notification that is lost is followed by the next."""
        try:
            await self._bus.servers.commands[0].execute([announcement(queue) for queue in queues])
        except BusError as error:
            for queue in queues:
                queue.not_touched(error)


def announcement(queue: Queue) -> Call:
    """The notification of one queue."""
    text = json.dumps({"event": "queue", "key": queue.keys.metadata, "ttl": queue.ttl_s}, separators=(",", ":"), ensure_ascii=False)
    return command("PUBLISH", pubsub_channel(NOTIFICATIONS), text)


def _interval_s(queue: Queue) -> float:
    third = queue.ttl_s / 3
    return min(third, LEASE_MS / 3000) if queue.leased else third
