"""The links to the servers of a layout: one per server that a queue may live on, one for a whole
cluster.
"""

from __future__ import annotations

from typing import TypeAlias

from busmq_spark.redis_io.async_link import AsyncClusterLink, AsyncLink
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds
from busmq_spark.redis_io.redis_layout import RedisLayout
from busmq_spark.redis_io.sync_link import SyncClusterLink, SyncLink

Link: TypeAlias = SyncLink | SyncClusterLink
AnyAsyncLink: TypeAlias = AsyncLink | AsyncClusterLink


def sync_links(layout: RedisLayout, patience_s: float | None = None) -> list[Link]:
    """Blocking links, in the order of the URLs. Nothing is connected yet."""
    if layout.cluster:
        return [SyncClusterLink(ClusterSeeds(layout.servers), patience_s)]
    return [SyncLink(endpoint, patience_s) for endpoint in layout.endpoints]


def async_links(
    layout: RedisLayout, patience_s: float | None = None, reply_s: float = REPLY_TIMEOUT_S
) -> list[AnyAsyncLink]:
    """Open links for asyncio. ``reply_s``: a server that has not sent a due reply for so long
    counts as lost.
    """
    if layout.cluster:
        return [AsyncClusterLink(ClusterSeeds(layout.servers), patience_s, reply_s)]
    return [AsyncLink(endpoint, patience_s, reply_s) for endpoint in layout.endpoints]
