"""Ordered groups of a queue: who reads, where reading goes on, and what comes again."""

from __future__ import annotations

import asyncio

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue import ordered_group
from busmq_spark.bus.queue.ordered_group import OrderedGroup
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import IdsReissued, QueueBusy, QueueRecreated, RedisRolledBack, StateError
from busmq_spark.reading import reader_operations
from busmq_spark.redis_io.lease_token import my_token
from tests.bus.conftest import OpenBus
from tests.bus.group_tools import ids, some
from tests.bus.tools import UNTIL_S, redis, renewed, stored, until
from tests.conftest import Fresh

LEASE_MS = 3000


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed each second, and not every 5: that is when a holder sees that another
    has it.
    """
    monkeypatch.setattr(ordered_group, "LEASE_MS", LEASE_MS)


async def test_an_ordered_group_goes_on_behind_what_it_has_acked(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        async with queue.group("billing") as group:
            await queue.push_many(["a", "b", "c", "d", "e"])
            batches = group.batches(most=2)
            assert [each.text for each in await some(batches, 4)] == ["a", "b", "c", "d"]
            await group.ack(2)
        async with queue.group("billing") as group:
            batch = await some(group.batches(), 3)
            assert ids(batch) == [3, 4, 5]
            await group.ack(batch)
            await asyncio.wait_for(group.wait_idle(), UNTIL_S)
            later = asyncio.ensure_future(some(group.batches(), 1))
            await queue.push("f")
            assert ids(await later) == [6]
        assert await stored(queue) == [6]


async def test_the_others_stand_by_until_the_holder_leaves(open_bus: OpenBus, fresh: Fresh) -> None:
    async with (
        open_bus() as bus,
        open_bus() as other,
        bus.queue(fresh()) as queue,
        other.queue(queue.name) as same,
    ):
        await queue.push_many(["a", "b", "c"])
        async with same.group("g") as second:
            async with queue.group("g") as first:
                await group_ack(first, 2)
                waiting = asyncio.ensure_future(some(second.batches(), 1))
                await until(
                    lambda: second._acked == -1
                )  # it has asked for the lease, which another has
                assert (second.holds, waiting.done()) == (False, False)
                [found] = await queue.groups()
                assert (
                    found.name,
                    found.shared,
                    found.unread,
                    bool(found.subscription.reader),
                ) == ("g", False, 1, True)
                with pytest.raises(QueueBusy, match="is read as group 'g'"):
                    await queue.group("g").seek("earliest")
            assert ids(await waiting) == [3]


async def group_ack(group: object, id: int) -> None:
    batches = group.batches()  # type: ignore[attr-defined]
    await anext(batches)
    await group.ack(id)  # type: ignore[attr-defined]


async def test_a_holder_whose_lease_ended_unnoticed_goes_on_where_it_was(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g") as group:
        await queue.push_many(["a", "b", "c"])
        batches = group.batches(most=2)
        assert ids(await anext(batches)) == [1, 2]
        for step in ("ack", "read"):
            await redis(queue, "DEL", queue.keys.lease("g"))
            group._renewed = float("-inf")  # as after a pause of the process
            assert not group.holds
            if step == "ack":
                await group.ack(2)
            else:
                assert ids(await anext(batches)) == [3]
            assert await redis(queue, "GET", queue.keys.lease("g")) == group._token.encode()


async def taken_over(queue: Queue, group: OrderedGroup) -> str:
    """Another has the lease, and this holder has seen it; the token of the other."""
    another = my_token()
    await redis(queue, "SET", queue.keys.lease(group.name), another, "PX", 600_000)
    await until(lambda: not group.holds)  # the next renewal finds it
    return another


@pytest.mark.usefixtures("short_leases")
async def test_what_another_has_acked_meanwhile_does_not_come_again_and_what_was_sought_does(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g") as group:
        await queue.push_many("abcde")
        batches, key = group.batches(most=1), queue.keys.lease("g")
        assert ids(await anext(batches)) == [1]
        another = await taken_over(queue, group)
        with pytest.raises(QueueBusy, match="is read by another as group 'g'"):
            await group.ack(1)
        waiting = asyncio.ensure_future(anext(batches))
        await queue.subscribe("keeps")
        await queue.run(
            reader_operations.ack_to(
                [reader_operations.CumulativeAckRequest(queue.keys, 3, queue._born, "")], "g"
            )
        )
        assert not waiting.done()
        await queue.run(reader_operations.release(queue.keys, "g", another))
        assert ids(await asyncio.wait_for(waiting, UNTIL_S)) == [4]
        await group.ack(4)
        for where, then in ((1, 2), (4, 5), (0, 1)):
            await redis(queue, "DEL", key)
            group._renewed = float("-inf")
            await queue.group("g").seek(where)
            assert ids(await anext(batches)) == [then]
        await renewed(queue, key)
        assert 0 < await redis(queue, "PTTL", key) <= LEASE_MS


@pytest.mark.usefixtures("short_leases")
async def test_messages_without_ack_come_again_after_another_holder_and_after_a_new_entry(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        group = queue.group("g")
        async with group:
            batches = group.batches()
            assert ids(await anext(batches)) == [1, 2, 3]
            another = await taken_over(queue, group)
            with pytest.raises(QueueBusy, match="hands out again what is not acked"):
                await group.ack(3)
            await queue.run(reader_operations.release(queue.keys, "g", another))
            assert ids(await anext(batches)) == [1, 2, 3]
        async with group:
            assert ids(await anext(group.batches())) == [1, 2, 3]
            await group.ack(3)
        with pytest.raises(StateError, match="not entered, or stopped"):
            await group.ack(3)
        assert not await redis(queue, "EXISTS", queue.keys.lease("g"))


async def test_a_redis_that_lost_its_tail_is_noticed_before_a_new_message_is_skipped(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.subscribe("keeps")
        for found in (IdsReissued, RedisRolledBack, IdsReissued):
            async with queue.group("g") as group:
                await queue.push_many(["old"] * 5)
                batches = group.batches()
                last = (await some(batches, 5))[-1].id
                await redis(queue, "LTRIM", queue.keys.messages, 0, -5)
                await redis(queue, "SET", queue.keys.msgid, last - 2)
                if found is IdsReissued:
                    await queue.push_many(["new"] * 3)
                    with pytest.raises(IdsReissued):
                        await group.ack(last)
                with pytest.raises(found):
                    await anext(batches)
                assert await queue.count() > 0
            await queue.delete()
            await queue.attach()
            await queue.subscribe("keeps")


@pytest.mark.usefixtures("short_leases")
async def test_a_query_and_a_program_in_one_group_exclude_each_other(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("q") as group:
        await queue.push("a")
        query = my_token()
        assert await queue.run(
            reader_operations.lease([queue.keys], "q", query, 600_000, [""])
        ) == [query]
        waiting = asyncio.ensure_future(some(group.batches(), 1))
        await until(lambda: not group.holds)
        await queue.run(reader_operations.release(queue.keys, "q", query))
        assert ids(await asyncio.wait_for(waiting, UNTIL_S)) == [1]
        assert await queue.run(
            reader_operations.lease([queue.keys], "q", query, 600_000, [""])
        ) != [query]


async def test_in_a_new_life_of_the_queue_an_ordered_group_begins_at_its_oldest(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", start="latest") as group,
    ):
        batches = group.batches()
        waiting = asyncio.ensure_future(anext(batches))
        await until(lambda: group.holds)
        await queue.push_many(["a", "b"])
        assert ids(await asyncio.wait_for(waiting, UNTIL_S)) == [1, 2]
        await redis(queue, "DEL", *queue.keys.all)
        await queue.push_many(["new", "newer"])
        with pytest.raises(QueueRecreated):
            await group.ack(2)
        assert [each.text for each in await some(batches, 2)] == ["new", "newer"]
        await group.ack(1)
