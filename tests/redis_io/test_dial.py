"""Opening connections on a loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.option_parsing import from_keywords
from busmq_spark.options import BusOptions
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.redis_io.moving_endpoints import dial_async
from tests.layouts import servers_of


@pytest.fixture(params=["direct", "sentinel", "cluster"])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    return servers_of(request.param, request.getfixturevalue)


async def test_cancelling_a_connection_attempt_ends_it_wherever_it_is(
    place: dict[str, Any],
) -> None:
    endpoint = redis_layout(from_keywords(BusOptions, place)).endpoints[0]
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


async def test_a_bus_can_be_left_at_any_moment(place: dict[str, Any]) -> None:
    for turns in range(40):
        async with asyncio.timeout(20), Bus(**place):
            for _ in range(turns):
                await asyncio.sleep(0)
