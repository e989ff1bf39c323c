"""A connection to one server for many tasks, driven by the rules of link_rules.py. The steps of the
tasks go out in the order of the calls to ``execute``, without waiting for each other, in one write
per turn of the loop where they are short; replies come back in that order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import redis.exceptions as rx

from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, command, run_async
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.dial import dial_async
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.link_rules import THROWN, Action, Ask, Connect, Drop, Pause, run_step
from busmq_spark.redis_io.optional_commands import is_refused_command
from busmq_spark.redis_io.pipelined_connection import OnReply, PipelinedConnection
from busmq_spark.redis_io.resp_codec import first_error
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
