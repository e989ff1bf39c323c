"""Blocking links, each for one thread: to one server, driven by link_rules.py, and to a cluster,
driven by cluster_rules.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import redis
import redis.exceptions as rx

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, run_sync
from busmq_spark.redis_io.cluster_rules import KnownSlots, redirection, run_cluster_step
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.endpoint import RedisEndpoint, stopped_error
from busmq_spark.redis_io.link_rules import (
    THROWN,
    Action,
    Ask,
    Connect,
    Drop,
    FindSlots,
    ListReplicas,
    Pause,
    Receive,
    Send,
    run_step,
    wait_for_retry,
)
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds, SentinelMaster, dial
from busmq_spark.redis_io.resp_codec import pack, pack_in_parts, script_as_eval
from busmq_spark.redis_io.retry import LinkRetry
from busmq_spark.redis_io.slots import NodeAddress, SlotMap, key_of, slot_of_key
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error

R = TypeVar("R")


class SyncLink:
    """A blocking link. The constructor connects nothing; the first step does. Not for use by two
    threads at once.

    A step whose calls are all idempotent is repeated after a broken link until its patience is
    over; any other is repeated only while it is certain that Redis has not seen it.
    """

    cluster = False
    """Whether keys are spelt as a cluster needs it."""

    def __init__(
        self,
        endpoint: RedisEndpoint,
        patience_s: float | None = None,
        reply_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """``patience_s``: seconds a step is tried, a first wait for its reply not counted; a
        ``patience_s`` of None suits endpoint and error (endpoint.py). ``reply_s``: longest wait for
        one reply.
        """
        self.endpoint = endpoint
        self.patience_s, self._reply_s = patience_s, reply_s
        self._connection: redis.Connection | None = None
        self._posted = 0
        self._stopped = threading.Event()

    @property
    def master_links(self) -> list[SyncLink]:
        """Return links to every master of the server: this one."""
        return [self]

    def ask_each_master(self, ask: Callable[[SyncLink], R]) -> list[R]:
        """Return the answers of all masters."""
        return [ask(self)]

    def node_of(self, key: str) -> str:  # noqa: ARG002  # as that of a cluster
        """Return the place of a key among the masters: ``host:port`` of a cluster's node, '' of a
        single server.
        """
        return ""

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return run_sync(flow, self.execute)

    def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error
        of the first call that failed.
        """
        assert not self._posted, "replies of posted calls are still to be fetched"
        rule = run_step(step, None, self.endpoint, self.patience_s, time.monotonic)
        return run_sync(rule, self.perform, THROWN)

    def post(self, call: RedisCall) -> None:
        """Send one call and do not wait; each needs one :meth:`fetch`. A script travels whole, so a
        flushed cache cannot break the order.
        """
        try:
            posted = self._posted and not self._stopped.is_set()
            connection = (
                self._connection
                if posted and self._connection is not None
                else self._open_connection()
            )
            connection.send_packed_command([pack((call,), whole=True)], check_health=False)
            self._posted += 1
        except CONNECTION_ERRORS as error:
            self._drop()
            raise translate_redis_error(error, self.endpoint) from error

    def fetch(self) -> Any:
        """The reply to the oldest call posted and not fetched. Raises its translated error;
        LinkLost means that all posted calls are in doubt.
        """
        assert self._connection is not None, "nothing was posted"
        try:
            reply = _read_reply(self._connection)
        except CONNECTION_ERRORS as error:
            self._drop()
            raise translate_redis_error(error, self.endpoint) from error
        self._posted -= 1
        if isinstance(reply, Exception):
            raise translate_redis_error(reply, self.endpoint)
        return reply

    def stream(self, calls: Iterable[RedisCall], depth: int = 2) -> Generator[Any, None, None]:
        """Replies in order, with up to ``depth`` calls under way, so that Redis works while the
        caller does.

        Calls are taken from the iterable as late as possible. Nothing is repeated: LinkLost leaves
        it to the caller how far it came.
        """
        return stream_calls(self, calls, depth)

    # Halves of a step, for SyncClusterLink: one step may go to many nodes at once.

    def ensure_connected(self) -> None:
        """Connect, unless that is done. Raises the translated error; until then Redis has seen
        nothing.
        """
        try:
            self._open_connection()
        except CONNECTION_ERRORS as error:
            raise translate_redis_error(error, self.endpoint) from error

    def send(self, calls: Sequence[RedisCall]) -> None:
        """Send calls on the open connection. Each needs its place in a :meth:`receive`."""
        assert self._connection is not None, "not open"
        try:
            self._connection.send_packed_command([pack(calls)], check_health=False)
        except CONNECTION_ERRORS as error:
            self._drop()
            raise translate_redis_error(error, self.endpoint) from error

    def receive(self, count: int) -> list[Any]:
        """The next ``count`` replies, errors among them as values. LinkLost leaves all of them in
        doubt.
        """
        if self._connection is None:
            raise LinkLost(
                url=self.endpoint.masked_url,
                reason="the connection broke while calls were under way",
            )
        try:
            return [_read_reply(self._connection) for _ in range(count)]
        except CONNECTION_ERRORS as error:
            self._drop()
            raise translate_redis_error(error, self.endpoint) from error

    def abandon(self) -> None:
        """Forget calls that were posted and not fetched: the connection is dropped, since their
        replies would be taken for others'.
        """
        if self._posted:
            self._drop()

    def close(self) -> None:
        """Close the connection. A later step opens a new one."""
        self._drop()

    def stop(self) -> None:
        """From any thread: nothing is sent from now on. A step under way takes a reply that comes,
        and is repeated no more (StateError).
        """
        self._stopped.set()

    def _drop(self) -> None:
        self._posted = 0
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None

    def _open_connection(self) -> redis.Connection:
        if self._stopped.is_set():
            raise stopped_error()
        if self._connection is not None and not self._is_alive(self._connection):
            self._drop()
        if self._connection is None:
            self._connection = dial(self.endpoint, self._reply_s)
        return self._connection

    @staticmethod
    def _is_alive(connection: redis.Connection) -> bool:
        """Whether the server has closed the connection meanwhile: better known before a push is
        sent.
        """
        try:
            return not connection.can_read(timeout=0)
        except CONNECTION_ERRORS:
            return False

    def perform(self, action: Action) -> Any:
        """Perform one action of a rule."""
        match action:
            case Ask(connection, calls, whole):
                return self._ask(connection, calls, whole=whole)
            case Connect():
                return self._open_connection()
            case Drop():
                self._drop()
            case Pause(seconds):
                self._stopped.wait(seconds)
            case ListReplicas():
                assert isinstance(self.endpoint, SentinelMaster)
                return self.endpoint.list_replicas()
        return None

    def _ask(
        self, connection: redis.Connection, calls: Sequence[RedisCall], *, whole: bool
    ) -> list[Any]:
        try:
            connection.send_packed_command(
                [pack(calls, whole=True)] if whole else pack_in_parts(calls), check_health=False
            )
            return [_read_reply(connection) for _ in calls]
        except CONNECTION_ERRORS:
            self._drop()
            raise


class PipelinedLink(Protocol):
    """A link with calls under way."""

    def post(self, call: RedisCall) -> None: ...
    def fetch(self) -> Any: ...
    def abandon(self) -> None: ...


def stream_calls(
    link: PipelinedLink, calls: Iterable[RedisCall], depth: int
) -> Generator[Any, None, None]:
    """See :meth:`SyncLink.stream`."""
    source = iter(calls)
    under_way = 0
    try:
        while True:
            while under_way < depth and (call := next(source, None)) is not None:
                link.post(call)
                under_way += 1
            if not under_way:
                return
            under_way -= 1
            yield link.fetch()
    finally:
        link.abandon()


def _read_reply(connection: redis.Connection) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except (rx.ResponseError, rx.BusyLoadingError) as error:
        return error


class SyncClusterLink:
    """A SyncLink to a cluster: the same methods, with what may be repeated judged call by call
    (cluster_rules.py). Not for two threads at once.
    """

    cluster = True

    def __init__(
        self,
        cluster: ClusterSeeds,
        patience_s: float | None = None,
        reply_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """``patience_s``: seconds a step is tried in all; a ``patience_s`` of None suits the error
        (see endpoint.py). ``reply_s``: longest wait for one reply.
        """
        self.endpoint = cluster
        self.patience_s, self._reply_s = patience_s, reply_s
        self.slots = KnownSlots()
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
        rule = run_cluster_step(step, self.endpoint, self.slots, self.patience_s, time.monotonic)
        try:
            return run_sync(rule, self.perform, THROWN)
        finally:
            while self._awaited:
                self._awaited.pop().close()  # its replies would be taken for others'

    def perform(self, action: Action) -> Any:
        """Perform one action of a rule."""
        match action:
            case FindSlots(anew, dead):
                if anew:
                    return self.refresh(dead)
                self._raise_if_stopped()
                return self.slots.current or self.refresh()
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
                (self.slots.current or self.refresh()).masters[0]
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
        node = (self.slots.current or self.refresh()).owner(slot_of_key(key))
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
            self._nodes[node] = SyncLink(self.endpoint.server_of(node), 0.0, self._reply_s)
        return self._nodes[node]

    def refresh(self, dead: Iterable[NodeAddress] = ()) -> SlotMap:
        """Ask anew which slots are where. Raises NoServerReachable when no node does."""
        known = self.slots.current
        found = self.slots.current = self.endpoint.fetch_slot_map(
            known.masters if known else (), dead
        )
        for gone in self._nodes.keys() - set(found.masters):
            self._nodes.pop(gone).close()
        return found

    def forget_slot_map(self) -> None:
        """The next call fetches the slot map anew."""
        self.slots.current = None

    def owns_slots(self, node: NodeAddress) -> bool:
        """Whether the node owns slots, as far as is known."""
        known = self.slots.current
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
                rule = wait_for_retry(error, retry, self.endpoint, self.patience_s)
                run_sync(rule, self.perform)

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
        self.slots.current = None

    def _drop_posted(self) -> None:
        for node in set(self._posted):
            self.link_to(node).close()
        self._posted.clear()
