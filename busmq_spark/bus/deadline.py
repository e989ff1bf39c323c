"""Waiting for something, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress


async def wait_at_most(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Until it is done, or given up after so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work()
