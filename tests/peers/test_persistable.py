"""Persisted objects shared by npm busmq 3.1.0 and this package, both ways."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedStandaloneServers
from busmq_spark.queue.command_generators import command
from tests.conftest import Fresh
from tests.peers.node import Peer

VALUES: dict[str, Any] = {
    "text": "v1",
    "empty": "",
    "wide": "héllo 世 😀",
    "quote": 'a "b" \\ \n',
    "half": "\ud800",
    "number": 2,
    "real": 1.5,
    "large": 1e21,
    "flag": True,
    "none": None,
    "nested": {"a": [1, {"b": None}]},
    "list": [],
}


@dataclass
class Job:
    status: str = "new"
    share: float = 0.0
    tags: list[str] = field(default_factory=list)


async def call(peer: Peer, op: str, **arguments: Any) -> Any:
    return await asyncio.to_thread(peer.call, op, **arguments)


async def execute(bus: Bus, word: str, key: str, *rest: str) -> Any:
    """A command on the server that has the key."""
    return await bus.servers.commands[await bus.servers.locate(key)].execute(
        command(word, key, *rest)
    )


async def test_what_node_saves_we_load(node: Peer, place: dict[str, Any], fresh: Fresh) -> None:
    name = fresh()
    await call(node, "persistMake", name=name, attributes=list(VALUES))
    await call(node, "persistSet", name=name, values=VALUES)
    await call(node, "persistSave", name=name)
    async with Bus(**place) as bus:
        thing = bus.persist(name)
        assert await thing.load()
        assert dict(thing) == VALUES


async def test_what_we_save_node_loads_and_our_bytes_are_its_bytes(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    ours, theirs = fresh(), fresh()
    async with Bus(**place) as bus:
        thing, other = bus.persist(ours), bus.persist(theirs)
        thing.update(VALUES)
        await thing.save()
        for name in (ours, theirs):
            await call(node, "persistMake", name=name, attributes=list(VALUES))
        assert await call(node, "persistLoad", name=ours) is True
        assert await call(node, "persistGet", name=ours, attributes=list(VALUES)) == list(
            VALUES.values()
        )
        await call(node, "persistSet", name=theirs, values=VALUES)
        await call(node, "persistSave", name=theirs)
        stored = [await execute(bus, "HGETALL", each.key) for each in (thing, other)]
        mine, his = (dict(zip(reply[0::2], reply[1::2], strict=True)) for reply in stored)
        assert mine == his


async def test_both_change_different_fields_of_one_object(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh()
    await call(node, "persistMake", name=name, attributes=["status", "share", "mine"])
    async with Bus(**place) as bus:
        job = bus.persist(name, Job("ready"))
        await job.save()
        await call(node, "persistSet", name=name, values={"share": 1, "mine": "only Node knows it"})
        await call(node, "persistSave", name=name)
        job.value.tags.append("ours")
        assert await job.load()
        await job.save()
        assert job.value == Job("ready", 1.0, ["ours"])
        await call(node, "persistLoad", name=name)
        assert await call(
            node, "persistGet", name=name, attributes=["status", "share", "mine"]
        ) == ["ready", 1, "only Node knows it"]


async def test_what_node_breaks_with_undefined_we_load_and_mend(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    name = fresh()
    async with Bus(**place) as bus:
        thing = bus.persist(name)
        await execute(
            bus, "HSET", thing.key, "good", "1", "bad", "undefined"
        )  # as npm busmq writes it (protocol Q14)
        assert await thing.load()
        assert (dict(thing), dict(thing.misfits)) == ({"good": 1}, {"bad": "undefined"})
        thing["bad"] = None
        await thing.save()
        await call(node, "persistMake", name=name, attributes=["good", "bad"])
        assert await call(node, "persistLoad", name=name) is True
        assert await call(node, "persistGet", name=name, attributes=["good", "bad"]) == [1, None]


async def test_with_three_servers_both_find_the_same_one(
    npm: None, three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    with Peer(three_servers.urls) as peer:
        async with Bus(",".join(three_servers.urls)) as bus:
            for n in range(6):
                ours, theirs = fresh(), fresh()
                for name in (ours, theirs):
                    await call(peer, "persistMake", name=name, attributes=["n"])
                thing = bus.persist(ours)
                thing["n"] = n
                await thing.save()
                assert await call(peer, "persistLoad", name=ours) is True
                await call(peer, "persistSet", name=theirs, values={"n": n})
                await call(peer, "persistSave", name=theirs)
                back = bus.persist(theirs)
                assert await back.load()
                assert (
                    back["n"]
                    == n
                    == (await call(peer, "persistGet", name=ours, attributes=["n"]))[0]
                )
