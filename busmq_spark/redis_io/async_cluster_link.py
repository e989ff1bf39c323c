"""The asyncio twin of ``sync_cluster_link.py``, shared by many tasks: one connection per node,
steps go out in the order they were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, run_async
from busmq_spark.redis_io.async_link import AsyncLink
from busmq_spark.redis_io.cluster_pipeline import ClusterPipeline, NodeBatch
from busmq_spark.redis_io.cluster_seeds import ClusterSeeds
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.endpoint import NoServerReachable, retry_time_s
from busmq_spark.redis_io.pipelined_connection import OnReply
from busmq_spark.redis_io.resp_codec import calls_of, step_result
from busmq_spark.redis_io.retry import LinkRetry
from busmq_spark.redis_io.slots import NodeAddress, SlotMap, key_of, slot_of_key
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error
from busmq_spark.redis_io.urls import RedisServerAddress


class AsyncClusterLink:
    """An AsyncLink to a cluster: the same methods, with what may be repeated judged call by call
    (see cluster_pipeline.py).
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
        self._map: SlotMap | None = None
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
        node = None if self._map is None or key is None else self._map.owner(slot_of_key(key))
        link = None if node is None else self._nodes.get(node)
        return link is not None and link.send_if_connected(call, on_reply)

    async def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error
        of the first call that failed.
        """
        calls = calls_of(step)
        if not calls:
            return []
        cluster_pipeline = ClusterPipeline(calls, self.endpoint)
        retry = LinkRetry(asyncio.get_running_loop().time)
        while True:
            try:
                await self._run_round(cluster_pipeline, self._map or await self.refresh())
                cluster_pipeline.raise_if_failed()
                if cluster_pipeline.stale:
                    await self.refresh(cluster_pipeline.dead)
                problem = cluster_pipeline.retry_reason
            except NoServerReachable as error:
                problem = error
            if not cluster_pipeline.pending:
                await self._refresh_if_moved(cluster_pipeline)
                return step_result(step, cluster_pipeline.replies)
            if problem is not None:
                given_s = retry_time_s(self.endpoint, problem, self._patience_s)
                with retry.pausing(problem, given_s) as pause_s:
                    await asyncio.sleep(pause_s)

    async def refresh(self, dead: Iterable[NodeAddress] = ()) -> SlotMap:
        """Ask anew which slots are where; tasks that ask at once share one answer. Raises
        NoServerReachable when no node does.
        """
        before = self._map
        async with self._asking:
            if self._map is before or self._map is None:
                self._map = await self.endpoint.fetch_slot_map_async(
                    self._map.masters if self._map else (), dead
                )
            return self._map

    async def master_links(self) -> list[AsyncLink]:
        """Links to every node that owns slots now, for what is asked of each. They give up soon and
        are closed with this link.
        """
        return [self.link_to(node) for node in (await self.refresh()).masters]

    async def ping(self) -> None:
        """Returns when some master answers; connects if need be. Raises at once, without
        patience.
        """
        for node in (self._map or await self.refresh()).masters:
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

    async def _run_round(self, cluster_pipeline: ClusterPipeline, slot_map: SlotMap) -> None:
        under_way: list[tuple[NodeBatch, asyncio.Future[list[Any]]]] = []
        try:
            for batch in cluster_pipeline.batches(slot_map):
                link = self.link_to(batch.node)
                try:
                    wire = link.wire or await link.connect()
                except LinkLost as error:
                    cluster_pipeline.on_node_unreachable(batch, error)
                    continue
                under_way.append((batch, wire.ask(batch.wire)))
            for batch, replies in under_way:
                try:
                    cluster_pipeline.add_replies(batch, await replies)
                except CONNECTION_ERRORS as error:
                    cluster_pipeline.on_connection_lost(
                        batch, _as_link_lost(error, self.endpoint.server_of(batch.node))
                    )
        finally:
            for _, replies in under_way:
                if not replies.cancel() and not replies.cancelled():
                    replies.exception()  # retrieved: else asyncio logs it
        if self._map is not None:
            self._map = self._map.with_moved(cluster_pipeline.moved)

    async def _refresh_if_moved(self, cluster_pipeline: ClusterPipeline) -> None:
        """If one slot has moved, others have too."""
        if cluster_pipeline.moved:
            with suppress(BusError):
                await self.refresh()


def _as_link_lost(error: Exception, server: RedisServerAddress) -> LinkLost:
    found = translate_redis_error(error, server)
    return (
        found if isinstance(found, LinkLost) else LinkLost(url=server.masked_url, reason=str(error))
    )
