"""Endpoints whose server is looked up at every connect: the master that Redis Sentinel names, and
the nodes of a Redis Cluster. So a fail-over needs no notification (Redis' guidelines for clients).

A look-up is a generator that yields questions and is sent the replies, or the errors are thrown
into it: the blocking and the asyncio link share it.

Endpoint to open connection. Behind an endpoint that may move, only a server that says it is
master will do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import redis
import redis.asyncio as aredis
import redis.exceptions as rx

from busmq_spark.errors import BusError, ConfigError, LinkLost
from busmq_spark.queue.command_generators import T, run_async, run_sync
from busmq_spark.redis_io.connection_factory import (
    REPLY_TIMEOUT_S,
    async_connection,
    opening,
    sync_connection,
)
from busmq_spark.redis_io.endpoint import NoServerReachable, RedisEndpoint
from busmq_spark.redis_io.event_loops import keep_from_children
from busmq_spark.redis_io.resp_codec import pack_words
from busmq_spark.redis_io.slots import NodeAddress, SlotMap
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error
from busmq_spark.redis_io.urls import (
    DEFAULT_MASTER,
    NO_LOGIN,
    DefaultCredentials,
    RedisServerAddress,
)

_LOOK_UP_TIMEOUT_S = 2.0
"""Longest wait for one sentinel or node: the others may know better."""
_CLUSTER_SLOTS_COMMAND = pack_words(("CLUSTER", "SLOTS"))


class Question(NamedTuple):
    """A request to one server, on a connection of its own."""

    server: RedisServerAddress
    request: bytes


LookUp: TypeAlias = Generator[Question, Any, T]


ReplicaList: TypeAlias = tuple[frozenset[NodeAddress], frozenset[NodeAddress]]
"""The addresses of the replicas that can be elected, and of the others."""


def _ask(question: Question) -> Any:
    connection = sync_connection(
        question.server, reply_s=_LOOK_UP_TIMEOUT_S, connect_s=_LOOK_UP_TIMEOUT_S
    )
    try:
        connection.connect()
        connection.send_packed_command([question.request], check_health=False)
        return connection.read_response(disable_decoding=True)
    finally:
        connection.disconnect()


async def _ask_async(question: Question) -> Any:
    connection = async_connection(question.server)
    try:
        async with opening(connection, _LOOK_UP_TIMEOUT_S, _LOOK_UP_TIMEOUT_S):
            await connection.connect()
            await connection.send_packed_command(question.request, check_health=False)
            return await connection.read_response(disable_decoding=True)
    finally:
        await connection.disconnect(nowait=True)


@dataclass(frozen=True, slots=True)
class SentinelMaster:
    """The endpoint of a master that some sentinels watch. ``login`` is for the data servers; a
    sentinel's own credentials stand in its URL.
    """

    sentinels: tuple[RedisServerAddress, ...]
    name: str = DEFAULT_MASTER
    login: DefaultCredentials = NO_LOGIN

    may_move = True

    @property
    def masked_url(self) -> str:
        """``mymaster@`` and the sentinels."""
        return f"{self.name}@{','.join(sentinel.masked_url for sentinel in self.sentinels)}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of the sentinels and of the data servers."""
        own = tuple(secret for secret in (self.login.password, self.login.user) if secret)
        return (*own, *(secret for sentinel in self.sentinels for secret in sentinel.secrets))

    def resolve(self) -> RedisServerAddress:
        """Ask one sentinel after the other who is master."""
        return run_sync(self._find_master(), _ask, CONNECTION_ERRORS)

    async def resolve_async(self) -> RedisServerAddress:
        """Resolve on the running loop."""
        return await run_async(self._find_master(), _ask_async, CONNECTION_ERRORS)

    def list_replicas(self) -> ReplicaList:
        """Ask all sentinels at once for the replicas: any of them may lead the next fail-over."""
        with ThreadPoolExecutor(len(self.sentinels), "busmq-sentinels") as threads:
            asked = [threads.submit(_ask, question) for question in self._ask_for_replicas()]
        return self._replicas_in([each.exception() or each.result() for each in asked])

    async def list_replicas_async(self) -> ReplicaList:
        """List the replicas on the running loop."""
        asked = map(_ask_async, self._ask_for_replicas())
        return self._replicas_in(await asyncio.gather(*asked, return_exceptions=True))

    def _ask_for_replicas(self) -> list[Question]:
        request = pack_words(("SENTINEL", "REPLICAS", self.name))
        return [Question(sentinel, request) for sentinel in self.sentinels]

    def _replicas_in(self, answers: Sequence[Any]) -> ReplicaList:
        electable: set[NodeAddress] = set()
        others: set[NodeAddress] = set()
        problems: list[BusError | None] = []
        for sentinel, answer in zip(self.sentinels, answers, strict=True):
            if isinstance(answer, CONNECTION_ERRORS):
                problems.append(translate_redis_error(answer, sentinel))
                continue
            if isinstance(answer, BaseException):
                raise answer
            for row in answer:
                facts = dict(zip(row[::2], row[1::2], strict=True))
                address = facts[b"ip"].decode(), int(facts[b"port"])
                # Also one that is down: it may come back and be elected.
                (electable if int(facts[b"slave-priority"]) else others).add(address)
        if len(problems) == len(self.sentinels):
            raise self._unreachable_error(problems)
        return frozenset(electable), frozenset(others - electable)

    def _find_master(self) -> LookUp[RedisServerAddress]:
        request = pack_words(("SENTINEL", "get-master-addr-by-name", self.name))
        problems: list[BusError | None] = []
        for sentinel in self.sentinels:
            try:
                reply = yield Question(sentinel, request)
            except CONNECTION_ERRORS as error:
                problems.append(translate_redis_error(error, sentinel))
                continue
            if (found := self._parse_server(reply)) is not None:
                return found
            problems.append(None)
        raise self._unreachable_error(problems)

    def _parse_server(self, reply: Any) -> RedisServerAddress | None:
        if not reply:
            return None
        host, port = (part.decode() for part in reply)
        tls = self.sentinels[0].tls
        return RedisServerAddress(
            host, int(port), tls, None, self.login.user, self.login.password, self.login.trust
        )

    def _unreachable_error(self, problems: list[BusError | None]) -> BusError:
        """Why no sentinel named a master: that it does not know the name weighs more than that
        others are down.
        """
        if None in problems:
            return ConfigError(
                reason=(
                    f"the sentinels know no master {self.name!r} ({self.masked_url}); name the one"
                    " they watch with redis.sentinelMaster"
                )
            )
        last = problems[-1]
        if last is not None and not last.retriable:
            return last
        return NoServerReachable(
            url=self.masked_url,
            reason=f"no sentinel answers: {last.details['reason'] if last else 'none is named'}",
        )


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
        return run_sync(self._find_slots(known, dead), _ask, CONNECTION_ERRORS)

    async def fetch_slot_map_async(
        self, known: Iterable[NodeAddress] = (), dead: Iterable[NodeAddress] = ()
    ) -> SlotMap:
        """Fetch the slot map on the running loop."""
        return await run_async(self._find_slots(known, dead), _ask_async, CONNECTION_ERRORS)

    def _find_slots(
        self, known: Iterable[NodeAddress], dead: Iterable[NodeAddress]
    ) -> LookUp[SlotMap]:
        last: BusError | None = None
        for server in self._servers_to_ask(known, dead):
            try:
                return self._parse_slots((yield Question(server, _CLUSTER_SLOTS_COMMAND)), server)
            except CONNECTION_ERRORS as error:
                last = self._worst_error(error, server, last)
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


_ROLE_COMMAND = pack_words(("ROLE",))


def dial(endpoint: RedisEndpoint, reply_s: float = REPLY_TIMEOUT_S) -> redis.Connection:
    """A blocking connection, open. ``reply_s``: longest wait for one reply. Raises what redis-py
    raises, and NoServerReachable.
    """
    connection = sync_connection(endpoint.resolve(), reply_s=reply_s)
    try:
        connection.connect()
        if endpoint.may_move:
            connection.send_packed_command([_ROLE_COMMAND], check_health=False)
            _check_is_master(connection.read_response(disable_decoding=True))
    except BaseException:
        connection.disconnect()
        raise
    return connection


async def dial_async(
    endpoint: RedisEndpoint, reply_s: float = REPLY_TIMEOUT_S
) -> aredis.Connection:
    """Dial on the running loop. ``reply_s``: longest wait for a reply on the way to an open
    connection.
    """
    connection = async_connection(await endpoint.resolve_async())
    try:
        async with opening(connection, reply_s):
            await connection.connect()
            # It is open
            keep_from_children(connection._writer.transport)  # type: ignore[union-attr]
            if endpoint.may_move:
                await connection.send_packed_command(_ROLE_COMMAND, check_health=False)
                _check_is_master(await connection.read_response(disable_decoding=True))
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


def _check_is_master(role: Any) -> None:
    if role[0] != b"master":
        raise rx.ConnectionError(
            f"this server is a {role[0].decode('utf-8', 'replace')} now, not a master"
        )
