"""Queues that are announced across a link: npm's buses learn where ours are (protocol 1.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.federation.serve.server import FederationServer
from tests.conftest import Fresh
from tests.peers.node import Peer
from tests.peers.test_federation_server import SECRET, serving


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[EmbeddedRedis]:
    """The Redis of the other data centre."""
    with EmbeddedRedis() as server:
        yield server


async def federating(elsewhere: EmbeddedRedis, url: str) -> Peer:
    """An npm bus there that federates to ours, and receives its notifications."""
    return await asyncio.to_thread(
        Peer, [elsewhere.url], federate={"urls": [url], "secret": SECRET, "poolSize": 1}
    )


async def found(peer: Peer, name: str, source: str | None) -> None:
    """Returns when the peer's bus says that the queue is there."""
    async with asyncio.timeout(60):
        while (said := await asyncio.to_thread(peer.call, "find", queue=name)) != source:
            assert said is None
            await asyncio.sleep(0.02)


async def test_an_npm_bus_finds_our_discoverable_queue_and_then_uses_it(
    npm: None, redis_url: str, elsewhere: EmbeddedRedis, fresh: Fresh
) -> None:
    async with serving(redis_url) as (bus, server):
        peer = await federating(elsewhere, server.url)
        try:
            hidden, shown = bus.queue(fresh("hidden")), bus.queue(fresh("shown"))
            await hidden.attach(ttl_s=6)
            await shown.attach(ttl_s=6, discoverable=True)
            await found(peer, shown.name, server.url)
            assert await asyncio.to_thread(peer.call, "find", queue=hidden.name) is None
            assert await asyncio.to_thread(peer.exists, shown.name)
            await asyncio.to_thread(
                peer.call,
                "federate",
                **{"as": "q", "type": "queue", "args": [shown.name], "url": server.url},
            )
            await asyncio.to_thread(
                peer.call, "fedCall", **{"as": "q", "method": "attach", "args": [{}]}
            )
            assert await asyncio.to_thread(
                peer.call, "fedAsk", **{"as": "q", "method": "push", "args": ["from there"]}
            ) == [None, 1]
            assert (await anext(shown.consume())).text == "from there"
        finally:
            await asyncio.to_thread(peer.kill)


async def test_a_queue_that_a_federated_client_attaches_is_announced_to_others(
    npm: None, redis_url: str, elsewhere: EmbeddedRedis, fresh: Fresh
) -> None:
    async with serving(redis_url) as (_, server):
        peer = await federating(elsewhere, server.url)
        other = await asyncio.to_thread(
            Peer, [], federate={"urls": [server.url], "secret": SECRET, "poolSize": 1}
        )
        try:
            name = fresh()
            await asyncio.to_thread(
                other.call,
                "federate",
                **{"as": "q", "type": "queue", "args": [name], "url": server.url},
            )
            await asyncio.to_thread(
                other.call,
                "fedCall",
                **{"as": "q", "method": "attach", "args": [{"discoverable": True, "ttl": 6}]},
            )
            await found(
                peer, name, server.url
            )  # the first word may come before it listens; every touch says it again
            assert await asyncio.to_thread(
                other.call, "fedAsk", **{"as": "q", "method": "find", "args": []}
            ) == [None, "local"]
        finally:
            await asyncio.to_thread(peer.kill)
            await asyncio.to_thread(other.kill)


async def test_what_a_peer_may_not_use_it_does_not_hear_of(
    npm: None, redis_url: str, elsewhere: EmbeddedRedis, fresh: Fresh
) -> None:
    keyring = Keyring({"peer": (SECRET, Grants.parse({"read": ["queue:mine-*"]}, "test"))})
    async with Bus(redis_url) as bus, FederationServer(bus, keyring) as server:
        peer = await federating(elsewhere, server.url)
        try:
            theirs, mine = bus.queue(fresh("theirs")), bus.queue(fresh("mine"))
            for queue in (theirs, mine):
                await queue.attach(ttl_s=6, discoverable=True)
            await found(peer, mine.name, server.url)
            assert await asyncio.to_thread(peer.call, "find", queue=theirs.name) is None
        finally:
            await asyncio.to_thread(peer.kill)
