"""From what the user named to what an outbox forwards to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from busmq_spark.arguments import join_urls
from busmq_spark.errors import ConfigError
from busmq_spark.extras import missing_package
from busmq_spark.options import bus_options, refuse_durability_over_federation
from busmq_spark.outbox.target_bus import OutboxTarget, RedisOutboxTarget
from busmq_spark.queue.keys import QueueKeys, server_index
from busmq_spark.redis_io.layout import redis_layout

if TYPE_CHECKING:
    from busmq_spark.bus.bus import DurabilityLevel

WEBSOCKET_SCHEMES = ("ws://", "wss://")


class OutboxKeywords(TypedDict, total=False):
    """The settings of an outbox: those of Bus, save for the URLs, which ``to`` has."""

    user: str | None
    password: str | None
    layout: Literal["direct", "sentinel", "cluster"]
    master: str
    tls_ca: str | PathLike[str] | None
    tls_certificate: str | PathLike[str] | None
    tls_key: str | PathLike[str] | None
    tls_check_hostname: bool
    require_no_eviction: bool
    reply_timeout_s: float
    durability: DurabilityLevel
    replicas: int | Literal["all"]
    durability_timeout_s: float
    federate_secret: str | Mapping[str, str] | None
    federate_secret_in_url: bool | Collection[str]
    federate_tls_ca: str | PathLike[str] | None
    federate_compression: bool
    federate_sockets: int


def target_opener(
    to: str | Sequence[str] | None, settings: Mapping[str, Any]
) -> tuple[Callable[[], OutboxTarget], int]:
    """Return a function that opens the target, once for each lane, and the number of lanes: one for
    each server. Nothing is connected. Raises ConfigError.
    """
    for name in ("url", "federate"):
        if name in settings:
            raise ConfigError(reason=f"an outbox has no setting {name!r}; its argument 'to' has it")
    where_to = None if to is None else join_urls("to", to)
    federated = where_to is not None and where_to.lower().startswith(WEBSOCKET_SCHEMES)
    options = bus_options({"federate" if federated else "url": where_to, **settings})
    if federated:
        refuse_durability_over_federation(options.durable)
        try:
            from busmq_spark.outbox.federation_target import (
                FederationOutboxTarget,
                federation_address,
            )
        except ModuleNotFoundError as error:
            raise missing_package(error, "an outbox towards a federation server") from None
        where = federation_address(options)
        return lambda: FederationOutboxTarget(where), 1
    servers = redis_layout(options)
    return lambda: RedisOutboxTarget(servers, options.durable), len(servers.endpoints)


def lane_of(queue: str, lanes: int) -> int:
    """Which lane forwards to a queue: that of the server on which it is made, as a rule."""
    return server_index(QueueKeys(queue).metadata, lanes) if lanes > 1 else 0
