"""How a channel consumes: with ``max``, ``remove=False`` and ``index``, as npm's channels do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError
from busmq_spark.queue.keys import channel_queue
from tests.bus.conftest import OpenBus
from tests.bus.tools import UNTIL_S
from tests.conftest import Fresh


async def next_texts(channel: Any, many: int) -> list[str]:
    async with asyncio.timeout(UNTIL_S):
        return [(await anext(channel.messages())).text for _ in range(many)]


async def stored(bus: Bus, name: str, role: str = "remote") -> int:
    async with bus.queue(channel_queue(role, name)) as queue:
        return int(await queue.count())


async def test_what_a_channel_reads_without_removing_stays_for_others(
    open_bus: OpenBus,
    fresh: Fresh,
) -> None:
    async with open_bus() as bus:
        sender = await bus.channel(name := fresh()).connect()
        for text in "abc":
            await sender.send(text)
        one, two = bus.channel(name), bus.channel(name)
        await one.listen(remove=False)
        await two.listen(remove=False)
        assert await next_texts(one, 3) == await next_texts(two, 3) == list("abc")
        await sender.send("d")
        assert await next_texts(one, 1) == await next_texts(two, 1) == ["d"]
        assert await stored(bus, name) == 5  # with the frame that says that the sender is here


async def test_index_is_the_place_of_the_first_frame_that_is_read(
    open_bus: OpenBus,
    fresh: Fresh,
) -> None:
    async with open_bus() as bus:
        sender = await bus.channel(name := fresh()).connect()
        for text in "abc":
            await sender.send(text)
        reader = bus.channel(name)
        await reader.listen(remove=False, index=2)  # 0 is the frame of connecting
        assert await next_texts(reader, 2) == ["b", "c"]


@pytest.mark.parametrize("reliable", [False, True])
async def test_max_ends_the_reading_and_leaves_the_rest_while_the_channel_stays(
    open_bus: OpenBus, layout: str, fresh: Fresh, *, reliable: bool
) -> None:
    async with open_bus() as bus:
        sender = bus.channel(name := fresh())
        for text in "abcd":
            await sender.send_to("remote", text)
        reader = bus.channel(name)
        await reader.listen(max=2, reliable=reliable)
        if layout == "npm":  # an npm server does not say that it has ended
            assert await next_texts(reader, 2) == ["a", "b"]
        else:
            async with asyncio.timeout(UNTIL_S):
                assert [message.text async for message in reader] == ["a", "b"]
        assert reader.connected
        await reader.send("still here")
        if reliable:
            await reader.ack(1)
        await reader.disconnect()
        await reader.listen(reliable=reliable)
        assert await next_texts(reader, 2) == (["b", "c"] if reliable else ["c", "d"])


async def test_max_counts_frames_as_npm_does(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        sender = await bus.channel(name := fresh()).connect()
        await sender.send("a")
        await sender.send("b")
        reader = bus.channel(name)
        await reader.listen(max=2)
        assert await next_texts(reader, 1) == ["a"]
        assert await stored(bus, name) == 1


async def test_a_channel_may_be_discoverable(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, await bus.channel(name := fresh()).connect(discoverable=True):
        queue = bus.queue(channel_queue("local", name))
        assert (await queue.metadata())["discover"] == "true"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"remov": False}, "did you mean 'remove'"),
        ({"index": 1}, "index counts only with remove=False"),
        ({"remove": False, "reliable": True}, "choose one of them"),
        ({"max": "2"}, "max is '2'"),
        ({"last": 3}, "last counts only with reliable=True"),
        ({"throttle": print}, "has no option 'throttle'"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_sent(
    open_bus: OpenBus,
    fresh: Fresh,
    options: dict[str, Any],
    said: str,
) -> None:
    async with open_bus() as bus:
        channel = bus.channel(name := fresh())
        for call in (channel.connect, channel.listen):
            with pytest.raises(ConfigError, match=said):
                await call(**options)
        assert not await bus.queue(channel_queue("local", name)).exists()
        queue = bus.queue(fresh())
        async with queue:
            with pytest.raises(ConfigError, match="did you mean 'remove'"):
                queue.consume(remov=False)  # type: ignore[call-arg]
