"""The time for the peers of a service: by the clock of the server that has its queue, since two
machines need not agree.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from busmq_spark.bus.queue.base_queue import BaseQueue

CLOCK_VALID_S = 60.0
"""Seconds for which one reading of the server's clock is valid."""
CLOCK_JUMP_S = 1.0
"""A clock of ours that moved by so much against the other one was set: the server is asked
again.
"""


class ServerClock:
    """Asks the server rarely, and counts on from there."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._seen: tuple[float, float, float] | None = None

    async def now_ms(self) -> float:
        """Milliseconds since 1970. Raises LinkLost."""
        steady, wall = asyncio.get_running_loop().time(), time.time()
        if self._seen is not None:
            server_ms, steady_then, wall_then = self._seen
            passed = steady - steady_then
            if passed < CLOCK_VALID_S and abs(wall - wall_then - passed) < CLOCK_JUMP_S:
                return server_ms + passed * 1000
        self._seen = (await self._queue.server_ms(), steady, wall)
        return self._seen[0]
