"""A time limit for what an event loop waits for.

asyncio's own limits take a loop that was blocked, or a process without CPU time, for a peer that is
silent: when the loop runs again, they end a wait whose answer is there already.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

TURNS = 20
"""The parts of a limit. Each ends in a turn of the loop of its own."""


class LoopTimeout:
    """An ``asyncio.timeout`` that counts a turn of the loop as a part of the limit at most, however
    long it took. So what is under way has had that many turns before it is cancelled.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._turns = 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self.restart(self._seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cancel_timer()
        await self._timeout.__aexit__(kind, error, traceback)

    def expired(self) -> bool:
        """Whether the limit ended the block."""
        return self._timeout.expired()

    def restart(self, seconds: float) -> None:
        """Begin a limit of so many seconds now."""
        self._cancel_timer()
        self._seconds, self._turns = seconds, TURNS
        self._count_turn()

    def _count_turn(self) -> None:
        loop = asyncio.get_running_loop()
        if self._turns:
            self._turns -= 1
            self._timer = loop.call_later(self._seconds / TURNS, self._count_turn)
        elif not self._timeout.expired():
            self._timeout.reschedule(loop.time())

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
