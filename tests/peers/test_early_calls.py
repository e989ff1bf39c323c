"""Calls directly after ``attach()`` or ``connect()``: npm keeps them, and so do we."""

from __future__ import annotations

import asyncio
from typing import Any

from busmq_spark.bus.bus import Bus
from tests.conftest import Fresh
from tests.peers.node import Peer

TEXTS = ["a", "b", "c"]


async def ask(peer: Peer, op: str, **arguments: Any) -> Any:
    return await asyncio.to_thread(peer.call, op, **arguments)


async def test_pushes_after_attach(peer: Peer, redis_url: str, fresh: Fresh) -> None:
    assert await ask(peer, "earlyPush", name=fresh(), messages=TEXTS) == [1, 2, 3]
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        attaching = asyncio.create_task(queue.attach())
        assert await asyncio.gather(*map(queue.push, TEXTS)) == [1, 2, 3]
        assert await attaching is False
        await queue.detach()


async def test_consuming_after_attach(peer: Peer, redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        names = fresh(), fresh()
        for name in names:
            async with bus.queue(name) as queue:
                await queue.push_many(TEXTS)
        assert await ask(peer, "earlyConsume", name=names[0], many=3) == TEXTS
        queue = bus.queue(names[1])
        attaching = asyncio.create_task(queue.attach())
        assert [message.text async for message in queue.consume(max=3)] == TEXTS
        await attaching


async def test_sending_on_a_channel_after_connect(peer: Peer, redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        names = fresh(), fresh()
        assert len(await ask(peer, "earlySend", name=names[0], messages=TEXTS)) == 3
        ours = bus.channel(names[1])
        connecting = asyncio.create_task(ours.connect())
        assert await asyncio.gather(*map(ours.send, TEXTS)) == [2, 3, 4]
        await connecting
        for name in names:
            reader = await bus.channel(name).listen()
            assert [(await anext(reader.messages())).text for _ in TEXTS] == TEXTS


async def test_a_request_after_connect(peer: Peer, redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.service(name := fresh()) as provider:
        await provider.serve(str.upper)
        assert await ask(peer, "earlyRequest", name=name, data="early") == "EARLY"
        requester = bus.service(name)
        connecting = asyncio.create_task(requester.connect(timeout_s=20))
        assert await requester.request("early") == "EARLY"
        await connecting


async def test_leaving_while_it_begins(peer: Peer, redis_url: str, fresh: Fresh) -> None:
    assert await ask(peer, "earlyUnsubscribe", name=fresh()) is False
    assert await ask(peer, "earlyDetach", name=fresh()) is False
    async with Bus(redis_url) as bus:
        news, queue, channel = bus.pubsub(fresh()), bus.queue(fresh()), bus.channel(fresh())
        service = bus.service(fresh())
        for begin, leave, there in (
            (news.subscribe, news.unsubscribe, lambda: news.subscribed),
            (queue.attach, queue.detach, lambda: queue.attached),
            (channel.connect, channel.disconnect, lambda: channel.connected),
            (service.connect, service.disconnect, lambda: service.connected),
        ):
            beginning: asyncio.Task[Any] = asyncio.create_task(begin())
            await leave()
            await beginning
            assert not there()


async def test_saving_a_persisted_object_at_once(peer: Peer, redis_url: str, fresh: Fresh) -> None:
    name = fresh()
    assert await ask(peer, "earlyPersist", name=name) == "saved"
    async with Bus(redis_url) as bus:
        ours = bus.persist(name)
        ours["other"] = "early"
        keeping = asyncio.create_task(ours.persist(30))
        assert await ours.save()
        await keeping
        again = bus.persist(name)
        assert await again.load()
        assert dict(again) == {"field": "early", "other": "early"}
