"""Keeps attached queues and persisted objects alive: many in one call, each every third of its
ttl.

The states of a queue or an object:

    state      event                                next state
    not kept   add(), keep()                        waiting, for a third of its ttl
    waiting    its time has come                    due
    due        tick; no touch of its kind and       under way
               server is under way
    under way  the server answers                   waiting; the queue handles the status:
                                                    1 alive, 0 gone, -1 another holds the lease
    under way  an error, or no answer in time       due, until the next tick
    any        remove(), remove_object()            not kept

A queue whose lease this bus holds waits for a third of LEASE_MS at most.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.objects.persisted import touch
from busmq_spark.queue.command_generators import RedisCall, command, group_by
from busmq_spark.queue.keys import ANNOUNCEMENT_CHANNEL, QueueKeys, pubsub_channel
from busmq_spark.reading.reader_operations import keep_alive
from busmq_spark.reading.reader_record import Announcement, lease_field
from busmq_spark.redis_io.lease_token import LEASE_MS
from busmq_spark.redis_io.reader_announcer import ReaderAnnouncer

if TYPE_CHECKING:
    from busmq_spark.bus.emitter import SpawnTask
    from busmq_spark.bus.redis_server_links import RedisServerLinks
    from busmq_spark.redis_io.layout import AnyAsyncLink

MIN_TOUCH_TIMEOUT_S = 1.0
"""Shortest time given to a server that should touch queues."""
TOUCH_CHECK_INTERVAL_S = 0.25
"""Seconds between two checks for due touches: a queue may live for as little as one second."""


class KeptQueue(Protocol):
    """An attached queue, as its keep-alive sees it."""

    keys: QueueKeys
    ttl_s: int
    server: int
    discoverable: bool
    leased: bool
    """Whether this bus holds the lease of its reliable consumer, which is renewed with it."""

    @property
    def _keys_to_touch(self) -> list[str]:
        """Further keys that must live as long as the queue."""

    def _on_touch_reply(self, status: int) -> None:
        """Handle a touch: 1 alive, 0 gone, -1 another holds the lease."""

    def _not_touched(self, error: BusError) -> None:
        """Handle a touch that did not reach the server."""


class KeptObject(Protocol):
    """A persisted object, as its keep-alive sees it."""

    key: str
    ttl_s: int
    server: int

    def _on_touch_reply(self, found: bool) -> None:
        """Handle a touch: whether the object is there."""

    def _not_touched(self, error: BusError) -> None:
        """Handle a touch that did not reach the server."""


class TtlKeepAlive:
    """The bus has one task, and each server one while its touch is under way: a dead server delays
    no other.

    A server that does not answer is asked again at the next tick; meanwhile what it has lives for
    what is left of its ttl.
    """

    def __init__(
        self, spawn: SpawnTask, servers: Callable[[], RedisServerLinks], token: str
    ) -> None:
        """``token``: the name of the bus in leases."""
        self._spawn, self._servers, self._token = spawn, servers, token
        self._announcer: ReaderAnnouncer | None = None
        self._due: dict[KeptQueue, float] = {}
        self._objects_due: dict[KeptObject, float] = {}
        self._under_way: set[tuple[str, int, bool]] = set()

    def add(self, queue: KeptQueue) -> None:
        """Touch the queue from now on; it has just been touched."""
        self._due[queue] = _next_touch_time(_interval_s(queue))

    def remove(self, queue: KeptQueue) -> None:
        """Touch it no more."""
        self._due.pop(queue, None)

    def announcement(self) -> Announcement:
        """Return the record of this bus as a reliable consumer."""
        self._announcer = self._announcer or ReaderAnnouncer("consumer", self._token)
        return self._announcer.announcement(lease_field(""))

    def keep(self, thing: KeptObject) -> None:
        """Touch the object from now on; it has just been touched."""
        self._objects_due[thing] = _next_touch_time(thing.ttl_s / 3)

    def remove_object(self, thing: KeptObject) -> None:
        """Touch it no more."""
        self._objects_due.pop(thing, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TOUCH_CHECK_INTERVAL_S)
            now = _now()
            queues = [queue for queue, due in self._due.items() if due <= now]
            for (server, leased), part in group_by(
                queues, lambda queue: (queue.server, queue.leased)
            ).items():
                self._spawn_touch(("queues", server, leased), self._touch_queues, part)
            objects = [thing for thing, due in self._objects_due.items() if due <= now]
            for server, things in group_by(objects, lambda thing: thing.server).items():
                self._spawn_touch(("objects", server, False), self._touch_objects, things)

    def _spawn_touch(
        self,
        group: tuple[str, int, bool],
        work: Callable[..., Coroutine[Any, Any, None]],
        part: Sequence[Any],
    ) -> None:
        """Touch a group, unless its last touch is still under way."""
        if group not in self._under_way:
            self._under_way.add(group)
            task = self._spawn(
                work(group[1], part, group[2]), f"touching {group[0]} of server {group[1]}"
            )
            task.add_done_callback(lambda _: self._under_way.discard(group))

    async def _touch_objects(self, server: int, things: Sequence[KeptObject], _: bool) -> None:
        link = self._servers().commands[server]
        try:
            async with asyncio.timeout(
                max(MIN_TOUCH_TIMEOUT_S, min(thing.ttl_s for thing in things) / 3)
            ):
                found = await link.run(touch([(thing.key, thing.ttl_s) for thing in things]))
        except (BusError, TimeoutError) as error:
            unreachable = _unreachable(error, link)
            for thing in things:
                thing._not_touched(unreachable)
            return
        for thing, alive in zip(things, found, strict=True):
            if thing in self._objects_due:
                self.keep(thing)
                thing._on_touch_reply(alive)

    async def _touch_queues(self, server: int, queues: Sequence[KeptQueue], leased: bool) -> None:
        token = self._token if leased else ""
        link = self._servers().commands[server]
        try:
            # Of a cluster one node may be away: queues at the others must not wait until it is back
            # or the link gives up.
            async with asyncio.timeout(max(MIN_TOUCH_TIMEOUT_S, min(map(_interval_s, queues)))):
                said = self.announcement() if leased else None
                found = await link.run(
                    keep_alive([queue.keys for queue in queues], "", token, LEASE_MS, said)
                )
                await link.execute(
                    [
                        command("EXPIRE", record, queue.ttl_s)
                        for queue in queues
                        for record in queue._keys_to_touch
                    ]
                )
        except (BusError, TimeoutError) as error:
            unreachable = _unreachable(error, link)
            for queue in queues:
                queue._not_touched(unreachable)
            return
        for queue, status in zip(queues, found, strict=True):
            if queue in self._due:
                self.add(queue)
                queue._on_touch_reply(status)
        await self.announce([queue for queue in queues if queue.discoverable])

    async def announce(self, queues: Sequence[KeptQueue]) -> None:
        """Announce these queues to federating buses (protocol 1.11); a notification that is lost is
        followed by the next.
        """
        servers = self._servers()
        if queues and servers.ready[0]:
            try:
                await servers.commands[0].execute([_announcement(queue) for queue in queues])
            except BusError as error:
                for queue in queues:
                    queue._not_touched(error)


def _announcement(queue: KeptQueue) -> RedisCall:
    """The notification of one queue."""
    text = json.dumps(
        {"event": "queue", "key": queue.keys.metadata, "ttl": queue.ttl_s},
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return command("PUBLISH", pubsub_channel(ANNOUNCEMENT_CHANNEL), text)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _next_touch_time(interval_s: float) -> float:
    """Return the time of the next touch of an object that was touched just now. The tick after that
    time does it, and no later than the interval ends.
    """
    return _now() + max(0.0, interval_s - TOUCH_CHECK_INTERVAL_S)


def _interval_s(queue: KeptQueue) -> float:
    third = queue.ttl_s / 3
    return min(third, LEASE_MS / 3000) if queue.leased else third


def _unreachable(error: Exception, link: AnyAsyncLink) -> BusError:
    return (
        error
        if isinstance(error, BusError)
        else LinkLost(url=link.endpoint.masked_url, reason="no answer in good time")
    )
