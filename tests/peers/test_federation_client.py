"""Our client and a federation server of npm busmq 3.1.0, which dies of whatever it does not
expect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import FederationLost, FederationRefused
from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
from tests.bus.tools import ids
from tests.conftest import Fresh
from tests.federation.far import quick
from tests.peers.npm import Npm


@dataclass
class Job:
    status: str = "new"
    tries: int = 0


@pytest.fixture
def server(npm: None, redis_url: str) -> Any:
    made = Npm(redis_url)
    yield made
    made.peer.kill()


async def when(thing: Any, event: str, trouble: Callable[[], None]) -> None:
    """Make trouble, and return when the object has told of it and is back."""
    happened = asyncio.Event()
    thing.once(event, lambda *_: happened.set())
    await asyncio.to_thread(trouble)
    async with asyncio.timeout(60):
        await happened.wait()


async def test_an_attach_asks_npm_servers_for_nothing_that_old_ones_do_not_know(
    server: Npm, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, call = list[str](), RemoteObjectConnection.call_for_result
    monkeypatch.setattr(
        RemoteObjectConnection,
        "call_for_result",
        lambda remote, method, *args: (asked.append(method), call(remote, method, *args))[1],
    )
    async with (
        server.bus() as (bus, home),
        home.queue(name := fresh()) as there,
        bus.federate(bus.queue(name)) as queue,
    ):
        assert await queue.push("x") == 1
        assert await there.count() == 1
    assert not {"maxsize", "find", "promisify"} & {*asked}


async def test_a_queue_in_every_way_it_can_be_used(server: Npm, fresh: Fresh) -> None:
    async with server.bus() as (bus, home):
        queue, there = bus.federate(bus.queue(name := fresh())), home.queue(name)
        assert (
            await queue.exists(),
            await queue.count(),
            await queue.metadata(),
            await queue.find(),
            await queue.ttl(),
        ) == (
            False,
            0,
            {},
            None,
            None,
        )
        assert not await queue.attach(ttl_s=7, maxsize=5)
        assert await there.attach()
        assert (queue.ttl_s, await queue.ttl(), await queue.maxsize(), await queue.find()) == (
            7,
            7,
            5,
            "local",
        )
        assert await queue.push_many(["text", "é 😀 \0 ", {"a": [None]}, 4]) == [1, 2, 3, 4]
        assert [message.value async for message in there.consume(max=2)] == [
            b"text",
            "é 😀 \0 ".encode(),
        ]
        await there.push("x" * 200_000)
        assert [len(message.value) async for message in queue.consume(reliable=True, max=3)] == [
            12,
            1,
            200_000,
        ]
        await queue.ack(4)
        await queue.set_metadata({"owner": "me"})
        assert (await there.metadata())["owner"] == "me"
        await queue.stop()
        await queue.detach()
        assert not await queue.flush()
        assert await queue.attach()
        assert [message.id async for message in queue.consume(reliable=True, max=1)] == [5]
        await queue.delete()
        assert not await there.exists()
        assert not await queue.attach()
        await queue.detach()


async def test_a_queue_outlives_a_dropped_link_and_a_server_started_anew(
    server: Npm, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with (
        server.bus() as (bus, home),
        home.queue(name := fresh()) as there,
        bus.federate(bus.queue(name)) as queue,
    ):
        consumption = queue.consume(reliable=True)
        last = 0
        for trouble in (server.drop, server.restart, server.drop):
            await there.push_many("abc")
            assert ids([await anext(consumption) for _ in range(3)]) == [
                last + 1,
                last + 2,
                last + 3,
            ]
            await queue.ack(last + 2)
            await when(queue, "reconnected", trouble)
            assert (await anext(consumption)).id == last + 3  # was not acked
            await queue.ack(last + 3)
            last += 3
            assert await queue.count() == 0


async def test_an_ack_after_the_link_was_dropped_does_not_end_the_server(
    server: Npm, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with server.bus() as (bus, home), bus.federate(bus.queue(name := fresh())) as queue:
        await queue.push_many("abc")
        assert ids([message async for message in queue.consume(reliable=True, max=3)]) == [1, 2, 3]
        await when(queue, "reconnected", server.drop)
        await queue.ack(2)
        async with home.queue(name) as there:
            assert (await anext(there.consume(reliable=True))).id == 3


async def test_pushes_under_way_while_the_link_drops_raise_or_are_stored(
    server: Npm, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with (
        server.bus() as (bus, home),
        home.queue(name := fresh()) as there,
        bus.federate(bus.queue(name)) as queue,
    ):
        answered: list[int] = []
        number = 0
        for trouble in (server.drop, server.restart):
            troubling = asyncio.ensure_future(asyncio.to_thread(trouble))
            while not troubling.done() or len(answered) < 1000:
                batch = range(number, number + 200)
                number += 200
                for n, push in [(n, queue.push(n)) for n in batch]:
                    try:
                        await push
                    except FederationLost:
                        continue
                    answered.append(n)
        stored = [message.json() async for message in there.consume(max=await there.count())]
        assert stored == sorted({*stored})
        assert {*answered} <= {*stored}


async def test_a_channel_between_us_and_a_local_one(
    server: Npm, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with server.bus() as (bus, home), home.channel(name := fresh()) as peer:
        seen: list[str] = []
        for event in ("remote_connect", "remote_disconnect"):
            peer.on(event, lambda event=event: seen.append(event))
        channel = bus.federate(bus.channel(name))
        await channel.listen()
        assert await channel.send("hello") == 2
        assert (await anext(peer.messages())).text == "hello"
        await when(channel, "reconnected", server.drop)
        await peer.send({"n": 1})
        assert (await anext(channel.messages())).json() == {"n": 1}
        assert await channel.send_to("remote", "to myself") > 0
        assert (await anext(channel.messages())).text == "to myself"
        await channel.end()
        assert [message async for message in peer] == []
        assert seen == ["remote_connect", "remote_disconnect", "remote_connect"]


async def test_pubsub_and_persisted_object(
    server: Npm, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with server.bus() as (bus, home):
        async with bus.federate(bus.pubsub(name := fresh())) as news:
            heard = aiter(news)
            await home.pubsub(name).publish({"n": 1})
            assert (await anext(heard)).json() == {"n": 1}
            await when(news, "subscribed", server.restart)
            await news.publish("é")
            assert (await anext(heard)).text == "é"
        async with bus.federate(bus.persist(name := fresh(), Job)) as job:
            job.value.tries = 3
        local = home.persist(name, Job)
        assert await local.load()
        assert local.value == Job("new", 3)
        local.value.status = "done"
        await local.save()
        assert await job.load()
        assert job.value == Job("done", 3)


async def test_a_service_between_us_and_a_local_one(server: Npm, fresh: Fresh) -> None:
    async with server.bus() as (bus, home):
        name = fresh("svc")
        async with (
            bus.federate(bus.service(name)) as provider,
            home.service(name) as requester,
            bus.federate(bus.service(name)) as far,
        ):
            await provider.serve(lambda data: [data, data])
            await requester.connect(timeout_s=20)
            await far.connect(timeout_s=20)
            assert await requester.request("x") == ["x", "x"]
            assert await far.request({"é": 1}) == [{"é": 1}, {"é": 1}]


async def test_a_wrong_secret_is_refused(server: Npm, fresh: Fresh) -> None:
    async with server.bus(secret="wrong") as (bus, _):
        with pytest.raises(FederationRefused, match="401"):
            await bus.federate(bus.queue(fresh())).attach()


@pytest.mark.slow
async def test_redis_going_away_over_there_neither_ends_the_server_nor_us(
    npm: None, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    with EmbeddedRedis(aof=True) as redis:
        server = Npm(redis.url)
        try:
            async with server.bus() as (bus, _), bus.federate(bus.queue(fresh())) as queue:
                await queue.push("before")
                await asyncio.to_thread(redis.kill)
                await asyncio.to_thread(redis.restart)
                pushed = queue.push("after")
                async with asyncio.timeout(60):
                    assert await pushed == 2
        finally:
            server.peer.kill()


async def test_messages_to_and_from_a_server_of_node_are_compressed(
    server: Npm, fresh: Fresh
) -> None:
    text = "a line that comes again and again\n" * 20_000
    async with (
        server.bus(federate_compression=True, federate_sockets=1) as (bus, home),
        home.queue(fresh()) as queue,
    ):
        async with bus.federate(bus.queue(queue.name)) as far:
            assert await far.push(text) == 1
            assert [message.text async for message in queue.consume(max=1)] == [text]
            await queue.push(text + "2")
            assert [message.text async for message in far.consume(max=1)] == [text + "2"]
        [pool] = bus._links._pools.values()
        socket = pool.sockets[0]._socket
        assert max(socket.written, socket.received) < len(text) / 4
