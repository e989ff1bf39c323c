"""What Redis holds, and says, after each captured operation of npm busmq 3.1.0, and after ours: the
same keys, types, values and lives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from busmq_spark.bus.base_persisted_object import PersistedDict
from busmq_spark.bus.bus import Bus
from busmq_spark.queue.command_generators import command
from tests.conftest import Fresh

OPERATIONS = json.loads(
    (Path(__file__).parents[1] / "golden" / "pubsub-persist-transcripts.json").read_text("utf-8")
)["operations"]
# The value that was published, where it was no text.
PUBLISHED = {"publish object": {"a": 1}, "publish number": 7, "publish null": None}
PREFIX = "bus:persisted:"
STILL_S = 30
"""Longer than a machine stands still, and shorter than what lives here differ by."""


def longer(words: list[str]) -> list[str]:
    """With a life of 300 s instead of 3 s, which would end while a machine stands still."""
    return [*words[:2], "300"] if words[0] == "expire" and words[2] == "3" else words


for each in OPERATIONS:
    each["commands"] = [longer(words) for words in each["commands"]]


async def test_what_we_publish_travels_as_what_npm_busmq_publishes(
    redis_url: str, fresh: Fresh
) -> None:
    captured = [
        (each["op"], words[2])
        for each in OPERATIONS
        for words in each["commands"]
        if words[0] == "publish"
    ]
    assert len(captured) == 5
    async with Bus(redis_url) as bus, bus.pubsub(fresh()) as pubsub:
        assert pubsub.channel == f"bus:pubsub:{pubsub.name}"
        messages = aiter(pubsub)
        for op, text in captured:
            await pubsub.publish(PUBLISHED.get(op, text))
            assert (await anext(messages)).text == text


async def test_our_saves_and_touches_leave_redis_as_those_of_npm_busmq_do(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        [link] = bus.servers.commands
        theirs, ours, things = fresh("npm"), fresh("we"), dict[str, PersistedDict]()

        async def holds(mark: str) -> dict[str, Any]:
            held = {}
            for name in ("obj1", "nosuch"):
                key = f"{PREFIX}{mark}-{name}"
                reply = await link.execute(command("HGETALL", key))
                held[name] = (
                    dict(zip(reply[0::2], reply[1::2], strict=True)),
                    await link.execute(command("TTL", key)),
                )
            return held

        for operation in OPERATIONS:
            for words in operation["commands"]:
                if words[0] != "publish":
                    await link.execute(
                        command(*(word.replace(PREFIX, f"{PREFIX}{theirs}-") for word in words))
                    )
            await perform(bus, things, ours, operation)
            mine, npm = await holds(ours), await holds(theirs)
            for name in npm:
                assert mine[name][0] == npm[name][0], operation["op"]
                assert abs(mine[name][1] - npm[name][1]) <= STILL_S, operation["op"]


async def perform(
    bus: Bus, things: dict[str, PersistedDict], mark: str, operation: dict[str, Any]
) -> None:
    """The same with our object."""
    for words in operation["commands"]:
        if words[0] == "publish":
            continue
        name = words[1].removeprefix(PREFIX)
        thing = things.setdefault(name, bus.persist(f"{mark}-{name}"))
        match words[0]:
            case "hmset" if "undefined" in words:  # Q14: we have no way to write it
                await bus.servers.commands[0].execute(command("HSET", thing.key, *words[2:]))
            case "hmset":
                thing.update(
                    {
                        field: json.loads(text)
                        for field, text in zip(words[2::2], words[3::2], strict=True)
                    }
                )
                assert await thing.save()
            case "hset":  # a write of another client
                await bus.servers.commands[0].execute(command("HSET", thing.key, *words[2:]))
            case "hgetall":
                assert await thing.load() is (name == "obj1")
            case "expire":
                await thing.persist(int(words[2]))
