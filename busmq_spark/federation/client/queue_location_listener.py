"""Receives where discoverable queues are, and stores it in this bus' own Redis, where
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
from typing import TYPE_CHECKING, Any

from busmq_spark.errors import BusError
from busmq_spark.federation.client import checked_values
from busmq_spark.federation.client.remote_object_connection import error_from_event
from busmq_spark.federation.client.remote_reconnector import RemoteObjectListener, RemoteReconnector
from busmq_spark.federation.npm_wire.creation_message import MAX_NAME_CHARACTERS, make_creation
from busmq_spark.queue import queue as flows
from busmq_spark.queue.keys import ANNOUNCEMENT_CHANNEL, QueueKeys, announced_name

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
    from busmq_spark.federation.client.web_socket_pool import WebSocketPool

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
            pool, make_creation("pubsub", ANNOUNCEMENT_CHANNEL), bus.spawn, self, self._restore
        )
        self._news: dict[str, int] = {}
        self._more = asyncio.Event()

    def __repr__(self) -> str:
        return f"the announcements of {self._url}"

    def start(self) -> None:
        """Until the bus is left."""
        self._handle.open_and_keep()
        if self._bus.has_redis:
            self._bus.spawn(self._store_announced_queues(), f"remembering {self!r}")

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
                checked_values.expect_text_as_bytes(text, "an announcement")
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
