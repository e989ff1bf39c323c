"""The rules of a link to a Redis Cluster, without input and output: the next calls to each node,
and the meaning of the replies. The actions and their drivers are those of link_rules.py.

Rule 1. A call that was refused (MOVED, ASK, TRYAGAIN, NOSCRIPT …) was not executed, so it may
        always go again.
Rule 2. A call whose reply was lost may have been executed: it goes again only if it is idempotent,
        else the step is in doubt.
Rule 3. Calls of one slot keep their order. If a node refused one call and executed a later one, the
        step is in doubt, not reordered.

States of a step:

    state     event                                   next
    --------  --------------------------------------  --------------------------------------------
    MAPPING   the slot map is known, or a node sends  ROUND
              it
              no node does                            WAITING
    ROUND     every pending call was sent to the node of its slot, and its connection answered or
              broke:
              a call is in doubt                      raised
              no call is pending                      returned, or the first error is raised
              calls were redirected                   ROUND, at the nodes that the replies name
              a node is gone, or puts calls off       WAITING, after the slot map was read anew
    WAITING   the patience is over                    raised
              the pause is over                       MAPPING
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import redis.exceptions as rx

from busmq_spark.errors import BusError, LinkLost, WritesPaused
from busmq_spark.queue.command_generators import RedisCall, Step, command
from busmq_spark.redis_io.endpoint import NoServerReachable, RedisEndpoint
from busmq_spark.redis_io.link_rules import (
    Clock,
    Connect,
    FindSlots,
    Receive,
    Rule,
    Send,
    step_result,
    wait_for_retry,
)
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds
from busmq_spark.redis_io.resp_codec import calls_of, first_error, script_as_eval
from busmq_spark.redis_io.retry import LinkRetry
from busmq_spark.redis_io.slots import (
    NodeAddress,
    Redirect,
    SlotMap,
    key_of,
    parse_redirect,
    slot_of_key,
)
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error
from busmq_spark.redis_io.urls import RedisServerAddress

ASKING_COMMAND = command("ASKING")
_MAX_REDIRECTIONS = 5
"""After so many redirections without a pause the nodes disagree: then waiting helps, and asking on
does not.
"""


class KnownSlots:
    """The slot map of a link, as far as it is known. The steps of a link share it."""

    current: SlotMap | None = None

    def learn(self, moved: Mapping[int, NodeAddress]) -> None:
        """Note the places of slots that redirections have told."""
        if self.current is not None:
            self.current = self.current.with_moved(moved)


def run_cluster_step(
    step: Step, cluster: ClusterSeeds, known: KnownSlots, patience_s: float | None, clock: Clock
) -> Rule:
    """Return the reply to a step, or the list of replies, from the nodes of a cluster.

    ``patience_s``: seconds a step is tried in all; a ``patience_s`` of None suits cluster and
    error. Raises the error of the first call that failed.
    """
    calls = calls_of(step)
    if not calls:
        return []
    pipeline = ClusterPipeline(calls, cluster)
    retry = LinkRetry(clock)
    while True:
        problem: BusError | None
        try:
            yield from _run_round(pipeline, (yield FindSlots()), cluster)
            known.learn(pipeline.moved)
            pipeline.raise_if_failed()
            if pipeline.stale:
                yield FindSlots(anew=True, dead=frozenset(pipeline.dead))
            problem = pipeline.retry_reason
        except NoServerReachable as error:
            problem = error
        if not pipeline.pending:
            if pipeline.moved:
                with suppress(BusError):
                    yield FindSlots(anew=True)  # if one slot has moved, others have too
            return step_result(step, pipeline.replies)
        if problem is not None:
            yield from wait_for_retry(problem, retry, cluster, patience_s)


def _run_round(pipeline: ClusterPipeline, slot_map: SlotMap, cluster: ClusterSeeds) -> Rule:
    """Send the pending calls, each to its node, and take the replies of all nodes."""
    under_way: list[tuple[NodeBatch, Any]] = []
    for batch in pipeline.batches(slot_map):
        try:
            connection = yield Connect(batch.node)
        except LinkLost as error:
            pipeline.on_node_unreachable(batch, error)
            continue
        try:
            under_way.append((batch, (yield Send(connection, batch.wire))))
        except CONNECTION_ERRORS as error:
            pipeline.on_connection_lost(batch, _as_link_lost(error, cluster.server_of(batch.node)))
    for batch, sent in under_way:
        try:
            pipeline.add_replies(batch, (yield Receive(sent)))
        except CONNECTION_ERRORS as error:
            pipeline.on_connection_lost(batch, _as_link_lost(error, cluster.server_of(batch.node)))


def _as_link_lost(error: Exception, server: RedisServerAddress) -> LinkLost:
    """Return the error of a connection that broke while calls were under way. So does one with a
    fault of TLS: the node was reached before.
    """
    found = translate_redis_error(error, server)
    return (
        found if isinstance(found, LinkLost) else LinkLost(url=server.masked_url, reason=str(error))
    )


@dataclass(slots=True)
class NodeBatch:
    """The calls to one node in one write. ``places`` are positions in the step, ``at`` those of
    their calls in ``wire``.
    """

    node: NodeAddress
    places: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    wire: list[RedisCall] = field(default_factory=list)


class ClusterPipeline:
    """The calls of one step and the replies so far. Ask for ``batches``, send them, report how each
    ended, until ``pending`` is empty.
    """

    def __init__(self, calls: Sequence[RedisCall], endpoint: RedisEndpoint) -> None:
        self.replies: list[Any] = [None] * len(calls)
        self.pending = list(range(len(calls)))
        self.stale = False
        """Whether the map should be read anew before the next round."""
        self.dead: set[NodeAddress] = set()
        """Nodes that did not answer in the last round."""
        self.retry_reason: BusError | None = None
        """Why it is better to wait before the next round."""
        self.moved: dict[int, NodeAddress] = {}
        """Slots that have moved, and where to, from the MOVED replies to this step."""
        self._calls, self._endpoint = calls, endpoint
        keys = [key_of(call) for call in calls]
        self._slots = [None if key is None else slot_of_key(key) for key in keys]
        # Scripts by digest could be refused one by one; where order counts they travel whole.
        ordered = len(calls) > 1 and not all(call.idempotent for call in calls)
        self._as_eval = set(self.pending) if ordered else set()
        self._asking: dict[int, NodeAddress] = {}
        self._doubt: LinkLost | None = None
        self._hops = 0

    def batches(self, slot_map: SlotMap) -> list[NodeBatch]:
        """Return the calls of this round, by node. Calls whose slot no node serves stay, and the
        step waits.
        """
        self.stale, self.retry_reason, self.dead = False, None, set()
        found: dict[NodeAddress, NodeBatch] = {}
        anywhere = self._node_for_keyless(slot_map)
        for place in self.pending:
            of = self._slots[place]
            asking = self._asking.pop(place, None)
            node = asking or (anywhere if of is None else slot_map.owner(of))
            if node is None:
                self.stale = True
                self.retry_reason = LinkLost(
                    url=self._endpoint.masked_url, reason=f"no node serves slot {of}"
                )
                continue
            batch = found.setdefault(node, NodeBatch(node))
            if asking:
                batch.wire.append(ASKING_COMMAND)
            batch.places.append(place)
            batch.at.append(len(batch.wire))
            batch.wire.append(
                script_as_eval(self._calls[place]) if place in self._as_eval else self._calls[place]
            )
        return list(found.values())

    def _node_for_keyless(self, slot_map: SlotMap) -> NodeAddress | None:
        """Return the node for calls without a key: the node of the other calls, so that they are
        executed beside their queue.
        """
        if not slot_map.nodes:
            return None
        of = next(
            (self._slots[place] for place in self.pending if self._slots[place] is not None), None
        )
        # Any will do
        return (None if of is None else slot_map.owner(of)) or random.choice(slot_map.masters)  # noqa: S311

    def add_replies(self, batch: NodeBatch, replies: Sequence[Any]) -> None:
        """The replies to a batch."""
        refused: dict[int | None, bool] = {}
        answered = set()
        for place, at in zip(batch.places, batch.at, strict=True):
            of, once = self._slots[place], not self._calls[place].idempotent
            if self._should_retry(place, batch.node, replies[at]):
                refused[of] = refused.get(of, False) or once
                continue
            answered.add(place)
            self.replies[place] = replies[at]
            if of is not None and of in refused and (once or refused[of]):
                self._doubt = LinkLost(
                    url=self._endpoint.masked_url,
                    reason=f"slot {of} changed its node between two calls of one step",
                )
        self.pending = [place for place in self.pending if place not in answered]

    def on_node_unreachable(self, batch: NodeBatch, error: LinkLost) -> None:
        """The node could not be reached: nothing was sent."""
        self.dead.add(batch.node)
        self.stale, self.retry_reason = True, error

    def on_connection_lost(self, batch: NodeBatch, error: LinkLost) -> None:
        """The connection broke while the batch was under way."""
        self.on_node_unreachable(batch, error)
        if not all(self._calls[place].idempotent for place in batch.places):
            self._doubt = error

    def raise_if_failed(self) -> None:
        """After a round: raises LinkLost when the step is in doubt, or the error of the first call
        that failed once all are answered.
        """
        if self._doubt is not None:
            raise self._doubt from None
        if not self.pending and (failed := first_error(self.replies)) is not None:
            raise translate_redis_error(failed, self._endpoint) from None

    def _should_retry(self, place: int, node: NodeAddress, reply: Any) -> bool:
        """Whether the reply says that the call was not executed and should go again."""
        if not isinstance(reply, Exception):
            return False
        if (found := redirection(reply, node[0])) is not None:
            self._follow_redirect(place, found)
            return True
        if isinstance(reply, rx.NoScriptError) and place not in self._as_eval:
            self._as_eval.add(place)
            return True
        error = translate_redis_error(reply, self._endpoint)
        if isinstance(error, LinkLost) and not (
            isinstance(error, WritesPaused) and self._calls[place].optional
        ):
            self.stale, self.retry_reason = True, error
            return True
        return False

    def _follow_redirect(self, place: int, found: Redirect) -> None:
        of = self._slots[place]
        self._hops += 1
        if found.asking:
            self._asking[place] = found.node
        elif of is not None:
            self.moved[of] = found.node
        if self._hops > _MAX_REDIRECTIONS * len(self._calls):
            reason = (
                f"slot {of} is redirected again and again, now to {found.node[0]}:{found.node[1]}"
            )
            self.stale, self.retry_reason = (
                True,
                LinkLost(url=self._endpoint.masked_url, reason=reason),
            )


def redirection(error: Exception, asked: str) -> Redirect | None:
    """Return the redirection in an error reply, as redis-py or hiredis parse it; return None for
    any other error.
    """
    if isinstance(
        error, rx.AskError
    ):  # and MovedError, its subclass: redis-py has taken the code off the text
        return parse_redirect(
            f"{'MOVED' if isinstance(error, rx.MovedError) else 'ASK'} {error}", asked
        )
    return parse_redirect(str(error), asked)
