"""npm busmq 3.1.0 as a client of our federation server, for every object that it can federate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.peers.node import Peer, PeerError
from tests.support import lasting_port

SECRET = "correct-horse-battery"  # a test's


class Client:
    """A Node process that federates to one server; calls run in a thread, since the server is on
    our loop.
    """

    def __init__(self, peer: Peer, url: str) -> None:
        self.peer, self.url = peer, url

    async def do(self, op: str, **arguments: Any) -> Any:
        return await asyncio.to_thread(self.peer.call, op, **arguments)

    async def open(self, as_: str, kind: str, *args: Any, events: tuple[str, ...] = ()) -> None:
        await self.do("federate", **{"as": as_, "type": kind, "args": args, "url": self.url})
        await self.on(as_, *events)

    async def on(self, as_: str, *events: str) -> None:
        await self.do("fedOn", **{"as": as_, "events": events})

    async def call(self, as_: str, method: str, *args: Any) -> None:
        await self.do("fedCall", **{"as": as_, "method": method, "args": args})

    async def ask(self, as_: str, method: str, *args: Any) -> list[Any]:
        """What the function at the end of the call gets."""
        answer: list[Any] = await self.do("fedAsk", **{"as": as_, "method": method, "args": args})
        return answer

    async def event(self, as_: str, kind: str) -> list[Any]:
        return await asyncio.to_thread(self.peer.event, as_, kind)

    async def queue(self, as_: str, name: str, **options: Any) -> None:
        """A queue that is attached and reports every event."""
        await self.open(
            as_,
            "queue",
            name,
            events=("attached", "consuming", "message", "detached", "closed", "error"),
        )
        await self.call(as_, "attach", options)
        await self.event(as_, "attached")


Dial = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def dial(url: str, secret: str = SECRET, **federate: Any) -> AsyncIterator[Client]:
    """A Node client without Redis of its own."""
    peer = await asyncio.to_thread(
        Peer, [], federate={"urls": [url], "secret": secret, "poolSize": 2, **federate}
    )
    try:
        yield Client(peer, url)
        assert peer.errors == []
    finally:
        await asyncio.to_thread(peer.kill)


@asynccontextmanager
async def serving(redis_url: str, **settings: Any) -> AsyncIterator[tuple[Bus, FederationServer]]:
    async with (
        Bus(redis_url) as bus,
        FederationServer(bus, Keyring.single(SECRET), **settings) as server,
    ):
        yield bus, server


async def test_a_queue_of_node_behind_our_server(npm: None, redis_url: str, fresh: Fresh) -> None:
    async with serving(redis_url) as (bus, server), dial(server.url) as node:
        name = fresh()
        await node.queue("q", name, ttl=40, maxsize=4)
        assert await node.ask("q", "push", "héllo 😀") == [None, 1]
        assert await node.ask("q", "push", {"a": [1, None], "ü": "€"}) == [None, 2]
        pushed = await node.do("fedPushAll", **{"as": "q", "messages": [7, True, None]})
        assert pushed == [[None, 3], [None, 4], [None, None]]  # the last finds the queue full
        assert await node.ask("q", "count") == [None, 4]
        assert await node.ask("q", "isAttached") == [True]
        assert await node.ask("q", "exists") == [None, True]
        assert await node.ask("q", "ttl") == [None, 40]
        assert await node.ask("q", "maxsize") == [None, 4]
        assert await node.ask("q", "find") == [None, "local"]
        assert await node.ask("q", "pushed") == [None, 4]
        assert (await node.ask("q", "metadata"))[1]["ttl"] == "40"
        assert await node.ask("q", "metadata", "owner", "me") == []
        assert await node.ask("q", "metadata", "owner") == [None, "me"]
        await node.call("q", "consume", {"reliable": True})
        got = [await node.event("q", "message") for _ in range(4)]
        assert got == [["héllo 😀", 1], ['{"a":[1,null],"ü":"€"}', 2], ["7", 3], ["true", 4]]
        await node.call("q", "ack", 3)
        await node.call("q", "stop")
        assert [await node.event("q", "consuming") for _ in range(2)] == [[True], [False]]
        await node.call("q", "consume", {"reliable": True})
        assert await node.event("q", "message") == ["true", 4]  # what was not acked comes again
        await node.call("q", "detach")
        await node.event("q", "detached")
        async with bus.queue(name) as queue:
            assert await queue.push("more") == 5


async def test_large_messages_and_strange_characters_come_through(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    texts = [
        "",
        "x" * 3_000,
        "y" * 100_000,
        "z" * 5_000_000,
        'line1\nline2\u2028z\0\x1f"\\',
        "😀" * 10_000,
        "[Function]",
        '{"method":0}',
    ]
    async with serving(redis_url) as (_, server), dial(server.url) as node:
        await node.queue("q", fresh())
        for id, text in enumerate(texts, 1):
            assert await node.ask("q", "push", text) == [None, id]
        await node.call("q", "consume", {})
        assert [await node.event("q", "message") for _ in texts] == [
            [text, id] for id, text in enumerate(texts, 1)
        ]


async def test_node_reads_by_index_and_up_to_a_number_and_removes_nothing(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    async with (
        serving(redis_url) as (bus, server),
        dial(server.url) as node,
        bus.queue(fresh()) as queue,
    ):
        await queue.push_many(["a", "b", "c", b"\xff\xfe"])
        await node.queue("q", queue.name)
        await node.call("q", "consume", {"remove": False, "index": 1, "max": 3})
        # The protocol has no bytes: what is no UTF-8 arrives as npm's own server would send it.
        assert [await node.event("q", "message") for _ in range(3)] == [
            ["b", 2],
            ["c", 3],
            ["\ufffd\ufffd", 4],
        ]
        assert [await node.event("q", "consuming") for _ in range(2)] == [[True], [False]]
        assert await queue.count() == 4


async def test_node_throttles_its_consumption(npm: None, redis_url: str, fresh: Fresh) -> None:
    async with (
        serving(redis_url) as (bus, server),
        dial(server.url) as node,
        bus.queue(fresh()) as queue,
    ):
        await node.queue("q", queue.name)
        await queue.push("first")
        await node.do("fedThrottled", **{"as": "q", "options": {"max": 3}})
        assert await node.event("q", "message") == ["first", 1]  # not the first drain
        for id in (2, 3):
            await queue.push(f"t{id}")
            await node.event("q", "throttle")
            assert node.peer.no_event("q", "message")
            await node.do("fedNext", **{"as": "q"})
            assert await node.event("q", "message") == [f"t{id}", id]


async def test_two_channels_of_node_talk_through_our_server(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    events = (
        "connect",
        "disconnect",
        "remote:connect",
        "remote:disconnect",
        "message",
        "end",
        "error",
    )
    async with (
        serving(redis_url) as (_, server),
        dial(server.url) as node,
        dial(server.url) as other,
    ):
        name = fresh()
        await node.open("c", "channel", name, "client", "server", events=events)
        await other.open("s", "channel", name, "server", "client", events=events)
        await node.call("c", "connect")
        await node.event("c", "connect")
        await other.call("s", "connect")
        await node.event("c", "remote:connect")
        await other.event("s", "remote:connect")
        assert (await node.ask("c", "send", "to server"))[0] is None
        assert (await other.event("s", "message"))[0] == "to server"
        await other.call("s", "send", "to client")
        assert (await node.event("c", "message"))[0] == "to client"
        await node.call("c", "sendTo", "server", "past the connection")
        assert (await other.event("s", "message"))[0] == "past the connection"
        await other.do("fedClose", **{"as": "s"})
        await node.event("c", "remote:disconnect")
        await node.call("c", "end")
        await node.event("c", "disconnect")


async def test_a_channel_of_node_ends_when_ours_does(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    async with serving(redis_url) as (bus, server), dial(server.url) as node:
        name = fresh()
        await node.open(
            "c", "channel", name, events=("connect", "remote:connect", "message", "end", "error")
        )
        await node.call("c", "connect")
        async with await bus.channel(name).listen() as channel:
            await node.event("c", "remote:connect")
            await channel.send("bye")
            assert (await node.event("c", "message"))[0] == "bye"
            await channel.end()
        await node.event("c", "end")


async def test_a_pubsub_of_node_behind_our_server(npm: None, redis_url: str, fresh: Fresh) -> None:
    async with serving(redis_url) as (bus, server), dial(server.url) as node:
        name = fresh()
        await node.open(
            "p", "pubsub", name, events=("subscribed", "unsubscribed", "message", "error")
        )
        await node.call("p", "subscribe")
        await node.event("p", "subscribed")
        assert await node.ask("p", "publish", "one") == []
        await node.call("p", "publish", {"two": 2})
        assert [await node.event("p", "message") for _ in range(2)] == [["one"], ['{"two":2}']]
        await bus.pubsub(name).publish("from here")
        assert await node.event("p", "message") == ["from here"]
        await node.call("p", "unsubscribe")
        await node.event("p", "unsubscribed")


async def test_a_persisted_object_of_node_behind_our_server(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    async with serving(redis_url) as (bus, server), dial(server.url) as node:
        name = fresh()
        for as_ in ("p1", "p2"):
            await node.do(
                "federate",
                **{
                    "as": as_,
                    "type": "persistify",
                    "args": [name, {}, ["f1", "f2"]],
                    "url": server.url,
                },
            )
        await node.do("fedSet", **{"as": "p1", "values": {"f1": "v1", "f2": {"a": [1, None, "€"]}}})
        assert await node.ask("p1", "save") == [None, f"bus:persisted:{name}"]
        assert (await node.ask("p2", "load"))[:2] == [None, True]
        assert await node.do("fedGet", **{"as": "p2", "names": ["f1", "f2"]}) == [
            "v1",
            {"a": [1, None, "€"]},
        ]
        async with bus.persist(name) as record:
            assert dict(record) == {"f1": "v1", "f2": {"a": [1, None, "€"]}}
            record["f1"] = "changed here"
        await node.ask("p2", "load")
        assert await node.do("fedGet", **{"as": "p2", "names": ["f1"]}) == ["changed here"]


async def test_a_wrong_secret_is_reported_as_unauthorized(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    async with serving(redis_url) as (_, server), dial(server.url, secret="wrong") as node:
        with pytest.raises(PeerError, match="unauthorized"):
            await node.open("q", "queue", fresh())


async def test_the_pool_of_node_federates_its_notifications_first(
    npm: None, redis_url: str
) -> None:
    async with serving(redis_url) as (_, server):
        url = server.url
        async with dial(url) as node:
            await node.open("p", "pubsub", "anything")  # behind the pool's own, on the same sockets
            await until(lambda: server.metrics.text().count("busmq_federation_channels 2") == 1)


async def test_two_node_clients_share_a_queue_and_each_message_goes_to_one(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    async with (
        serving(redis_url) as (bus, server),
        dial(server.url) as one,
        dial(server.url) as two,
        bus.queue(fresh()) as queue,
    ):
        for node in (one, two):
            await node.queue("q", queue.name)
            await node.call("q", "consume", {"max": 50})
            await node.event("q", "consuming")
        for number in range(100):
            await queue.push(str(number))
        got = [[(await node.event("q", "message"))[1] for _ in range(50)] for node in (one, two)]
        assert sorted(got[0] + got[1]) == list(range(1, 101))
        assert all(ids == sorted(ids) for ids in got)


async def test_after_a_drop_node_comes_back_to_a_server_restarted_at_its_port(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    name, port = fresh(), lasting_port()
    async with serving(redis_url, port=port) as (_, first):
        url = first.url
        peer = await asyncio.to_thread(
            Peer, [], federate={"urls": [url], "secret": SECRET, "poolSize": 2, "replaceDelay": 100}
        )
        node = Client(peer, url)
        await node.queue("q", name, ttl=60)
        await node.call("q", "consume", {"reliable": True})
        await node.ask("q", "push", "before")
        assert await node.event("q", "message") == ["before", 1]
    try:
        await node.event("q", "federation:reconnecting")
        async with serving(redis_url, port=port):
            await node.event("q", "federation:reconnected")
            assert await node.event("q", "attached") == [True]  # the queue lived on
            assert await node.event("q", "message") == ["before", 1]  # un-acked, so it comes again
            assert await node.ask("q", "push", "after") == [None, 2]
            assert await node.event("q", "message") == ["after", 2]
        assert peer.errors == []
    finally:
        await asyncio.to_thread(peer.kill)


async def test_after_its_sockets_broke_node_goes_on_with_the_same_server(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    async with serving(redis_url) as (_, server), dial(server.url) as node:
        await node.queue("q", fresh())
        await node.call("q", "consume", {"reliable": True})
        for round_ in (1, 2, 3):
            for connection in tuple(server._connections):
                connection.abort()
            await node.event("q", "federation:reconnected")
            assert await node.ask("q", "push", f"m{round_}") == [None, round_]
            while (await node.event("q", "message"))[1] < round_:
                pass  # those before come again


async def test_messages_of_node_and_for_node_are_compressed(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    text = "a line that comes again and again\n" * 20_000
    async with serving(redis_url, compression=True) as (bus, server), dial(server.url) as node:
        name = fresh()
        await node.queue("q", name, ttl=40)
        assert all(socket.protocol.extensions for socket in server._socket_limiter.sockets), (
            "Node asks for it"
        )
        assert await node.ask("q", "push", text) == [None, 1]
        async with bus.queue(name) as queue:
            assert [message.text async for message in queue.consume(max=1)] == [text]
            await queue.push(text + "2")
        await node.call("q", "consume", {})
        assert (await node.event("q", "message"))[0] == text + "2"
