"""What waits to be sent to one peer.

Rule 1. Results of calls are put in at once, since their number is bounded by the calls in flight. Whoever takes messages from the bus for the
        peer waits for ``room`` first, so a peer that reads slowly is served slowly and costs no more than ``HIGH`` and one message.
Rule 2. What is put in at once can grow, too: one message goes to each of many listeners. Beyond ``most`` the peer is given up, and nothing is kept.
Rule 3. Once closed nothing is sent and nobody waits: whoever waited for room is told that there never will be any.
Rule 4. ``since`` tells when the message under way was begun: whoever watches cuts off a peer that never reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

HIGH = 512 * 1024
"""Bytes that may wait before nothing more is taken for the peer."""


class Outbox:
    """Packets in the order of ``put``; ``run`` sends them."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], high: int, most: int, on_sent: Callable[[], None] = lambda: None) -> None:
        self._send, self._high, self._most, self._on_sent = send, high, most, on_sent
        self._packets: deque[bytes] = deque()
        self.waiting = 0
        """Bytes that wait, the packet under way included."""
        self.since: float | None = None
        self.flooded = self.closed = False
        """Flooded: the peer is given up. Closed: it is gone."""
        self._filled, self._room, self._sent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._sent.set()

    def put(self, packet: bytes) -> None:
        """Send it after those before it."""
        if self.flooded or self.closed:
            return
        if self.waiting + len(packet) > self._most:
            self.flooded = True
            self._packets.clear()
            return
        self._packets.append(packet)
        self.waiting += len(packet)
        self._filled.set()
        self._sent.clear()
        if self.waiting > self._high:
            self._room.clear()

    @property
    def full(self) -> bool:
        """Whether nothing more should be put now."""
        return self.waiting > self._high

    async def room(self) -> bool:
        """True when something more may be put: at once, without a step of the loop, when there is room. False when it is closed."""
        while self.full and not self.closed:
            await self._room.wait()
        return not self.closed

    async def sent(self) -> None:
        """Returns when nothing waits any more."""
        await self._sent.wait()

    def close(self) -> None:
        """The peer is gone: what waits for it is dropped."""
        self.closed, self.since, self.waiting = True, None, 0
        self._packets.clear()
        self._room.set()
        self._sent.set()

    async def run(self) -> None:
        """Until cancelled, or until the socket fails; then it is closed."""
        try:
            await self._run()
        finally:
            self.close()

    async def _run(self) -> None:
        clock, packets = asyncio.get_running_loop().time, self._packets
        while True:
            while packets:
                packet = packets.popleft()
                self.since = clock()
                await self._send(packet)
                if self.closed:
                    return
                self.waiting -= len(packet)
                self._on_sent()
                if self.waiting <= self._high:
                    self._room.set()
            self.since = None
            self._sent.set()
            self._filled.clear()
            await self._filled.wait()
