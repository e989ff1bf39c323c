"""Calls that do not wait for ``attach()``, ``connect()`` or ``listen()`` are kept, in order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ServerRefused, StateError
from tests.bus.conftest import OpenBus
from tests.bus.tools import UNTIL_S, redis
from tests.conftest import Fresh

Begin = Callable[[Coroutine[Any, Any, Any]], asyncio.Future[Any]]
BEGIN = [asyncio.create_task, asyncio.ensure_future]


@pytest.mark.parametrize("begin", BEGIN)
async def test_pushes_after_attach_are_stored_in_the_order_of_the_calls(
    open_bus: OpenBus,
    fresh: Fresh,
    begin: Begin,
) -> None:
    async with open_bus() as bus, bus.queue(name := fresh()) as reader:
        queue = bus.queue(name)
        attaching = begin(queue.attach())
        early = [queue.push("a"), queue.push_many(["b", "c"]), queue.push_many([])]
        await asyncio.sleep(0)
        early.append(queue.push("d"))
        await attaching
        early.append(queue.push("e"))
        async with asyncio.timeout(UNTIL_S):
            assert await asyncio.gather(*early) == [1, [2, 3], [], 4, 5]
        assert [message.text async for message in reader.consume(max=5)] == list("abcde")
        assert queue.pushed == 5


async def test_what_ends_an_attach_ends_the_pushes_after_it(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        await redis(queue, "SET", queue.keys.metadata, "no queue")
        attaching = asyncio.ensure_future(queue.attach())
        pushed = queue.push("a")
        for failed in (attaching, pushed):
            with pytest.raises(ServerRefused, match="WRONGTYPE"):
                await failed
        with pytest.raises(StateError, match="not attached"):
            queue.push("b")
        await redis(queue, "DEL", queue.keys.metadata)
        await queue.attach()
        assert await queue.push("c") == 1


async def test_an_attach_that_is_given_up_gives_up_the_pushes_after_it(
    open_bus: OpenBus,
    fresh: Fresh,
) -> None:
    async with open_bus() as bus:
        queue = bus.queue(fresh())
        attaching = queue.attach()
        pushed = queue.push("a")
        attaching.close()  # as a coroutine that nobody awaits
        del attaching
        gc.collect()
        with pytest.raises(StateError, match="not attached"):
            queue.push("b")
        with pytest.raises(StateError, match="not attached"):
            await pushed
        cancelled = asyncio.ensure_future(queue.attach())
        pushed = queue.push("c")
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(StateError, match="not attached"):
            await pushed


async def test_a_consumption_after_attach_begins_when_it_is_attached(
    open_bus: OpenBus,
    fresh: Fresh,
) -> None:
    async with open_bus() as bus, bus.queue(name := fresh()) as sender:
        await sender.push_many("abc")
        queue = bus.queue(name)
        attaching = asyncio.ensure_future(queue.attach())
        async with asyncio.timeout(UNTIL_S):
            assert [message.text async for message in queue.consume(max=3)] == list("abc")
        await attaching


@pytest.mark.parametrize("how", ["connect", "listen"])
async def test_messages_after_connect_are_sent_in_the_order_of_the_calls(
    open_bus: OpenBus,
    fresh: Fresh,
    how: str,
) -> None:
    async with open_bus() as bus:
        one, two = bus.channel(name := fresh()), bus.channel(name)
        connecting = asyncio.ensure_future(getattr(one, how)())
        early = [one.send("a"), one.send("b")]
        await connecting
        early.append(one.send("c"))
        async with asyncio.timeout(UNTIL_S):
            assert await asyncio.gather(*early) == [2, 3, 4]
            await (two.connect() if how == "listen" else two.listen())
            messages = two.messages()
            assert [(await anext(messages)).text for _ in "abc"] == list("abc")


async def test_requests_after_connect_are_answered(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, bus.service(name := fresh()) as provider:
        await provider.serve(str.upper)
        service = bus.service(name)
        connecting = asyncio.ensure_future(service.connect(timeout_s=20))
        await service.send("unheard")
        assert await service.request("a") == "A"
        assert [part async for part in service.stream("b")] == ["B"]
        await connecting
        await service.disconnect()


@pytest.mark.parametrize("begun", [False, True])
async def test_who_leaves_while_it_begins_has_left(
    open_bus: OpenBus,
    fresh: Fresh,
    *,
    begun: bool,
) -> None:
    async with open_bus() as bus:
        queue, channel, news = bus.queue(fresh()), bus.channel(fresh()), bus.pubsub(fresh())
        service = bus.service(fresh())
        for begin, leave in (
            (queue.attach, queue.detach),
            (channel.listen, channel.disconnect),
            (news.subscribe, news.unsubscribe),
            (service.connect, service.disconnect),
        ):
            beginning = asyncio.ensure_future(begin())
            if begun:
                await asyncio.sleep(0)
            await leave()
            await beginning
        there = queue.attached, channel.connected, news.subscribed, service.connected
        assert not any(there)
