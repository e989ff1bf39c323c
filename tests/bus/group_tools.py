"""What several files of tests of groups need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from busmq_spark.bus.queue.queue import Queue
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.queue.message import Message
from tests.bus.tools import UNTIL_S, redis

T = TypeVar("T", Message, LeasedMessage)


async def some(batches: AsyncIterator[list[T]], count: int) -> list[T]:
    """So many messages, in as many batches as it takes."""
    found: list[T] = []
    async with asyncio.timeout(UNTIL_S):
        while len(found) < count:
            found += await anext(batches)
    assert len(found) == count
    return found


def ids(messages: Sequence[Message | LeasedMessage]) -> list[int]:
    return [each.id for each in messages]


async def end_leases(queue: Queue, group: str) -> None:
    """As if the leases of all messages in flight had ended."""
    _, due, *_ = queue.keys.group(group)
    for id in await redis(queue, "ZRANGE", due, 0, -1):
        await redis(queue, "ZADD", due, "XX", 1, id)


async def dead_letters(dead: Queue, count: int) -> list[Message]:
    return [message async for message in dead.consume(max=count)]
