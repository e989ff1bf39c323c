"""The peer of one web socket: its channels, its work under way, and the bytes that wait for it.

The packets that wait to be sent to one peer.

Rule 1. Results of calls are put in at once, since their number is bounded by the calls in flight. A
        task that takes messages from the bus for the peer waits for ``room`` first, so a peer that
        reads slowly is served slowly and costs no more than ``MAX_WAITING_BYTES`` and one message.
Rule 2. Packets put in at once can grow, too: one message goes to each of many listeners. Beyond
        ``most`` the peer is given up, and nothing is kept.
Rule 3. Once closed nothing is sent and nothing waits: what waited for room, or for a packet to be
        sent, learns that this will never be.

The work under way for the peer of one web socket, and its bounds (protocol 5.5).

Rule 1. Bytes of calls that were taken from the socket and not worked off are counted. Above the
        limits nothing more is read, and TCP slows the peer down.
Rule 2. Bytes of messages are counted before they are taken from Redis for the peer.
Rule 3. All of them count for the secret of the peer, too (gate/per_secret_quotas.py).

A channel of a web socket as its object sees it: functions of the peer to invoke, tasks, and the
bytes of its calls in work (protocol 5.4, 5.5).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import BusError, MessageRefused, WireError
from busmq_spark.federation import error_codec
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import ByteBudget, PerSecretQuota
from busmq_spark.federation.gate.rights import Identity
from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection
from busmq_spark.federation.npm_wire.channels import PACKET_HEAD_BYTES
from busmq_spark.federation.npm_wire.dnode import (
    DnodeCallbackRef,
    DnodeCallbacks,
    call_message,
    invocation_line,
    invocation_tail,
)
from busmq_spark.queue.message import CHUNK_BYTES

MAX_WAITING_BYTES = 512 * 1024
"""Bytes that may wait before nothing more is taken for the peer."""


class PeerSendBuffer:
    """Packets in the order of ``put``; ``run`` sends them."""

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        high: int,
        most: int,
        on_sent: Callable[[], None] = lambda: None,
        count_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``count_bytes`` is told how many bytes more wait, or fewer."""
        self._send, self._high, self._most, self._on_sent = send, high, most, on_sent
        self._count_bytes = count_bytes
        self._packets: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        self._waiters: set[asyncio.Future[bool]] = set()
        self.waiting = 0
        """Bytes that wait, the packet under way included."""
        self.flooded = self.closed = False
        """Flooded: the peer is given up. Closed: it is gone."""
        self._filled, self._room, self._sent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._sent.set()

    def put(self, packet: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Send it after those before it; ``on_sent`` is called once it was sent to the peer, if it
        ever is.
        """
        if self.flooded or self.closed:
            return
        if self.waiting + len(packet) > self._most:
            self.flooded = True
            self._packets.clear()
            return
        self._packets.append((packet, on_sent))
        self.waiting += len(packet)
        self._count_bytes(len(packet))
        self._filled.set()
        self._sent.clear()
        if self.waiting > self._high:
            self._room.clear()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be put now."""
        return self.waiting > self._high

    async def wait_room(self) -> bool:
        """True when something more may be put: at once, without a step of the loop, when there is
        room. False when it is closed.
        """
        while self.is_full and not self.closed:
            await self._room.wait()
        return not self.closed

    async def wait_sent_so_far(self) -> bool:
        """True once everything put so far was sent, False when it is closed before."""
        if self.closed or not self.waiting:
            return not self.closed
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        self._packets.append((b"", lambda: _settle_waiter(waiter, passed=True)))
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)

    async def wait_sent(self) -> None:
        """Returns when nothing waits any more."""
        await self._sent.wait()

    def close(self) -> None:
        """Close: the peer is gone, so waiting packets are dropped."""
        self._count_bytes(-self.waiting)
        self.closed, self.waiting = True, 0
        self._packets.clear()
        for waiter in self._waiters:
            _settle_waiter(waiter, passed=False)
        self._room.set()
        self._sent.set()

    async def run(self) -> None:
        """Until cancelled, or until the socket fails; then it is closed."""
        try:
            await self._send_packets()
        finally:
            self.close()

    async def _send_packets(self) -> None:
        packets = self._packets
        while True:
            while packets:
                packet, on_sent = packets.popleft()
                if packet:
                    await self._send(packet)
                    if self.closed:
                        return
                    self.waiting -= len(packet)
                    self._count_bytes(-len(packet))
                if on_sent is not None:
                    on_sent()
                self._on_sent()
                if self.waiting <= self._high:
                    self._room.set()
            self._sent.set()
            self._filled.clear()
            await self._filled.wait()


def _settle_waiter(waiter: asyncio.Future[bool], *, passed: bool) -> None:
    if not waiter.done():
        waiter.set_result(passed)


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


log = logging.getLogger("busmq_spark")


class PeerChannel(ABC):
    """The way from one object to its peer."""

    def __init__(
        self,
        work: PeerWork,
        bus: Bus,
        identity: Identity,
        channel: str,
        close: Callable[[str], None],
    ) -> None:
        self.work, self.bus, self.identity, self.limits = work, bus, identity, work.limits
        self._channel, self._close = channel, close
        self.functions = DnodeCallbacks()
        self._tasks: set[asyncio.Task[None]] = set()
        self._messages = self._bytes = self._partial_bytes = 0
        self.line_bytes = 0
        """Bytes of the line that invokes a function now."""
        self._open = True

    @abstractmethod
    def emit_error(self, text: str) -> None:
        """Send an event ``error`` to the listeners of the object, if there is one."""

    @property
    def is_open(self) -> bool:
        """Whether what is sent to the peer is on its way to it; else nothing should be taken for
        it.
        """
        return self._open and not (self.work.send_buffer.closed or self.work.send_buffer.flooded)

    def close(self) -> None:
        """End the channel from our side."""
        self._close(self._channel)

    # -- to the peer -------------------------------------------------------------------------------

    def invoke(self, id: int, *arguments: Any) -> None:
        """Call a function of the peer. Raises MessageRefused for what is longer than a message may
        be.
        """
        line = call_message(id, arguments, self.functions).encode()
        self._check_size(len(line))
        self.send(line)

    def invoke_all(self, ids: Iterable[int], *arguments: Any) -> None:
        """Invoke several functions of the peer, like ``invoke``; arguments are encoded once, and no
        functions.
        """
        tail = invocation_tail(arguments)
        self._check_size(len(tail))
        for id in ids:
            if not self.is_open:
                return
            self.send(invocation_line(id, tail))

    def _check_size(self, size: int) -> None:
        if size + PACKET_HEAD_BYTES > self.limits.message_bytes:
            reason = (
                f"it takes {size + PACKET_HEAD_BYTES} bytes on the wire; at most"
                f" {self.limits.message_bytes} are allowed"
            )
            raise MessageRefused(reason=reason)

    def send(self, line: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Send a line, alone in its packet; ``on_sent`` is called once it was sent to the peer."""
        if self._open:
            self.work.send_buffer.put(b"%b1%b" % (self._channel.encode("ascii"), line), on_sent)

    def send_error(self, callback: DnodeCallbackRef | None, error: BusError) -> None:
        """A call failed: send the error to its callback, or without one to the listeners of
        ``error``.
        """
        if not error_codec.is_shown_to_peers(error):
            log.warning("federation: %s", error)
        if callback is not None:
            self.send(
                call_message(
                    callback.id, [error_codec.error_to_wire(error)], self.functions
                ).encode()
            )
        else:
            self.emit_error(error_codec.error_event_text(error))

    # -- tasks -------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run ``work`` as long as the channel is open; an error in it ends the channel."""
        task = asyncio.create_task(self._run_guarded(work), name=f"busmq: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(
            lambda _: work.close()
        )  # cancelled before its first step, it would complain
        return task

    async def _run_guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except WireError as error:
            self._on_unreadable(error)
        except BusError as error:
            self.send_error(None, error)
        # A fault of ours in one channel must not end the server
        except Exception as error:  # noqa: BLE001
            self._on_defect(error)

    def _on_unreadable(self, error: WireError) -> None:
        log.warning("federation: %s: %s", self.identity.name, error)
        self.close()

    def _on_defect(self, error: Exception) -> None:
        log.error(
            "federation: a channel of %s failed and is closed", self.identity.name, exc_info=error
        )
        self.close()

    def count_begun_call(self, size: int) -> None:
        """A call of so many bytes is in work."""
        if self._open:
            self._messages += 1
            self._bytes += size
            self.work.count_begun_call(size)

    def _set_partial_bytes(self, size: int) -> None:
        """Note that ``size`` bytes belong to a line that is not complete."""
        more, self._partial_bytes = size - self._partial_bytes, size
        self.work.add_partial_bytes(more)

    def count_finished_call(self, size: int) -> None:
        """A call of ``size`` bytes is finished."""
        if self._open:
            self._messages -= 1
            self._bytes -= size
            self.work.count_finished_calls(1, size)
