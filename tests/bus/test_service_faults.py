"""A service whose Redis goes away."""

from __future__ import annotations

import asyncio

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import RedisServer
from tests.bus.test_service import LONG_MS, pair
from tests.support import wait_until


async def test_after_redis_came_back_without_data_requests_are_answered_as_before() -> None:
    with RedisServer() as server:
        async with Bus(server.url) as bus, pair(bus, "svc", lambda data: data) as service:
            assert await service.request("before") == "before"
            await asyncio.to_thread(server.restart)
            await asyncio.to_thread(wait_until, lambda: len(server.command("PUBSUB", "CHANNELS", "*service:svc*")) == 2, 10)
            async with asyncio.timeout(LONG_MS / 1000):  # less than it takes to look without having heard
                assert await service.request("after") == "after"
                assert await service.request("again") == "again"
