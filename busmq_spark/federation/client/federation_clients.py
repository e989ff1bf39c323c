"""The federation links of one bus: where ``Bus.federate`` comes in.

A service whose requests and replies go through another bus.

npm servers cannot federate a service (protocol Q17). Its queues they can: so the service itself
runs here, on federated queues, and works with any server and with any provider or requester over
there.

Receives where discoverable queues are, and stores it in this bus' own Redis, where
``queue.find()`` reads it (protocol 1.11, 5.8).

Rule 1. A server is trusted no further than needed: it can name queues, not keys; a queue of this
        bus stays what it is (npm busmq overwrites it, Q5); no name is stored for longer than a day,
        and the number of names that wait to be stored is limited.
Rule 2. A name that cannot be stored now is announced again soon.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from busmq_spark.arguments import check_flag, check_text
from busmq_spark.bus.base_persisted_object import PersistedDataclass, PersistedDict
from busmq_spark.bus.channel import Channel
from busmq_spark.bus.pubsub import Pubsub
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.service import Service
from busmq_spark.environment import read_variable
from busmq_spark.errors import BusError, ConfigError
from busmq_spark.federation.client import remote_object_connection
from busmq_spark.federation.client.messaging import RemoteChannel, RemotePubsub
from busmq_spark.federation.client.persisted import RemotePersistedDataclass, RemotePersistedDict
from busmq_spark.federation.client.queue import RemoteQueue
from busmq_spark.federation.client.remote_object_connection import error_from_event
from busmq_spark.federation.client.remote_reconnector import RemoteObjectListener, RemoteReconnector
from busmq_spark.federation.client.socket import FederationTarget, make_federation_target
from busmq_spark.federation.client.web_socket_pool import WebSocketPool
from busmq_spark.federation.npm_wire.channels import MAX_NAME_CHARACTERS, make_creation
from busmq_spark.queue import queue as flows
from busmq_spark.queue.keys import ANNOUNCEMENT_CHANNEL, QueueKeys, announced_name

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.bus.context import BusContext
    from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection


class RemoteService(Service):
    """A service on a federated bus. If the link breaks, requests and replies under way may be lost:
    their requesters time out.
    """

    def __init__(self, bus: BusContext, name: str, pool: WebSocketPool) -> None:
        super().__init__(bus, name)
        self._pool = pool

    def _make_queue(self, name: str) -> RemoteQueue:  # type: ignore[override]
        """Return a queue of the other bus; tasks are those of this one."""
        return RemoteQueue(self.bus, name, self._pool)

    def __repr__(self) -> str:
        return f"RemoteService({self.name!r}, {self._pool.target.url!r})"


MAX_ANNOUNCED_TTL_S = 24 * 3600
MAX_PENDING_ANNOUNCEMENTS = 10_000
"""Most names that wait to be stored."""
log = logging.getLogger("busmq_spark")


class FederatedQueueLocationListener(RemoteObjectListener):
    """Of one federation server. The bus emits ``federating(url)`` whenever they are listened to
    (again).
    """

    def __init__(self, bus: Bus, pool: WebSocketPool) -> None:
        self._bus, self._url = bus, pool.target.url
        self._handle = RemoteReconnector(
            pool, make_creation("pubsub", ANNOUNCEMENT_CHANNEL), bus._spawn, self, self._restore
        )
        self._news: dict[str, int] = {}
        self._more = asyncio.Event()

    def __repr__(self) -> str:
        return f"the announcements of {self._url}"

    def start(self) -> None:
        """Until the bus is left."""
        self._handle.open_and_keep()
        if self._bus.has_redis:
            self._bus._spawn(self._store_announced_queues(), f"remembering {self!r}")

    def on_remote_restored(self) -> None:
        """Listening."""
        self._bus._emit("federating", self._url)

    def on_remote_failed(self, error: BusError) -> None:
        """An object in use raises the error in its calls; this logs it for a program that uses
        none.
        """
        log.warning("%r cannot be received: %s", self, error)

    async def _restore(self, remote: RemoteObjectConnection) -> None:
        remote.on(
            "error", lambda found=None, *_: log.warning("%r: %s", self, error_from_event(found))
        )
        remote.on(
            "message",
            lambda text=None, *_: self._on_announcement(
                remote_object_connection.expect_text_as_bytes(text, "an announcement")
            ),
        )
        subscribed = remote.next_event("subscribed")
        remote.call_without_reply("subscribe")
        await subscribed

    def _on_announcement(self, text: bytes) -> None:
        found = _parse_announcement(text)
        if found is not None and (
            found[0] in self._news or len(self._news) < MAX_PENDING_ANNOUNCEMENTS
        ):
            self._news[found[0]] = found[1]
            self._more.set()

    async def _store_announced_queues(self) -> None:
        bus, cluster = self._bus, self._bus.options.cluster
        while True:
            await self._more.wait()
            self._more.clear()
            while self._news:
                name, ttl_s = self._news.popitem()
                keys = QueueKeys(name, cluster)
                try:
                    link = bus.servers.commands[await bus.servers.locate(keys.metadata)]
                    await link.run(flows.remember_announcement(keys, self._url, ttl_s))
                except BusError as error:
                    log.debug("queue %r of %s is not remembered: %s", name, self._url, error)


def _parse_announcement(text: bytes) -> tuple[str, int] | None:
    """Name and ttl of the queue; return None for text that is no announcement of a queue."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match found:
        case {"event": "queue", "key": str(key), "ttl": int(ttl_s)} if ttl_s > 0 and not isinstance(
            ttl_s, bool
        ):
            name = announced_name(key)
            if (
                name is None
                or len(name) > MAX_NAME_CHARACTERS
                or any("\ud800" <= letter <= "\udfff" for letter in name)
            ):
                return None
            return name, min(ttl_s, MAX_ANNOUNCED_TTL_S)
    return None


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
            self._pools[found] = WebSocketPool(found, options.federate_sockets, self._bus._spawn)
        return self._pools[found]


def secret_for_url(secrets: str | Mapping[str, str] | None, url: str) -> str | None:
    """Return the secret for a URL: one for all, or one for each URL; else that of the
    environment.
    """
    given = secrets.get(url) if isinstance(secrets, Mapping) else secrets
    return given or read_variable("BUSMQ_FEDERATION_SECRET")
