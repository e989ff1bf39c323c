"""Which queues a query reads: those that its options name, those that exist and match their
pattern, or the partitions of their topics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from busmq_spark.errors import ConfigError
from busmq_spark.groups.topic import topic_partition
from busmq_spark.options import ReadOptions
from busmq_spark.queue.position import Position
from busmq_spark.queue.qualified_queue_names import qualified_name, split_name
from busmq_spark.redis_io.queue_location import no_pause
from busmq_spark.spark.discovery import QueueDiscoveryThread
from busmq_spark.spark.stores import planning_store
from busmq_spark.store.protocol import PlanningStore, ReadStore


def names_queue(
    names: Collection[str], pattern: str | None, topics: Collection[str], queue: str
) -> bool:
    """Whether the options of a query, as they are given, name a queue of a source."""
    if topics:
        place = topic_partition(queue)
        return place is not None and place[0] in topics
    return queue in names if pattern is None else re.fullmatch(pattern, queue) is not None


def _includes(options: ReadOptions, queue: str) -> bool:
    return names_queue(options.subscribe, options.subscribe_pattern, options.topic, queue)


def find_queues(
    options: ReadOptions, store: ReadStore, pace: Callable[[], object] = no_pause
) -> list[str]:
    """The queues that match the pattern, or the partitions of the topics, which are made where the
    options say so. Raises TopicMissing.
    """
    if options.topic:
        return store.topic_queues(options.topic, options.partitions)
    return store.discover(lambda name: _includes(options, split_name(name)[1]), pace)


class QueueSelection:
    """The queues of one query. ``listed_sources`` are the links that have said which queues they
    have.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.named_queues = [
            qualified_name(source, queue)
            for source in options.sources
            for queue in options.subscribe
        ]
        self.listed_sources: set[str] = set()
        self._discovery: QueueDiscoveryThread | None = None

    def includes(self, queue: str) -> bool:
        """Whether the options name the queue or its topic, or their pattern does."""
        source, own = split_name(queue)
        return source in self.options.sources and _includes(self.options, own)

    def queues_to_acquire(
        self, known: Collection[str], held: Collection[str], store: PlanningStore, *, new_ones: bool
    ) -> list[str]:
        """The queues that the query reads now. ``known`` are those of its checkpoint; ``new_ones``:
        whether such as come later are looked for.
        """
        if self.options.subscribe:
            return self.named_queues
        # A queue of the checkpoint that does not exist any more is not discovered, yet must be
        # missed.
        here = set(held)
        missed = [queue for queue in known if queue not in here and self.includes(queue)]
        return list(dict.fromkeys([*missed, *self._discover_queues(store, new_ones)]))

    def check_planned_sources(self, planned: Mapping[str, Position]) -> None:
        """A batch that was planned is read as it was planned, from wherever: raises ConfigError
        when the options do not name its source any more.
        """
        if gone := {split_name(queue)[0] for queue in planned} - {*self.options.sources, ""}:
            reason = (
                f"the last batch in the checkpoint reads from link {min(gone)!r}, which"
                " federation.url does not name any more"
            )
            raise ConfigError(reason=f"{reason}; name it until that batch is done")

    def stop(self) -> None:
        """End the thread that looks for new ones."""
        if self._discovery:
            self._discovery.stop()

    def _discover_queues(self, store: PlanningStore, new_ones: bool) -> Sequence[str]:
        """The queues that are not named one by one: looked for here at the first call, so that it
        misses none; then beside the planning.
        """
        if self._discovery is not None:
            found = self._discovery.take_found_queues()
            self.listed_sources |= {*found.listed_sources} - {*store.unavailable}
            return found.queues
        options = self.options
        first = find_queues(options, store)
        self._discovery = QueueDiscoveryThread(
            lambda: planning_store(options, quiet=True),
            partial(find_queues, options),
            links=bool(options.links),
        )
        if new_ones:
            self._discovery.start()
        return first
