"""The packets that wait to be sent to one peer.

Rule 1. Results of calls are put in at once, since their number is bounded by the calls in flight. A
        task that takes messages from the bus for the peer waits for ``room`` first, so a peer that
        reads slowly is served slowly and costs no more than ``MAX_WAITING_BYTES`` and one message.
Rule 2. Packets put in at once can grow, too: one message goes to each of many listeners. Beyond
        ``most`` the peer is given up, and nothing is kept.
Rule 3. Once closed nothing is sent and nothing waits: what waited for room, or for a packet to be
        sent, learns that this will never be.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

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
