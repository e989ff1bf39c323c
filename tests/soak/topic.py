"""A round whose query goes from one topic to another, in both engines, while both topics grow: each
message once, in a partition of its key.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

from busmq_spark.groups import topic as topics
from busmq_spark.groups.topic import partition_of, partition_queues
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import TopicKeys
from busmq_spark.redis_io.queue_location import new_token
from tests.soak.drivers import Drivers
from tests.soak.run import Run, Violation
from tests.soak.site import Site

KEYS = 17
"""Of messages: change ``keyed`` (tests/faults/driver.py) gives the rows the same ones."""
PARTITIONS = 2
"""Of either topic at the beginning."""


class TopicRun(Run):
    """From topic ``in-<round>`` to topic ``out-<round>``. Each message carries its number, from
    which its key follows.
    """

    def __init__(
        self, site: Site, drivers: Drivers, number: int, kind: str, chance: random.Random
    ) -> None:
        super().__init__(site, drivers, number, kind, chance)
        self.change = "keyed"
        self.topics = {name: TopicKeys(f"{name}-{number}") for name in ("in", "out")}
        self.sizes = {name: [PARTITIONS] for name in self.topics}
        """How many partitions each topic has had."""
        self.came_from: list[str] = []
        """The partition queue of each message."""
        self.source_options, self.sink_options = (
            {"topic": self.topics["in"].name},
            {"topic": self.topics["out"].name},
        )
        for keys in self.topics.values():
            self.bus.link.run(topics.open_topic(keys, PARTITIONS, new_token()))

    def queues_to_read(self, number: int) -> str:
        return ",".join(partition_queues(f"in-{number}", PARTITIONS))

    @property
    def sinks(self) -> list[str]:
        return partition_queues(self.topics["out"].name, self.sizes["out"][-1])

    def grow(self, name: str, more: int) -> None:
        """Let one of the topics have more partitions."""
        self.find_broken_link()
        self.sizes[name].append(self.sizes[name][-1] + more)
        self.bus.link.run(topics.grow_topic(self.topics[name], self.sizes[name][-1]))
        self.sources = partition_queues(self.topics["in"].name, self.sizes["in"][-1])

    def feed(self, rows: int) -> None:
        self.find_broken_link()
        parts: dict[str, list[int]] = defaultdict(list)
        for seq in range(len(self.came_from), len(self.came_from) + rows):
            queue = self.sources[partition_of(str(seq % KEYS), len(self.sources))]
            self.came_from.append(queue)
            parts[queue].append(seq)
        for queue, its in parts.items():
            if not self.bus.state(queue).exists:
                self.bus.create(queue)
            self.bus.push(queue, [self.value(seq) for seq in its])
            self.fed[queue] = self.fed.get(queue, 0) + len(its)

    def arrived_all(self) -> bool:
        return self.count_sunk() >= len(self.came_from) and self.count_left() == 0

    def check(self) -> None:
        """Row by row: once, in a partition that its key has had, and behind all that came before it
        from the same partition.
        """
        seen = Counter[int]()
        for partition, queue in enumerate(self.sinks):
            highest: dict[str, int] = {}
            for at, value in enumerate(map(int, self.bus.values(queue))):
                seen[value] += 1
                if partition not in {
                    partition_of(str(value % KEYS), size) for size in self.sizes["out"]
                }:
                    raise Violation(
                        f"message {value} is in {queue}, which its key never had; partitions"
                        f" {self.sizes}"
                    )
                came_from = self.came_from[value]
                if value <= highest.get(came_from, -1):
                    raise Violation(
                        f"place {at} of {queue} has message {value} of {came_from} after"
                        f" {highest[came_from]}; errors {self.errors}"
                    )
                highest[came_from] = value
        if doubled := sorted(value for value, times in seen.items() if times > 1):
            places = [
                queue for queue in self.sinks if self.value(doubled[0]) in self.bus.values(queue)
            ]
            raise Violation(
                f"{len(doubled)} messages came twice, the first is {doubled[0]}, in {places};"
                f" errors {self.errors}"
            )
        if missing := [seq for seq in range(len(self.came_from)) if seq not in seen]:
            raise Violation(
                f"{len(missing)} messages of {len(self.came_from)} never arrived, the first is"
                f" {missing[0]}; errors {self.errors}"
            )
        self.check_ttls()

    def remove(self) -> None:
        super().remove()
        self.bus.link.execute(command("DEL", *(keys.base for keys in self.topics.values())))


def topic_grown(run: Run) -> str:
    """The source, the sink or both get more partitions, while messages come."""
    assert isinstance(run, TopicRun)
    names = run.chance.choice((["in"], ["out"], ["in", "out"]))
    for name in names:
        run.grow(name, run.chance.randint(1, 3))
    run.feed(500)
    return ", ".join(f"{name} to {run.sizes[name][-1]}" for name in names)
