"""The queue as an asyncio program uses it."""

from __future__ import annotations

import asyncio

from busmq_spark.core import queue as flows
from tests.bus.conftest import OpenBus
from tests.conftest import Fresh


async def test_messages_come_in_the_order_of_the_pushes(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        ids = [queue.push(n) for n in range(50)]
        assert await ids[-1] == 50
        assert [message.json() async for message in queue.consume(max=50)] == list(range(50))


async def test_a_message_of_a_new_life_is_heard_though_its_id_is_that_of_the_last_one_received(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue, asyncio.timeout(20):  # less than it takes to look without having heard
        messages, listening = queue.consume(), asyncio.Event()
        queue.once("consuming", lambda _: listening.set())
        for life in range(3):
            coming = asyncio.ensure_future(anext(messages))
            await listening.wait()
            await queue.push(life)
            message = await coming
            assert (message.id, message.json()) == (1, life)
            await queue.run(flows.close(queue.keys))
