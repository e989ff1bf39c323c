"""Slots that several readers share in fair turns: the one that waits longest is next."""

from __future__ import annotations

import asyncio
from collections import deque


class FairSlots:
    """At most ``limit`` slots are taken at once."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> int:
        """At least one slot, and all that are free; how many. They are given back with ``give``."""
        if self._free and not self._waiting:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back(1)
                elif turn in self._waiting:
                    self._waiting.remove(turn)
                raise
        more, self._free = self._free, 0
        return 1 + more

    def give_back(self, count: int) -> None:
        """Give slots back."""
        if not self._waiting:
            self._free += count
            return
        for _ in range(count):
            while self._waiting and self._waiting[0].done():
                self._waiting.popleft()
            if self._waiting:
                self._waiting.popleft().set_result(None)
            else:
                self._free += 1
