"""A consumer of several topics: a member of one group in each of them, read in fair turns.

    async with bus.consumer(["metrics", "events"], group="agg") as consumer:
        async for batch in consumer.batches(most=1000):
            print(batch.topic, batch.partition)
            await consumer.ack(batch)

Membership, ranges and acks are those of each topic (bus/topics/member.py). Topics do not wait for
each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Self

from busmq_spark.arguments import check_instance
from busmq_spark.bus.emitter import Emitter
from busmq_spark.bus.handle import Handle
from busmq_spark.bus.topics.member import Member, MemberEvent, OwnedPartitionMessages
from busmq_spark.bus.topics.topic import Topic
from busmq_spark.errors import ConfigError, StateError
from busmq_spark.queue.message import CHUNK_MESSAGES


class TopicsConsumer(Handle, Emitter[MemberEvent]):
    """A member of the same group in several topics.

    Events, as of a member: ``assigned(topic, partition)``, ``revoked(topic, partition)`` and
    ``lost(topic, partition)``, with the name of the topic.
    """

    events = Member.events

    def __init__(self, topics: Sequence[Topic], group: str, start: str | int) -> None:
        for topic in topics:
            check_instance("one of topics", topic, Topic)
        names = [topic.name for topic in topics]
        if not names or len(set(names)) < len(names):
            raise ConfigError(reason=f"the topics are {names}; expected one or more, each once")
        super().__init__(topics[0].bus.spawn)
        self.bus, self.name = topics[0].bus, group
        self._more = asyncio.Event()
        self.members = {topic.name: Member(topic, group, start, self._more) for topic in topics}
        """The member of each topic, by its name."""
        for name, member in self.members.items():
            for event in self.events:
                member.on(event, partial(self._emit_and_wait, event, name))
        self._running = False

    def __repr__(self) -> str:
        return f"TopicsConsumer({list(self.members)!r}, {self.name!r})"

    async def __aenter__(self) -> Self:
        """Join the group in every topic. Raises the errors of Member, and has joined none then."""
        if self._running:
            remedy = "Make another with bus.consumer(…)"
            raise StateError(event="enter", what=repr(self), state="entered already", remedy=remedy)
        async with AsyncExitStack() as stack:
            for member in self.members.values():
                await stack.enter_async_context(member)
            stack.pop_all()
        self._running = True
        self.bus.adopt(self)
        return self

    @property
    def partitions(self) -> dict[str, list[int]]:
        """The partitions that it owns now, by topic."""
        return {name: member.partitions for name, member in self.members.items()}

    async def batches(
        self, most: int = CHUNK_MESSAGES, linger_s: float = 0.0
    ) -> AsyncIterator[OwnedPartitionMessages]:
        """Batches of one ``batch.topic`` and ``batch.partition`` each, as Member.batches.

        Topics with messages have their turns one after the other. Ends at ``stop()``.
        """
        turns = deque(self.members.values())
        for member in turns:
            member.begin_reading(most, linger_s)
        while self._running:
            self._more.clear()
            for _ in range(len(turns)):
                member = turns[0]
                turns.rotate(-1)
                if (batch := member.next_offered()) is not None:
                    yield batch
                    break
            else:
                await self._more.wait()

    async def ack(self, batch: OwnedPartitionMessages) -> None:
        """Acknowledge a batch, as Member.ack."""
        of = getattr(batch, "topic", "")
        if of not in self.members:
            found = f"a batch of topic {of!r}" if of else f"a {type(batch).__name__}"
            wanted = f"a batch of one of {list(self.members)}"
            raise ConfigError(reason=f"{found} was to be acked; expected {wanted}")
        await self.members[of].ack(batch)

    async def stop(self) -> None:
        """Leave the group in every topic, and end ``batches()``. No error when it has ended."""
        self._running = False
        self._more.set()
        await asyncio.gather(*(member.stop() for member in self.members.values()))
        self.bus.release(self)

    detach = stop
