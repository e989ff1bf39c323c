"""Which queues a query reads: those that its options name, or those that exist and match their pattern."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from busmq_spark.core.position import Position
from busmq_spark.core.sources import spell, split
from busmq_spark.errors import ConfigError
from busmq_spark.options import ReadOptions
from busmq_spark.spark.discovery import QueueDiscovery
from busmq_spark.spark.stores import planning_store
from busmq_spark.store.protocol import SourceStore


class QueueNames:
    """The queues of one query. ``listed`` are the links that have said which queues they have."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.named = [spell(source, queue) for source in options.sources for queue in options.subscribe]
        self.listed: set[str] = set()
        self._discovery: QueueDiscovery | None = None

    def includes(self, queue: str) -> bool:
        """Whether the options name the queue, or their pattern does."""
        pattern = self.options.subscribe_pattern
        source, own = split(queue)
        return source in self.options.sources and (own in self.options.subscribe if pattern is None else re.fullmatch(pattern, own) is not None)

    def to_acquire(self, known: Collection[str], held: Collection[str], store: SourceStore, *, new_ones: bool) -> list[str]:
        """The queues that the query reads now. ``known`` are those of its checkpoint; ``new_ones``: whether such as come later are looked for."""
        if not self.options.subscribe_pattern:
            return self.named
        # One of the checkpoint that does not exist any more is not discovered, yet must be missed.
        here = set(held)
        missed = [queue for queue in known if queue not in here and self.includes(queue)]
        return list(dict.fromkeys([*missed, *self._discovered(store, new_ones)]))

    def check_sources(self, planned: Mapping[str, Position]) -> None:
        """A batch that was planned is read as it was planned, from wherever: raises ConfigError when the options do not name its source any more."""
        if gone := {split(queue)[0] for queue in planned} - {*self.options.sources, ""}:
            reason = f"the last batch in the checkpoint reads from link {min(gone)!r}, which federation.url does not name any more"
            raise ConfigError(reason=f"{reason}; name it until that batch is done")

    def stop(self) -> None:
        """End the thread that looks for new ones."""
        if self._discovery:
            self._discovery.stop()

    def _discovered(self, store: SourceStore, new_ones: bool) -> Sequence[str]:
        """The queues that match the pattern: looked for here at the first call, so that it misses none; then beside the planning."""
        if self._discovery is not None:
            found = self._discovery.take()
            self.listed |= {*found.listed} - {*store.unavailable}
            return found.queues
        first = store.discover(self.includes)
        options = self.options
        self._discovery = QueueDiscovery(lambda: planning_store(options, quiet=True), self.includes, links=bool(options.links))
        if new_ones:
            self._discovery.start()
        return first
