"""Links for asyncio: an open connection, the link to one server, and the link to a cluster.

An open connection to Redis on the running loop: bytes out once per turn of the loop and 16 KB,
replies in order, and a watch over silence.

redis-py dials (address, TLS, AUTH); then this protocol takes its transport over, since a stream
reader and a coroutine per reply cost about six times as much as the parsing itself.

Links for asyncio, each for many tasks: to one server, driven by link_rules.py, and to a cluster,
driven by cluster_rules.py, with one connection per node.

The steps of the tasks go out in the order of the calls to ``execute``, without waiting for each
other, in one write per turn of the loop where they are short; replies come back in that order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import hiredis
import redis.asyncio as aredis
import redis.exceptions as rx

from busmq_spark.errors import LinkLost
from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, command, run_async
from busmq_spark.redis_io.cluster_rules import KnownSlots, run_cluster_step
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.event_loops import other_loop_error
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
)
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds, SentinelMaster, dial_async
from busmq_spark.redis_io.optional_commands import is_refused_command
from busmq_spark.redis_io.resp_codec import first_error, pack
from busmq_spark.redis_io.slots import NodeAddress, SlotMap, key_of, slot_of_key
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error

_OVERDUE_CHECKS = 10
"""Checks without data after which a due reply is overdue. Each is in a turn of the loop of its own:
a loop that was blocked says nothing of the server.
"""
_MAX_UNSENT_BYTES, _MAX_UNSENT_CALL_BYTES = 16 * 1024, 8 * 1024
"""So many bytes, or so many of one call, do not wait for the end of the loop's turn: Redis works on
them while the rest is made. Short calls go together, since each write is a system call that wakes
Redis.
"""

OnReply: TypeAlias = Callable[[Any, Exception | None], None]
"""Is called with a reply, be it an error reply, or with None and redis-py's ConnectionError; it
must not raise.
"""


def _reply_error(text: str) -> Exception:
    return rx.NoScriptError(text) if text.startswith("NOSCRIPT") else rx.ResponseError(text)


class PipelinedConnection(asyncio.Protocol):
    """Asks and answers on one connection. Once it is not ``open`` it stays so; everything in flight
    then fails with redis-py's error.
    """

    def __init__(self, connection: aredis.Connection, reply_s: float = REPLY_TIMEOUT_S) -> None:
        writer = connection._writer
        assert writer is not None, "the connection must be open"
        self._writer = writer  # held: a stream writer closes its transport when it is collected
        connection._writer = connection._reader = None
        self._transport: Any = writer.transport
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=rx.InvalidResponse, replyError=_reply_error)
        self._waiting: deque[
            tuple[asyncio.Future[list[Any]] | None, OnReply | None, list[Any], int]
        ] = deque()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._reply_s = reply_s
        self._silent_checks = 0
        self.lost = asyncio.Event()
        """Set once the connection is gone."""
        self._transport.set_protocol(self)
        self._watch = self._loop.call_later(reply_s / _OVERDUE_CHECKS, self._check_overdue)

    @property
    def is_open(self) -> bool:
        """Whether the other side has not closed the connection, as far as is known."""
        return not self.lost.is_set() and not self._transport.is_closing()

    def ask(self, calls: Sequence[RedisCall], *, whole: bool = False) -> asyncio.Future[list[Any]]:
        """Replies to the calls, errors among them as values; ``whole`` sends scripts with their
        text. Fails with redis-py's ConnectionError.
        """
        self._check_loop()
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(rx.ConnectionError("Connection closed by server."))
            return future
        self._send(calls, whole, future, None)
        return future

    def send(self, call: RedisCall, on_reply: OnReply) -> None:
        """The quickest way to ask, while the connection is open: no future, nor a turn of the loop
        between the reply and who waits for it.
        """
        self._check_loop()
        self._send((call,), False, None, on_reply)

    def _check_loop(self) -> None:
        if asyncio._get_running_loop() is not self._loop:
            raise other_loop_error("a connection to Redis")

    def _send(
        self,
        calls: Sequence[RedisCall],
        whole: bool,
        future: asyncio.Future[list[Any]] | None,
        on_reply: OnReply | None,
    ) -> None:
        if not self._unsent:
            self._loop.call_soon(self._write_unsent)
        if not self._waiting:
            self._silent_checks = 0
        packed = pack(calls, whole=whole)
        self._unsent.append(packed)
        self._unsent_bytes += len(packed)
        self._waiting.append((future, on_reply, [], len(calls)))
        if self._unsent_bytes >= _MAX_UNSENT_BYTES or len(packed) >= _MAX_UNSENT_CALL_BYTES:
            self._write_unsent()

    def abort(self) -> None:
        """Break the connection."""
        self._transport.abort()
        self._fail_waiting(rx.ConnectionError("the link was closed"))

    def _write_unsent(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent and self.is_open:
            self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        self._silent_checks = 0
        self._reader.feed(data)
        gets = self._reader.gets
        try:
            while waiting := self._waiting:  # another one once the connection is lost
                future, on_reply, replies, count = waiting[0]
                while len(replies) < count:
                    reply = gets()
                    if reply is False:  # hiredis' word for: not all there yet
                        return
                    replies.append(reply)
                waiting.popleft()
                if on_reply is not None:
                    on_reply(replies[0], None)
                elif future is not None and not future.done():  # its task may have been cancelled
                    future.set_result(replies)
        except rx.InvalidResponse as error:
            self._transport.abort()
            self._fail_waiting(rx.ConnectionError(f"replies are out of step: {error}"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._fail_waiting(
            rx.ConnectionError(str(error) if error else "Connection closed by server.")
        )

    def _check_overdue(self) -> None:
        """Fail when a reply is overdue and no data arrives: half-open connections never break by
        themselves.
        """
        if not self.is_open:
            return
        self._silent_checks += bool(self._waiting)
        if self._silent_checks > _OVERDUE_CHECKS:
            self._transport.abort()
            self._fail_waiting(rx.TimeoutError(f"no reply within {self._reply_s:g} s"))
            return
        self._watch = self._loop.call_later(self._reply_s / _OVERDUE_CHECKS, self._check_overdue)

    def _fail_waiting(self, error: Exception) -> None:
        self.lost.set()
        self._watch.cancel()
        waiting, self._waiting = self._waiting, deque()
        for future, on_reply, _, _ in waiting:
            if on_reply is not None:
                on_reply(None, error)
            elif future is not None and not future.done():
                future.set_exception(error)


_PING = command("PING")


class AsyncLink:
    """An asyncio link; see SyncLink for what is repeated. A step whose task is cancelled may still
    be executed; its reply is dropped.
    """

    def __init__(
        self,
        endpoint: RedisEndpoint,
        patience_s: float | None = None,
        reply_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """``patience_s``: seconds a step is tried, a first wait for its reply not counted; a
        ``patience_s`` of None suits endpoint and error (endpoint.py).

        ``reply_s``: a server that has not sent a due reply for so long counts as lost.
        """
        self.endpoint = endpoint
        self._patience_s, self._reply_s = patience_s, reply_s
        self._wire: PipelinedConnection | None = None
        self._connecting = asyncio.Lock()

    def run(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        """Run a flow to its end."""
        return run_async(flow, self.execute)

    def send_if_connected(self, call: RedisCall, on_reply: OnReply) -> bool:
        """The quickest way to send one call; false, and nothing is sent, while the link is down."""
        wire = self.wire
        if wire is None:
            return False
        wire.send(call, on_reply)
        return True

    async def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error
        of the first call that failed.
        """
        rule = run_step(step, self.wire, self.endpoint, self._patience_s, time.monotonic)
        resume: Callable[[Any], Action] = rule.send
        value: Any = None
        while True:
            try:
                action = resume(value)
            except StopIteration as done:
                return done.value
            try:  # one frame and no coroutine for the one action there mostly is
                value = await (
                    action.connection.ask(action.calls, whole=action.whole)
                    if type(action) is Ask
                    else self.perform(action)
                )
                resume = rule.send
            except THROWN as error:
                resume, value = rule.throw, error

    async def perform(self, action: Action) -> Any:
        """Perform one action of a rule."""
        match action:
            case Ask(wire, calls, whole):
                return await wire.ask(calls, whole=whole)
            case Connect():
                return await self.connect()
            case Drop(wire):
                if wire is self._wire:
                    self.drop()
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case ListReplicas():
                assert isinstance(self.endpoint, SentinelMaster)
                return await self.endpoint.list_replicas_async()
        return None

    async def connect(self) -> PipelinedConnection:
        """The open connection; tasks that ask at once share one attempt. Raises LinkLost and other
        errors of connecting, without patience.
        """
        async with self._connecting:
            if self._wire is None or not self._wire.is_open:
                try:
                    self._wire = PipelinedConnection(
                        await dial_async(self.endpoint, self._reply_s), self._reply_s
                    )
                except (rx.RedisError, OSError) as error:
                    raise translate_redis_error(error, self.endpoint) from error
            return self._wire

    async def ping(self) -> None:
        """Return when the server answers, be it that it refuses PING; connects if need be.

        Raises at once, without patience.
        """
        try:
            if (failed := first_error(await (await self.connect()).ask((_PING,)))) is not None:
                raise failed
        except CONNECTION_ERRORS as error:
            found = translate_redis_error(error, self.endpoint)
            if self.wire is None or not is_refused_command(found):
                raise found from error

    @property
    def wire(self) -> PipelinedConnection | None:
        """Return the open connection, if there is one: a call on it now goes out before any later
        call.
        """
        return self._wire if self._wire is not None and self._wire.is_open else None

    def drop(self) -> None:
        """Break the connection now: steps in flight fail as if the link had broken. A later step
        opens a new one.
        """
        if self._wire is not None:
            self._wire.abort()
            self._wire = None

    async def close(self) -> None:
        """Close the connection. A later step opens a new one."""
        self.drop()


class AsyncClusterLink:
    """An AsyncLink to a cluster: the same methods, with what may be repeated judged call by call
    (see cluster_rules.py).
    """

    def __init__(
        self,
        cluster: ClusterSeeds,
        patience_s: float | None = None,
        reply_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """See AsyncLink."""
        self.endpoint = cluster
        self._patience_s, self._reply_s = patience_s, reply_s
        self.slots = KnownSlots()
        # Nodes without slots stay, too: a task may be about to connect to one, and close() must
        # find its connection.
        self._nodes: dict[NodeAddress, AsyncLink] = {}
        self._asking = asyncio.Lock()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return await run_async(flow, self.execute)

    def send_if_connected(self, call: RedisCall, on_reply: OnReply) -> bool:
        """See AsyncLink; a redirection is an error reply like any other."""
        key = key_of(call)
        known = self.slots.current
        node = None if known is None or key is None else known.owner(slot_of_key(key))
        link = None if node is None else self._nodes.get(node)
        return link is not None and link.send_if_connected(call, on_reply)

    async def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error
        of the first call that failed.
        """
        rule = run_cluster_step(step, self.endpoint, self.slots, self._patience_s, time.monotonic)
        under_way: list[asyncio.Future[list[Any]]] = []
        try:
            return await run_async(rule, partial(self._perform_at_nodes, under_way), THROWN)
        finally:
            for replies in under_way:
                if not replies.cancel() and not replies.cancelled():
                    replies.exception()  # retrieved: else asyncio logs it

    async def perform(self, action: Action) -> Any:
        """Perform an action of a rule that sends nothing."""
        match action:
            case FindSlots(anew, dead):
                return (None if anew else self.slots.current) or await self.refresh(dead)
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None

    async def _perform_at_nodes(
        self, under_way: list[asyncio.Future[list[Any]]], action: Action
    ) -> Any:
        match action:
            case Connect(node):
                assert node is not None
                link = self.link_to(node)
                return link.wire or await link.connect()
            case Send(wire, calls):
                under_way.append(wire.ask(calls))
                return under_way[-1]
            case Receive(replies):
                return await replies
        return await self.perform(action)

    async def refresh(self, dead: Iterable[NodeAddress] = ()) -> SlotMap:
        """Ask anew which slots are where; tasks that ask at once share one answer. Raises
        NoServerReachable when no node does.
        """
        before = self.slots.current
        async with self._asking:
            known = self.slots.current
            if known is before or known is None:
                known = self.slots.current = await self.endpoint.fetch_slot_map_async(
                    known.masters if known else (), dead
                )
            return known

    async def master_links(self) -> list[AsyncLink]:
        """Links to every node that owns slots now, for what is asked of each. They give up soon and
        are closed with this link.
        """
        return [self.link_to(node) for node in (await self.refresh()).masters]

    async def ping(self) -> None:
        """Returns when some master answers; connects if need be. Raises at once, without
        patience.
        """
        for node in (self.slots.current or await self.refresh()).masters:
            with suppress(LinkLost):
                await self.link_to(node).ping()
                return
        await self.refresh()

    def link_to(self, node: NodeAddress) -> AsyncLink:
        """The link to one node."""
        if node not in self._nodes:
            self._nodes[node] = AsyncLink(self.endpoint.server_of(node), 0.0, self._reply_s)
        return self._nodes[node]

    def drop(self) -> None:
        """Break every connection now: steps in flight fail as if the links had broken. A later step
        opens new ones.
        """
        for link in self._nodes.values():
            link.drop()

    async def close(self) -> None:
        """Close every connection. A later step opens new ones."""
        self.drop()
