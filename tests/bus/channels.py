"""What tests of channels share: the events of a channel in the order they came."""

from __future__ import annotations

import asyncio
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.channel import Channel
from busmq_spark.queue.message import Message
from tests.bus.tools import UNTIL_S

TEXTS = [
    "plain",
    "",
    "héllo 世 😀",
    ":",
    ":1:",
    ":4:",
    "a:b:c",
    "line\nbreak\0 zero",
    '{"json": [1, null]}',
    "x" * 100_000,
]


class Seen:
    """Every event of a channel, as its name or as what came with it."""

    def __init__(self, channel: Channel, *, messages: bool = True) -> None:
        """Without ``messages``, they are not taken here."""
        self.all: list[Any] = []
        self._more = asyncio.Event()
        for event in channel.events:
            if event != "message" or messages:
                channel.on(event, self._note(event))

    def _note(self, event: str) -> Any:
        def note(*args: Any) -> None:
            [value] = args or [event]
            self.all.append((value.id, value.text) if isinstance(value, Message) else value)
            self._more.set()

        return note

    async def some(self, many: int = 1) -> list[Any]:
        """The next events, as many as asked for."""
        async with asyncio.timeout(UNTIL_S):
            while len(self.all) < many:
                self._more.clear()
                await self._more.wait()
        some, self.all = self.all[:many], self.all[many:]
        return some

    async def until(self, *events: Any) -> None:
        """Wait until these have come, in any order and with others between them; and forget
        everything up to now.
        """
        async with asyncio.timeout(UNTIL_S):
            while not all(self.all.count(event) >= events.count(event) for event in events):
                self._more.clear()
                await self._more.wait()
        self.all.clear()

    async def exactly(self, *events: Any) -> None:
        """Wait for these, in this order, and nothing else."""
        assert await self.some(len(events)) == list(events)
        assert self.all == []


def pair(bus: Bus, name: str) -> tuple[Channel, Channel, Seen, Seen]:
    """Two sides of a channel, and what they see."""
    one, two = bus.channel(name), bus.channel(name)
    return one, two, Seen(one), Seen(two)
