"""The reply queues that a provider keeps attached: bounded, none closed under its user's hands,
left when idle.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.service import ProviderReplyQueues
from tests.bus.conftest import OpenBus
from tests.conftest import Fresh


async def test_the_one_used_longest_ago_is_left_first(open_bus: OpenBus, fresh: Fresh) -> None:
    names, queues = [fresh("reply") for _ in range(4)], list[Queue]()
    async with open_bus() as bus:
        replies = ProviderReplyQueues(bus.queue, 2)
        for name in (names[0], names[1], names[0], names[2]):
            async with replies.use(name) as queue:
                assert queue.attached
                queues.append(queue)
        assert queues[0] is queues[2]
        assert [queue.attached for queue in queues] == [True, False, True, True]
        assert len(replies) == 2
        await replies.close()
        assert not any(queue.attached for queue in queues)


async def test_more_than_the_bound_may_be_used_at_once_and_none_is_left_meanwhile(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        replies = ProviderReplyQueues(bus.queue, 1)
        async with AsyncExitStack() as stack:
            queues = [
                await stack.enter_async_context(replies.use(fresh("reply"))) for _ in range(3)
            ]
            await replies.close()
            assert all(queue.attached for queue in queues)
        assert not any(queue.attached for queue in queues)
        assert len(replies) == 0


async def test_one_that_is_used_stays_when_another_comes_later(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        replies = ProviderReplyQueues(bus.queue, 1)
        async with replies.use(fresh("reply")) as held:
            async with replies.use(fresh("reply")) as other:
                pass
            assert (held.attached, other.attached) == (True, False)


async def test_users_at_once_share_one_attachment(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        replies, name = ProviderReplyQueues(bus.queue, 1), fresh("reply")

        async def use() -> Queue:
            async with replies.use(name) as queue:
                return queue

        assert len(set(await asyncio.gather(*(use() for _ in range(10))))) == 1


async def test_idle_ones_are_left(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        replies = ProviderReplyQueues(bus.queue, 10, idle_s=0.02)
        async with replies.use(fresh("reply")) as queue:
            left = asyncio.Event()
            queue.on("detached", left.set)
            sweeping = bus._spawn(replies.sweep(), "sweeping")
            await asyncio.sleep(0.05)  # longer than idle_s: an unused one would be detached by now
            assert not left.is_set()
        await left.wait()
        assert len(replies) == 0
        sweeping.cancel()
