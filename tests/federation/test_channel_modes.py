"""Channels with ``max`` and ``remove=False`` over a link that is cut."""

from __future__ import annotations

import asyncio

import pytest

from tests.bus.tools import UNTIL_S
from tests.conftest import Fresh
from tests.federation.far import far, quick


async def test_what_a_channel_keeps_is_read_once_over_a_link_that_is_cut(
    redis_url: str,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both:
        sender = await both.home.channel(name := fresh()).connect()
        reader = both.bus.federate(both.bus.channel(name))
        again = asyncio.Event()
        reader.on("reconnected", again.set)
        await reader.listen(remove=False)
        found = []
        async with asyncio.timeout(UNTIL_S):
            for n in range(10):
                await sender.send(f"{n}")
                found.append((await anext(reader.messages())).text)
                if n % 3 == 0:
                    again.clear()
                    both.cutter.cut()
                    await again.wait()
        assert found == [f"{n}" for n in range(10)]


async def test_max_counts_over_all_links_of_a_channel(
    redis_url: str,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick(monkeypatch)
    async with far(redis_url) as both:
        sender = both.home.channel(name := fresh())
        reader = both.bus.federate(both.bus.channel(name))
        again = asyncio.Event()
        reader.on("reconnected", again.set)
        await reader.listen(max=3)
        async with asyncio.timeout(UNTIL_S):
            await sender.send_to("remote", "a")
            assert (await anext(reader.messages())).text == "a"
            both.cutter.cut()
            await again.wait()
            for text in "bcd":
                await sender.send_to("remote", text)
            assert [message.text async for message in reader] == ["b", "c"]
