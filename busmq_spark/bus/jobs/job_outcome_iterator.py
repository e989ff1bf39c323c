"""The outcomes of jobs as they are written: by pub/sub, or from the queue ``<name>.done``.

async for outcome in jobs.completions():
    print(outcome.job, outcome.group, outcome.ok)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Self

from busmq_spark.bus.drop_oldest_buffer import DropOldestBuffer
from busmq_spark.bus.handle import Handle
from busmq_spark.errors import ConfigError, MessageRefused, MessagesMissed
from busmq_spark.groups.job import JobOutcome, decode_outcome, split_publication

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.bus.queue.queue import Queue
    from busmq_spark.redis_io.pubsub_connection import PubSubConnection

MAX_BUFFERED_OUTCOMES, MAX_BUFFERED_BYTES = 10_000, 16 * 1024 * 1024
MESSAGES_PER_READ = 100
log = logging.getLogger("busmq_spark")


class JobOutcomeIterator(Handle):
    """Outcomes that are published on one channel, or on those of a pattern. Listens from
    ``async with``, or from the first step of the loop, on.

    Outcomes are missed while the link is down, or when 10,000 wait here; the latter is logged.
    """

    def __init__(self, bus: Bus, queue: Queue, channel: str, *, pattern: bool) -> None:
        self._bus, self._queue, self._channel, self._pattern = bus, queue, channel, pattern
        self._waiting = DropOldestBuffer(MAX_BUFFERED_OUTCOMES, MAX_BUFFERED_BYTES)
        self._wake = asyncio.Event()
        self._connections: list[PubSubConnection] = []
        self._warned = self._begun = False

    def __repr__(self) -> str:
        return f"JobOutcomeIterator({self._queue.name!r})"

    async def __aenter__(self) -> Self:
        if not self._begun:
            servers = self._bus.servers
            self._connections = (
                servers.pubsub
                if self._pattern
                else [servers.pubsub[await servers.locate(self._queue.keys.metadata)]]
            )
            for each in self._connections:
                await each.subscribe(self._channel, self._buffer_outcomes, pattern=self._pattern)
            self._begun = True
            self._bus.adopt(self)
        return self

    async def detach(self) -> None:
        """Listen no more: the loop ends."""
        connections, self._connections = self._connections, []
        for each in connections:
            each.unsubscribe(self._channel, self._buffer_outcomes, pattern=self._pattern)
        self._bus.release(self)
        self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobOutcome:
        if not self._begun:
            await self.__aenter__()
        while self._connections:
            while self._waiting:
                try:
                    return decode_outcome(self._waiting.take())
                except MessageRefused as error:
                    log.warning("%s", error)
            self._wake.clear()
            await self._wake.wait()
        raise StopAsyncIteration

    def _buffer_outcomes(self, payload: bytes | None) -> None:
        if payload is None:
            return
        for each in split_publication(payload):
            if self._waiting.put(each) and not self._warned:
                self._warned = True
                log.warning(
                    "%s", MessagesMissed(pubsub=self._channel, dropped=self._waiting.dropped)
                )
        self._wake.set()


async def read_stored_outcomes(bus: Bus, name: str, group: str) -> AsyncGenerator[JobOutcome, None]:
    """Outcomes that were pushed to a queue, each at least once for an ordered group. A batch is
    acked when the loop asks for the next one.
    """
    async with bus.queue(name) as outcomes, outcomes.group(group) as reader:
        async for batch in reader.batches(MESSAGES_PER_READ):
            for message in batch:
                try:
                    found = decode_outcome(message.value)
                except MessageRefused as error:
                    log.warning("queue %r: %s", name, error)
                    continue
                yield found
            await reader.ack(batch)


def check_pattern(name: object) -> str:
    """The name of a queue, or a pattern of names with ``*``; every other character stands for
    itself. Raises ConfigError.
    """
    if not (isinstance(name, str) and name):
        raise ConfigError(
            reason=f"of is {name!r}; expected the name of a queue, or a pattern of names with '*'"
        )
    return name
