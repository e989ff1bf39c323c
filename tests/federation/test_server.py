"""The federation server, word by word (protocol 5.10)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost
from busmq_spark.federation import error_codec
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.npm_wire.channels import (
    METHODS_OF_TYPE,
    ObjectCreationMessage,
    ObjectType,
    make_creation,
)
from busmq_spark.federation.npm_wire.dnode import DnodeCallbackRef, DnodeMessage, methods_message
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import UNTIL_S, until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.tools import SECRET, Wire

STRANGE = b'{"type":"queue","methods":["push","on","fly","attach"],"args":["%b"]}'


def idle(bus: Bus) -> bool:
    """Whether no object of the bus is attached."""
    return not bus._objects


async def test_a_queue_attached_pushed_to_and_consumed(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.listen(
            "attaching", "attached", "consuming", "message", "detaching", "detached", "error"
        )
        await queue.send("attach", {"ttl": 30})
        assert await queue.call("push", "hello") == [None, 1]
        assert await queue.call("push", {"a": 1, "ü": "€"}) == [None, 2]
        await queue.send("push", "noret")
        await queue.send("consume", {"reliable": True})
        assert [await queue.event("message") for _ in range(3)] == [
            ["hello", 1],
            ['{"a":1,"ü":"€"}', 2],
            ["noret", 3],
        ]
        await queue.send("ack", 2)
        assert await queue.call("count") == [None, 0]
        assert await queue.call("exists") == [None, True]
        assert await queue.call("ttl") == [None, 30]
        assert await queue.call("isAttached") == [True]
        await queue.send("stop")
        await queue.send("detach")
        await queue.event("detached")
        assert [name for name, _ in queue.heard] == [
            "attaching",
            "attached",
            "consuming",
            "consuming",
            "detaching",
        ]
        assert queue.heard[1:4] == [
            ("attached", [False]),
            ("consuming", [True]),
            ("consuming", [False]),
        ]


# -- opening a channel -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", METHODS_OF_TYPE)
async def test_ready_comes_alone_then_the_methods_in_the_order_asked_for(
    federation: Serve, fresh: Fresh, kind: ObjectType
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        channel, methods = wire.channel(), METHODS_OF_TYPE[kind][::-1]
        await wire.send(channel, ObjectCreationMessage(kind, methods, [fresh()]).encode())
        assert [await wire.next(channel), await wire.next(channel)] == [
            b"ready",
            methods_message(methods).encode(),
        ]


async def test_an_unknown_method_gets_its_number_and_is_refused_when_called(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        channel = wire.channel()
        await wire.send(channel, STRANGE % fresh().encode())
        assert [await wire.next(channel), await wire.next(channel)] == [
            b"ready",
            methods_message(["push", "on", "fly", "attach"]).encode(),
        ]
        await wire.send(
            channel,
            b'{"method":2,"arguments":[{"0":"[Function]"}],"callbacks":{"7":["0","0"]},"links":[]}\n',
        )
        refused = await wire.next(channel)
        assert refused is not None
        line = DnodeMessage.decode(refused)
        assert (line.method, line.arguments[0]["code"]) == (7, "BUSMQ_FEDERATION_REFUSED")
        await wire.send(
            channel,
            b'{"method":3,"arguments":[{}]}\n{"method":"push","arguments":[{"0":"by'
            b' name","1":"[Function]"}],"callbacks":{"8":["0","1"]}}\n',
        )
        assert await wire.next(channel) == DnodeMessage(8, [None, 1]).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"ready",
        b'{"type":"disconnect","methods":[],"args":[]}',
        b'{"type":"queue","methods":["on"],"args":[{}]}',
    ],
)
async def test_a_bad_creation_message_ends_its_channel_and_no_other(
    federation: Serve, fresh: Fresh, body: bytes
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue, channel = await wire.open("queue", fresh()), wire.channel()
        await wire.send(channel, body)
        assert await wire.next(channel) is None
        await wire.send(
            channel, make_creation("queue", fresh()).encode()
        )  # late data of a channel that is closed
        assert await queue.call("isAttached") == [False]
        assert wire.got[channel].empty()


async def test_a_bad_line_ends_its_channel_detaches_its_object_and_harms_no_other(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), Wire(server) as wire:
        bad, good = await wire.open("queue", fresh()), await wire.open("queue", fresh())
        await bad.listen("attached")
        await bad.send("attach")
        await bad.event("attached")
        await wire.send(bad.channel, b'{"method":1,"arguments":[NaN]}\n')
        assert await wire.next(bad.channel) is None
        await until(lambda: idle(bus))
        assert await good.call("isAttached") == [False]


@pytest.mark.parametrize(
    ("message", "code"),
    [("text", 1002), (b"short", 1002), (b"0123456789abcdef9x", 1002), (b"0123456789abcdef1", 1002)],
)
async def test_what_is_no_packet_ends_the_socket_and_the_server_goes_on(
    federation: Serve, fresh: Fresh, message: Any, code: int
) -> None:
    async with federation() as (_, server), Wire(server) as wire, Wire(server) as other:
        await wire.socket.send(message)
        await wire.socket.wait_closed()
        assert wire.socket.protocol.close_code == code
        assert await (await other.open("queue", fresh())).call("isAttached") == [False]


# -- calls -----------------------------------------------------------------------------------------


async def test_calls_that_do_not_wait_are_executed_in_their_order(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue, results = await wire.open("queue", fresh()), []
        await queue.listen("detached", "error")
        for name in (
            "attach",
            "push",
            "count",
            "push",
            "count",
            "flush",
            "count",
            "push",
            "detach",
        ):
            given = {"push": ["x"], "attach": [{}]}.get(name, [])
            ear = (
                []
                if name in ("attach", "detach")
                else [lambda *values, name=name: results.append((name, values[1]))]
            )
            await queue.send(name, *given, *ear)
        await queue.event("detached")
        assert results == [
            ("push", 1),
            ("count", 1),
            ("push", 2),
            ("count", 2),
            ("flush", 1),
            ("count", 0),
            ("push", 3),
        ]
        assert queue.heard == []


async def test_a_thousand_pushes_at_once_are_stored_and_answered_in_order(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), Wire(server) as wire:
        queue, results = await wire.open("queue", fresh()), []
        await queue.send("attach", {})
        for number in range(1000):
            await queue.send("push", str(number), lambda *values: results.append(values))
        while len(results) < 1000:
            await queue.step()
        assert results == [(None, id) for id in range(1, 1001)]
        async with bus.queue(queue.name) as stored:
            assert [message.text async for message in stored.consume(max=1000)] == [
                str(number) for number in range(1000)
            ]


async def test_what_is_called_before_attaching_waits_for_it(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.listen("message")
        await queue.send("consume", {})
        await queue.send("push", "early")
        await queue.send("attach", {})
        assert await queue.event("message") == ["early", 1]


async def test_once_is_called_once_and_several_listeners_all(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue, once = await wire.open("queue", fresh()), []
        await queue.send("attach", {})
        await queue.send("once", "message", lambda *values: once.append(values))
        await queue.listen("message", "message")
        await queue.send("consume", {})
        for text in ("a", "b"):
            await queue.send("push", text)
        assert [await queue.event("message") for _ in range(4)] == [
            ["a", 1],
            ["a", 1],
            ["b", 2],
            ["b", 2],
        ]
        assert once == [("a", 1)]


async def test_an_error_without_a_listener_is_dropped(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        for _ in range(2):
            await queue.send("attach", {})
        await queue.send("close")
        await queue.send("close")
        assert await queue.call("isAttached") == [False]
        await queue.listen("error")
        await queue.send("close")
        assert "not attached" in (await queue.event("error"))[0]


BAD_CALLS: list[tuple[str, list[Any]]] = [
    ("attach", [{"ttl": -1}]),
    ("attach", [{"ttl": "soon"}]),
    ("push", []),
    ("consume", [{"max": 1.5}]),
    ("consume", [{"reliable": True, "remove": False}]),
    ("consume", [{"remove": False, "index": -1}]),
    ("ack", ["x"]),
    ("ack", []),
    ("metadata", ["ttl", "5"]),
    ("metadata", [["x"]]),
    ("on", [5]),
]


@pytest.mark.parametrize(("method", "arguments"), BAD_CALLS)
async def test_a_bad_call_is_answered_and_changes_nothing(
    federation: Serve, fresh: Fresh, method: str, arguments: list[Any]
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.listen("error")
        if method != "attach":
            await queue.send("attach", {})
        [error] = await queue.call(method, *arguments)
        assert error["code"].startswith("BUSMQ_")
        assert error["message"]
        assert (await queue.call("pushed")) == [None, 0]


async def test_a_number_that_json_has_no_word_for_is_refused(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.send("attach", {})
        await wire.send(
            queue.channel,
            b'{"method":13,"arguments":[{"0":[1e400],"1":"[Function]"}],"callbacks":{"99":["0","1"]},"links":[]}\n',
        )
        body = await wire.next(queue.channel)
        assert body is not None
        assert DnodeMessage.decode(body).arguments[0]["code"] == "BUSMQ_MESSAGE_REFUSED"


async def test_unknown_numbers_names_and_culled_functions_are_ignored(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        for line in (
            b'{"method":77,"arguments":[{}]}',
            b'{"method":"fly","arguments":[{}]}',
            b'{"method":"cull","arguments":[0,"x"]}',
        ):
            await wire.send(queue.channel, line + b"\n")
        await wire.send(
            queue.channel, b'{"method":"methods","arguments":[{}],"callbacks":{},"links":[]}\n'
        )
        assert await queue.call("isAttached") == [False]


async def test_a_line_over_several_packets_and_several_lines_in_one(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.send("attach", {})
        lines = (
            '{"method":13,"arguments":[{"0":"é😀"}]}\n'
            '{"method":11,"arguments":[{"0":"[Function]"}],"callbacks":{"5":["0","0"]}}\n'
        ).encode()
        for start in range(0, len(lines), 7):
            await wire.send(queue.channel, lines[start : start + 7])
        assert await wire.next(queue.channel) == DnodeMessage(5, [None, 1]).encode()


async def test_text_that_is_no_character_is_stored_as_node_would(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.send("attach", {})
        await wire.send(
            queue.channel,
            b'{"method":13,"arguments":[{"0":"half \\ud800 a'
            b' pair","1":"[Function]"}],"callbacks":{"5":["0","1"]}}\n',
        )
        assert await wire.next(queue.channel) == DnodeMessage(5, [None, 1]).encode()
        async with bus.queue(queue.name) as stored:
            assert (await anext(stored.consume())).text == "half � a pair"


# -- ends ------------------------------------------------------------------------------------------


async def test_whatever_is_attached_is_detached_when_its_channel_closes(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), Wire(server) as wire:
        queue, chat, news = (
            await wire.open("queue", fresh()),
            await wire.open("channel", fresh()),
            await wire.open("pubsub", fresh()),
        )
        for thing, begin, done in (
            (queue, "attach", "attached"),
            (chat, "connect", "connect"),
            (news, "subscribe", "subscribed"),
        ):
            await thing.listen(done)
            await thing.send(begin)
            await thing.event(done)
        await queue.send("consume", {"reliable": True})
        assert not idle(bus)
        for thing in (queue, chat, news):
            for _ in range(3):  # npm clients say it two or three times
                await thing.close()
            await thing.send("attach")  # late: ignored
        await until(lambda: idle(bus))
        assert await (await wire.open("queue", fresh())).call("isAttached") == [False]
        got = [wire.got[each.channel] for each in (queue, chat, news)]
        assert [each.qsize() for each in got] == [0, 0, 0]


async def test_whatever_is_attached_is_detached_when_the_socket_breaks(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server):
        async with Wire(server) as wire:
            for name in (fresh(), fresh()):
                queue = await wire.open("queue", name)
                await queue.listen("consuming")
                await queue.send("attach")
                await queue.send("consume", {})
                await queue.event("consuming")
            wire.socket.transport.abort()
            await until(lambda: idle(bus))
        await until(lambda: not server._connections)


async def test_stopping_the_server_closes_sockets_as_going_away_and_detaches(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        async with AsyncExitStack() as stack:
            async with FederationServer(bus, Keyring.single(SECRET)) as server:
                wire = await stack.enter_async_context(Wire(server))
                queue = await wire.open("queue", fresh())
                await queue.listen("attached")
                await queue.send("attach")
                await queue.event("attached")
            assert idle(bus)
            await wire.socket.wait_closed()
            assert wire.socket.protocol.close_code == 1001
        assert await bus.queue(queue.name).exists()


async def test_a_throttled_consumption_can_be_stopped_and_begun_again(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue, nexts = await wire.open("queue", fresh()), []
        await queue.listen("message", "consuming")
        await queue.send("attach")
        await queue.send("consume", {"throttle": nexts.append})
        await queue.event("consuming")
        await queue.call("count")  # the first drain has found nothing
        await queue.send("push", "held")
        while not nexts:
            await queue.step()
        assert isinstance(nexts[0], DnodeCallbackRef)
        await queue.send("stop")
        await queue.event("consuming")
        [session] = next(iter(server._connections))._sessions.values()
        await until(lambda: not session._tasks)
        await queue.invoke(nexts[0])  # too late
        await queue.send("consume", {})
        assert await queue.event("message") == ["held", 1]


async def test_a_consumer_that_does_not_wait_for_another_reliable_one_gets_an_error(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire, Wire(server) as other:
        name = fresh()
        first, second = await wire.open("queue", name), await other.open("queue", name)
        for queue in (first, second):
            await queue.listen("consuming", "message", "error")
            await queue.send("attach")
        await first.send("push", "x")
        await first.send("consume", {"reliable": True})
        assert await first.event("message") == ["x", 1]
        await second.send("consume", {"reliable": True, "wait": False})
        assert "reliable consumer already" in (await second.event("error"))[0]
        await second.send("consume", {"reliable": True})
        await first.close()
        assert await second.event("message") == ["x", 1]  # not acked, so the next consumer gets it


async def test_no_secret_is_logged(
    federation: Serve, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with federation() as (_, server), Wire(server) as wire:
        await wire.send(wire.channel(), b"nonsense")
        await wire.open("queue", fresh())
    ours = [record for record in caplog.records if not record.name.startswith("websockets.client")]
    assert ours
    assert "correct-horse" not in "\n".join(record.getMessage() for record in ours)


async def test_what_is_called_while_redis_is_away_is_answered_and_consuming_goes_on(
    fresh: Fresh,
) -> None:
    with EmbeddedRedis() as redis:
        async with (
            Bus(redis.url) as bus,
            FederationServer(bus, Keyring.single(SECRET)) as server,
            Wire(server) as wire,
        ):
            queue = await wire.open("queue", fresh())
            await queue.listen("message", "error", "consuming")
            await queue.send("attach", {"ttl": 60})
            await queue.send("consume", {})
            await queue.event("consuming")
            redis.kill()
            await queue.send(
                "push", "doubtful", lambda *values: queue.heard.append(("pushed", list(values)))
            )
            redis.restart()
            answer = await queue.event("pushed")
            assert answer in ([error_codec.error_to_wire(LinkLost(url="", reason=""))], [None, 1])
            assert (await queue.call("push", "stored"))[0] is None
            while (await queue.event("message"))[0] != "stored":
                pass
            assert {text for name, [text] in queue.heard if name == "error"} <= {
                f"[BUSMQ_LINK_LOST] {error_codec.REDIS_UNREACHABLE_REASON}"
            }


async def test_a_server_leaves_although_redis_is_away(fresh: Fresh) -> None:
    with EmbeddedRedis() as redis:
        async with Bus(redis.url) as bus, asyncio.timeout(UNTIL_S):
            async with (
                FederationServer(
                    bus, Keyring.single(SECRET), limits=PeerLimits(close_s=0.3)
                ) as server,
                Wire(server) as wire,
            ):
                queue = await wire.open("queue", fresh())
                await queue.listen("consuming")
                await queue.send("attach")
                await queue.send("consume", {"reliable": True})
                await queue.event("consuming")
                redis.kill()
            assert not server._connections
