"""What is attached is touched every third of its life, at the latest: as npm busmq does."""

from __future__ import annotations

import asyncio

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.keepalive import TOUCH_CHECK_INTERVAL_S
from tests.bus.tools import LONG_S
from tests.conftest import Fresh


@pytest.mark.parametrize("ttl_s", [1, 2, 30, LONG_S])
async def test_a_queue_and_an_object_are_touched_before_a_third_of_their_life_is_over(
    redis_url: str, fresh: Fresh, ttl_s: int
) -> None:
    async with Bus(redis_url) as bus:
        queue, thing = bus.queue(fresh()), bus.persist(fresh(), ttl_s=ttl_s)
        await queue.attach(ttl_s=ttl_s)
        await thing.save()
        bus.keep_alive.add(queue)
        bus.keep_alive.keep(thing)
        now = asyncio.get_running_loop().time()
        for due in (bus.keep_alive._due[queue], bus.keep_alive._objects_due[thing]):
            assert due + TOUCH_CHECK_INTERVAL_S - now <= max(TOUCH_CHECK_INTERVAL_S, ttl_s / 3)
        await queue.detach()
