"""Opening connections on a loop."""

from __future__ import annotations

import asyncio

from busmq_spark.topology.dial import dial_async
from busmq_spark.topology.urls import parse


async def test_cancelling_a_connection_attempt_ends_it_wherever_it_is(redis_url: str) -> None:
    endpoint = parse(redis_url)[0]
    for turns in range(1000):
        attempt = asyncio.create_task(dial_async(endpoint))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not attempt.cancel():
            break
        await asyncio.wait([attempt])
        assert attempt.cancelled(), f"forgotten in turn {turns}"
    assert turns > 5
    await (await attempt).disconnect(nowait=True)
