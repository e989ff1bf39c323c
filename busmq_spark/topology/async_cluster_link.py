"""The asyncio twin of ``cluster_link.py``, shared by many tasks: one connection per node, steps go out in the order they were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import Any

import redis.exceptions as rx

from busmq_spark.core.flow import Call, Flow, Step, T, run_async
from busmq_spark.errors import BusError, LinkLost
from busmq_spark.topology.async_link import AsyncLink
from busmq_spark.topology.cluster import Cluster
from busmq_spark.topology.connect import REPLY_TIMEOUT_S
from busmq_spark.topology.endpoint import NobodyAnswers, patience, pause
from busmq_spark.topology.errand import Errand, Parcel
from busmq_spark.topology.slots import Node, SlotMap, key_of, slot
from busmq_spark.topology.translate import translate
from busmq_spark.topology.wire import calls_of, result

_WIRE_ERRORS = (rx.RedisError, OSError)


class AsyncClusterLink:
    """An AsyncLink to a cluster: the same methods, with what may be repeated judged call by call (see errand.py)."""

    def __init__(self, cluster: Cluster, patience_s: float | None = None, reply_s: float = REPLY_TIMEOUT_S) -> None:
        """See AsyncLink."""
        self.endpoint = cluster
        self._patience_s, self._reply_s = patience_s, reply_s
        self._map: SlotMap | None = None
        self._nodes: dict[Node, AsyncLink] = {}
        self._asking = asyncio.Lock()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return await run_async(flow, self.execute)

    def begin(self, call: Call) -> asyncio.Future[list[Any]] | None:
        """See AsyncLink; a redirection is an error reply like any other."""
        key = key_of(call)
        node = None if self._map is None or key is None else self._map.owner(slot(key))
        link = None if node is None else self._nodes.get(node)
        return None if link is None else link.begin(call)

    async def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error of the first call that failed."""
        calls = calls_of(step)
        if not calls:
            return []
        errand = Errand(calls, self.endpoint)
        clock = asyncio.get_running_loop().time
        began = clock()
        for attempt in count():
            try:
                await self._round(errand, self._map or await self.refresh())
                errand.check()
                if errand.stale:
                    await self.refresh(errand.dead)
                problem = errand.put_off
            except NobodyAnswers as error:
                problem = error
            if not errand.open:
                await self._tidy(errand)
                return result(step, errand.replies)
            if problem is not None:
                given = patience(self.endpoint, problem) if self._patience_s is None else self._patience_s
                await asyncio.sleep(pause(problem, attempt, clock() - began, given))
        raise AssertionError("unreachable")

    async def refresh(self, dead: Iterable[Node] = ()) -> SlotMap:
        """Ask anew which slots are where; tasks that ask at once share one answer. Raises NobodyAnswers when no node does."""
        before = self._map
        async with self._asking:
            if self._map is before or self._map is None:
                self._map = await self.endpoint.slots_async(self._map.masters if self._map else (), dead)
                for gone in self._nodes.keys() - set(self._map.masters):
                    if self._nodes[gone].wire is None:  # an open one may still get replies for other tasks
                        del self._nodes[gone]
            return self._map

    async def masters(self) -> list[AsyncLink]:
        """Links to every node that owns slots now, for what is asked of each. They give up soon and are closed with this link."""
        return [self.node(node) for node in (await self.refresh()).masters]

    async def ping(self) -> None:
        """Returns when some master answers; connects if need be. Raises at once, without patience."""
        for node in (self._map or await self.refresh()).masters:
            with suppress(LinkLost):
                await self.node(node).ping()
                return
        await self.refresh()

    def node(self, node: Node) -> AsyncLink:
        """The link to one node."""
        if node not in self._nodes:
            self._nodes[node] = AsyncLink(self.endpoint.server(node), 0.0, self._reply_s)
        return self._nodes[node]

    def drop(self) -> None:
        """Break every connection now: steps in flight fail as if the links had broken. A later step opens new ones."""
        for link in self._nodes.values():
            link.drop()

    async def close(self) -> None:
        """Close every connection. A later step opens new ones."""
        self.drop()

    async def _round(self, errand: Errand, slot_map: SlotMap) -> None:
        under_way: list[tuple[Parcel, asyncio.Future[list[Any]]]] = []
        try:
            for parcel in errand.parcels(slot_map):
                link = self.node(parcel.node)
                try:
                    wire = link.wire or await link.connect()
                except LinkLost as error:
                    errand.unsent(parcel, error)
                    continue
                under_way.append((parcel, wire.ask(parcel.wire)))
            for parcel, replies in under_way:
                try:
                    errand.take(parcel, await replies)
                except _WIRE_ERRORS as error:
                    errand.lost(parcel, _lost(error, self.endpoint.server(parcel.node)))
        finally:
            for _, replies in under_way:
                if not replies.cancel() and not replies.cancelled():
                    replies.exception()  # retrieved: else asyncio logs it
        if self._map is not None:
            self._map = self._map.told(errand.moved)

    async def _tidy(self, errand: Errand) -> None:
        """Where one slot has moved, others have too."""
        if errand.moved:
            with suppress(BusError):
                await self.refresh()


def _lost(error: Exception, server: Any) -> LinkLost:
    found = translate(error, server)
    return found if isinstance(found, LinkLost) else LinkLost(url=server.masked, reason=str(error))
