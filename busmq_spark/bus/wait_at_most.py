"""Waiting with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress


async def wait_at_most(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Await ``work()``; after ``seconds`` it is cancelled. Which of the two ended the wait is not
    said: callers look at their state.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work()
