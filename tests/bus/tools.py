"""What several files of these tests need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from busmq_spark.bus.queue.queue import Queue
from busmq_spark.queue.command_generators import Flow, command
from busmq_spark.queue.message import Message
from tests.support import PATIENCE_S

UNTIL_S = PATIENCE_S
LONG_S = 3600
"""A ttl whose keep-alive does not come by while a test runs: a consumer that sleeps would sleep
on.
"""


async def until(predicate: Callable[[], object], timeout_s: float = UNTIL_S) -> None:
    """Returns as soon as it is true; TimeoutError at the deadline."""
    async with asyncio.timeout(timeout_s):
        while not predicate():  # noqa: ASYNC110  # any condition, also one without an event
            await asyncio.sleep(0.005)


class NoText(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        return self.detail  # type: ignore[attr-defined,no-any-return]  # it was never set


class LoopClock:
    """The clock of the running loop: what is due when it is put ahead is done at once, however long
    a busy machine takes.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + self.ahead_s  # type: ignore[method-assign]


def ids(messages: Iterable[Message]) -> list[int]:
    return [message.id for message in messages]


async def stored(queue: Queue) -> list[int]:
    """The ids of what the queue holds, in its order."""
    flat: list[bytes] = await redis(queue, "LRANGE", queue.keys.messages, 0, -1)
    return [int(id) for id in flat[0::2]]


async def redis(queue: Queue, *words: str | int | bytes) -> Any:
    """The reply to a command at the queue's server."""

    def flow() -> Flow[Any]:
        return (yield command(*words))

    return await queue.run(flow())


async def forget_lease(queue: Queue) -> None:
    """As a Redis that lost its data would."""
    await redis(queue, "DEL", queue.keys.lease(""))


async def renewed(queue: Queue, *keys: str) -> None:
    """Returns when each of these keys has been given a longer life than it had left. They must be
    there all the time.
    """
    left = dict.fromkeys(keys, 0)
    async with asyncio.timeout(UNTIL_S):
        while left:
            for key, before in list(left.items()):
                now = await redis(queue, "PTTL", key)
                assert now > 0, f"{key} is gone, or has no end"
                left[key] = now
                if before and now > before:
                    del left[key]
            await asyncio.sleep(0.02)


async def gone(queue: Queue) -> None:
    """Returns when the queue has expired."""
    async with asyncio.timeout(UNTIL_S):
        while await queue.exists():  # noqa: ASYNC110  # no event announces it
            await asyncio.sleep(0.02)
