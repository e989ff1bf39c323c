"""Where the servers of a bus are, in whichever layout, from the options a user gave."""

from __future__ import annotations

from dataclasses import dataclass

from busmq_spark.options import RedisOptions
from busmq_spark.topology.cluster import Cluster
from busmq_spark.topology.endpoint import Endpoint
from busmq_spark.topology.sentinel import SENTINEL_PORT, Master
from busmq_spark.topology.urls import DEFAULT_PORT, Login, Server, Trust, parse


@dataclass(frozen=True, slots=True)
class Address:
    """``servers`` are the data servers (direct), the sentinels, or some nodes of the cluster. Secrets do not show in its repr."""

    layout: str
    servers: tuple[Server, ...]
    login: Login
    master: str

    @property
    def cluster(self) -> bool:
        """Whether key names carry hash tags and calls are routed by slot."""
        return self.layout == "cluster"

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """One per server a queue may live on; a cluster is one."""
        if self.cluster:
            return (Cluster(self.servers),)
        if self.layout == "sentinel":
            return (Master(self.servers, self.master, self.login),)
        return self.servers

    @property
    def masked(self) -> str:
        """For people."""
        return ",".join(endpoint.masked for endpoint in self.endpoints)


def address(options: RedisOptions) -> Address:
    """The servers of the options. Raises ConfigError for a URL that is none, before anything is connected."""
    trust = Trust(options.tls_ca, options.tls_certificate, options.tls_key, options.tls_check_hostname)
    login = Login(options.user, options.password, trust)
    sentinel = options.layout == "sentinel"
    # The credentials of the options are the data servers'; a sentinel that wants some has them in its URL.
    servers = parse(options.address, Login(trust=trust) if sentinel else login, SENTINEL_PORT if sentinel else DEFAULT_PORT)
    return Address(options.layout, servers, login, options.master)
