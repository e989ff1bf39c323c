"""A topic as a program uses it: a base topic that also makes its members and its jobs.

async with bus.topic("metrics", partitions=10) as topic:
    await topic.push({"cpu": 0.5}, key="host-1")
    async with topic.group("agg") as member:
        async for batch in member.batches(most=1000):
            ...
            await member.ack(batch)
"""

from __future__ import annotations

from busmq_spark.bus.topics.base_topic import BaseTopic
from busmq_spark.bus.topics.member import Member
from busmq_spark.bus.topics.topic_jobs import TopicJobs
from busmq_spark.groups.job import OUTCOME_TTL_S


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
