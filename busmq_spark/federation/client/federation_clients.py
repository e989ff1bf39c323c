"""The federation links of one bus: where ``Bus.federate`` comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from busmq_spark.arguments import check_flag, check_text
from busmq_spark.bus.base_persisted_object import PersistedDataclass, PersistedDict
from busmq_spark.bus.channel import Channel
from busmq_spark.bus.pubsub import Pubsub
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.service.service import Service
from busmq_spark.environment import read_variable
from busmq_spark.errors import ConfigError
from busmq_spark.federation.client.channel import RemoteChannel
from busmq_spark.federation.client.persisted import RemotePersistedDataclass, RemotePersistedDict
from busmq_spark.federation.client.pubsub import RemotePubsub
from busmq_spark.federation.client.queue import RemoteQueue
from busmq_spark.federation.client.queue_location_listener import FederatedQueueLocationListener
from busmq_spark.federation.client.service import RemoteService
from busmq_spark.federation.client.target import FederationTarget, make_federation_target
from busmq_spark.federation.client.web_socket_pool import WebSocketPool

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus


REMOTE_CLASS_OF: dict[type, Callable[[Bus, Any, WebSocketPool], Any]] = {
    Queue: lambda bus, queue, pool: RemoteQueue(bus, queue.name, pool),
    Channel: lambda bus, channel, pool: RemoteChannel(
        bus, channel.name, channel.local, channel.remote, pool
    ),
    Pubsub: lambda bus, pubsub, pool: RemotePubsub(bus, pubsub.name, pubsub.most, pool),
    PersistedDict: lambda bus, kept, pool: RemotePersistedDict(bus, pool, kept.name, kept.ttl_s),
    PersistedDataclass: lambda bus, kept, pool: RemotePersistedDataclass(
        bus, pool, kept.name, kept.shape, kept.ttl_s
    ),
    Service: lambda bus, service, pool: RemoteService(bus, service.name, pool),
}


class FederationClients:
    """One pool of web sockets for each URL and secret. Servers of the option ``federate`` are
    dialled when the bus is entered, others when first used.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._pools: dict[FederationTarget, WebSocketPool] = {}
        self.urls = tuple((bus.options.federate or "").split(",")) if bus.options.federate else ()
        for url in self.urls:
            self._pool_for(url)

    def start(self) -> None:
        """Dial those of the option, and listen to what they announce."""
        for pool in self._pools.values():
            pool.start()
            FederatedQueueLocationListener(self._bus, pool).start()

    async def close(self) -> None:
        """Close every socket, with a close frame."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        self._pools.clear()

    def federate(
        self, thing: Any, url: str | None, secret: str | None, secret_in_url: bool | None
    ) -> Any:
        """Return the same object on the bus at ``url``. Raises ConfigError for a bad URL, a missing
        secret, or what is no object of a bus.
        """
        if url is not None:
            check_text("url", url, secret=True)
        if secret is not None:
            check_text("secret", secret, secret=True)
        if secret_in_url is not None:
            check_flag("secret_in_url", secret_in_url)
        if url is None and len(self.urls) != 1:
            raise ConfigError(
                reason=f"federate() was given no URL, and the bus knows {len(self.urls)}; name one"
            )
        pool = self._pool_for(url or self.urls[0], secret, secret_in_url)
        for kind, remote in REMOTE_CLASS_OF.items():
            if isinstance(thing, kind):
                return remote(self._bus, thing, pool)
        raise ConfigError(
            reason=(
                f"a {type(thing).__name__} cannot be federated; hand over a queue, channel, pubsub,"
                " persisted object or service"
            )
        )

    def _pool_for(
        self, url: str, secret: str | None = None, secret_in_url: bool | None = None
    ) -> WebSocketPool:
        options = self._bus.options
        if secret_in_url is None:
            named = options.federate_secret_in_url
            secret_in_url = named if isinstance(named, bool) else url in named
        shown = secret or secret_for_url(options.federate_secret, url)
        found = make_federation_target(
            url,
            shown,
            options.federate_tls_ca,
            secret_in_url=secret_in_url,
            compression=options.federate_compression,
        )
        if found not in self._pools:
            self._pools[found] = WebSocketPool(found, options.federate_sockets, self._bus.spawn)
        return self._pools[found]


def secret_for_url(secrets: str | Mapping[str, str] | None, url: str) -> str | None:
    """Return the secret for a URL: one for all, or one for each URL; else that of the
    environment.
    """
    given = secrets.get(url) if isinstance(secrets, Mapping) else secrets
    return given or read_variable("BUSMQ_FEDERATION_SECRET")
