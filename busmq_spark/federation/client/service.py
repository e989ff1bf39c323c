"""A service whose requests and replies go through another bus.

npm servers cannot federate a service (protocol Q17). Its queues they can: so the service itself
runs here, on federated queues, and works with any server and with any provider or requester over
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from busmq_spark.bus.service.service import Service
from busmq_spark.federation.client.queue import RemoteQueue

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.federation.client.web_socket_pool import WebSocketPool


class RemoteService(Service):
    """A service on a federated bus. If the link breaks, requests and replies under way may be lost:
    their requesters time out.
    """

    def __init__(self, bus: BusContext, name: str, pool: WebSocketPool) -> None:
        super().__init__(bus, name)
        self._pool = pool

    def make_queue(self, name: str) -> RemoteQueue:  # type: ignore[override]
        """Return a queue of the other bus; tasks are those of this one."""
        return RemoteQueue(self.bus, name, self._pool)

    def __repr__(self) -> str:
        return f"RemoteService({self.name!r}, {self._pool.target.url!r})"
