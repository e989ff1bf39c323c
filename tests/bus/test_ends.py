"""Consumptions that end with an error, or are cut off in the middle: no message is lost, no task
hangs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import BusError, QueueBusy, Unauthorized
from busmq_spark.queue import queue as flows
from busmq_spark.queue.message import PubsubMessage
from tests.bus.tools import LONG_S, UNTIL_S, ids, stored, until
from tests.conftest import Fresh


async def test_an_end_that_failed_may_be_tried_again_and_the_queue_lives_on(fresh: Fresh) -> None:
    with EmbeddedRedis(aof=True) as server:
        async with Bus(server.url) as bus:
            queue = bus.queue(fresh())
            await queue.attach()
            await queue.push_many(range(100))
            consumption = queue.consume()
            assert ids([await anext(consumption) for _ in range(3)]) == [1, 2, 3]
            server.kill()
            with pytest.raises((BusError, TimeoutError)):
                async with asyncio.timeout(0.5):
                    await queue.detach()
            server.restart()
            await consumption.stop()
            assert await stored(queue) == list(range(4, 101))


async def test_a_take_that_is_cancelled_is_looked_into_by_the_next(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        queue, never = bus.queue(fresh()), asyncio.Event()
        await queue.attach(ttl_s=LONG_S)
        link: Any = bus.servers.takes[0]
        real, taken = link.run, asyncio.Event()

        async def lost(flow: Any) -> Any:
            found = await real(flow)
            if not found:
                return found
            taken.set()
            await never.wait()
            return None

        link.run = lost  # before the first take, which would else be on its way past it
        consumption = queue.consume()
        waiting = asyncio.ensure_future(anext(consumption))
        await until(lambda: consumption.running)
        await queue.push("x")
        await taken.wait()
        waiting.cancel()
        link.run = real
        async with asyncio.timeout(UNTIL_S):
            assert (await anext(consumption)).text == "x"


async def test_more_than_one_call_may_bring_can_be_prefetched(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        await queue.attach(ttl_s=LONG_S)
        await queue.push_many(range(3500))
        async with asyncio.timeout(UNTIL_S):
            assert ids(
                [message async for message in queue.consume(prefetch=5000, max=3500)]
            ) == list(range(1, 3501))


async def test_a_lease_that_comes_while_its_consumer_is_stopped_is_given_up(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, Bus(redis_url) as other:
        name = fresh()
        async with bus.queue(name) as queue, other.queue(name) as there:
            for _ in range(20):  # every order of lease and release on the wire
                beginning = asyncio.ensure_future(queue.consume(reliable=True).begin())
                await asyncio.sleep(0)
                await queue.stop()
                await beginning
                assert not queue.leased
            await there.push("x")
            async with asyncio.timeout(UNTIL_S):
                assert (await anext(there.consume(reliable=True, wait=False))).text == "x"


async def test_a_channel_that_lost_its_lease_in_the_middle_of_messages_says_so(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, Bus(redis_url) as other:
        name = fresh()
        here, there = bus.channel(name), other.channel(name)
        await there.connect()
        for n in range(5):
            await there.send(n)
        await here.listen(reliable=True)  # now: so that they come in one batch
        messages = here.messages()
        assert (await anext(messages)).text == "0"
        connection = here._connection
        assert connection is not None
        connection.inbox._consumption.lease_lost()  # as the keep-alive does when it finds out
        async with asyncio.timeout(UNTIL_S):
            with pytest.raises(QueueBusy):
                await anext(messages)


async def test_owner_and_handler_may_unsubscribe_at_once(redis_url: str, fresh: Fresh) -> None:
    async with asyncio.timeout(UNTIL_S), Bus(redis_url) as bus:
        pubsub, handling = bus.pubsub(fresh()), asyncio.Event()

        async def handle(_: PubsubMessage) -> None:
            handling.set()
            for _ in range(
                2
            ):  # turns of the loop, no time: the owner shall be in the middle of leaving
                await asyncio.sleep(0)
            await pubsub.unsubscribe()

        pubsub.on("message", handle)
        async with pubsub:
            await pubsub.publish("x")
            await handling.wait()


async def test_a_user_that_may_not_subscribe_gets_an_error_and_does_not_wait_for_ever(
    fresh: Fresh,
) -> None:
    with EmbeddedRedis() as server:
        server.command("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "resetchannels", "+@all")
        with pytest.raises(Unauthorized):
            async with (
                asyncio.timeout(UNTIL_S),
                Bus(server.url, user="deaf", password="secret") as bus,
                bus.pubsub(fresh()),
            ):
                pass


async def test_who_may_listen_to_some_channels_loses_nothing_by_asking_for_another(
    fresh: Fresh,
) -> None:
    name = fresh()
    with EmbeddedRedis() as server:
        server.command(
            "ACL",
            "SETUSER",
            "half",
            "on",
            ">secret",
            "~*",
            "resetchannels",
            "&bus:queue:*",
            "+@all",
        )
        async with (
            asyncio.timeout(UNTIL_S),
            Bus(server.url, user="half", password="secret") as bus,
            bus.queue(name) as queue,
        ):
            waiting = asyncio.ensure_future(anext(queue.consume()))
            for _ in range(2):
                with pytest.raises(Unauthorized, match="refused access"):
                    await bus.pubsub(fresh()).subscribe()
            server.command("CLIENT", "KILL", "TYPE", "pubsub")
            with pytest.raises(Unauthorized):
                await bus.pubsub(fresh()).subscribe()
            await queue.push("heard")
            assert (await waiting).text == "heard"


async def test_what_is_given_back_behind_much_else_is_in_order(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        await queue.attach()
        await queue.push_many(range(4200))
        records = [queue.keys.in_flight(fresh("hand")) for _ in range(4)]
        for record in records:
            await queue.run(flows.take(queue.keys, record, 0, most=1000, ttl_s=60))
        for record in records:
            await queue.run(flows.give_back(queue.keys, record, 0, ttl_s=60))
        assert await stored(queue) == list(range(1, 4201))


async def test_handlers_of_messages_are_waited_for_so_that_the_rest_stays_in_redis(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        handling, go_on, most = asyncio.Event(), asyncio.Event(), 10

        async def handle(_: object) -> None:
            handling.set()
            await go_on.wait()

        queue.on("message", handle)
        await queue.push_many(range(50))
        delivering = queue.each(max=50, prefetch=most)
        await handling.wait()
        assert (queue.consumed, await queue.count()) == (1, 50 - most)
        go_on.set()
        await delivering
        assert queue.consumed == 50


async def test_a_reliable_end_that_failed_does_not_lock_the_next_consumer_out(fresh: Fresh) -> None:
    with EmbeddedRedis(aof=True) as server:
        async with Bus(server.url) as bus:
            first = bus.queue(fresh())
            await first.attach()
            await first.push_many(range(10))
            assert (await anext(first.consume(reliable=True))).id == 1
            server.kill()
            with pytest.raises((BusError, TimeoutError)):
                async with asyncio.timeout(0.5):
                    await first.detach()
            server.restart()
            await until(lambda: bus.online)
            second = bus.queue(first.name)
            await second.attach()
            async with asyncio.timeout(UNTIL_S):
                assert ids(
                    [message async for message in second.consume(reliable=True, max=10)]
                ) == list(range(1, 11))
