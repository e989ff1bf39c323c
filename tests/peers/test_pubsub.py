"""Pubsub between npm busmq 3.1.0 and this package, both ways."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedStandaloneServers
from tests.conftest import Fresh
from tests.peers.node import Peer

TEXTS = ["plain", "", "héllo 世 😀", "line\nbreak\r\n\0 zero", "x" * 1_000_000]
VALUES: list[tuple[Any, str]] = [
    ({"a": [1, None]}, '{"a":[1,null]}'),
    ([], "[]"),
    (None, "null"),
    (7, "7"),
    (True, "true"),
]


async def test_what_node_publishes_we_hear(node: Peer, place: dict[str, Any], fresh: Fresh) -> None:
    name = fresh()
    async with Bus(**place) as bus, bus.pubsub(name) as pubsub:
        messages = aiter(pubsub)
        for value, text in [*((text, text) for text in TEXTS), *VALUES]:
            await asyncio.to_thread(node.call, "pubsubPublish", name=name, message=value)
            assert (await anext(messages)).text == text


async def test_what_we_publish_node_receives_until_it_unsubscribes(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh()
    await asyncio.to_thread(node.call, "pubsubSubscribe", name=name)
    async with Bus(**place) as bus:
        pubsub = bus.pubsub(name)
        for value, text in [*((text, text) for text in TEXTS), *VALUES]:
            await pubsub.publish(value)
            assert await asyncio.to_thread(node.event, name, "message") == [text]
        await asyncio.to_thread(node.call, "pubsubUnsubscribe", name=name)
        await pubsub.publish("nobody")
        await asyncio.to_thread(node.call, "pubsubPublish", name=fresh(), message="a way back")
        assert node.no_event(name, "message")


@pytest.fixture
def peer_of_three(npm: None, three_servers: EmbeddedStandaloneServers) -> Any:
    with Peer(three_servers.urls) as made:
        yield made


async def test_with_three_servers_both_meet_on_the_first(
    peer_of_three: Peer, three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    for _ in range(6):  # names of every hash
        name = fresh()
        await asyncio.to_thread(peer_of_three.call, "pubsubSubscribe", name=name)
        async with Bus(",".join(three_servers.urls)) as bus, bus.pubsub(name) as pubsub:
            await pubsub.publish("from here")
            await asyncio.to_thread(
                peer_of_three.call, "pubsubPublish", name=name, message="from there"
            )
            assert [
                await asyncio.to_thread(peer_of_three.event, name, "message") for _ in range(2)
            ] == [["from here"], ["from there"]]
            messages = aiter(pubsub)
            assert [(await anext(messages)).text for _ in range(2)] == ["from here", "from there"]
