"""Consuming, in every mode: order, what stays, what comes again, how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import ConfigError, QueueBusy, StateError
from busmq_spark.queue.message import Message
from tests.bus.conftest import OpenBus
from tests.bus.tools import LONG_S, UNTIL_S, forget_lease, ids, redis, stored, until
from tests.conftest import Fresh


async def test_the_next_messages_are_waited_for(open_bus: OpenBus, fresh: Fresh) -> None:
    async with (
        open_bus() as bus,
        open_bus() as other,
        bus.queue(fresh()) as queue,
        other.queue(queue.name) as there,
    ):
        consumption = queue.consume()
        for n in range(1, 4):
            waiting = asyncio.ensure_future(anext(consumption))
            await asyncio.sleep(0)  # a turn of the loop, no time: it waits now
            assert await there.push(f"m{n}") == n
            assert await waiting == Message(n, b"m%d" % n)


async def test_max_ends_the_consumption_after_so_many_and_leaves_the_rest(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many(range(10))
        assert ids([message async for message in queue.consume(max=4, prefetch=3)]) == [1, 2, 3, 4]
        assert not queue.consuming
        assert ids([message async for message in queue.consume(max=0)]) == []
        assert await stored(queue) == [5, 6, 7, 8, 9, 10]
        assert queue.consumed == 4
        unlimited = queue.consume(max=-1)
        assert [(await anext(unlimited)).id for _ in range(6)] == [5, 6, 7, 8, 9, 10]


async def test_what_is_read_without_removing_stays_for_others_and_is_followed(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        bus.queue(fresh()) as queue,
        open_bus() as other,
        other.queue(queue.name) as there,
    ):
        await queue.push_many(range(5))
        mine, theirs = queue.consume(remove=False), there.consume(remove=False, index=3, prefetch=1)
        assert [(await anext(mine)).id for _ in range(5)] == [1, 2, 3, 4, 5]
        assert [(await anext(theirs)).id for _ in range(2)] == [4, 5]
        await queue.push("six")
        assert (await anext(mine)).id == (await anext(theirs)).id == 6
        assert await queue.count() == 6


async def test_a_position_that_is_not_there_yet_is_waited_for(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many("ab")
        waiting = asyncio.ensure_future(anext(queue.consume(remove=False, index=3)))
        await until(lambda: queue.consuming)
        await queue.push_many("cd")
        assert await waiting == Message(4, b"d")


async def test_reliable_messages_come_again_until_they_are_acked(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with open_bus() as bus, bus.queue(name) as queue:
        await queue.push_many(range(8))
        assert ids([message async for message in queue.consume(reliable=True, max=6)]) == [
            1,
            2,
            3,
            4,
            5,
            6,
        ]
        await queue.ack(2)
        assert await queue.count() == 2
    async with open_bus() as bus, bus.queue(name) as queue:
        assert ids([message async for message in queue.consume(reliable=True, last=3, max=5)]) == [
            4,
            5,
            6,
            7,
            8,
        ]
        await queue.ack(8)
        assert [message async for message in queue.consume(reliable=True, max=0)] == []
        assert await queue.count() == 0


async def test_an_ack_reaches_no_further_than_what_was_handed_over(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        first = queue.consume(reliable=True)
        waiting = asyncio.ensure_future(anext(first))
        await until(lambda: queue.consuming)
        await queue.ack(5)  # nothing has come yet
        await queue.push_many(range(4))
        assert (await waiting).id == 1
        await queue.ack(4)  # the others may have arrived, and the caller has not received them
        await queue.stop()
        assert ids([message async for message in queue.consume(reliable=True, max=3)]) == [2, 3, 4]
        await queue.ack(9)
        assert [message async for message in queue.consume(reliable=True, max=0)] == []
        assert await queue.count() == 0


@pytest.mark.parametrize("again", ["by its push", "by another"])
async def test_an_ack_of_an_id_of_an_earlier_life_acks_nothing_of_this_one(
    open_bus: OpenBus, fresh: Fresh, again: str
) -> None:
    async with open_bus() as bus, open_bus() as other, bus.queue(fresh()) as queue:
        await queue.push_many(range(5))
        consumption = queue.consume(reliable=True)
        assert ids([await anext(consumption) for _ in range(5)]) == [1, 2, 3, 4, 5]
        there = other.queue(queue.name)
        await there.delete()
        if again == "by another":
            await there.attach()
        await (there if again == "by another" else queue).push_many(range(10))
        assert (await anext(consumption)).id == 1
        await queue.ack(5)  # of the earlier life
        await consumption.stop()
        assert await stored(queue) == list(range(2, 11))
        await there.detach()


async def test_a_consumer_cannot_ack_what_another_holds(open_bus: OpenBus, fresh: Fresh) -> None:
    name = fresh()
    async with open_bus() as bus, bus.queue(name) as holder, bus.queue(name) as other:
        await holder.push_many(range(3))
        assert ids([message async for message in holder.consume(reliable=True, max=3)]) == [1, 2, 3]
        with pytest.raises(StateError, match="not consumed reliably by this object"):
            await other.ack(3)
        other.consume(max=1)
        with pytest.raises(StateError, match="not consumed reliably by this object"):
            await other.ack(3)
        assert ids([message async for message in holder.consume(reliable=True, max=3)]) == [1, 2, 3]


@pytest.mark.parametrize("reliable", [False, True])
async def test_stopping_puts_back_what_was_not_handed_over_in_its_place(
    open_bus: OpenBus, fresh: Fresh, reliable: bool
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many(range(50))
        consumption = queue.consume(reliable=reliable, prefetch=20)
        assert [(await anext(consumption)).id for _ in range(5)] == [1, 2, 3, 4, 5]
        await queue.stop()
        assert await stored(queue) == list(range(6, 51))
        with pytest.raises(StopAsyncIteration):
            await anext(consumption)
        assert queue.consumed == 5


async def test_breaking_out_and_consuming_again_goes_on_where_it_was(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many(range(30))
        seen = []
        for _ in range(3):
            async for message in queue.consume(prefetch=7):
                seen.append(message.id)
                if len(seen) % 5 == 0:
                    break
        consumption = queue.consume()
        seen += [(await anext(consumption)).id for _ in range(3)]
        async for message in consumption:
            seen.append(message.id)
            if len(seen) == 30:
                break
        assert seen == list(range(1, 31))


async def test_a_consumption_never_begun_does_not_hide_the_one_before_it(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many(range(5))
        first = queue.consume()
        assert (await anext(first)).id == 1
        queue.consume()
        third = queue.consume()
        assert queue.consuming
        assert (await anext(third)).id == 2
        with pytest.raises(StopAsyncIteration):
            await anext(first)
        queue.consume()
        await queue.stop()
        assert await stored(queue) == [3, 4, 5]


@pytest.mark.parametrize("reliable", [False, True])
async def test_cancelling_the_task_that_consumes_loses_nothing(
    open_bus: OpenBus, fresh: Fresh, reliable: bool
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many(range(200))
        seen: list[int] = []
        for tenths_of_ms in range(
            20
        ):  # anywhere: before it begins, connecting, in the middle of a take
            task = asyncio.ensure_future(
                _collect(queue, seen, reliable=reliable, last=seen[-1] if reliable and seen else 0)
            )
            await asyncio.sleep(
                tenths_of_ms / 10_000
            )  # nothing is waited for: the moment is what varies
            task.cancel()
            await asyncio.wait([task])
        last = seen[-1] if reliable and seen else 0
        seen += [
            message.id
            async for message in queue.consume(reliable=reliable, last=last, max=200 - len(seen))
        ]
        assert seen == list(range(1, 201))


async def _collect(queue: Queue, seen: list[int], **options: Any) -> None:
    async for message in queue.consume(prefetch=3, **options):
        # A list comprehension would keep them to itself until the end
        seen.append(message.id)  # noqa: PERF401


async def test_batches_are_the_messages_in_the_lists_they_came_in(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many(range(10))
        assert [ids(batch) async for batch in queue.consume(prefetch=4, max=9).batches()] == [
            [1, 2, 3, 4],
            [5, 6, 7, 8],
            [9],
        ]
        assert queue.consumed == 9


async def test_each_hands_messages_to_functions_and_coroutine_functions_one_after_the_other(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        seen: list[Any] = []

        async def slowly(message: Message) -> None:
            seen.append(("in", message.id))
            await asyncio.sleep(0)
            seen.append(("out", message.id))

        queue.on("message", lambda message: seen.append(("event", message.id)))
        await queue.push_many("abcd")
        await queue.each(slowly, max=2)
        assert seen == [("in", 1), ("out", 1), ("event", 1), ("in", 2), ("out", 2), ("event", 2)]
        await queue.each(lambda message: seen.append(message.text), max=1)
        assert seen[-2:] == ["c", ("event", 3)]
        await queue.each(max=1)
        assert seen[-1] == ("event", 4)


async def test_what_a_handler_raises_ends_the_scope_with_it_and_the_rest_stays_stored(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    def fussy(message: Message) -> None:
        if message.id == 2:
            raise ValueError("two") from KeyError("why")

    name = fresh()
    with pytest.raises(ValueError, match="two") as raised:  # noqa: PT012  # a scope ends with it
        async with open_bus() as bus, bus.queue(name) as queue:
            await queue.push_many("abcd")
            queue.each(fussy)
            await asyncio.Event().wait()
    assert isinstance(raised.value.__cause__, KeyError)
    async with open_bus() as bus, bus.queue(name) as queue:
        assert await stored(queue) == [3, 4]


async def test_two_consumers_share_a_queue_and_each_sees_its_part_in_order(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        open_bus() as other,
        bus.queue(fresh()) as queue,
        other.queue(queue.name) as there,
    ):
        seen: tuple[list[int], list[int]] = ([], [])
        queue.each(lambda message: seen[0].append(message.id), prefetch=5)
        there.each(lambda message: seen[1].append(message.id), prefetch=5)
        await until(lambda: queue.consuming and there.consuming)
        for start in range(0, 200, 10):
            await queue.push_many(range(start, start + 10))
        await until(lambda: len(seen[0]) + len(seen[1]) == 200)
        assert sorted(seen[0] + seen[1]) == list(range(1, 201))
        assert seen == (sorted(seen[0]), sorted(seen[1]))


async def test_what_several_consumers_give_back_is_in_order_again(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        bus.queue(fresh()) as queue,
        bus.queue(queue.name) as second,
        bus.queue(queue.name) as third,
    ):
        await queue.push_many(range(30))
        for each in (queue, second, third):
            await anext(each.consume(prefetch=8))
        for each in (third, queue, second):
            await each.stop()
        assert await stored(queue) == [n for n in range(1, 31) if n not in (1, 9, 17)]


async def test_a_waiting_consumer_gets_messages_that_another_gave_back(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, open_bus() as other:
        queue, there = bus.queue(name := fresh()), other.queue(name)
        await queue.attach(ttl_s=LONG_S)
        await there.attach(ttl_s=LONG_S)
        await queue.push_many("abc")
        consumption = queue.consume()
        await consumption.begin()
        await consumption.wait_filled()  # has them all, has handed over none
        waiting = asyncio.ensure_future(anext(there.consume()))
        await until(lambda: there.consuming)
        await queue.stop()
        async with asyncio.timeout(UNTIL_S):
            assert (await waiting).id == 1


async def test_large_messages_come_in_batches_that_redis_can_bear(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many([b"x" * 300_000] * 7)
        sizes = [len(batch) async for batch in queue.consume(max=7).batches()]
        assert sum(sizes) == 7
        assert max(sizes) <= 3


async def test_a_queue_detached_ends_its_consumption(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        queue = bus.queue(fresh())
        await queue.attach()
        states: list[bool] = []
        queue.on("consuming", states.append)
        task = queue.each(lambda message: None)
        await until(lambda: queue.consuming)
        await queue.detach()
        await task
        assert states == [True, False]
        with pytest.raises(StateError, match="not attached"):
            queue.consume()


async def test_options_that_make_no_sense_are_refused_before_anything_happens(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    wrong: list[dict[str, Any]] = [
        {"index": 1},
        {"index": -1, "remove": False},
        {"last": 3},
        {"last": "3", "reliable": True},
        {"prefetch": 0},
        {"max": "3"},
        {"reliable": True, "remove": False},
    ]
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        for options in wrong:
            with pytest.raises(ConfigError):
                queue.consume(**options)


# One lease


async def test_a_second_reliable_consumer_waits_for_the_first_to_end(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        bus.queue(fresh()) as queue,
        bus.queue(queue.name) as same_bus,
        open_bus() as other,
        other.queue(queue.name) as there,
    ):
        await queue.push_many("abcd")
        first = queue.consume(reliable=True)
        assert (await anext(first)).id == 1
        for busy in (same_bus, there):
            with pytest.raises(QueueBusy, match="reliable consumer already"):
                await anext(busy.consume(reliable=True, wait=False))
        waiting = asyncio.ensure_future(anext(same_bus.consume(reliable=True)))
        await asyncio.sleep(
            0.02
        )  # nothing is waited for: it may wait for the lease already, or be about to
        await queue.ack(1)
        await queue.stop()
        assert (await waiting).id == 2
        last = asyncio.ensure_future(anext(there.consume(reliable=True)))
        await same_bus.stop()
        assert (await last).id == 2


async def test_a_consumer_that_waits_for_the_lease_can_be_stopped(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue, bus.queue(queue.name) as there:
        await queue.push("a")
        await anext(queue.consume(reliable=True))
        task = there.each(reliable=True)
        await asyncio.sleep(
            0.02
        )  # nothing is waited for: it may wait for the lease already, or be about to
        await there.stop()
        await task
        await queue.stop()
        assert (await anext(there.consume(reliable=True, wait=False))).id == 1


async def test_who_lost_the_lease_stops_taking_at_once_and_says_so(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        bus.queue(fresh()) as queue,
        open_bus() as other,
        other.queue(queue.name) as there,
    ):
        await queue.push_many("abc")
        first = queue.consume(reliable=True, prefetch=1)
        assert (await anext(first)).id == 1
        await forget_lease(queue)
        second = there.consume(reliable=True, prefetch=1)
        assert (await anext(second)).id == 1
        with pytest.raises(QueueBusy, match="another process now"):
            await anext(first)
        assert [(await anext(second)).id for _ in range(2)] == [2, 3]


async def test_a_lease_that_redis_forgot_is_had_again(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        consumption = queue.consume(reliable=True, prefetch=1)
        assert (await anext(consumption)).id == 1
        await forget_lease(queue)
        assert (await anext(consumption)).id == 2
        assert await redis(queue, "EXISTS", queue.keys.lease("")) == 1


async def test_a_consumer_that_waits_has_a_forgotten_lease_again_and_takes_at_once(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(fresh()) as queue:
        consumption = queue.consume(reliable=True)
        await queue.push("a")
        assert (await anext(consumption)).id == 1
        waiting = asyncio.ensure_future(anext(consumption))
        await asyncio.sleep(0)  # it has nothing to take, and waits
        await forget_lease(queue)
        bus.keep_alive.remove(queue)  # who would wake it in the end
        await queue.push("b")
        async with asyncio.timeout(UNTIL_S):
            assert (await waiting).id == 2


async def test_the_first_message_of_a_new_incarnation_is_delivered_to_a_consumer_that_missed_its_id(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with (
        open_bus() as bus,
        open_bus() as other,
        other.queue(name) as pusher,
        asyncio.timeout(UNTIL_S),
    ):
        queue = bus.queue(name)
        await queue.attach(ttl_s=LONG_S)
        await pusher.push("one")
        messages = queue.consume()
        assert (await anext(messages)).id == 1
        waiting = asyncio.ensure_future(anext(messages))
        await other.queue(name).delete()
        await pusher.push("another")
        message = await waiting
        assert (message.id, message.text) == (1, "another")
