"""Topics of one server, for tests of source and sink."""

from __future__ import annotations

from busmq_spark.groups import topic as core
from busmq_spark.queue.keys import TopicKeys
from busmq_spark.redis_io.queue_location import new_token
from tests.spark.conftest import Bus


def make_topic(bus: Bus, name: str, partitions: int, *values: str) -> str:
    """A topic with its partition queues, and a message ``<partition><value>`` in each for every
    value.
    """
    bus.link.run(core.open_topic(TopicKeys(name), partitions, new_token()))
    for partition, queue in enumerate(core.partition_queues(name, partitions)):
        bus.push(queue, *(f"{partition}{value}" for value in values))
    return name


def grow(bus: Bus, name: str, partitions: int) -> None:
    bus.link.run(core.grow_topic(TopicKeys(name), partitions))


def partitions_of(bus: Bus, name: str) -> list[list[bytes]]:
    """What is stored in each partition."""
    found = bus.link.run(core.read_topic(TopicKeys(name)))
    return [
        bus.stored(queue) for queue in core.partition_queues(name, found.partitions if found else 0)
    ]
