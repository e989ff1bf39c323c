"""Bytes that are held for a peer, or for all peers of a secret: counted before they are there."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """Held bytes, and room that was reserved for bytes whose number is not known yet."""

    def __init__(self, most: int) -> None:
        self.most_bytes = most
        self.bytes = 0
        """Held and reserved bytes."""
        self._reservations = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be taken."""
        return self.bytes >= self.most_bytes

    def count_bytes(self, size: int) -> None:
        """Count ``size`` bytes more, or fewer, as held."""
        self.bytes += size
        if size < 0 and self._waiting:
            self._grant_waiting()

    def has_room(self, size: int) -> bool:
        """Whether ``size`` bytes fit; a single reservation need not fit, or it would wait for
        ever.
        """
        return not self.is_full and (not self._reservations or self.bytes + size <= self.most_bytes)

    async def reserve(self, size: int) -> None:
        """Reserve ``size`` bytes, once there is room, in the order of the callers."""
        if self._waiting or not self.has_room(size):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self.replace_reservation(size, 0)
                else:
                    self._waiting = deque(each for each in self._waiting if each[1] is not granted)
                    self._grant_waiting()
                raise
        else:
            self._take_reservation(size)

    def replace_reservation(self, size: int, held: int) -> None:
        """Count ``held`` bytes in place of a reservation of ``size`` bytes."""
        self._reservations -= 1
        self.count_bytes(held - size)

    def _take_reservation(self, size: int) -> None:
        self._reservations += 1
        self.count_bytes(size)

    def _grant_waiting(self) -> None:
        while self._waiting and self.has_room(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            if not granted.done():
                self._take_reservation(size)
                granted.set_result(None)
