"""The asyncio twin of ``sync_cluster_link.py``, shared by many tasks: one connection per node,
steps go out in the order they were asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from busmq_spark.errors import LinkLost
from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, run_async
from busmq_spark.redis_io.async_link import AsyncLink
from busmq_spark.redis_io.cluster_rules import KnownSlots, run_cluster_step
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.link_rules import THROWN, Action, Connect, FindSlots, Pause, Receive, Send
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds
from busmq_spark.redis_io.pipelined_connection import OnReply
from busmq_spark.redis_io.slots import NodeAddress, SlotMap, key_of, slot_of_key


class AsyncClusterLink:
    """An AsyncLink to a cluster: the same methods, with what may be repeated judged call by call
    (see cluster_rules.py).
    """

    def __init__(
        self,
        cluster: ClusterSeeds,
        patience_s: float | None = None,
        reply_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """See AsyncLink."""
        self.endpoint = cluster
        self._patience_s, self._reply_s = patience_s, reply_s
        self._slots = KnownSlots()
        # Nodes without slots stay, too: a task may be about to connect to one, and close() must
        # find its connection.
        self._nodes: dict[NodeAddress, AsyncLink] = {}
        self._asking = asyncio.Lock()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return await run_async(flow, self.execute)

    def send_if_connected(self, call: RedisCall, on_reply: OnReply) -> bool:
        """See AsyncLink; a redirection is an error reply like any other."""
        key = key_of(call)
        known = self._slots.current
        node = None if known is None or key is None else known.owner(slot_of_key(key))
        link = None if node is None else self._nodes.get(node)
        return link is not None and link.send_if_connected(call, on_reply)

    async def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error
        of the first call that failed.
        """
        rule = run_cluster_step(step, self.endpoint, self._slots, self._patience_s, time.monotonic)
        under_way: list[asyncio.Future[list[Any]]] = []
        try:
            return await run_async(rule, partial(self._perform, under_way), THROWN)
        finally:
            for replies in under_way:
                if not replies.cancel() and not replies.cancelled():
                    replies.exception()  # retrieved: else asyncio logs it

    async def _perform(self, under_way: list[asyncio.Future[list[Any]]], action: Action) -> Any:
        match action:
            case FindSlots(anew, dead):
                return (None if anew else self._slots.current) or await self.refresh(dead)
            case Connect(node):
                assert node is not None
                link = self.link_to(node)
                return link.wire or await link.connect()
            case Send(wire, calls):
                under_way.append(wire.ask(calls))
                return under_way[-1]
            case Receive(replies):
                return await replies
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None

    async def refresh(self, dead: Iterable[NodeAddress] = ()) -> SlotMap:
        """Ask anew which slots are where; tasks that ask at once share one answer. Raises
        NoServerReachable when no node does.
        """
        before = self._slots.current
        async with self._asking:
            known = self._slots.current
            if known is before or known is None:
                known = self._slots.current = await self.endpoint.fetch_slot_map_async(
                    known.masters if known else (), dead
                )
            return known

    async def master_links(self) -> list[AsyncLink]:
        """Links to every node that owns slots now, for what is asked of each. They give up soon and
        are closed with this link.
        """
        return [self.link_to(node) for node in (await self.refresh()).masters]

    async def ping(self) -> None:
        """Returns when some master answers; connects if need be. Raises at once, without
        patience.
        """
        for node in (self._slots.current or await self.refresh()).masters:
            with suppress(LinkLost):
                await self.link_to(node).ping()
                return
        await self.refresh()

    def link_to(self, node: NodeAddress) -> AsyncLink:
        """The link to one node."""
        if node not in self._nodes:
            self._nodes[node] = AsyncLink(self.endpoint.server_of(node), 0.0, self._reply_s)
        return self._nodes[node]

    def drop(self) -> None:
        """Break every connection now: steps in flight fail as if the links had broken. A later step
        opens new ones.
        """
        for link in self._nodes.values():
            link.drop()

    async def close(self) -> None:
        """Close every connection. A later step opens new ones."""
        self.drop()
