"""Range reads from a cluster: a RangeLink to the node that owns the list, chosen anew whenever nothing is under way."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

import numpy as np

from busmq_spark.core.flow import Call
from busmq_spark.core.pairs import NO_PAIRS, Pairs
from busmq_spark.errors import BusError, LinkLost, ServerRefused
from busmq_spark.redis_io.cluster_link import ClusterLink
from busmq_spark.redis_io.links import Link
from busmq_spark.redis_io.range_link import RangeLink
from busmq_spark.redis_io.slots import Node, Redirect, key_of, redirect


class ClusterRangeLink:
    """As RangeLink: MOVED, ASK and an unreachable node are LinkLost, and the reader resumes after its last row.

    A list that has moved ahead of its slot is read through ``single``, call by call, until the next range: then each key is asked for where it is.
    """

    def __init__(self, single: ClusterLink) -> None:
        self.endpoint = single.endpoint
        self._single = single
        self._links: dict[Node, RangeLink] = {}
        self._link: RangeLink | None = None
        self._detour = False
        self._left: deque[Call] = deque()

    @property
    def waiting(self) -> int:
        """Replies that are still to come."""
        return len(self._left) + (self._link.waiting if self._link else 0)

    def post(self, *calls: Call) -> None:
        """Send calls about one queue without waiting. Each needs its ``fetch``."""
        if not self.waiting:
            self._detour, slowly = False, self._detour
            self._link = None if slowly else self._link_for(calls[0])
        if self._link is None:
            self._left.extend(calls)
            return
        try:
            self._link.post(*calls)
        except LinkLost:
            self._single.forget()
            raise

    def fetch_pairs(self) -> Pairs:
        """The reply to a LRANGE over whole messages. It is valid until the next fetch."""
        if self._link is None:
            return _pairs(self._single.execute(self._left.popleft()))
        try:
            return self._link.fetch_pairs()
        except (LinkLost, ServerRefused) as error:
            raise self._elsewhere(error) from error

    def fetch(self) -> Any:
        """The reply to a command that answers with one string or nothing: bytes or None."""
        if self._link is None:
            return self._single.execute(self._left.popleft())
        try:
            return self._link.fetch()
        except (LinkLost, ServerRefused) as error:
            raise self._elsewhere(error) from error

    def drop(self) -> None:
        """Close the connections; replies still under way are dropped."""
        self._left.clear()
        for link in self._links.values():
            link.drop()

    def _link_for(self, call: Call) -> RangeLink:
        key = key_of(call)
        assert key is not None
        node = self._single.owner(key)
        for other in self._links.keys() - {node}:
            if not self._single.serves(other):
                self._links.pop(other).drop()
        if node not in self._links:
            self._links[node] = RangeLink(self.endpoint.server(node))
        return self._links[node]

    def _elsewhere(self, error: BusError) -> BusError:
        """LinkLost when the node has said that the list is elsewhere, or said nothing at all; else the error itself."""
        found: Redirect | None = None
        if isinstance(error, ServerRefused):
            found = redirect(str(error.details["reason"]), "")
            if found is None and not str(error.details["reason"]).startswith("READONLY"):
                return error
        self._single.forget()
        self._detour = found is not None and found.asking
        self.drop()
        return error if isinstance(error, LinkLost) else LinkLost(**error.details)


def _pairs(reply: list[bytes]) -> Pairs:
    if not reply:
        return NO_PAIRS
    lengths = np.fromiter(map(len, reply[1::2]), np.int64)
    return Pairs(b"".join(reply[1::2]), np.cumsum(lengths) - lengths, lengths, int(reply[0]), int(reply[-2]))


AnyRangeLink: TypeAlias = RangeLink | ClusterRangeLink


def range_link(link: Link) -> AnyRangeLink:
    """A link for windows beside one for questions, whatever the layout."""
    return ClusterRangeLink(link) if isinstance(link, ClusterLink) else RangeLink(link.endpoint)
