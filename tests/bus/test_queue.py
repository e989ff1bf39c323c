"""The queue as an asyncio program uses it."""

from __future__ import annotations

from tests.bus.conftest import OpenBus
from tests.conftest import Fresh


async def test_messages_come_in_the_order_of_the_pushes(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        ids = [queue.push(n) for n in range(50)]
        assert await ids[-1] == 50
        assert [message.json() async for message in queue.consume(max=50)] == list(range(50))
