"""Where the servers of a bus are, in whichever layout, from the options a user gave."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from busmq_spark.errors import ConfigError
from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.cluster_seeds import ClusterSeeds
from busmq_spark.redis_io.endpoint import Endpoint, RoundRobinEndpoint
from busmq_spark.redis_io.sentinel import DEFAULT_MASTER, SENTINEL_PORT, SentinelMaster
from busmq_spark.redis_io.urls import DEFAULT_PORT, Credentials, Server, TlsFiles, parse


@dataclass(frozen=True, slots=True)
class ServerLayout:
    """``servers`` are the data servers (direct), the sentinels, or some nodes of the cluster. Secrets do not show in its repr."""

    layout: str
    servers: tuple[Server, ...]
    login: Credentials
    master: str

    @property
    def cluster(self) -> bool:
        """Whether key names carry hash tags and calls are routed by slot."""
        return self.layout == "cluster"

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """One per server a queue may live on; a cluster is one."""
        if self.cluster:
            return (ClusterSeeds(self.servers),)
        if self.layout == "sentinel":
            return (SentinelMaster(self.servers, self.master, self.login),)
        return self.servers

    @property
    def pubsub_endpoints(self) -> tuple[Endpoint | RoundRobinEndpoint, ...]:
        """Where to subscribe, so that no publication is missed: at every server, or at any node of a cluster, whose nodes forward to each other."""
        return (RoundRobinEndpoint(self.servers),) if self.cluster else self.endpoints

    @property
    def masked_url(self) -> str:
        """For people."""
        return ",".join(endpoint.masked_url for endpoint in self.endpoints)


def redis_layout(options: RedisOptions) -> ServerLayout:
    """The servers of the options. Raises ConfigError for a bad URL, TLS file or mixture, before anything is connected."""
    trust = TlsFiles(options.tls_ca, options.tls_certificate, options.tls_key, options.tls_check_hostname)
    login = Credentials(options.user, options.password, trust)
    sentinel = options.layout == "sentinel"
    # The credentials in the options are for the data servers; those of a sentinel are in its URL.
    servers = parse(options.address, Credentials(trust=trust) if sentinel else login, SENTINEL_PORT if sentinel else DEFAULT_PORT)
    _check_layout(options, servers)
    _check_tls(options, servers)
    return ServerLayout(options.layout, servers, login, options.master)


def _check_layout(options: RedisOptions, servers: Sequence[Server]) -> None:
    layout = options.layout
    if options.master != DEFAULT_MASTER and layout != "sentinel":
        found = f"redis.sentinelMaster is {options.master!r}, but redis.layout is {layout}"
        raise ConfigError(reason=f"{found}; set redis.layout=sentinel, with the sentinels in redis.url")
    if layout == "direct":
        return
    if any(server.path for server in servers):
        raise ConfigError(reason=f"redis.url has a unix socket, but redis.layout={layout} needs hosts that every node can be reached by")
    if len({server.tls for server in servers}) > 1:
        raise ConfigError(reason=f"redis.url mixes redis:// and rediss://; with redis.layout={layout} all nodes speak TLS or none does")


def _check_tls(options: RedisOptions, servers: Sequence[Server]) -> None:
    files = {"redis.tls.ca": options.tls_ca, "redis.tls.certificate": options.tls_certificate, "redis.tls.key": options.tls_key}
    given = [name for name, path in files.items() if path] + ([] if options.tls_check_hostname else ["redis.tls.checkHostname"])
    if given and not any(server.tls for server in servers):
        raise ConfigError(reason=f"{given[0]} is set, but no URL in redis.url speaks TLS; write rediss:// instead of redis://")
    if options.tls_key and not options.tls_certificate:
        raise ConfigError(reason="redis.tls.key is set without redis.tls.certificate, the certificate it belongs to; set both")
    for name, path in files.items():
        if path and not Path(path).is_file():
            raise ConfigError(reason=f"{name} is {path!r}, which is no file on this machine; every driver and executor needs it at that path")
    if not given:
        return
    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            reason=f"redis.tls.ca, {options.tls_ca!r}, holds no certificate in PEM form that can be read ({_on_one_line(error)})"
        ) from None
    try:
        if options.tls_certificate:
            context.load_cert_chain(options.tls_certificate, options.tls_key, password=_refuse_encrypted_key)
    except (ssl.SSLError, OSError, ValueError) as error:
        found = f"redis.tls.certificate, {options.tls_certificate!r}, and its private key cannot be used ({_on_one_line(error)})"
        raise ConfigError(reason=f"{found}; both must be PEM and belong together") from None


def _refuse_encrypted_key() -> str:
    raise ValueError("the key is encrypted; give one that is not")


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
