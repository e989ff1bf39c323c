"""The work under way for the peer of one web socket, and its bounds (protocol 5.5).

Rule 1. Bytes of calls that were taken from the socket and not worked off are counted. Above the
        limits nothing more is read, and TCP slows the peer down.
Rule 2. Bytes of messages are counted before they are taken from Redis for the peer.
Rule 3. All of them count for the secret of the peer, too (gate/per_secret_quotas.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from time import monotonic
from typing import TypeVar

from busmq_spark.errors import WireError
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import ByteBudget, PerSecretQuota
from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection
from busmq_spark.federation.serve.send_buffer import MAX_WAITING_BYTES, PeerSendBuffer
from busmq_spark.queue.message import CHUNK_BYTES

MAX_ANSWERS_READ_AT_ONCE = 4
"""Answers read from Redis at once for one peer; each may be as large as the largest message."""
T = TypeVar("T")


class PeerWork:
    """The calls, messages and answers that the peer of one web socket has under way."""

    def __init__(
        self, socket: LimitedServerConnection, limits: PeerLimits, quota: PerSecretQuota
    ) -> None:
        self._socket, self.limits, self.quota = socket, limits, quota
        self._worked = asyncio.Event()
        most = limits.in_flight_bytes + 2 * limits.message_bytes
        high = min(MAX_WAITING_BYTES, limits.in_flight_bytes)
        self.send_buffer = PeerSendBuffer(
            socket.send, high, most, self._worked.set, quota.count_bytes
        )
        self.taken = ByteBudget(limits.in_flight_bytes)
        """Bytes of messages that were taken from Redis for its objects, and do not wait to be sent
        yet.
        """
        self._messages = self._bytes = self._partial_bytes = 0
        self.pubsub_bytes = 0
        """Bytes of messages that its pubsubs have received and not sent yet."""
        self.deferred_bytes = 0
        """Bytes of its pushes to queues that are not attached yet."""
        self._gone = False
        self._answers = asyncio.Semaphore(MAX_ANSWERS_READ_AT_ONCE)

    def on_peer_gone(self) -> None:
        """Release the tasks that wait for the peer to read."""
        self._gone = True
        self.send_buffer.close()
        self._worked.set()

    def count_begun_call(self, size: int) -> None:
        """A call of ``size`` bytes is begun."""
        self._messages += 1
        self._bytes += size
        self.quota.count_bytes(size)

    def count_finished_calls(self, messages: int, size: int) -> None:
        """``messages`` calls of ``size`` bytes in all are finished."""
        self._messages -= messages
        self._bytes -= size
        self.quota.count_bytes(-size)
        self._worked.set()

    def add_partial_bytes(self, size: int) -> None:
        """So many bytes more belong to lines that are not complete. Raises WireError when
        they are too many: they would wait for ever.
        """
        self._partial_bytes += size
        self.quota.count_bytes(size)
        self._socket.unfinished_line_bytes += size
        if size > 0 and self._partial_bytes > self.limits.message_bytes:
            raise WireError(
                found=f"{self._partial_bytes} bytes of lines that do not end",
                expected="each line in one packet",
            )

    @asynccontextmanager
    async def large_answer(self) -> AsyncIterator[None]:
        """For calls whose answer may be much longer than they are: a few at once, and only while
        there is room to send it.
        """
        async with self._answers:
            await self.send_buffer.wait_room()
            await self.quota.reserve(size := self.limits.message_bytes)
            try:
                yield
            finally:  # what the answer takes waits to be sent by now
                self.quota.replace_reservation(size, 0)

    async def wait_for_turn(self) -> None:
        """Returns when the next line may be executed: at once, unless too much is in work or its
        secret's turn is over.
        """
        if self._over_limits:
            await self._wait_below_limits()
        await self.quota.turns.wait()

    async def work_in_turns(self, steps: Generator[None, None, T]) -> T:
        """The result of work that is done in short steps, in the turns of its secret."""
        turns = self.quota.turns
        while True:
            began = monotonic()
            try:
                next(steps)
            except StopIteration as done:
                found: T = done.value
                return found
            finally:
                turns.charge(monotonic() - began)
            await turns.wait()

    @property
    def _over_limits(self) -> bool:
        limits = self.limits
        return (
            self._messages >= limits.in_flight_messages
            or self._bytes + self.send_buffer.waiting >= limits.in_flight_bytes
        )

    async def _wait_below_limits(self) -> None:
        while self._over_limits and not self._gone:
            self._worked.clear()
            await self._worked.wait()


class TakeRoom:
    """Room for messages that are taken from Redis for one object of a peer: asked for before they
    are taken. The bytes count for the web socket and for its secret.
    """

    def __init__(self, work: PeerWork) -> None:
        self._send_buffer = work.send_buffer
        self._budgets = work.taken, work.quota
        self._reserved = CHUNK_BYTES + work.limits.message_bytes  # what one take may bring

    async def reserve(self) -> None:
        """Return once there is room for what one take may bring, and to send something."""
        await self._send_buffer.wait_room()
        connection, secret = self._budgets
        await connection.reserve(self._reserved)
        try:
            await secret.reserve(self._reserved)
        except BaseException:
            connection.replace_reservation(self._reserved, 0)
            raise

    def hold(self, size: int) -> None:
        """A take has ended: it brought ``size`` bytes."""
        for budget in self._budgets:
            budget.replace_reservation(self._reserved, size)

    def release(self, size: int) -> None:
        """So many of these bytes are handed over, or dropped."""
        for budget in self._budgets:
            budget.count_bytes(-size)
