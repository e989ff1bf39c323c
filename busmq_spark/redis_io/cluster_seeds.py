"""A Redis Cluster as an endpoint: some nodes that are known beforehand, and how to ask one of all
which slots are where.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from busmq_spark.errors import BusError, ConfigError, LinkLost
from busmq_spark.redis_io.connection_factory import (
    async_connection,
    opening,
    sync_connection,
)
from busmq_spark.redis_io.endpoint import NoServerReachable
from busmq_spark.redis_io.resp_codec import pack_words
from busmq_spark.redis_io.slots import NodeAddress, SlotMap
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error
from busmq_spark.redis_io.urls import RedisServerAddress

_NODE_TIMEOUT_S = 2.0
"""Longest wait for one node: the others may know better."""
_CLUSTER_SLOTS_COMMAND = pack_words(("CLUSTER", "SLOTS"))


@dataclass(frozen=True, slots=True)
class ClusterSeeds:
    """``seeds`` are some of the nodes; the credentials of the first are those of every node that is
    found through them.
    """

    seeds: tuple[RedisServerAddress, ...]

    may_move = True

    @property
    def masked_url(self) -> str:
        """The seeds."""
        return ",".join(seed.masked_url for seed in self.seeds)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of the seeds."""
        return tuple(secret for seed in self.seeds for secret in seed.secrets)

    def server_of(self, node: NodeAddress) -> RedisServerAddress:
        """Return the address of a node: a seed has its own credentials, another node those of the
        first seed.
        """
        first = self.seeds[0]
        known = next((seed for seed in self.seeds if (seed.host, seed.port) == node), first)
        return RedisServerAddress(*node, first.tls, None, known.user, known.password, first.trust)

    def resolve(self) -> RedisServerAddress:
        """A master, whichever: notifications reach every node."""
        # Any will do
        return self.server_of(random.choice(self.fetch_slot_map().masters))  # noqa: S311

    async def resolve_async(self) -> RedisServerAddress:
        """Resolve on the running loop."""
        # Any will do
        return self.server_of(random.choice((await self.fetch_slot_map_async()).masters))  # noqa: S311

    def fetch_slot_map(
        self, known: Iterable[NodeAddress] = (), dead: Iterable[NodeAddress] = ()
    ) -> SlotMap:
        """Ask one node after the other, ``known`` ones and seeds, those called ``dead`` last.
        Raises NoServerReachable.
        """
        last: BusError | None = None
        for server in self._servers_to_ask(known, dead):
            connection = sync_connection(server, reply_s=_NODE_TIMEOUT_S, connect_s=_NODE_TIMEOUT_S)
            try:
                connection.connect()
                connection.send_packed_command([_CLUSTER_SLOTS_COMMAND], check_health=False)
                return self._parse_slots(connection.read_response(disable_decoding=True), server)
            except CONNECTION_ERRORS as error:
                last = self._worst_error(error, server, last)
            finally:
                connection.disconnect()
        raise self._unreachable_error(last)

    async def fetch_slot_map_async(
        self, known: Iterable[NodeAddress] = (), dead: Iterable[NodeAddress] = ()
    ) -> SlotMap:
        """Fetch the slot map on the running loop."""
        last: BusError | None = None
        for server in self._servers_to_ask(known, dead):
            connection = async_connection(server)
            try:
                async with opening(connection, _NODE_TIMEOUT_S, _NODE_TIMEOUT_S):
                    await connection.connect()
                    await connection.send_packed_command(_CLUSTER_SLOTS_COMMAND, check_health=False)
                    return self._parse_slots(
                        await connection.read_response(disable_decoding=True), server
                    )
            except CONNECTION_ERRORS as error:
                last = self._worst_error(error, server, last)
            finally:
                await connection.disconnect(nowait=True)
        raise self._unreachable_error(last)

    def _servers_to_ask(
        self, known: Iterable[NodeAddress], dead: Iterable[NodeAddress]
    ) -> list[RedisServerAddress]:
        nodes = list(dict.fromkeys([*known, *((seed.host, seed.port) for seed in self.seeds)]))
        random.shuffle(
            nodes
        )  # so that a partitioned node with an old slot map is not the only one asked
        ill = set(dead)
        return [self.server_of(node) for node in sorted(nodes, key=lambda node: node in ill)]

    def _parse_slots(self, reply: Any, server: RedisServerAddress) -> SlotMap:
        if not reply:
            raise LinkLost(
                url=server.masked_url, reason="this node knows of no slots; is the cluster formed?"
            )
        return SlotMap.parse(reply, server.host)

    def _worst_error(
        self, error: Exception, server: RedisServerAddress, last: BusError | None
    ) -> BusError:
        """The worst so far: that a node refuses us weighs more than that another is down."""
        if "cluster support disabled" in str(error):
            raise ConfigError(
                reason=(
                    f"redis.layout is cluster, but {server.masked_url} is no node of a cluster;"
                    " leave redis.layout at direct"
                )
            ) from None
        found = translate_redis_error(error, server)
        return found if last is None or last.retriable else last

    def _unreachable_error(self, last: BusError | None) -> BusError:
        if last is not None and not last.retriable:
            return last
        return NoServerReachable(
            url=self.masked_url,
            reason=(
                "no node of the cluster answers:"
                f" {last.details['reason'] if last else 'none is named'}"
            ),
        )
