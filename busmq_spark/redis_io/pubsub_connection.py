"""Redis' pub/sub on one connection of its own, for as many channels and listeners as a bus has.

Rule 1. The first listener of a channel sends SUBSCRIBE, the last one that leaves UNSUBSCRIBE
        (protocol 1.3).
Rule 2. After a broken link all channels are subscribed again, and each listener is called with
        None: messages may have been lost meanwhile.
Rule 3. A silent link is asked now and then whether it is still there: half-open ones never break by
        themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
import redis.exceptions as rx

from busmq_spark.errors import BusError, LinkLost, Unauthorized
from busmq_spark.queue.command_generators import slices
from busmq_spark.redis_io.connection_factory import REPLY_TIMEOUT_S
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.moving_endpoints import dial_async
from busmq_spark.redis_io.optional_commands import is_refused_nicety
from busmq_spark.redis_io.resp_codec import pack_words
from busmq_spark.redis_io.retry import Pauses
from busmq_spark.redis_io.translate import translate_redis_error

Listener = Callable[[bytes | None], None]
_NAMES_PER_CALL = 500
_PATTERN_PREFIX = b"\x00"
"""The mark before patterns, among the names of channels."""
_PING = pack_words(("PING",))
log = logging.getLogger("busmq_spark")


class _Confirmation(asyncio.Event):
    """Redis' answer to the first SUBSCRIBE of a channel: set once it is there, with the error if it
    was no.
    """

    denied: BusError | None = None


class PubSubConnection(asyncio.Protocol):
    """Listens while ``run`` runs. Listeners are called on the loop and must not block."""

    def __init__(self, endpoint: RedisEndpoint, reply_s: float = REPLY_TIMEOUT_S) -> None:
        """``reply_s``: after so long without data a PING is sent, and after as long again the
        connection counts as lost.
        """
        self.endpoint = endpoint
        self._reply_s = reply_s
        self._listeners: dict[bytes, list[Listener]] = {}
        self._confirmations: dict[bytes, _Confirmation] = {}
        self._unconfirmed: deque[list[bytes]] = deque()
        self._writer: Any = None
        self._lost = asyncio.Event()
        self._subscribed = asyncio.Event()
        self._got_data = False
        self._refused: Exception | None = None
        self._reader = hiredis.Reader()

    async def subscribe(self, channel: str, listener: Listener, *, pattern: bool = False) -> None:
        """Subscribe to a channel, or to all of a pattern with ``*``; returns once Redis has
        confirmed: messages that are published from then on are received.

        Waits for an unreachable Redis, until ``unsubscribe``. Raises Unauthorized when Redis
        denies this channel. The other channels go on: a peer that may name channels must not end
        theirs.
        """
        name = _key(channel, pattern)
        self._listeners.setdefault(name, []).append(listener)
        if name not in self._confirmations:
            self._confirmations[name] = _Confirmation()
            self._send_command("SUBSCRIBE", [name])
        confirmation = self._confirmations[name]
        try:
            await confirmation.wait()
        except asyncio.CancelledError:
            self.unsubscribe(channel, listener, pattern=pattern)
            raise
        if confirmation.denied is not None:
            raise confirmation.denied

    def unsubscribe(self, channel: str, listener: Listener, *, pattern: bool = False) -> None:
        """Unsubscribe; the listener is not called from now on."""
        name = _key(channel, pattern)
        listeners = self._listeners.get(name, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners and name in self._listeners:
            del self._listeners[name]
            self._confirmations.pop(
                name
            ).set()  # releases the tasks in ``subscribe``; no confirmation will come
            self._send_command("UNSUBSCRIBE", [name])

    async def wait_subscribed(self) -> None:
        """Returns once there is a connection on which Redis has confirmed every SUBSCRIBE: messages
        that are published from then on are received.
        """
        await self._subscribed.wait()

    async def run(self) -> None:
        """Keep the connection until cancelled. Errors other than a lost link are raised."""
        pauses = Pauses()
        try:
            while True:
                try:
                    await self._connect()
                except LinkLost as error:
                    log.debug("%s", error)
                    await asyncio.sleep(pauses.next_s())
                    continue
                pauses = Pauses()
                await self._wait_until_lost()
                if self._refused is not None:
                    refused, self._refused = (
                        translate_redis_error(self._refused, self.endpoint),
                        None,
                    )
                    if not isinstance(refused, LinkLost):
                        raise refused  # waiting in silence would hide it
        finally:
            self.drop()

    def drop(self) -> None:
        """Break the connection now; ``run`` opens the next."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        self._subscribed.clear()
        self._lost.set()

    async def _connect(self) -> None:
        try:
            connection = await dial_async(self.endpoint, self._reply_s)
        except (rx.RedisError, OSError, BusError) as error:
            raise translate_redis_error(error, self.endpoint) from error
        self._writer, connection._writer, connection._reader = connection._writer, None, None
        self._reader = hiredis.Reader()
        self._lost = asyncio.Event()
        self._writer.transport.set_protocol(self)
        self._unconfirmed.clear()
        self._send_command(
            "SUBSCRIBE", [name for name in self._listeners if self._confirmations[name].is_set()]
        )
        for name in [name for name in self._listeners if not self._confirmations[name].is_set()]:
            self._send_command("SUBSCRIBE", [name])  # each on its own: Redis may refuse it
        self._set_subscribed_if_confirmed()

    async def _wait_until_lost(self) -> None:
        """Returns when the connection is gone, or silent although asked."""
        pinged = False
        while True:
            self._got_data = False
            try:
                async with asyncio.timeout(self._reply_s):
                    await self._lost.wait()
                    return
            except TimeoutError:
                if self._got_data:
                    pinged = False
                elif pinged:
                    self.drop()
                    return
                else:
                    pinged = True
                    if self._writer is not None:
                        self._writer.transport.write(_PING)

    def _send_command(self, word: str, names: list[bytes]) -> None:
        if self._writer is None:
            return  # all are sent at the next connect
        for mark in (b"", _PATTERN_PREFIX):
            some = [name for name in names if name.startswith(_PATTERN_PREFIX) == bool(mark)]
            for part in slices(some, _NAMES_PER_CALL):
                self._writer.transport.write(
                    pack_words(
                        (f"P{word}" if mark else word, *(name.removeprefix(mark) for name in part))
                    )
                )
                if word == "SUBSCRIBE":
                    self._unconfirmed.append(part)

    def _set_subscribed_if_confirmed(self) -> None:
        if self._writer is not None and not self._unconfirmed:
            self._subscribed.set()

    def data_received(self, data: bytes) -> None:
        self._got_data = True
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, Exception) and not is_refused_nicety(reply):
                if self._fail_denied_channel(reply):
                    continue
                self._refused = reply
                self.drop()
                return
            if not isinstance(reply, list) or len(reply) < 3:
                continue  # the answer to a PING
            kind, name, payload = reply[0], reply[1], reply[-1]
            if kind in (b"pmessage", b"psubscribe"):
                kind, name = kind[1:], _PATTERN_PREFIX + name
            if kind == b"message":
                for listener in tuple(self._listeners.get(name, ())):
                    listener(payload)
            elif kind == b"subscribe":
                self._on_confirmation(name)
                if (confirmation := self._confirmations.get(name)) is None:
                    continue
                for listener in tuple(self._listeners[name]) if confirmation.is_set() else ():
                    listener(None)
                confirmation.set()

    def _on_confirmation(self, name: bytes) -> None:
        if (
            self._unconfirmed and self._unconfirmed[0][-1] == name
        ):  # answers come in the order of the names
            self._unconfirmed.popleft()
            self._set_subscribed_if_confirmed()

    def _fail_denied_channel(self, reply: Exception) -> bool:
        """Redis denies one channel that was never subscribed: its ``subscribe`` raises the error.
        False when more than that is denied.
        """
        error = translate_redis_error(reply, self.endpoint)
        names = self._unconfirmed[0] if self._unconfirmed else []
        confirmation = self._confirmations.get(names[0]) if len(names) == 1 else None
        if (
            not isinstance(error, Unauthorized)
            or len(names) != 1
            or (confirmation is not None and confirmation.is_set())
        ):
            return False
        self._unconfirmed.popleft()
        self._set_subscribed_if_confirmed()
        self._listeners.pop(names[0], None)
        self._confirmations.pop(names[0], None)
        if confirmation is not None:
            confirmation.denied = error
            confirmation.set()
        return True

    # Asyncio's signature
    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._writer = None
        self._subscribed.clear()
        self._lost.set()


def _key(channel: str, pattern: bool) -> bytes:
    return _PATTERN_PREFIX * pattern + channel.encode()
