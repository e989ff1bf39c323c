"""Durable steps: calls to Redis, and then WAIT or WAITAOF, which says how many servers have them.

Rule 1. Calls, fence, WAIT and INFO go on one connection, and nothing else does: WAIT blocks its
        connection. The fence is a small write after the calls.
Rule 2. All calls of one flush share one WAIT. While it lasts, calls of other tasks are collected
        for the next flush.
Rule 3. A confirmation counts only if the server was master without a break since before the calls.
        Else an idempotent step runs again as a whole. A push is never sent twice: its caller asks
        whether the messages are still there, in a durable step of its own.

Why a confirmation is certain. Replication is one stream of writes. The fence is written after all
that the calls have done, or have found done by an earlier try, so it is later in the stream: a
server that has the fence has all of it. That holds within one stream only. A server begins a new
stream, with a new ``master_replid``, whenever it is promoted and whenever it starts; as a replica
it has that of its master. So the id is read when the connection opens, before any call, and once
more after WAIT. The same id means: no restart and no fail-over in between, also not there and back.
A connection that broke takes its replies with it, and a new one reads the id anew.

Without the fence WAIT may say nothing about a repeated call that writes nothing: a server may wait
for the last write of this connection only, and on a new one that is the offset 0, which every
replica has. A test shows this for Valkey; on the Redis versions that were tried, it passes without
the fence, too. The fence is written on every server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from busmq_spark.errors import (
    BusError,
    ConfigError,
    LinkLost,
    NotReplicated,
    ReadOnly,
    ServerFull,
    ServerRefused,
    TooFewReplicas,
)
from busmq_spark.options import Durability
from busmq_spark.queue.command_generators import (
    Flow,
    RedisCall,
    Step,
    T,
    command,
    run_async,
    run_sync,
)
from busmq_spark.redis_io.async_link import AsyncClusterLink, AsyncLink
from busmq_spark.redis_io.cluster_rules import (
    ASKING_COMMAND,
    ClusterPipeline,
    KnownSlots,
    NodeBatch,
    redirection,
)
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.endpoint import NoServerReachable, RedisEndpoint
from busmq_spark.redis_io.link_rules import (
    THROWN,
    Action,
    Ask,
    Clock,
    Connect,
    Drop,
    FindSlots,
    ListReplicas,
    Rule,
    ask_with_scripts,
    is_idempotent,
    may_be_sent_again,
    step_result,
    wait_for_retry,
)
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds, ReplicaList, SentinelMaster
from busmq_spark.redis_io.resp_codec import calls_of, first_error
from busmq_spark.redis_io.retry import LinkRetry
from busmq_spark.redis_io.slots import NodeAddress, key_of, slot_of_key
from busmq_spark.redis_io.sync_link import SyncClusterLink, SyncLink
from busmq_spark.redis_io.translate import translate_redis_error

LIST_INTERVAL_S = 5.0
"""Seconds after which the list of replicas is read again."""
_FENCE_TTL_MS = 1000
_MAX_WAIT_MS = 2000
"""Longest single WAIT; further ones follow on the same connection. A connection that is silent for
longer than a reply may take counts as lost.
"""
_INFO_CALL = command("INFO", "replication")
_NODES_CALL = command("CLUSTER", "NODES")


class ReplicationInfo(NamedTuple):
    """The part of a master's INFO that a confirmation needs."""

    replid: str
    """The id of the stream of writes; '' for a server that is no master."""
    replicas: frozenset[tuple[str, int]]
    """The addresses of the connected replicas."""

    @classmethod
    def parse(cls, reply: bytes) -> ReplicationInfo:
        """Parse a reply to INFO replication."""
        lines = dict(
            line.split(":", 1) for line in reply.decode("utf-8", "replace").split() if ":" in line
        )
        replicas = [
            dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)
            for name, text in lines.items()
            if name[:5] == "slave" and name[5:].isdigit()
        ]
        return cls(
            lines.get("master_replid", "") if lines.get("role") == "master" else "",
            frozenset((each["ip"], int(each["port"])) for each in replicas),
        )


@dataclass(slots=True)
class ReplicaSite:
    """The facts about one master and its replicas, on one connection."""

    in_cluster: bool = False
    connection: Any = None
    replid: str = ""
    electable: frozenset[tuple[str, int]] | None = None
    """The addresses of the replicas that can be elected; None where no list says so."""
    others: frozenset[tuple[str, int]] = frozenset()
    """The replicas that cannot be elected."""
    listed_at: float = 0.0
    most_connected: int = 0
    """The most replicas that were ever connected at once."""

    @property
    def listed(self) -> int:
        """Return how many replicas there are, connected or not."""
        if self.electable is None:
            return self.most_connected
        return len(self.electable | self.others)

    def required(self, durability: Durability, info: ReplicationInfo) -> int:
        """Return how many replicas must confirm. WAIT counts each connected replica, also one that
        cannot be elected or that is in no list. So with ``all`` each of them must confirm in
        addition. A replica that the two lists name differently counts twice, never less than once.
        """
        if not durability.on_replicas:
            return 0
        if durability.replicas is not None:
            return durability.replicas
        if self.electable is None:
            return max(1, self.most_connected, len(info.replicas))
        return max(1, len(self.electable | info.replicas))


@dataclass(slots=True)
class FlushResult:
    """The end of one try of a flush."""

    replies: list[Any] | None = None
    """Replies to the calls, errors among them as values; None where they were not received."""
    sent: bool = True
    """Whether Redis may have executed the calls."""
    error: BusError | None = None
    """Why there are no replies; with replies, why it is unknown who has the writes."""
    asked: int = 0
    received: int = 0
    short: bool = False
    """Whether too few servers have confirmed the writes in time."""


class Flush(NamedTuple):
    """Run calls at a node of a cluster, or at the only server, and wait for the confirmation."""

    node: NodeAddress | None
    calls: Sequence[RedisCall]


class Unconfirmed(LinkLost):
    """A push whose reply came and whose confirmation did not. ``replies`` are those of its step."""

    def __init__(self, **details: Any) -> None:
        self.replies: list[Any] = details.pop("replies", [])
        super().__init__(**details)


DurableRule: TypeAlias = Generator[Action | list[Flush], Any, Any]


def run_durable_step(
    step: Step,
    durability: Durability,
    endpoint: RedisEndpoint,
    known: KnownSlots | None,
    patience_s: float | None,
    clock: Clock,
) -> DurableRule:
    """Return the reply to a step, or the list of replies, once enough servers have its effects.

    The step is one call, or idempotent calls. Raises NotReplicated, Unconfirmed, TooFewReplicas,
    or the error of the first call that failed.
    """
    calls = calls_of(step)
    assert len(calls) <= 1 or is_idempotent(calls), "several calls, and one is not idempotent"
    if not calls:
        return []
    if isinstance(endpoint, ClusterSeeds):
        assert known is not None
        replies = yield from _run_on_nodes(calls, durability, endpoint, known, patience_s, clock)
    else:
        replies = yield from _run_on_server(calls, durability, endpoint, patience_s, clock)
    return step_result(step, replies)


def _run_on_server(
    calls: Sequence[RedisCall],
    durability: Durability,
    endpoint: RedisEndpoint,
    patience_s: float | None,
    clock: Clock,
) -> DurableRule:
    retry = LinkRetry(clock)
    while True:
        [result] = yield [Flush(None, calls)]
        problem = _problem_of(result, calls, durability)
        if problem is None and (failed := first_error(result.replies)) is not None:
            problem = translate_redis_error(failed, endpoint)
            if not may_be_sent_again(calls, problem):
                raise problem
        if problem is None:
            return result.replies
        yield from wait_for_retry(problem, retry, endpoint, patience_s)


def _run_on_nodes(
    calls: Sequence[RedisCall],
    durability: Durability,
    cluster: ClusterSeeds,
    known: KnownSlots,
    patience_s: float | None,
    clock: Clock,
) -> DurableRule:
    """Run a step as cluster_rules.py does, each node's calls with a confirmation of their own."""
    pipeline, retry = ClusterPipeline(calls, cluster), LinkRetry(clock)
    while True:
        problem: BusError | None
        try:
            batches = pipeline.batches((yield FindSlots()))
            results = yield [Flush(batch.node, batch.wire) for batch in batches]
            for batch, result in zip(batches, results, strict=True):
                _take_result(pipeline, batch, result, durability)
            known.learn(pipeline.moved)
            pipeline.raise_if_failed()
            if pipeline.stale:
                yield FindSlots(anew=True, dead=frozenset(pipeline.dead))
            problem = pipeline.retry_reason
        except NoServerReachable as error:
            problem = error
        if not pipeline.pending:
            return pipeline.replies
        if problem is not None:
            yield from wait_for_retry(problem, retry, cluster, patience_s)


def _take_result(
    pipeline: ClusterPipeline, batch: NodeBatch, result: FlushResult, durability: Durability
) -> None:
    """Note the result of the calls to one node."""
    replies = result.replies
    own = replace(result, replies=replies and [replies[at] for at in batch.at])
    problem = _problem_of(own, [batch.wire[at] for at in batch.at], durability)
    if problem is None:
        assert replies is not None
        pipeline.add_replies(batch, replies)
    elif not isinstance(problem, LinkLost):
        raise problem
    else:
        pipeline.on_node_unreachable(batch, problem)


def _problem_of(
    result: FlushResult, calls: Sequence[RedisCall], durability: Durability
) -> BusError | None:
    """Return why the calls must run again; None if they need not, or if their own replies say why.
    Raises the error if they may not.
    """
    if result.replies is not None and not any(map(_executed, result.replies)):
        return None  # the others of the flush were executed, and are not confirmed
    if result.error is not None:
        if result.replies is not None and not is_idempotent(calls):
            raise Unconfirmed(**result.error.details, replies=result.replies)
        if result.sent and not is_idempotent(calls):
            raise result.error
        return result.error
    if result.short:
        error = NotReplicated(
            queue="",
            first=0,
            last=0,
            left=0,
            asked=result.asked,
            received=result.received,
            timeout_ms=durability.timeout_ms,
            durability=durability.level,
        )
        error.replies = result.replies or ()
        raise error
    return None


def flush_calls(
    calls: Sequence[RedisCall],
    site: ReplicaSite,
    durability: Durability,
    endpoint: RedisEndpoint,
    clock: Clock,
    most_ms: int = _MAX_WAIT_MS,
) -> Rule:
    """Return the FlushResult of one try at one server: the calls, and one WAIT for all of them."""
    result = FlushResult(sent=False)
    try:
        connection = yield Connect()
        if site.connection is not connection or clock() - site.listed_at >= LIST_INTERVAL_S:
            yield from _survey(connection, site, durability, endpoint, clock)
        result.sent = True
        replies = yield Ask(connection, calls)
        # Sent again without its ASKING, a script would be refused once more.
        if first_error(replies) is not None and ASKING_COMMAND not in calls:
            yield from ask_with_scripts(connection, calls, replies)
        result.replies = replies
        done = [
            call
            for call, reply in zip(calls, replies, strict=True)
            if _executed(reply) and call is not ASKING_COMMAND
        ]
        if done:
            confirmation = _Confirmation(connection, site, durability, endpoint, clock, most_ms)
            yield from confirmation.wait(done, result)
        if endpoint.may_move and any(_is_demoted(reply, endpoint) for reply in replies):
            yield Drop(connection)
    except THROWN as error:
        result.error = translate_redis_error(error, endpoint)
    return result


def _executed(reply: Any) -> bool:
    return not isinstance(reply, Exception)


def _is_demoted(reply: Any, endpoint: RedisEndpoint) -> bool:
    return isinstance(reply, Exception) and isinstance(
        translate_redis_error(reply, endpoint), LinkLost
    )


def _survey(
    connection: Any,
    site: ReplicaSite,
    durability: Durability,
    endpoint: RedisEndpoint,
    clock: Clock,
) -> Rule:
    """Read the id of the stream and the list of replicas, before any call. Raises ConfigError and
    TooFewReplicas.
    """
    # The server says now whether it knows the command and permits it.
    trial = command("WAITAOF", 1, 0, 1) if durability.on_disk else command("WAIT", 0, 1)
    replies = yield Ask(connection, (_INFO_CALL, trial, *[_NODES_CALL] * site.in_cluster))
    info = ReplicationInfo.parse(replies[0]) if _executed(replies[0]) else _NO_REPLICAS
    if _executed(replies[0]) and not info.replid:
        # A replica refuses WAIT. In a cluster the slot map is old: a fail-over is under way.
        yield Drop(connection)
        kind = LinkLost if site.in_cluster or endpoint.may_move else ReadOnly
        raise kind(url=endpoint.masked_url, reason="this server is a replica now, not a master")
    if durability.on_disk and isinstance(replies[1], Exception):
        _raise_no_disk(replies[1], durability, endpoint)
    if (failed := first_error(replies)) is not None:
        raise translate_redis_error(failed, endpoint)
    if site.connection is not connection:
        site.replid = info.replid
        site.connection = connection
    site.most_connected = max(site.most_connected, len(info.replicas))
    if durability.on_replicas:
        if site.in_cluster:
            site.electable, site.others = parse_cluster_nodes(replies[-1].decode())
        elif isinstance(endpoint, SentinelMaster):
            site.electable, site.others = yield ListReplicas()
        site.listed_at = 0.0  # an error is found again by the next flush
        _check_replicas(site, durability, endpoint)
        site.listed_at = clock()
    else:
        site.listed_at = float("inf")


def _raise_no_disk(error: Exception, durability: Durability, endpoint: RedisEndpoint) -> None:
    text = str(error)
    if "unknown command" in text:
        reason = "it does not know WAITAOF; use Redis 7.2 or newer, or Valkey"
    elif "appendonly" in text:
        reason = "its append-only file is off; set appendonly yes there"
    else:
        return
    raise ConfigError(
        reason=(
            f"durability={durability.level} cannot be kept by Redis at {endpoint.masked_url}:"
            f" {reason}, or use durability=replicated. Nothing was pushed"
        )
    )


def _check_replicas(site: ReplicaSite, durability: Durability, endpoint: RedisEndpoint) -> None:
    wanted = durability.replicas or 1
    found = site.listed
    if durability.replicas is None and site.electable is not None:
        found = len(site.electable)
    if found < wanted:
        raise TooFewReplicas(
            url=endpoint.masked_url,
            found=found,
            wanted="all" if durability.replicas is None else wanted,
            needed=wanted,
            durability=durability.level,
        )


@dataclass(slots=True)
class _Confirmation:
    """The WAIT of one flush."""

    connection: Any
    site: ReplicaSite
    durability: Durability
    endpoint: RedisEndpoint
    clock: Clock
    most_ms: int

    def wait(self, done: Sequence[RedisCall], result: FlushResult) -> Rule:
        """Wait for the servers after the calls, and note in ``result`` how many have confirmed."""
        until = self.clock() + self.durability.timeout_ms / 1000
        # A call that is not idempotent has written, or there is nothing of it to confirm.
        fence = [] if not any(call.idempotent for call in done) else [_fence_call(done[0])]
        required = self.site.required(self.durability, _NO_REPLICAS)
        while True:
            left_ms = max(1, round((until - self.clock()) * 1000))
            wait = self._wait_call(required, min(left_ms, self.most_ms))
            replies = yield Ask(self.connection, [*fence, wait, _INFO_CALL])
            if fence and (again := (yield from self._fence_instead(fence, replies[0]))):
                fence = again
                continue
            info = ReplicationInfo.parse(replies[-1]) if _executed(replies[-1]) else _NO_REPLICAS
            result.error = self._reason_to_distrust(replies, info)
            if result.error is not None:
                yield Drop(self.connection)
                return
            local, received = replies[-2] if self.durability.on_disk else (1, replies[-2])
            self.site.most_connected = max(self.site.most_connected, len(info.replicas))
            # A replica that came meanwhile can be elected, so it must confirm, too.
            required = self.site.required(self.durability, info)
            result.asked, result.received = required, received
            if self.durability.on_disk:
                result.asked, result.received = required + 1, received + local
            result.short = local < 1 or received < required
            if not result.short or self.clock() >= until:
                return
            fence = []

    def _fence_instead(self, fence: Sequence[RedisCall], reply: Any) -> Rule:
        """Return the fence to write after this reply to one: another, or none."""
        if fence[0].words[0] == "EVAL" or _executed(reply):
            return []
        key = key_of(fence[0]) or ""
        if isinstance(translate_redis_error(reply, self.endpoint), ServerFull):
            return [command("EVAL", _FENCE_WITHOUT_MEMORY, 1, key, _FENCE_TTL_MS)]
        if not self.site.in_cluster or redirection(reply, "") is None:
            return []
        [nodes] = yield Ask(self.connection, [_NODES_CALL])
        name = settled_key(nodes.decode()) if _executed(nodes) else None
        return [] if name is None or name == key else [_fence_call(command("SET", name))]

    def _wait_call(self, required: int, most_ms: int) -> RedisCall:
        if self.durability.on_disk:
            return command("WAITAOF", 1, required, most_ms)
        return command("WAIT", required, most_ms)

    def _reason_to_distrust(self, replies: Sequence[Any], info: ReplicationInfo) -> BusError | None:
        if (failed := first_error(replies)) is not None:
            found = translate_redis_error(failed, self.endpoint)
            # "WAIT cannot be used with replica instances": it was demoted
            return self._lost(str(failed)) if type(found) is ServerRefused else found
        if not info.replid or info.replid != self.site.replid:
            return self._lost("a fail-over or a restart came before the confirmation")
        return None

    def _lost(self, reason: str) -> LinkLost:
        return LinkLost(url=self.endpoint.masked_url, reason=reason)


_NO_REPLICAS = ReplicationInfo("", frozenset())


_FENCE_WITHOUT_MEMORY = (
    "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], '', 'PX', ARGV[1])"
)
"""A Redis that is out of memory refuses SET, but no script in which another write came first."""


def settled_key(nodes: str) -> str | None:
    """Return a key in a slot that the asked node has, and that does not move; None if there is
    none. ``nodes``: the reply to CLUSTER NODES.
    """
    own = next((row for row in map(str.split, nodes.splitlines()) if "myself" in row[2]), [])
    # "[93-<-id]" and "[77->-id]" are slots on their way
    ranges = [text.partition("-") for text in own[8:] if not text.startswith("[")]
    slots = {slot for a, _, b in ranges for slot in range(int(a), int(b or a) + 1)}
    slots -= {int(text[1:].partition("-")[0]) for text in own[8:] if text.startswith("[")}
    names = (f"bus:{{{number}}}" for number in range(100_000))
    return next((name for name in names if slots and slot_of_key(name) in slots), None)


def _fence_call(call: RedisCall) -> RedisCall:
    """Return a write to a key of its own, in the slot of a call that was executed."""
    key = key_of(call)
    name = key.decode() if isinstance(key, bytes) else key or "bus"
    return command("SET", f"{name}:fence", "", "PX", _FENCE_TTL_MS)


def parse_cluster_nodes(text: str) -> ReplicaList:
    """Return the addresses of the replicas of the asked node: those that can be elected, and the
    others.

    CLUSTER NODES lists failed nodes, too, which may come back and be elected, and it says which may
    not (``nofailover``). CLUSTER SLOTS and CLUSTER SHARDS do not say so.
    """
    rows = [line.split() for line in text.splitlines() if line]
    own = next((row[0] for row in rows if "myself" in row[2].split(",")), "")
    electable: set[tuple[str, int]] = set()
    others: set[tuple[str, int]] = set()
    for row in rows:
        if row[3] == own:
            host, _, port = row[1].partition("@")[0].partition(",")[0].rpartition(":")
            (others if "nofailover" in row[2].split(",") else electable).add((host, int(port)))
    return frozenset(electable), frozenset(others)


class DurableSyncLink:
    """Durable steps on a blocking link, which does nothing else meanwhile. Not for two threads at
    once.
    """

    def __init__(self, link: SyncLink | SyncClusterLink, durability: Durability) -> None:
        self._link, self._durability = link, durability
        self._sites: dict[NodeAddress | None, ReplicaSite] = {}

    def execute(self, step: Step, what: str) -> Any:
        """Return the reply to a step, or the list of replies, once enough servers have its effects.

        The step is one call, or idempotent calls. Effects that the calls find done by an earlier
        try count, too. ``what`` names the queue, or the queues, in NotReplicated.
        """
        if not self._durability.on:
            return self._link.execute(step)
        link = self._link
        known = link.slots if isinstance(link, SyncClusterLink) else None
        rule = run_durable_step(
            step, self._durability, link.endpoint, known, link.patience_s, time.monotonic
        )
        try:
            return run_sync(rule, self._perform, THROWN)
        except NotReplicated as error:
            raise error.about(queue=what) from None

    def run(self, flow: Flow[T], what: str) -> T:
        """Run a flow to its end, each step durably."""
        return run_sync(flow, lambda step: self.execute(step, what))

    def _perform(self, action: Action | list[Flush]) -> Any:
        if not isinstance(action, list):
            return self._link.perform(action)
        return [self._flush(*flush) for flush in action]

    def _flush(self, node: NodeAddress | None, calls: Sequence[RedisCall]) -> FlushResult:
        link = self._link
        if isinstance(link, SyncClusterLink):
            assert node is not None
            link = link.link_to(node)
        site = self._sites.setdefault(node, ReplicaSite(node is not None))
        rule = flush_calls(calls, site, self._durability, link.endpoint, time.monotonic)
        found: FlushResult = run_sync(rule, link.perform, THROWN)
        return found


@dataclass(slots=True)
class _Entry:
    """The calls of one task in a flush."""

    calls: Sequence[RedisCall]
    result: FlushResult | None = None


@dataclass(slots=True)
class _Gathering:
    """The calls that wait for the next flush at one server, and the lock of the present one."""

    site: ReplicaSite
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: list[_Entry] = field(default_factory=list)
    flush: asyncio.Task[None] | None = None


class DurableAsyncLink:
    """Durable steps of many tasks, on connections of their own: calls of others do not wait for
    WAIT. The constructor connects nothing.
    """

    def __init__(
        self, endpoint: RedisEndpoint, durability: Durability, reply_s: float = REPLY_TIMEOUT_S
    ) -> None:
        """``reply_s``: see AsyncLink."""
        self.endpoint = endpoint
        self._durability = durability
        self._most_ms = max(1, min(_MAX_WAIT_MS, round(reply_s * 400)))
        self._link = (
            AsyncClusterLink(endpoint, None, reply_s)
            if isinstance(endpoint, ClusterSeeds)
            else AsyncLink(endpoint, None, reply_s)
        )
        self._gatherings: dict[NodeAddress | None, _Gathering] = {}

    def run(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        """Run a flow to its end, each step durably."""
        return run_async(flow, self.execute)

    async def execute(self, step: Step) -> Any:
        """Return the reply to a step, or the list of replies, once enough servers have its effects.

        The step is one call, or idempotent calls. Raises NotReplicated or Unconfirmed, with the
        replies. A task that is cancelled leaves the step in doubt; other tasks of its flush notice
        nothing.
        """
        known = self._link.slots if isinstance(self._link, AsyncClusterLink) else None
        rule = run_durable_step(step, self._durability, self.endpoint, known, None, time.monotonic)
        return await run_async(rule, self._perform, THROWN)

    async def close(self) -> None:
        """Close the connections. A later step opens new ones."""
        flushes = [each.flush for each in self._gatherings.values() if each.flush is not None]
        for flush in flushes:
            flush.cancel()
        await asyncio.gather(*flushes, return_exceptions=True)
        await self._link.close()

    async def _perform(self, action: Action | list[Flush]) -> Any:
        if not isinstance(action, list):
            return await self._link.perform(action)
        return await asyncio.gather(*(self._flush(*flush) for flush in action))

    async def _flush(self, node: NodeAddress | None, calls: Sequence[RedisCall]) -> FlushResult:
        """Let calls go with the next flush, which the first of the waiting tasks runs."""
        gathering = self._gatherings.get(node)
        if gathering is None:
            gathering = self._gatherings[node] = _Gathering(ReplicaSite(node is not None))
        entry = _Entry(calls)
        gathering.waiting.append(entry)
        try:
            await gathering.lock.acquire()
        except asyncio.CancelledError:
            gathering.waiting = [each for each in gathering.waiting if each is not entry]
            raise
        if entry.result is not None:
            gathering.lock.release()
            return entry.result
        entries, gathering.waiting = gathering.waiting, []
        # A task of its own: the flush is also that of others, which are not cancelled with us.
        gathering.flush = flush = asyncio.create_task(
            self._run_flush(node, gathering.site, entries), name="a flush of durable calls"
        )
        flush.add_done_callback(lambda _: gathering.lock.release())
        await asyncio.wait([flush])
        if not flush.cancelled():
            flush.result()
        assert entry.result is not None
        return entry.result

    async def _run_flush(
        self, node: NodeAddress | None, site: ReplicaSite, entries: Sequence[_Entry]
    ) -> None:
        link = self._link
        if isinstance(link, AsyncClusterLink):
            assert node is not None
            link = link.link_to(node)
        calls = [call for entry in entries for call in entry.calls]
        rule = flush_calls(
            calls, site, self._durability, link.endpoint, time.monotonic, self._most_ms
        )
        # Until it has ended: the link was closed.
        found = FlushResult(
            error=LinkLost(url=link.endpoint.masked_url, reason="this link was closed")
        )
        try:
            found = await run_async(rule, link.perform, THROWN)
        finally:
            at = 0
            for entry in entries:
                replies = found.replies and found.replies[at : at + len(entry.calls)]
                entry.result = replace(found, replies=replies)
                at += len(entry.calls)
