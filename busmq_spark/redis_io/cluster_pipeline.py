"""A step on its way through a cluster: the next calls to each node, and the meaning of the replies.
Shared by the two cluster links.

Rule 1. A call that was refused (MOVED, ASK, TRYAGAIN, NOSCRIPT …) was not executed, so it may
        always go again.
Rule 2. A call whose reply was lost may have been executed: it goes again only if it is idempotent,
        else the step is in doubt.
Rule 3. Calls of one slot keep their order. If a node refused one call and executed a later one, the
        step is in doubt, not reordered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis.exceptions as rx

from busmq_spark.errors import BusError, LinkLost, WritesPaused
from busmq_spark.queue.command_generators import RedisCall, command
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.resp_codec import first_error, script_as_eval
from busmq_spark.redis_io.slots import (
    NodeAddress,
    Redirect,
    SlotMap,
    key_of,
    parse_redirect,
    slot_of_key,
)
from busmq_spark.redis_io.translate import translate_redis_error

ASKING_COMMAND = command("ASKING")
_MAX_REDIRECTIONS = 5
"""After so many redirections without a pause the nodes disagree: then waiting helps, and asking on
does not.
"""


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
