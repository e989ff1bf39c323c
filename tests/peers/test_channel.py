"""A channel between npm busmq 3.1.0 and this package, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, channel_queue
from busmq_spark.redis_io.sync_link import SyncLink
from tests.bus.channels import TEXTS, Seen
from tests.bus.test_channel_reliable import next_texts
from tests.conftest import Fresh
from tests.peers.node import Peer
from tests.support import wait_until


class NodeSide:
    """npm's channel, called without blocking our loop, which has to answer meanwhile."""

    def __init__(
        self, peer: Peer, name: str, as_: str = "", roles: tuple[str, str] | None = None
    ) -> None:
        self.peer, self.name, self.as_ = peer, name, as_ or name
        self.roles = dict(zip(("local", "remote"), roles or (), strict=False))

    async def made(self) -> NodeSide:
        await self.ask("channel", name=self.name, **self.roles)
        return self

    async def ask(self, op: str, **arguments: Any) -> Any:
        return await asyncio.to_thread(self.peer.call, op, **{"as": self.as_, **arguments})

    async def open(self, how: str, **options: Any) -> None:
        await self.ask("channelOpen", how=how, options=options)

    async def leave(self, how: str) -> None:
        await self.ask("channelLeave", how=how)

    async def send(self, message: str) -> int:
        return int(await self.ask("channelSend", message=message))

    async def sees(self, event: str) -> list[Any]:
        return await asyncio.to_thread(self.peer.event, self.as_, event)

    async def messages(self, many: int) -> list[tuple[int, str]]:
        return [tuple(await self.sees("message")) for _ in range(many)]


@pytest.fixture
def peer(node: Peer) -> Peer:
    """On every layout; ``node`` is npm's channel here."""
    return node


@asynccontextmanager
async def both(peer: Peer, place: dict[str, Any], name: str) -> AsyncIterator[tuple[Bus, NodeSide]]:
    async with Bus(**place) as bus:
        yield bus, await NodeSide(peer, name).made()


@pytest.mark.parametrize("ours", ["connect", "listen"])
@pytest.mark.parametrize("first", ["we", "node"])
async def test_both_see_each_other_and_talk_in_either_order_of_connecting(
    peer: Peer, place: dict[str, Any], fresh: Fresh, first: str, ours: str
) -> None:
    theirs = "listen" if ours == "connect" else "connect"
    async with both(peer, place, fresh()) as (bus, node):
        channel = bus.channel(node.name)
        seen = Seen(channel)
        if first == "node":
            await node.open(theirs)
        await getattr(channel, ours)()
        if first == "we":
            await node.open(theirs)
        await node.sees("remote:connect")
        await seen.exactly("connect", "remote_connect")
        ids = [await node.send(text) for text in TEXTS]
        await seen.exactly(*zip(ids, TEXTS, strict=True))
        ids = [await channel.send(text) for text in TEXTS]
        assert await node.messages(len(TEXTS)) == list(zip(ids, TEXTS, strict=True))
        await channel.end()
        await node.sees("disconnect")
        await node.sees("end")


async def test_each_sees_the_other_leave_and_come_back(
    peer: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    async with both(peer, place, fresh()) as (bus, node):
        channel = bus.channel(node.name)
        seen = Seen(channel)
        await channel.connect()
        await node.open("listen")
        await node.sees("remote:connect")
        await seen.exactly("connect", "remote_connect")
        await channel.disconnect()
        await node.sees("remote:disconnect")
        sent = await node.send("while away")
        await seen.exactly("disconnect")
        await channel.connect()
        await seen.exactly("connect", "remote_connect", (sent, "while away"))
        await node.sees("remote:connect")
        await node.leave("disconnect")
        await seen.exactly("remote_disconnect")
        sent = await channel.send("you were away")
        again = await NodeSide(
            peer, node.name, f"{node.name} again"
        ).made()  # a channel object of npm's swaps its roles when it listens again (Q9)
        await again.open("listen")
        await again.sees("remote:connect")
        assert await again.messages(1) == [(sent, "you were away")]
        await seen.exactly("remote_connect")
        await again.leave("end")
        await seen.exactly("disconnect", "end")
        assert not channel.connected


async def test_sending_to_a_role_works_both_ways(
    peer: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    async with both(peer, place, fresh()) as (bus, node):
        assert await node.ask("channelSendTo", endpoint="server", message="from node") == 1
        channel = bus.channel(node.name, "server", "client")
        seen = Seen(channel)
        await channel.connect()
        await seen.exactly("connect", (1, "from node"))
        client = await NodeSide(peer, node.name, f"{node.name} client", ("client", "server")).made()
        assert await bus.channel(node.name).send_to("client", "from python") == 2
        await client.open("connect")
        assert await client.messages(1) == [(2, "from python")]
        await client.leave("disconnect")


async def test_a_killed_node_reader_is_followed_by_one_that_gets_the_rest_in_order(
    npm: None, redis_url: str, link: SyncLink, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, await bus.channel(name := fresh()).connect() as channel:
        with Peer([redis_url]) as killed:
            node = await NodeSide(killed, name).made()
            await node.open("listen", reliable=True)
            for n in range(2, 7):
                await channel.send(f"é{n}")
            assert await node.messages(5) == [(n, f"é{n}") for n in range(2, 7)]
            await node.ask("channelAck", last=3)
            keys = QueueKeys(channel_queue("remote", name))
            # npm does not tell when an ack is done (Q2).
            await asyncio.to_thread(
                wait_until, lambda: link.execute(command("LLEN", keys.toack)) == 6, 20
            )
            await asyncio.to_thread(killed.kill)
        await channel.send("late")
        with Peer([redis_url]) as second:
            node = await NodeSide(second, name).made()
            await node.open("listen", reliable=True)
            assert await node.messages(4) == [(4, "é4"), (5, "é5"), (6, "é6"), (7, "late")]
            await node.leave("disconnect")


async def test_what_a_killed_node_has_sent_arrives_and_its_coming_back_acks_nothing(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        channel = bus.channel(name := fresh())
        await channel.listen(reliable=True)
        for life in range(2):
            with Peer([redis_url]) as peer:
                node = await NodeSide(peer, name).made()
                await node.open("connect")
                await node.send(f"{life} a")
                await node.send(f"{life} b")
                await asyncio.to_thread(peer.kill)
        assert await next_texts(channel, 4) == ["0 a", "0 b", "1 a", "1 b"]
        await channel.disconnect()
        await channel.listen(reliable=True)
        assert await next_texts(channel, 4) == ["0 a", "0 b", "1 a", "1 b"]
        await channel.ack(6)
        await channel.end()


async def test_node_reads_what_we_keep_and_we_read_what_node_keeps(
    peer: Peer,
    place: dict[str, Any],
    fresh: Fresh,
) -> None:
    """Both read the same frames from their own place, and remove none."""
    async with both(peer, place, fresh()) as (bus, node):
        sender = await bus.channel(node.name).connect()
        for text in "abc":
            await sender.send(text)
        reader = bus.channel(node.name)
        await reader.listen(remove=False, index=2)
        await node.open("listen", remove=False, index=2)
        assert await next_texts(reader, 2) == ["b", "c"]
        assert await node.messages(2) == [(3, "b"), (4, "c")]
        await sender.send("d")
        assert await next_texts(reader, 1) == ["d"]
        assert await node.messages(1) == [(5, "d")]
        async with bus.queue(channel_queue("remote", node.name)) as queue:
            assert await queue.count() == 5


@pytest.mark.parametrize("reliable", [False, True])
async def test_max_leaves_the_same_rest_whoever_reads_first(
    peer: Peer,
    place: dict[str, Any],
    fresh: Fresh,
    *,
    reliable: bool,
) -> None:
    async with both(peer, place, fresh()) as (bus, node):
        sender = await bus.channel(node.name).connect()  # frame 1
        for text in "abcd":
            await sender.send(text)
        await node.open("listen", max=2, reliable=reliable)
        assert await node.messages(1) == [(2, "a")]
        async with bus.queue(channel_queue("remote", node.name)) as queue:
            while await queue.count() > 3:  # noqa: ASYNC110  # npm does not say that it has ended
                await asyncio.sleep(0.01)
        ours = bus.channel(node.name)
        await ours.listen(max=2, reliable=reliable, last=2 if reliable else 0)
        async with asyncio.timeout(20):
            assert [message.text async for message in ours] == ["b", "c"]
        async with bus.queue(channel_queue("remote", node.name)) as queue:
            assert await queue.count() == 1
