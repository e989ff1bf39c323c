"""An open connection to Redis on the running loop: bytes out once per turn of the loop and 16 KB,
replies in order, and a watch over silence.

redis-py dials (address, TLS, AUTH); then this protocol takes its transport over, since a stream
reader and a coroutine per reply cost about six times as much as the parsing itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import hiredis
import redis.asyncio as aredis
import redis.exceptions as rx

from busmq_spark.queue.command_generators import RedisCall
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.fork_guard import other_loop_error
from busmq_spark.redis_io.resp_codec import pack

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
