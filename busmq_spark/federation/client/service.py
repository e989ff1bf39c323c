"""A service whose requests and replies go through another bus.

npm servers cannot federate a service (protocol Q17). Its queues they can: so the service itself
runs here, on federated queues, and works with any server and with any provider or requester over
there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from busmq_spark.bus.service.service import Service
from busmq_spark.federation.client.queue import RemoteQueue

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.federation.client.web_socket_pool import WebSocketPool


class RemoteService(Service):
    """A service on a federated bus. If the link breaks, requests and replies under way may be lost:
    their requesters time out.
    """

    def __init__(self, bus: Bus, name: str, pool: WebSocketPool) -> None:
        # The bus of a service: tasks of this bus, and queues of the other one.
        far = SimpleNamespace(
            spawn=bus.spawn,
            adopt=bus.adopt,
            release=bus.release,
            queue=lambda name: RemoteQueue(bus, name, pool),
        )
        super().__init__(far, name)  # type: ignore[arg-type]
        self._pool = pool

    def __repr__(self) -> str:
        return f"RemoteService({self.name!r}, {self._pool.target.url!r})"
