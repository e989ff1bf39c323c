"""The servers of a bus, in any layout, from the options of the user.

The links to the servers of a layout: one per server that a queue may live on, one for a whole
cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.async_link import AsyncClusterLink, AsyncLink
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.endpoint import RedisEndpoint, RoundRobinEndpoint
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds, SentinelMaster
from busmq_spark.redis_io.sync_link import SyncClusterLink, SyncLink
from busmq_spark.redis_io.urls import DefaultCredentials, RedisServerAddress, parse_servers


@dataclass(frozen=True, slots=True)
class RedisLayout:
    """``servers`` are the data servers (direct), the sentinels, or some nodes of the cluster.
    Secrets do not show in its repr.
    """

    layout: str
    servers: tuple[RedisServerAddress, ...]
    login: DefaultCredentials
    master: str

    @property
    def cluster(self) -> bool:
        """Whether key names carry hash tags and calls are routed by slot."""
        return self.layout == "cluster"

    @property
    def endpoints(self) -> tuple[RedisEndpoint, ...]:
        """Return an endpoint for each server that may hold queues; a cluster is one."""
        if self.cluster:
            return (ClusterSeeds(self.servers),)
        if self.layout == "sentinel":
            return (SentinelMaster(self.servers, self.master, self.login),)
        return self.servers

    @property
    def pubsub_endpoints(self) -> tuple[RedisEndpoint | RoundRobinEndpoint, ...]:
        """Return the endpoints to subscribe at, so that no publication is missed: every server, or
        any node of a cluster, whose nodes forward to each other.
        """
        return (RoundRobinEndpoint(self.servers),) if self.cluster else self.endpoints

    @property
    def masked_url(self) -> str:
        """For people."""
        return ",".join(endpoint.masked_url for endpoint in self.endpoints)


def redis_layout(options: RedisOptions) -> RedisLayout:
    """The servers of the options. Raises ConfigError for a bad URL, TLS file or mixture, before
    anything is connected.
    """
    servers, login = parse_servers(options)
    return RedisLayout(options.layout, servers, login, options.master)


Link: TypeAlias = SyncLink | SyncClusterLink
AnyAsyncLink: TypeAlias = AsyncLink | AsyncClusterLink


def sync_links(
    layout: RedisLayout, patience_s: float | None = None, reply_s: float = REPLY_TIMEOUT_S
) -> list[Link]:
    """Blocking links, in the order of the URLs. Nothing is connected yet. ``reply_s``: longest wait
    for one reply.
    """
    if layout.cluster:
        return [SyncClusterLink(ClusterSeeds(layout.servers), patience_s, reply_s)]
    return [SyncLink(endpoint, patience_s, reply_s) for endpoint in layout.endpoints]


def async_links(
    layout: RedisLayout, patience_s: float | None = None, reply_s: float = REPLY_TIMEOUT_S
) -> list[AnyAsyncLink]:
    """Open links for asyncio. ``reply_s``: a server that has not sent a due reply for so long
    counts as lost.
    """
    if layout.cluster:
        return [AsyncClusterLink(ClusterSeeds(layout.servers), patience_s, reply_s)]
    return [AsyncLink(endpoint, patience_s, reply_s) for endpoint in layout.endpoints]
