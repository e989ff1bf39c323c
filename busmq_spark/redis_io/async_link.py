"""Links for asyncio, each for many tasks: to one server, driven by link_rules.py, and to a cluster,
driven by cluster_rules.py, with one connection per node.

The steps of the tasks go out in the order of the calls to ``execute``, without waiting for each
other, in one write per turn of the loop where they are short; replies come back in that order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import redis.exceptions as rx

from busmq_spark.errors import LinkLost
from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, command, run_async
from busmq_spark.redis_io.cluster_rules import KnownSlots, run_cluster_step
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.dial import dial_async
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.link_rules import (
    THROWN,
    Action,
    Ask,
    Connect,
    Drop,
    FindSlots,
    Pause,
    Receive,
    Send,
    run_step,
)
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds
from busmq_spark.redis_io.optional_commands import is_refused_command
from busmq_spark.redis_io.pipelined_connection import OnReply, PipelinedConnection
from busmq_spark.redis_io.resp_codec import first_error
from busmq_spark.redis_io.slots import NodeAddress, SlotMap, key_of, slot_of_key
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error

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
                    else self._perform(action)
                )
                resume = rule.send
            except THROWN as error:
                resume, value = rule.throw, error

    async def _perform(self, action: Action) -> Any:
        match action:
            case Connect():
                return await self.connect()
            case Drop(wire):
                if wire is self._wire:
                    self.drop()
            case Pause(seconds):
                await asyncio.sleep(seconds)
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
        self._slots = KnownSlots()
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
        known = self._slots.current
        node = None if known is None or key is None else known.owner(slot_of_key(key))
        link = None if node is None else self._nodes.get(node)
        return link is not None and link.send_if_connected(call, on_reply)

    async def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error
        of the first call that failed.
        """
        rule = run_cluster_step(step, self.endpoint, self._slots, self._patience_s, time.monotonic)
        under_way: list[asyncio.Future[list[Any]]] = []
        try:
            return await run_async(rule, partial(self._perform, under_way), THROWN)
        finally:
            for replies in under_way:
                if not replies.cancel() and not replies.cancelled():
                    replies.exception()  # retrieved: else asyncio logs it

    async def _perform(self, under_way: list[asyncio.Future[list[Any]]], action: Action) -> Any:
        match action:
            case FindSlots(anew, dead):
                return (None if anew else self._slots.current) or await self.refresh(dead)
            case Connect(node):
                assert node is not None
                link = self.link_to(node)
                return link.wire or await link.connect()
            case Send(wire, calls):
                under_way.append(wire.ask(calls))
                return under_way[-1]
            case Receive(replies):
                return await replies
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None

    async def refresh(self, dead: Iterable[NodeAddress] = ()) -> SlotMap:
        """Ask anew which slots are where; tasks that ask at once share one answer. Raises
        NoServerReachable when no node does.
        """
        before = self._slots.current
        async with self._asking:
            known = self._slots.current
            if known is before or known is None:
                known = self._slots.current = await self.endpoint.fetch_slot_map_async(
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
        for node in (self._slots.current or await self.refresh()).masters:
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
