"""The servers of a bus on the running loop: links for commands, for taking messages and for
listening, and which server owns what.

Rule 1. Consumers have a link of their own, so that they do not wait for pushes (protocol Q34).
Rule 2. A queue lives where it exists, else where ``server`` says, or where its name hashes to
        (redis_io/queue_location.py), also while other servers cannot be reached: one that is dead
        stops no queue of the others. A found place holds for ten minutes; a place that was assumed
        while a server was away does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from busmq_spark.errors import BusError, ConfigError, LinkLost
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import queue_name, server_index
from busmq_spark.redis_io import optional_commands
from busmq_spark.redis_io.durability import DurableAsyncLink
from busmq_spark.redis_io.layout import RedisLayout, async_links
from busmq_spark.redis_io.optional_commands import ask_if_allowed
from busmq_spark.redis_io.pubsub_connection import PubSubConnection
from busmq_spark.redis_io.queue_location import choose_server

if TYPE_CHECKING:
    from busmq_spark.options import Durability
    from busmq_spark.redis_io.layout import AnyAsyncLink

LOCATION_CACHE_S = 600.0
MAX_CACHED_LOCATIONS = 100_000
PING_INTERVAL_S = 1.0
log = logging.getLogger("busmq_spark")


class RedisServerLinks:
    """Opens nothing until ``first_contact``. ``on_change`` is called whenever a server comes or
    goes, with the reason when it went.
    """

    def __init__(
        self, layout: RedisLayout, on_change: Callable[[BusError | None], None], reply_s: float
    ) -> None:
        self.commands: list[AnyAsyncLink] = async_links(layout, None, reply_s)
        self.takes: list[AnyAsyncLink] = async_links(layout, 0.0, reply_s)
        """Without patience: consumers have more of it than any link."""
        self.pubsub = [PubSubConnection(endpoint, reply_s) for endpoint in layout.pubsub_endpoints]
        self._durable: dict[tuple[int, Durability], DurableAsyncLink] = {}
        self.ready = [False] * len(self.commands)
        self._on_change, self._reply_s = on_change, reply_s
        self._known: dict[str, tuple[int, float]] = {}

    def __str__(self) -> str:
        return ", ".join(link.endpoint.masked_url for link in self.commands)

    def start(self, spawn: Callable[..., Any]) -> None:
        """Begin to listen and to watch, as tasks of the bus."""
        for index, connection in enumerate(self.pubsub):
            spawn(self._receive_publications(connection, index), f"listening to server {index}")
            spawn(self._ping_regularly(index), f"watching server {index}")

    async def first_contact(self) -> None:
        """Ping every server. Raises the error of the first when none answers in good time, and any
        that waiting cannot mend.
        """
        pings = (link.ping() for link in self.commands)
        outcomes: list[object] = list(await asyncio.gather(*pings, return_exceptions=True))
        if all(isinstance(outcome, LinkLost) for outcome in outcomes):
            asked = (link.run(ask_if_allowed("PING")) for link in self.commands)
            outcomes = list(await asyncio.gather(*asked, return_exceptions=True))
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in failed:
            if not isinstance(error, LinkLost) or len(failed) == len(outcomes):
                raise error
            log.warning("%s", error)
        self.ready = [not isinstance(outcome, BaseException) for outcome in outcomes]

    async def check_eviction(self, *, required: bool) -> None:
        """Warn of servers that evict, or refuse them (see redis_io/optional_commands.py). One node
        of a cluster is asked.
        """
        for link, ready in zip(self.commands, self.ready, strict=True):
            if ready:
                with suppress(LinkLost):
                    optional_commands.check_eviction_policies(
                        {
                            link.endpoint.masked_url: await link.run(
                                optional_commands.read_eviction_policy()
                            )
                        },
                        required=required,
                    )

    async def locate(self, key: str, home: int | None = None) -> int:
        """The index of the server that owns a key: the one that has it, else ``home``, else the one
        it hashes to.

        Raises LinkLost only when that one cannot be asked, ConfigError for a home that is no
        server.
        """
        if home is not None and not 0 <= home < len(self.commands):
            raise ConfigError(
                reason=f"server is {home}; this bus has the servers 0 to {len(self.commands) - 1}"
            )
        if len(self.commands) == 1:
            return 0
        now = asyncio.get_running_loop().time()
        index, until = self._known.get(key, (0, 0.0))
        if now >= until:
            index, certain = await self._search_servers(
                key, server_index(key, len(self.commands)) if home is None else home
            )
            if len(self._known) >= MAX_CACHED_LOCATIONS:
                self._known.clear()
            if certain:
                self._known[key] = (index, now + LOCATION_CACHE_S)
        return index

    async def _search_servers(self, key: str, home: int) -> tuple[int, bool]:
        """The index, and whether it holds also when servers that did not answer come back."""
        asked = [
            home,
            *(index for index, ready in enumerate(self.ready) if ready and index != home),
        ]
        ask = command("EXISTS", key)
        found = await asyncio.gather(
            *(self.commands[index].execute(ask) for index in asked), return_exceptions=True
        )
        if isinstance(found[0], BaseException) and not any(outcome == 1 for outcome in found):
            raise found[0]
        having = [index for index, outcome in zip(asked, found, strict=True) if outcome == 1]
        answered = sum(not isinstance(outcome, BaseException) for outcome in found)
        index = choose_server(having, server_index(key, len(self.commands))) if having else home
        return index, bool(having) or (
            answered == len(self.commands) and queue_name(key) is None
        )  # a queue may yet be created on any server

    def durable(self, index: int, durability: Durability) -> DurableAsyncLink:
        """Return the link to a server for writes of this durability: its connection is of its own,
        since WAIT blocks it, and all such writes share it.
        """
        found = self._durable.get((index, durability))
        if found is None:
            endpoint = self.commands[index].endpoint
            found = DurableAsyncLink(endpoint, durability, self._reply_s)
            self._durable[index, durability] = found
        return found

    async def close(self) -> None:
        """Close every link."""
        for connection in self.pubsub:
            connection.drop()
        for link in (*self.commands, *self.takes, *self._durable.values()):
            with suppress(BusError):
                await link.close()

    async def _receive_publications(self, connection: PubSubConnection, index: int) -> None:
        try:
            await connection.run()
        except BusError as error:
            self._set_reachable(index, error)
            raise

    async def _ping_regularly(self, index: int) -> None:
        """Ping a server every second, as npm busmq does, and say when it comes or goes. It has come
        when what is published is received, too.
        """
        link, connection = self.commands[index], self.pubsub[index]
        while True:
            try:
                await self._ping(link)
                if not self.ready[index]:
                    async with asyncio.timeout(PING_INTERVAL_S):
                        await connection.wait_subscribed()
                self._set_reachable(index, None)
            except TimeoutError:
                continue
            except BusError as error:
                self._set_reachable(index, error)
            await asyncio.sleep(PING_INTERVAL_S)

    async def _ping(self, link: AnyAsyncLink) -> None:
        """Returns when the server answers. A server that hung up is asked once more: it may be
        well, or may refuse us and tell only a new connection.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await link.ping()
        except LinkLost:
            if clock() - began >= self._reply_s:  # it did not hang up: it is silent
                raise
            await link.ping()

    def _set_reachable(self, index: int, error: BusError | None) -> None:
        if self.ready[index] != (error is None):
            self.ready[index] = error is None
            self._on_change(error)
