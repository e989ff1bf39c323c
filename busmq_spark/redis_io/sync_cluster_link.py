"""The blocking link to a Redis Cluster: one connection per node, every call at the node that owns
its key.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, run_sync
from busmq_spark.redis_io.cluster_rules import KnownSlots, redirection, run_cluster_step
from busmq_spark.redis_io.endpoint import stopped_error
from busmq_spark.redis_io.link_rules import (
    THROWN,
    Action,
    Connect,
    FindSlots,
    Pause,
    Receive,
    Send,
    wait_for_retry,
)
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds
from busmq_spark.redis_io.resp_codec import script_as_eval
from busmq_spark.redis_io.retry import LinkRetry
from busmq_spark.redis_io.slots import NodeAddress, SlotMap, key_of, slot_of_key
from busmq_spark.redis_io.sync_link import SyncLink, stream_calls
from busmq_spark.redis_io.translate import translate_redis_error

R = TypeVar("R")


class SyncClusterLink:
    """A SyncLink to a cluster: the same methods, with what may be repeated judged call by call
    (cluster_rules.py). Not for two threads at once.
    """

    cluster = True

    def __init__(self, cluster: ClusterSeeds, patience_s: float | None = None) -> None:
        """``patience_s``: seconds a step is tried in all; a ``patience_s`` of None suits the error
        (see endpoint.py).
        """
        self.endpoint = cluster
        self._patience_s = patience_s
        self._slots = KnownSlots()
        self._nodes: dict[NodeAddress, SyncLink] = {}
        self._posted: deque[NodeAddress] = deque()
        self._awaited: set[SyncLink] = set()
        """The links that have been sent calls and have not been asked for all replies."""
        self._stopped = threading.Event()

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return run_sync(flow, self.execute)

    def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error
        of the first call that failed.
        """
        assert not self._posted, "replies of posted calls are still to be fetched"
        rule = run_cluster_step(step, self.endpoint, self._slots, self._patience_s, time.monotonic)
        try:
            return run_sync(rule, self._perform, THROWN)
        finally:
            while self._awaited:
                self._awaited.pop().close()  # its replies would be taken for others'

    def _perform(self, action: Action) -> Any:
        match action:
            case FindSlots(anew, dead):
                if anew:
                    return self.refresh(dead)
                self._raise_if_stopped()
                return self._slots.current or self.refresh()
            case Connect(node):
                assert node is not None
                link = self.link_to(node)
                link.ensure_connected()
                return link
            case Send(link, calls):
                self._awaited.add(link)
                link.send(calls)
                return link, len(calls)
            case Receive((link, count)):
                replies = link.receive(count)
                self._awaited.discard(link)
                return replies
            case Pause(seconds):
                self._stopped.wait(seconds)
        return None

    def post(self, call: RedisCall) -> None:
        """Send one call to its node and do not wait; each needs one :meth:`fetch`."""
        self._raise_if_stopped()
        try:
            key = key_of(call)
            node = (
                (self._slots.current or self.refresh()).masters[0]
                if key is None
                else self.owner_address(key)
            )
            link = self.link_to(node)
            if node not in self._posted:
                link.ensure_connected()
            link.send([script_as_eval(call)])
            self._posted.append(node)
        except LinkLost:
            self._drop_posted_and_slot_map()
            raise

    def fetch(self) -> Any:
        """The reply to the oldest call posted and not fetched. LinkLost, also after MOVED, means
        that all posted calls are in doubt.
        """
        node = self._posted[0]
        try:
            reply = self.link_to(node).receive(1)[0]
            if isinstance(reply, Exception):
                raise self._reply_error(reply, node)
        except LinkLost:
            self._drop_posted_and_slot_map()
            raise
        except BusError:
            self._posted.popleft()
            raise
        self._posted.popleft()
        return reply

    def stream(self, calls: Iterable[RedisCall], depth: int = 2) -> Generator[Any, None, None]:
        """Stream calls, like :meth:`SyncLink.stream`."""
        return stream_calls(self, calls, depth)

    def abandon(self) -> None:
        """Forget calls that were posted and not fetched."""
        if self._posted:
            self._drop_posted()

    def close(self) -> None:
        """Close every connection. A later step opens new ones."""
        self._posted.clear()
        for link in self._nodes.values():
            link.close()

    def stop(self) -> None:
        """Stop, like :meth:`SyncLink.stop`."""
        self._stopped.set()

    @property
    def master_links(self) -> list[SyncLink]:
        """Links to every node that owns slots now, for what is asked of each. They give up soon and
        are closed with this link.
        """
        return [self.link_to(node) for node in self.refresh().masters]

    def owner_address(self, key: str | bytes) -> NodeAddress:
        """The node of a key, as far as is known. Raises LinkLost."""
        node = (self._slots.current or self.refresh()).owner(slot_of_key(key))
        if node is None:
            raise LinkLost(
                url=self.endpoint.masked_url, reason=f"no node serves the slot of {key!r}"
            )
        return node

    def node_of(self, key: str) -> str:
        """Return the node of a key, like SyncLink."""
        return "{}:{}".format(*self.owner_address(key))

    def link_to(self, node: NodeAddress) -> SyncLink:
        """The link to one node."""
        if node not in self._nodes:
            self._nodes[node] = SyncLink(self.endpoint.server_of(node), 0.0)
        return self._nodes[node]

    def refresh(self, dead: Iterable[NodeAddress] = ()) -> SlotMap:
        """Ask anew which slots are where. Raises NoServerReachable when no node does."""
        known = self._slots.current
        found = self._slots.current = self.endpoint.fetch_slot_map(
            known.masters if known else (), dead
        )
        for gone in self._nodes.keys() - set(found.masters):
            self._nodes.pop(gone).close()
        return found

    def forget_slot_map(self) -> None:
        """The next call fetches the slot map anew."""
        self._slots.current = None

    def owns_slots(self, node: NodeAddress) -> bool:
        """Whether the node owns slots, as far as is known."""
        known = self._slots.current
        return known is not None and node in known.masters

    def ask_each_master(self, ask: Callable[[SyncLink], R]) -> list[R]:
        """Return the answers of all masters. If a master does not answer, all are asked anew, until
        its successor answers or patience is over.
        """
        retry = LinkRetry(time.monotonic)
        while True:
            self._raise_if_stopped()
            try:
                return [ask(link) for link in self.master_links]
            except LinkLost as error:
                rule = wait_for_retry(error, retry, self.endpoint, self._patience_s)
                run_sync(rule, self._perform)

    def _raise_if_stopped(self) -> None:
        if self._stopped.is_set():
            raise stopped_error()

    def _reply_error(self, reply: Exception, node: NodeAddress) -> BusError:
        if (found := redirection(reply, node[0])) is not None:
            return LinkLost(
                url=self.endpoint.server_of(node).masked_url,
                reason=f"the slot is at {found.node[0]}:{found.node[1]} now",
            )
        return translate_redis_error(reply, self.endpoint)

    def _drop_posted_and_slot_map(self) -> None:
        """A posted call went wrong: where its slot is, is asked anew by the next call."""
        self._drop_posted()
        self._slots.current = None

    def _drop_posted(self) -> None:
        for node in set(self._posted):
            self.link_to(node).close()
        self._posted.clear()
