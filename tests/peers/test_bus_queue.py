"""The queues of the Python bus and of npm busmq 3.1.0, at the same time and both ways, in every
layout in which the npm package works.

In a cluster it loads each of its scripts on one arbitrary node only (protocol Q8): there it is
given every script everywhere beforehand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.queue.message import Message
from tests.bus.tools import ids, redis, until
from tests.conftest import Fresh
from tests.layouts import LAYOUTS, servers_of
from tests.peers.node import FOLDER, Peer

NPM = {
    "direct": {},
    "three": {},
    "sentinel": {"layout": "sentinels", "driver": "ioredis"},
    "cluster": {"layout": "cluster", "driver": "ioredis"},
}
TEXTS = ["plain", "", "héllo 世 😀", "line\nbreak\r\n\0 zero", "x" * 100_000]


@dataclass
class Side:
    """A Node process, and how Python reaches the same servers."""

    peer: Peer
    settings: dict[str, Any]

    def bus(self) -> Bus:
        return Bus(**self.settings)

    async def __call__(self, method: str, *args: Any, **options: Any) -> Any:
        """A call of the Node side, without stopping the loop."""
        return await asyncio.to_thread(lambda: getattr(self.peer, method)(*args, **options))


@pytest.fixture(scope="module", params=LAYOUTS)
def node(npm: None, request: pytest.FixtureRequest) -> Iterator[Side]:
    layout = request.param
    settings = servers_of(layout, request.getfixturevalue)
    with Peer(settings["url"].split(","), **NPM[layout]) as made:
        for script in (
            (FOLDER / "node_modules/busmq/lib/lua").glob("*.lua") if layout == "cluster" else ()
        ):
            for master in request.getfixturevalue("cluster_servers").masters:
                master.command("SCRIPT", "LOAD", script.read_text("utf-8").strip())
        yield Side(made, settings)
        assert made.errors == []


async def test_what_node_pushes_we_consume_in_every_mode(node: Side, fresh: Fresh) -> None:
    name = fresh()
    async with node.bus() as bus, bus.queue(name) as queue:
        assert await node("attach", name)
        assert await node("push_all", name, TEXTS) == [1, 2, 3, 4, 5]
        expected = [Message(id, text.encode()) for id, text in enumerate(TEXTS, 1)]
        assert [message async for message in queue.consume(remove=False, max=5)] == expected
        assert [message async for message in queue.consume(max=2)] == expected[:2]
        assert [message async for message in queue.consume(reliable=True, max=3)] == expected[2:]
        await queue.ack(4)
        assert [message async for message in queue.consume(reliable=True, max=1)] == expected[4:]
        await queue.ack(5)
        assert await node("count", name) == 0


async def test_a_push_by_node_wakes_a_consumer_of_ours(node: Side, fresh: Fresh) -> None:
    name = fresh()
    async with node.bus() as bus, bus.queue(name) as queue:
        await node("attach", name)
        seen: list[str] = []
        queue.each(lambda message: seen.append(message.text))
        await until(lambda: queue.consuming)
        for n in range(5):
            await node("push", name, f"m{n}")
            await until(lambda: len(seen) == n + 1)  # noqa: B023  # waited for right here
        assert seen == [f"m{n}" for n in range(5)]


async def test_what_we_push_node_consumes_as_it_comes(node: Side, fresh: Fresh) -> None:
    name = fresh()
    assert not await node("attach", name)
    async with node.bus() as bus, bus.queue(name) as queue:
        await queue.push_many(TEXTS)
        await node("consume", name)
        assert await node("received", name, 5) == list(enumerate(TEXTS, 1))
        assert await queue.push({"n": [1, None]}) == 6
        await queue.push_many(range(2000))
        got = await node("received", name, 2001)
        assert got == [(6, '{"n":[1,null]}'), *((n + 7, str(n)) for n in range(2000))]
        await node("stop", name)


async def test_reliable_consumers_hand_over_from_node_to_us_and_back(
    node: Side, fresh: Fresh
) -> None:
    name = fresh()
    await node("attach", name)
    async with node.bus() as bus, bus.queue(name) as queue:
        await queue.push_many("abcdef")
        await node("consume", name, reliable=True)
        assert ids([Message(id, b"") for id, _ in await node("received", name, 6)]) == [
            1,
            2,
            3,
            4,
            5,
            6,
        ]
        await node("ack", name, 2)
        await node("stop", name)
        consumption = queue.consume(reliable=True)
        assert [(await anext(consumption)).id for _ in range(2)] == [3, 4]
        await queue.ack(3)
        await queue.stop()
        await node("consume", name, reliable=True, last=0)
        assert [id for id, _ in await node("received", name, 3)] == [4, 5, 6]
        await node("ack", name, 6)
        await node("stop", name)
        assert await redis(queue, "EXISTS", queue.keys.toack, queue.keys.messages) == 0


async def test_metadata_ttl_and_end_are_shared(node: Side, fresh: Fresh) -> None:
    theirs, ours = fresh(), fresh()
    await node("attach", theirs, ttl=44, maxsize=2)
    async with node.bus() as bus:
        async with bus.queue(theirs) as queue:
            assert (queue.ttl_s, await queue.maxsize(), await queue.find()) == (44, 2, "local")
            await queue.set_metadata({"mine": "x"})
            assert (await node("metadata", theirs))["mine"] == "x"
            await node("close", theirs)
            assert not await queue.exists()
        queue = bus.queue(ours)
        await queue.attach(ttl_s=55, maxsize=7)
        assert await node("attach", ours)
        assert await node("ttl", ours) == 55
        found = await node("metadata", ours)
        assert {name: found[name] for name in ("ttl", "source", "discover", "maxsize")} == {
            "ttl": "55",
            "source": "local",
            "discover": "false",
            "maxsize": "7",
        }
        await queue.flush()
        await queue.delete()
        assert not await node("exists", ours)


async def test_discoverable_queues_are_announced_alike_and_received_by_the_other(
    node: Side, fresh: Fresh
) -> None:
    ours, theirs = fresh("disc-é"), fresh("disc")
    await asyncio.to_thread(node.peer.call, "pubsubSubscribe", name="bus:notifications")
    async with node.bus() as bus:
        heard: list[bytes | None] = []
        await bus.servers.pubsub[0].subscribe("bus:pubsub:bus:notifications", heard.append)
        queue = bus.queue(ours)
        await queue.attach(ttl_s=3, discoverable=True)
        told = f'{{"event":"queue","key":"{queue.keys.metadata}","ttl":3}}'
        while await asyncio.to_thread(node.peer.event, "bus:notifications", "message") != [told]:
            continue
        await node("attach", theirs, ttl=3, discoverable=True)
        wanted = f'{{"event":"queue","key":"{bus.queue(theirs).keys.metadata}","ttl":3}}'.encode()
        await until(lambda: wanted in heard)
        await node("detach", theirs)
    await asyncio.to_thread(node.peer.call, "pubsubUnsubscribe", name="bus:notifications")


async def test_node_reads_events_and_commands_as_text_and_pushes_beside_them(
    node: Side, fresh: Fresh
) -> None:
    key, name = fresh("k"), fresh()
    async with node.bus() as bus:
        await bus.subscribe([key], into=name)
        await bus.publish([key], {"user": 7}, id="e1")
        await bus.send(name, "do it", id="c1")
        await node("attach", name)
        assert await node("push", name, "of Node") == 3
        await node("consume", name, reliable=True)
        texts = [text for _, text in await node("received", name, 3)]
        assert [json.loads(text)["id"] for text in texts[:2]] == ["e1", "c1"]
        assert texts[2] == "of Node"
        assert (await node("metadata", name))["command"] == "1"
        await node("ack", name, 3)
        await node("stop", name)
        assert await node("count", name) == 0
        assert await bus.forget(name) == 1
