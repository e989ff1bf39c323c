"""A topic as a program uses it: a base topic that also makes its members and its jobs.

async with bus.topic("metrics", partitions=10) as topic:
    await topic.push({"cpu": 0.5}, key="host-1")
    async with topic.group("agg") as member:
        async for batch in member.batches(most=1000):
            ...
            await member.ack(batch)

A consumer of several topics: a member of one group in each of them, read in fair turns.

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
from busmq_spark.bus.emitter import Emitter, Handle
from busmq_spark.bus.topics.base_topic import BaseTopic
from busmq_spark.bus.topics.member import Member, MemberEvent, OwnedPartitionMessages
from busmq_spark.bus.topics.topic_jobs import TopicJobs
from busmq_spark.errors import ConfigError, StateError
from busmq_spark.groups.job import OUTCOME_TTL_S
from busmq_spark.queue.message import CHUNK_MESSAGES


class Topic(BaseTopic):
    """A topic of a bus: ``async with bus.topic("metrics", partitions=10) as topic``, or without,
    from its first use until the bus is left.
    """

    def group(self, name: str, *, start: str | int = "earliest") -> Member:
        """Return a member of a group. The members of a group divide the partitions.

        A partition that is added later is read from its oldest message.

        Args:
            name: Name of the group.
            start: Start of a new group in each partition: ``earliest``, ``latest``, a time, or
                ``-1000 messages``.

        Raises:
            ConfigError: An argument has a wrong type or value.

        Example:
            async with topic.group("agg") as member:
                async for batch in member.batches():
                    await member.ack(batch)
        """
        return Member(self, name, start)

    def jobs(self, *, durable: bool = False, outcome_ttl_s: float = OUTCOME_TTL_S) -> TopicJobs:
        """Return the jobs of the topic, each in the partition of its key.

        Args:
            durable: As for ``Bus.jobs``.
            outcome_ttl_s: As for ``Bus.jobs``.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        return TopicJobs(self, durable=durable, outcome_ttl_s=outcome_ttl_s)


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
        super().__init__(topics[0].bus._spawn)
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
        self.bus._adopt(self)
        return self

    @property
    def partitions(self) -> dict[str, list[int]]:
        """The partitions that it owns now, by topic."""
        return {name: member.partitions for name, member in self.members.items()}

    async def batches(
        self, most: int = CHUNK_MESSAGES, linger_s: float = 0.0
    ) -> AsyncIterator[OwnedPartitionMessages]:
        """Return batches of one ``batch.topic`` and ``batch.partition`` each, as Member.batches.

        Topics with messages have their turns one after the other. Ends at ``stop()``.

        Args:
            most: Most messages of a batch, up to 1,000.
            linger_s: Longest wait in seconds for a full batch.

        Raises:
            DataLoss: Messages of a partition are gone. Enter again to begin at the last ack.
        """
        turns = deque(self.members.values())
        for member in turns:
            member._begin_reading(most, linger_s)
        while self._running:
            self._more.clear()
            for _ in range(len(turns)):
                member = turns[0]
                turns.rotate(-1)
                if (batch := member._next_offered()) is not None:
                    with member.in_hand.hand_out(batch):
                        yield batch
                    break
            else:
                await self._more.wait()

    async def ack(self, batch: OwnedPartitionMessages) -> None:
        """Acknowledge a batch, and messages of its partition that were handed out before it.

        Args:
            batch: A batch of ``batches``.

        Raises:
            QueueBusy: Another member has the partition by now, and gets these messages again.
            DataLoss: The messages are gone.
        """
        of = getattr(batch, "topic", "")
        if of not in self.members:
            found = f"a batch of topic {of!r}" if of else f"a {type(batch).__name__}"
            wanted = f"a batch of one of {list(self.members)}"
            raise ConfigError(reason=f"{found} was to be acked; expected {wanted}")
        await self.members[of].ack(batch)

    async def stop(self) -> None:
        """Leave the group in every topic, and end ``batches()``. No error when it has ended.

        Raises:
            LinkLost: A server cannot be reached in time.
        """
        self._running = False
        self._more.set()
        await asyncio.gather(*(member.stop() for member in self.members.values()))
        self.bus.release(self)

    detach = stop

    async def finish(self) -> None:
        """Hand out no more batches, and wait for bodies of loops."""
        self._running = False
        self._more.set()
        await asyncio.gather(*(member.finish() for member in self.members.values()))
