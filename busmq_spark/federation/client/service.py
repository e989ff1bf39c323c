"""A service whose requests and replies go through another bus.

npm servers cannot federate a service (protocol Q17). Its queues they can: so the service itself runs here, on federated queues, and works with any
server and with any provider or requester over there.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from busmq_spark.bus.service import Service
from busmq_spark.federation.client.queue import RemoteQueue

if TYPE_CHECKING:
    import asyncio

    from busmq_spark.bus.bus import Bus
    from busmq_spark.federation.client.pool import Pool


class _RemoteBus:
    """A bus as a service sees it, with the queues of the other one."""

    def __init__(self, bus: Bus, pool: Pool) -> None:
        self._bus, self._pool = bus, pool

    def queue(self, name: str) -> RemoteQueue:
        return RemoteQueue(self._bus, name, self._pool)

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        return self._bus.spawn(work, what)

    def adopt(self, thing: Any) -> None:
        self._bus.adopt(thing)

    def release(self, thing: Any) -> None:
        self._bus.release(thing)


class RemoteService(Service):
    """A service behind a federation server. When the link breaks, requests and replies under way may be lost: their requesters time out."""

    def __init__(self, bus: Bus, name: str, pool: Pool) -> None:
        super().__init__(_RemoteBus(bus, pool), name)  # type: ignore[arg-type]  # it has what a service asks of its bus
        self._pool = pool

    def __repr__(self) -> str:
        return f"RemoteService({self.name!r}, {self._pool.target.url!r})"
