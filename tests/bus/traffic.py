"""A producer that counts and a consumer that writes down what it gets, on two buses, while a test
breaks something.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import LinkLost
from tests.bus.tools import until

PACE_S = 0.001


class Traffic:
    """``async with Traffic(bus, bus, name) as traffic`` begins; ``flows`` waits for more to arrive;
    ``finish`` ends and checks.
    """

    def __init__(
        self, producer: Bus, consumer: Bus, name: str, *, reliable: bool, ttl_s: int = 60
    ) -> None:
        self._buses = (producer, consumer)
        self._name, self._reliable, self._ttl_s = name, reliable, ttl_s
        self.sent = 0
        self.stored: list[int] = []
        """Numbers of which the producer knows that they are stored."""
        self.doubtful: set[int] = set()
        self.seen: list[int] = []
        self._done = False

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        producer, consumer = [await self._stack.enter_async_context(bus) for bus in self._buses]
        self.producer, self.consumer = producer.queue(self._name), consumer.queue(self._name)
        await self.producer.attach(ttl_s=self._ttl_s)
        await self.consumer.attach()
        self._producing = producer._spawn(self._produce(), "producing")
        consumer._spawn(self._consume(), "consuming")
        await self.flows()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def flows(self, many: int = 30) -> None:
        """Returns when so many more have arrived."""
        wanted = len(self.seen) + many
        await until(lambda: len(self.seen) >= wanted)

    async def finish(self, since: int = 0) -> None:
        """Everything that was stored, of numbers above ``since``, has come once and in order, and
        nothing else.
        """
        self._done = True
        await self._producing
        wanted = {number for number in self.stored if number > since}
        await until(lambda: wanted <= set(self.seen))
        assert self.seen == sorted(set(self.seen))
        assert set(self.seen) <= set(self.stored) | self.doubtful

    async def _produce(self) -> None:
        while not self._done:
            self.sent += 1
            number = self.sent
            try:
                await self.producer.push(number)
                self.stored.append(number)
            except LinkLost:
                self.doubtful.add(number)
            await asyncio.sleep(PACE_S)  # the pace of the traffic

    async def _consume(self) -> None:
        async for message in self.consumer.consume(reliable=self._reliable, prefetch=7):
            self.seen.append(message.json())
            if self._reliable:
                await self._ack(message.id)

    async def _ack(self, id: int) -> None:
        while True:
            try:
                await self.consumer.ack(id)
            except LinkLost:
                continue
            return
