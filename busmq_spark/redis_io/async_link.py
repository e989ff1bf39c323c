"""The asyncio twin of ``sync_link.py``: same rules, but shared by many tasks. Their steps go out in
the order they were asked for, without waiting for each other, in one write per turn of the loop
where they are short; replies come back in that order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import redis.exceptions as rx

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.queue.command_generators import Flow, RedisCall, Step, T, command, run_async
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.dial import dial_async
from busmq_spark.redis_io.endpoint import RedisEndpoint, retry_time_s
from busmq_spark.redis_io.optional_commands import is_refused_command
from busmq_spark.redis_io.pipelined_connection import OnReply, PipelinedConnection
from busmq_spark.redis_io.resp_codec import (
    calls_of,
    first_error,
    is_repeatable,
    may_be_sent_again,
    step_result,
    unknown_scripts,
)
from busmq_spark.redis_io.retry import LinkRetry
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
        calls = calls_of(step)
        if not calls:
            return []
        retry = LinkRetry(time.monotonic)
        while True:
            wire = self._wire
            try:
                if wire is None or not wire.is_open:
                    wire = await self.connect()
            except CONNECTION_ERRORS as error:
                await self._pause_or_raise(translate_redis_error(error, self.endpoint), retry, wire)
                continue
            try:
                replies = await wire.ask(calls)
                if (failed := first_error(replies)) is None:
                    return step_result(step, replies)
                failed = await _resend_unknown(wire, calls, replies)
            except CONNECTION_ERRORS as error:
                lost = translate_redis_error(error, self.endpoint)
                if not is_repeatable(step):
                    raise lost from error
                retry.on_no_reply()
                await self._pause_or_raise(lost, retry, wire)
                continue
            if failed is None:
                return step_result(step, replies)
            refused = translate_redis_error(failed, self.endpoint)
            if not may_be_sent_again(step, refused):
                raise refused from None
            await self._pause_or_raise(refused, retry, wire)

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

    async def _pause_or_raise(
        self, error: BusError, retry: LinkRetry, wire: PipelinedConnection | None
    ) -> None:
        if isinstance(error, LinkLost) and self.endpoint.may_move and wire is self._wire:
            self.drop()  # the master is looked up anew
        given_s = retry_time_s(self.endpoint, error, self._patience_s)
        with retry.pausing(error, given_s) as pause_s:
            await asyncio.sleep(pause_s)


async def _resend_unknown(
    wire: PipelinedConnection, calls: Sequence[RedisCall], replies: list[Any]
) -> Exception | None:
    """Send scripts that Redis no longer has again, with their text, and put their replies in place.
    Result: the first error left.
    """
    if missing := unknown_scripts(replies):
        for i, reply in zip(
            missing, await wire.ask([calls[i] for i in missing], whole=True), strict=True
        ):
            replies[i] = reply
    return first_error(replies)
