"""Groups while something breaks: replies that are lost, packets that come late, workers and servers
that are killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.ordered_group import OrderedGroup
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost, QueueBusy
from busmq_spark.groups import dead_letter
from busmq_spark.groups.shared_group import LeasedMessage
from tests.bus.group_tools import dead_letters, end_leases, ids, some
from tests.bus.ledger import Ledger, wake
from tests.bus.tools import UNTIL_S, redis, stored, until
from tests.conftest import Fresh
from tests.faults.proxy import Command, Proxy
from tests.support import FACTOR

pytestmark = pytest.mark.fault
LONG_S = 3600
LEASED = "group_lease"


def is_script(name: str, queue: str) -> Callable[[Command], bool]:
    def matches(command: Command) -> bool:
        return command.name == name and any(queue in key for key in command.keys)

    return matches


async def first(batches: AsyncIterator[list[LeasedMessage]]) -> list[LeasedMessage]:
    return await asyncio.wait_for(anext(batches), UNTIL_S)


async def test_a_reply_that_was_lost_costs_no_try_and_no_lease(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            bus.queue(fresh()) as queue,
            queue.group("g", shared=True, lease_s=LONG_S) as group,
        ):
            await queue.push_many("abc")
            gate = proxy.hold(is_script(LEASED, queue.name), reply=True)
            reading = asyncio.ensure_future(first(group.batches()))
            (await asyncio.to_thread(gate.wait)).drop()
            gate.open()
            batch = await reading
            assert [(each.id, each.tries) for each in batch] == [(1, 1), (2, 1), (3, 1)]
            gate = proxy.hold(is_script("group_settle", queue.name), reply=True)
            settling = asyncio.ensure_future(group.ack(batch))
            (await asyncio.to_thread(gate.wait)).drop()
            gate.open()
            assert (
                await settling == []
            )  # executed twice: what was settled before was settled by this call
            assert await stored(queue) == []


async def test_a_lease_call_that_arrives_late_holds_messages_until_its_lease_ends_and_loses_none(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            bus.queue(fresh()) as queue,
            queue.group("g", shared=True, lease_s=LONG_S) as group,
        ):
            await queue.push_many("abcd")
            gate = proxy.hold(is_script(LEASED, queue.name))
            batches = group.batches(2)
            reading = asyncio.ensure_future(first(batches))
            late = await asyncio.to_thread(gate.wait)
            gate.open()
            late.cut()
            assert ids(await reading) == [1, 2]
            await asyncio.to_thread(late.arrive)
            assert (await group.state()).in_flight == 4
            await end_leases(queue, "g")
            assert [(each.id, each.tries) for each in await some(batches, 4)] == [
                (1, 2),
                (2, 2),
                (3, 2),
                (4, 2),
            ]


@pytest.mark.parametrize("how", ["ack", "retry", "release"])
async def test_a_settlement_that_arrives_late_changes_nothing_of_the_lease_of_another(
    redis_server: EmbeddedRedis, fresh: Fresh, how: str
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            Bus(redis_server.url) as other,
            bus.queue(fresh()) as queue,
            other.queue(queue.name) as same,
        ):
            await queue.push_many("ab")
            async with queue.group("g", shared=True) as slow, same.group("g", shared=True) as quick:
                held = await some(slow.batches(), 2)
                gate = proxy.hold(is_script("group_settle", queue.name))
                settling = asyncio.ensure_future(getattr(slow, how)(held))
                late = await asyncio.to_thread(gate.wait)
                late.cut()
                await end_leases(queue, "g")
                again = await some(quick.batches(), 2)
                await asyncio.to_thread(late.arrive)
                assert (await quick.state()).in_flight == 2
                gate.open()
                assert await settling == held  # sent again, and refused
                assert await quick.ack(again) == []
            assert await stored(same) == []


@pytest.mark.parametrize("how", ["ack", "retry", "release", "extend"])
async def test_a_repeated_settlement_is_refused_where_another_settled_the_message(
    redis_server: EmbeddedRedis, fresh: Fresh, how: str
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            Bus(redis_server.url) as other,
            bus.queue(fresh()) as queue,
            other.queue(queue.name) as same,
        ):
            await queue.push_many("abcd")
            async with queue.group("g", shared=True) as slow, same.group("g", shared=True) as quick:
                held = await some(slow.batches(3), 3)
                assert await slow.ack(held[0]) == []
                gate = proxy.hold(is_script("group_settle", queue.name))
                settling = asyncio.ensure_future(getattr(slow, how)(held))
                stopped = await asyncio.to_thread(gate.wait)
                await end_leases(queue, "g")
                assert await quick.ack(await some(quick.batches(), 3)) == []
                gate.open()
                stopped.drop()  # it never reached Redis
                assert await settling == held[1:]  # the first was settled by this holder
            assert await stored(same) == []


async def test_a_settlement_whose_reply_was_lost_is_not_refused_on_a_second_lease(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            bus.queue(fresh()) as queue,
            queue.group("g", shared=True) as group,
        ):
            await queue.push_many("ab")
            await some(group.batches(), 2)
            await end_leases(queue, "g")
            again = await some(group.batches(), 2)
            gate = proxy.hold(is_script("group_settle", queue.name), reply=True)
            settling = asyncio.ensure_future(group.ack(again))
            (await asyncio.to_thread(gate.wait)).drop()
            gate.open()
            assert await settling == []


@pytest.mark.parametrize("how", ["seek", "drop"])
async def test_a_repeated_settlement_is_refused_after_the_group_was_set_back_or_made_anew(
    redis_server: EmbeddedRedis, fresh: Fresh, how: str
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            Bus(redis_server.url) as other,
            bus.queue(fresh()) as queue,
            other.queue(queue.name) as same,
        ):
            await queue.retain("1h")
            await queue.push_many("ab")
            async with queue.group("g", shared=True) as slow:
                held = await some(slow.batches(), 2)
                gate = proxy.hold(is_script("group_settle", queue.name))
                settling = asyncio.ensure_future(slow.ack(held))
                stopped = await asyncio.to_thread(gate.wait)
                await end_leases(queue, "g")
                quick = same.group("g", shared=True)
                assert await (quick.seek("earliest") if how == "seek" else quick.drop()) in (
                    0,
                    True,
                )
                async with quick:
                    assert await quick.ack(await some(quick.batches(1), 1)) == []
                    gate.open()
                    stopped.drop()
                    assert await settling == held


async def produce(queue: Queue, enough: asyncio.Event) -> None:
    """Messages, until it is enough; Redis is away meanwhile."""
    while not enough.is_set():
        with suppress(LinkLost):
            await queue.push_many([b"v"] * 20)
        await asyncio.sleep(0.001)


async def test_workers_and_redis_are_killed_and_each_message_is_handled(fresh: Fresh) -> None:
    """Each at least once, never twice in one try, and dead letters are exactly those that fail each
    time.
    """
    tries, poison, ledger = 25, [b"poison", b"v", b"v", b"poison"], Ledger()
    with EmbeddedRedis(aof=True) as server:
        place = {"url": server.url}
        async with (
            Bus(**place) as bus,
            bus.queue(fresh()) as queue,
            bus.queue(f"{queue.name}.dead") as dead,
        ):
            async with queue.group("g", shared=True, lease_s=1, tries=tries) as group:
                await queue.push_many(poison)
                enough = asyncio.Event()
                producing = asyncio.ensure_future(produce(queue, enough))
                workers = [await ledger.begin(place, queue.name, tries) for _ in range(3)]
                for turn in range(6):
                    worker = workers[turn % 3]
                    begun = worker.seen
                    await until(lambda worker=worker, begun=begun: worker.seen > begun)
                    await worker.kill()
                    if turn == 2:
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.restart)
                    workers[turn % 3] = await ledger.begin(place, queue.name, tries)
                enough.set()
                await producing
                await asyncio.wait_for(group.wait_idle(), UNTIL_S)
                for worker in workers:
                    await worker.kill()
                [state] = await queue.groups()
            letters = [
                dead_letter.decode_letter(message.value).id
                for message in await dead_letters(dead, await dead.count())
            ]
    ledger.check(state.subscription.last)
    assert set(letters) == {1, 4}


async def test_workers_are_killed_one_after_the_other_or_hang_and_each_message_is_handled(
    layout: str, place: dict[str, Any], fresh: Fresh
) -> None:
    """A long queue: each message at least once, never twice in one try, acked by its last owner
    only; dead letters are those that fail each time.
    """
    count, kills, many, hangs = (10_000, 10, 6, 3) if layout == "direct" else (1_000, 2, 3, 1)
    count, kills, tries, batch, ledger = count * FACTOR, kills * FACTOR, 30, 1000, Ledger()
    poison = {id for id in range(1, count + 1) if id % (count // 5) == 0}
    hang = [count * n // hangs + 7 for n in range(hangs)]
    async with (
        Bus(**place) as bus,
        bus.queue(fresh()) as queue,
        bus.queue(f"{queue.name}.dead") as dead,
    ):
        async with queue.group("g", shared=True, lease_s=1, tries=tries) as group:
            for at in range(1, count + 1, batch):
                await queue.push_many(
                    [
                        b"poison" if id in poison else b"hang" if id in hang else b"v"
                        for id in range(at, at + batch)
                    ]
                )
            waking = asyncio.ensure_future(wake(ledger, hang))
            workers = [await ledger.begin(place, queue.name, tries) for _ in range(many)]
            for kill in range(kills):
                await until(lambda kill=kill: len(ledger.latest) > count * kill // kills)
                await workers[kill % many].kill()
                workers[kill % many] = await ledger.begin(place, queue.name, tries)
            await waking
            await asyncio.wait_for(group.wait_idle(), UNTIL_S * FACTOR)
            for worker in workers:
                await worker.kill()
        letters = [
            dead_letter.decode_letter(message.value).id
            for message in await dead_letters(dead, await dead.count())
        ]
    ledger.check(count)
    ledger.check_acks()
    assert set(letters) == poison


async def lose_lease(queue: Queue, group: OrderedGroup) -> None:
    """As if the holder had been silent for longer than its lease."""
    await redis(queue, "DEL", queue.keys.lease("g"))
    group._renewed = float("-inf")


@pytest.mark.parametrize("executed", [False, True])
async def test_a_repeated_ack_of_an_ordered_group_knows_who_acked(
    redis_server: EmbeddedRedis, fresh: Fresh, executed: bool
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with (
            Bus(proxy.url) as bus,
            Bus(redis_server.url) as other,
            bus.queue(fresh()) as queue,
            other.queue(queue.name) as same,
        ):
            await queue.push_many("abcd")
            async with queue.group("g") as slow:
                held = await some(slow.batches(2), 2)
                gate = proxy.hold(is_script("ack_to", queue.name), reply=executed)
                acking = asyncio.ensure_future(slow.ack(held))
                stopped = await asyncio.to_thread(gate.wait)
                await lose_lease(same, slow)
                async with same.group("g") as quick:
                    found = await some(quick.batches(), 2 if executed else 4)
                    await quick.ack(found)
                gate.open()
                stopped.drop()
                if executed:
                    await acking
                else:
                    with pytest.raises(QueueBusy):
                        await acking
