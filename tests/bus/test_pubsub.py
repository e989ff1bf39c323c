"""Publish and subscribe as an asyncio program uses it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.pubsub import Pubsub
from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis, EmbeddedSentinel
from busmq_spark.errors import ConfigError, MessagesMissed, StateError
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.message import PubsubMessage
from tests.bus.conftest import OpenBus
from tests.bus.tools import until
from tests.conftest import Fresh

VALUES: list[tuple[Any, bytes]] = [
    *(("text", b"text"), ("", b""), ("héllo 😀", "héllo 😀".encode()), (b"\x00\xff", b"\x00\xff")),
    *(
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        ([], b"[]"),
        (None, b"null"),
        (7, b"7"),
        (True, b"true"),
    ),
]


async def heard(pubsub: Pubsub, many: int) -> list[bytes]:
    found: list[bytes] = []
    async for message in pubsub:
        found.append(message.value)
        if len(found) == many:
            break
    return found


async def test_every_subscriber_receives_what_is_published_the_publisher_too(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    name = fresh()
    async with (
        open_bus() as here,
        open_bus() as there,
        here.pubsub(name) as first,
        there.pubsub(name) as second,
    ):
        for value, _ in VALUES:
            await first.publish(value)
        for each in (first, second):
            assert await heard(each, len(VALUES)) == [stored for _, stored in VALUES]


async def test_messages_of_one_publisher_arrive_in_order(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.pubsub(fresh()) as pubsub:
        for n in range(1000):
            await pubsub.publish(n)
        assert await heard(pubsub, 1000) == [b"%d" % n for n in range(1000)]


async def test_handlers_and_events(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        pubsub, seen, third = bus.pubsub(fresh()), list[Any](), asyncio.Event()
        for event in ("subscribed", "unsubscribed"):
            pubsub.on(event, lambda event=event: seen.append(event))
        pubsub.on("message", lambda message: seen.append(message.text))
        pubsub.on("message", lambda message: third.set() if message.text == "3" else None)
        assert not pubsub.subscribed
        await pubsub.subscribe()
        await pubsub.subscribe()  # no error, no second event
        assert pubsub.subscribed
        for n in (1, 2, 3):
            await pubsub.publish(n)
        await third.wait()
        await pubsub.detach()
        await pubsub.unsubscribe()
        assert not pubsub.subscribed
        assert seen == ["subscribed", "1", "2", "3", "unsubscribed"]


async def test_publishing_needs_no_subscription_and_nothing_is_stored(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        pubsub = bus.pubsub(fresh())
        await pubsub.publish("nobody hears it")
        await pubsub.subscribe()
        await pubsub.publish("now")
        assert await heard(pubsub, 1) == [b"now"]


async def test_two_objects_on_one_channel_leave_one_by_one(open_bus: OpenBus, fresh: Fresh) -> None:
    name = fresh()
    async with open_bus() as bus:
        first, second = bus.pubsub(name), bus.pubsub(name)
        await first.subscribe()
        await second.subscribe()
        await first.unsubscribe()
        await second.publish("x")
        assert await heard(second, 1) == [b"x"]
        await first.subscribe()
        await second.publish("y")
        assert await heard(first, 1) == [b"y"]


async def test_the_loop_ends_when_the_subscription_does_and_a_later_one_begins_empty(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        name, found = fresh(), list[str]()
        pubsub, witness = bus.pubsub(name), bus.pubsub(name)
        await witness.subscribe()
        await pubsub.subscribe()
        for n in range(5):
            await pubsub.publish(n)
        async for message in pubsub:
            found.append(message.text)
            if message.text == "2":
                await pubsub.unsubscribe()
        assert found == ["0", "1", "2"]
        with pytest.raises(StateError, match="not subscribed"):
            aiter(pubsub)
        assert (
            len(await heard(witness, 5)) == 5
        )  # in a cluster the last ones may still be on their way between nodes
        await pubsub.subscribe()
        await pubsub.publish("new")
        assert await heard(pubsub, 1) == [b"new"]


async def test_a_step_that_was_given_up_loses_nothing(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.pubsub(fresh()) as pubsub:
        messages = aiter(pubsub)
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        waiting.cancel()
        await pubsub.publish("x")
        assert await anext(messages) == PubsubMessage(b"x")


async def test_a_slow_loop_keeps_the_newest_messages_counts_the_others_and_warns_once(
    redis_url: str, fresh: Fresh
) -> None:
    name = fresh()
    async with Bus(redis_url) as bus, bus.pubsub(name, most=10) as slow, bus.pubsub(name) as quick:
        told: list[Any] = []
        slow.on("error", told.append)
        for n in range(100):
            await quick.publish(n)
        assert len(await heard(quick, 100)) == 100
        assert await heard(slow, 10) == [b"%d" % n for n in range(90, 100)]
        assert slow.dropped == 90
        assert quick.dropped == 0
        assert [type(error) for error in told] == [MessagesMissed]


async def test_a_slow_handler_is_waited_for_one_message_at_a_time_and_does_not_hold_up_the_bus(
    redis_url: str, fresh: Fresh
) -> None:
    name = fresh()
    async with Bus(redis_url) as bus, bus.pubsub(name, most=10) as slow, bus.pubsub(name) as quick:
        gate, first, begun, last, tasks = (
            asyncio.Event(),
            asyncio.Event(),
            list[str](),
            asyncio.Event(),
            list[int](),
        )

        async def handle(message: PubsubMessage) -> None:
            begun.append(message.text)
            first.set()
            tasks.append(len(asyncio.all_tasks()))
            await gate.wait()
            if message.text == "99":
                last.set()

        slow.on("message", handle)
        slow.on("error", lambda _: None)
        await quick.publish(0)
        assert await heard(quick, 1) == [b"0"]
        await first.wait()
        for n in range(1, 100):
            await quick.publish(n)
        assert len(await heard(quick, 99)) == 99
        assert begun == ["0"]
        gate.set()
        await last.wait()
        assert begun == ["0", *map(str, range(90, 100))]
        assert slow.dropped == 89
        assert len(set(tasks)) == 1


async def test_what_a_handler_raises_ends_neither_the_scope_nor_the_hearing(
    redis_url: str, fresh: Fresh
) -> None:
    heard: list[str] = []

    def handle(message: PubsubMessage) -> None:
        heard.append(message.text)
        raise ZeroDivisionError

    async with Bus(redis_url) as bus, bus.pubsub(fresh()) as pubsub:
        pubsub.on("message", handle)
        await pubsub.publish("x")
        await pubsub.publish("y")
        await until(lambda: heard == ["x", "y"])


async def test_a_handler_may_unsubscribe(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.pubsub(fresh()) as pubsub:
        done, seen = asyncio.Event(), list[str]()

        async def handle(message: PubsubMessage) -> None:
            seen.append(message.text)
            await pubsub.unsubscribe()
            done.set()

        pubsub.on("message", handle)
        for n in range(3):
            await pubsub.publish(n)
        await done.wait()
        assert seen == ["0"]


async def test_leaving_the_bus_ends_loop_and_handlers(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        pubsub = bus.pubsub(fresh())
        await pubsub.subscribe()
        loop = asyncio.ensure_future(heard(pubsub, 1))
        await asyncio.sleep(0)
    assert await loop == []
    assert not pubsub.subscribed
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(StateError, match="bus"):
        await pubsub.publish("x")


def test_a_bound_must_be_a_positive_number() -> None:
    with pytest.raises(ConfigError, match="most is 0"):
        Bus("redis://localhost").pubsub("x", most=0)


# -- faults ----------------------------------------------------------------------------------------


async def test_a_subscription_outlives_a_redis_that_was_killed(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus, bus.pubsub(fresh()) as pubsub:
            again = asyncio.Event()
            pubsub.once("subscribed", again.set)
            await pubsub.publish("before")
            assert await heard(pubsub, 1) == [b"before"]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            await again.wait()
            await pubsub.publish("after")
            assert await heard(pubsub, 1) == [b"after"]


async def test_a_subscription_made_while_redis_is_away_waits_for_it(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        async with Bus(server.url) as bus:
            await asyncio.to_thread(server.kill)
            pubsub = bus.pubsub(fresh())
            subscribing = asyncio.ensure_future(pubsub.subscribe())
            await asyncio.to_thread(server.restart)
            await subscribing
            await pubsub.publish("x")
            assert await heard(pubsub, 1) == [b"x"]


@pytest.mark.slow
async def test_a_subscription_outlives_a_fail_over_of_sentinel(fresh: Fresh) -> None:
    with EmbeddedSentinel() as group:
        async with (
            Bus(",".join(group.urls), layout="sentinel") as bus,
            bus.pubsub(fresh()) as pubsub,
        ):
            again = asyncio.Event()
            pubsub.once("subscribed", again.set)
            group.kill_master()
            await again.wait()
            await pubsub.publish("after")
            assert await heard(pubsub, 1) == [b"after"]


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["the node that listens", "the node that publishes"])
async def test_a_subscription_outlives_a_node_of_a_cluster(fresh: Fresh, dies: str) -> None:
    name = fresh()
    with EmbeddedCluster() as group:
        async with Bus(",".join(group.urls), layout="cluster") as bus, bus.pubsub(name) as pubsub:
            again = asyncio.Event()
            [listening] = [
                node
                for node in group.nodes
                if node.command("PUBSUB", "NUMSUB", pubsub.channel) == [pubsub.channel, 1]
            ]
            victim = listening if dies == "the node that listens" else group.owner(pubsub.channel)
            pubsub.once("subscribed", again.set)
            victim.kill()
            if victim is listening:
                await again.wait()
            await asyncio.to_thread(group.wait_healthy)
            await pubsub.publish("after")
            assert await heard(pubsub, 1) == [b"after"]


async def test_of_three_servers_only_the_first_matters(fresh: Fresh) -> None:
    servers = [EmbeddedRedis().start() for _ in range(3)]
    try:
        async with (
            Bus(",".join(server.url for server in servers)) as bus,
            bus.pubsub(fresh()) as pubsub,
        ):
            servers[1].kill()
            servers[2].kill()
            await pubsub.publish("x")
            assert await heard(pubsub, 1) == [b"x"]
            assert await bus.servers.commands[0].execute(
                command("PUBSUB", "NUMSUB", pubsub.channel)
            ) == [pubsub.channel.encode(), 1]
    finally:
        for server in servers:
            server.stop()
