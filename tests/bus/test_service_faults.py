"""A service whose Redis goes away."""

from __future__ import annotations

import asyncio

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ServerFull
from busmq_spark.queue.keys import service_queue
from tests.bus.test_service import LONG_S, pair
from tests.bus.test_service_provider import Gate
from tests.bus.tools import UNTIL_S
from tests.support import wait_until


async def test_after_redis_came_back_without_data_requests_are_answered_as_before() -> None:
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus, pair(bus, "svc", lambda data: data) as service:
            assert await service.request("before") == "before"
            await asyncio.to_thread(server.restart)
            await asyncio.to_thread(
                wait_until, lambda: len(server.command("PUBSUB", "CHANNELS", "*service:svc*")) == 2
            )
            async with asyncio.timeout(LONG_S):  # less than it takes to look without having heard
                assert await service.request("after") == "after"
                assert await service.request("again") == "again"


async def test_a_redis_out_of_memory_ends_no_provider() -> None:
    with EmbeddedRedis() as server:
        async with (
            Bus(server.url) as bus,
            bus.service("svc") as provider,
            bus.service("svc") as service,
        ):
            reported: list[Exception] = []
            provider.on("error", reported.append)
            gate = Gate()
            await service.connect(timeout_s=LONG_S)
            await provider.serve(gate, concurrency=1)
            await service.send("first")
            await gate.entered(1)
            second = asyncio.ensure_future(service.request("second"))
            queue = bus.queue(service_queue("svc"))
            while await queue.count() == 0:  # noqa: ASYNC110  # no event says that it is stored
                await asyncio.sleep(0.01)
            server.command("CONFIG", "SET", "maxmemory", 1)
            gate.opened.set()
            async with asyncio.timeout(UNTIL_S):
                # Requests are taken, and Redis refuses to store the reply
                while not reported:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert isinstance(reported[0], ServerFull)
            server.command("CONFIG", "SET", "maxmemory", 0)
            assert await service.request("third") == "third"
            second.cancel()
