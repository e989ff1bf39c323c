"""Fair turns on the server's loop: the peers of one secret use it for a moment, then others do.

Rule 1. A secret that has used the loop for MAX_TURN_S waits for the next turn of the loop. Its
        sockets get their turns in the order in which they asked, one in a turn of the loop.
Rule 2. While another secret uses the loop too, a secret waits for as long as it has used it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

MAX_TURN_S = 0.002
"""Seconds that all peers of one secret use the loop before others have their turn."""
CONTENDED_S = 0.1
"""For so many seconds after its last work a secret counts as one that uses the loop."""


class LoopTurns:
    """The secrets that have used the loop lately."""

    def __init__(self) -> None:
        self._latest: SecretTurns | None = None
        self._latest_at = self._other_at = -CONTENDED_S

    def note_use(self, user: SecretTurns) -> bool:
        """Return whether a secret other than ``user`` has used the loop lately."""
        if self._latest is not user:
            self._other_at, self._latest = self._latest_at, user
        self._latest_at = now = monotonic()
        return now - self._other_at < CONTENDED_S


class SecretTurns:
    """The turns of one secret."""

    def __init__(self, shared: LoopTurns) -> None:
        self._shared = shared
        self._used = 0.0
        self._contended = False
        self._waiting: deque[Callable[[], object]] = deque()
        self._pause: asyncio.Handle | None = None

    @property
    def is_due(self) -> bool:
        """Whether work of the secret may begin at once."""
        return self._pause is None

    def charge(self, seconds: float) -> None:
        """Count ``seconds`` of the loop as used by the secret."""
        self._contended = self._shared.note_use(self)
        self._used += seconds
        if self._used >= MAX_TURN_S and self._pause is None:
            self._start_pause()

    def call_in_turn(self, work: Callable[[], object]) -> None:
        """Call ``work`` once it is the secret's turn, never within this call."""
        self._waiting.append(work)
        if self._pause is None:
            self._start_pause()

    async def wait(self) -> None:
        """Return when it is the secret's turn: at once, without a turn of the loop, if it is."""
        if self._pause is None:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_in_turn(partial(_settle, turn))
        await turn

    def _start_pause(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), self._used if self._contended else 0.0
        self._used = 0.0
        again = self._end_pause
        self._pause = loop.call_later(pause_s, again) if pause_s else loop.call_soon(again)

    def _end_pause(self) -> None:
        self._pause = None
        if self._used >= MAX_TURN_S:  # work that could not wait
            self._start_pause()
        elif self._waiting:
            work = self._waiting.popleft()
            if self._waiting:
                self._start_pause()
            work()


def _settle(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
