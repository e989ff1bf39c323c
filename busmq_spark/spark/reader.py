"""The streaming reader: plans batches on the driver, reads ranges in tasks, acknowledges what is in the commit log.

Rule 1. A batch is a function of its two offsets. Whatever planning learns goes into the end offset; nothing else survives a restart.
Rule 2. Acks come from ``commit``, which Spark calls with the next batch, so an idle query plans one without rows. The ``start`` that Spark hands to
``latestOffset`` is acknowledged where it is known to be in the logs: with async progress tracking it may not be there yet.
Rule 3. Threads and connections begin with the first call on the driver, never in ``__init__``: Spark pickles readers to its workers.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from busmq_spark.core.state import UNKNOWN_ID, QueueState
from busmq_spark.errors import ConfigError
from busmq_spark.options import ReadOptions
from busmq_spark.spark import compat, offsets
from busmq_spark.spark.acks import Acks
from busmq_spark.spark.attach import Attachment, mention_changes
from busmq_spark.spark.discovery import Discovery
from busmq_spark.spark.plan import share, tasks
from busmq_spark.spark.planned import read_planned
from busmq_spark.spark.process import freeze
from busmq_spark.spark.schema import ArrowRows
from busmq_spark.spark.stores import planning_store, push_notifiers, task_store
from busmq_spark.spark.tracebacks import without_traceback
from busmq_spark.store.linked import LinkedStore, within
from busmq_spark.store.position import Position, Range
from busmq_spark.store.protocol import ReadStore, Rows, SourceStore
from busmq_spark.store.sources import spell, split

PREFETCHED_ROWS, PREFETCHED_BYTES = 20_000, 4 * 1024 * 1024
"""Rows of a queue, and bytes of a link, up to which they are fetched with the planning of a batch; more than that is read by its tasks."""
WAIT_S = 0.01
"""How long an idle planning call waits for a push before it says there is nothing: about as long as Spark pauses between two calls."""
BLIND_S = 0.2
"""Pause between two probes of an unreachable link, where Spark does not pass the checkpoint's location."""
LINK_POLL_S = 1.0
"""How often an idle query asks federation servers at most. Their pushes wake it, too; over a far link asking all the time is not cheap."""
TAIL_S = 5.0
"""How long a query is idle before it plans a batch without rows, so that Spark commits the one before."""
TAILS = 3
"""So many of them in a row at most: Spark commits with the next batch; with async progress tracking, with one of those that follow."""
log = logging.getLogger("busmq_spark")


class Partition(InputPartition):
    """What one task reads: values only, no client. Some of it may have been fetched already."""

    def __init__(
        self,
        ranges: tuple[Range, ...],
        prefetched: Mapping[Range, Sequence[Rows]] = MappingProxyType({}),
        ends: Mapping[str, Position] = MappingProxyType({}),
    ) -> None:
        self.ranges = ranges
        self.prefetched = {part: prefetched[part] for part in ranges if part in prefetched}
        self.ends = {part.queue: ends[part.queue] for part in ranges if part.queue in ends}


def read_ranges(options: ReadOptions, schema: StructType, partition: Partition) -> Iterator[Any]:
    """The record batches of a task."""
    freeze()
    return ArrowRows(schema).batches(_rows(task_store(options), partition, options.fail_on_data_loss))


def _rows(store: ReadStore, partition: Partition, strict: bool) -> Iterator[Rows]:
    for prefetched, group in groupby(partition.ranges, key=partition.prefetched.__contains__):
        parts = list(group)
        yield from (
            chain.from_iterable(partition.prefetched[part] for part in parts) if prefetched else read_planned(store, parts, partition.ends, strict)
        )


@without_traceback
class StreamReader(DataSourceStreamReader, compat.AvailableNow):
    """One streaming source. Lives in one process per query; Spark calls it from one thread."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._attachment: Attachment | None = None
        self._known: Mapping[str, QueueState] = {}
        self._counters: Sequence[object] = ()
        self._offsets = offsets.Memory()
        self._planned: dict[str, Any] | None = None
        self._acks = Acks(options)
        self._put_off = False  # it is too early for acks
        self._idle_since: float | None = None
        self._ceiling: dict[str, int] | None = None
        self._prefetched: Mapping[str, Sequence[Rows]] = {}
        self._blind = False
        self._passed_over: frozenset[str] = frozenset()
        self._unknown_last_ids: frozenset[str] = frozenset()  # empty queues whose last id only the next message shows: they enter with it
        self._notified: threading.Event | None = None
        self._compared = False  # the queues of the checkpoint with those of the options
        self._discovery: Discovery | None = None
        self._listed: set[str] = set()  # the links that have said to it which queues they have
        self._next_poll = 0.0

    # -- what Spark calls on the driver ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Constant: Spark asks twice, and again when it replays the first batch. Where reading begins is in that batch's end offset."""
        return dict(offsets.INITIAL)

    def getDefaultReadLimit(self) -> Any:
        return compat.read_limit(self._options.max_messages, self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ceiling = {}  # filled by the first planning: what is stored then is what is available now

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch.

        Spark before 4.2 hands over neither start nor limit. What was planned last then stands for the start; where nothing was planned yet, a
        checkpoint may lie anywhere: such a batch goes up to the newest message, uncapped, so that it cannot end before the checkpoint.
        """
        freeze()
        while (found := self._latest(start, limit)) is None:
            time.sleep(BLIND_S)
        return found

    def _latest(self, start: dict[str, Any] | None, limit: Any) -> dict[str, Any] | None:
        at = start if start is not None else self._planned
        self._blind = at is None
        begin = self._offsets.decode(at) if at is not None else {}
        new = at is None or at == offsets.INITIAL
        self._compared |= new and at is not None
        known = frozenset() if at is None or new else {"", *offsets.links_of(at)}
        attachment = self._attach(begin, lambda queue: split(queue)[0] not in known)
        self._put_off = not self._acks.from_start(start, begin, attachment)
        if at is not None and not new and at == self._planned and not self._news(begin):
            return self._idle(at, begin)
        unlimited = self._blind or (limit is not None and compat.is_unlimited(limit) and self._ceiling is None)
        positions = self._plan(begin, attachment, known, unlimited=unlimited)
        if self._blind and attachment.store.unavailable:
            self._acks = Acks(self._options)  # this is tried again within the same call of Spark
            return None  # the unread checkpoint may have positions of unreachable sources; the next one must keep them
        listed = {*attachment.store.listed, *self._listed, *(split(queue)[0] for queue in self._unknown_last_ids)}
        planned = self._offsets.encode(positions, {*(known & set(self._options.sources)), *listed} - {""})
        if at is not None and not new and offsets.alike(planned, at):
            return self._idle(at, begin)
        self._planned, self._idle_since = planned, None
        return planned

    def _idle(self, at: dict[str, Any], begin: Mapping[str, Position]) -> dict[str, Any]:
        """Nothing is new: the same offset again; or one that differs, while messages of the last batch wait for Spark's commit."""
        self._planned = at
        if self._attachment is None or not self._acks.waiting(begin, self._attachment):
            return at
        now, tail = time.monotonic(), at.get("idle", 0)
        self._idle_since = now if self._idle_since is None else self._idle_since
        available_now = self._ceiling is not None  # then the query ends once nothing is new
        soon = (self._put_off or now - self._idle_since < TAIL_S) and not available_now
        if soon or tail >= (1 if available_now else TAILS):
            return at
        self._idle_since = None
        self._planned = {**at, "idle": tail + 1}
        return self._planned

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest ids, from the last planning: lag is this minus the end offset. Of an unreachable link, the ids it reported last."""
        if not self._known or self._attachment is None:
            return None
        away = self._attachment.store.unavailable
        report = offsets.nested({queue: {"last": max(0, state.last_id)} for queue, state in self._known.items()}, away)
        for link in away:
            report["sources"][link]["away"] = True
        return report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        freeze()
        begin, goal = self._offsets.decode(start), self._offsets.decode(end)
        self._check_sources(goal)
        known = frozenset() if start == offsets.INITIAL else {"", *offsets.links_of(start)}
        done = {queue: offsets.begin(begin.get(queue), position) for queue, position in goal.items()}
        attachment = self._attach({**begin, **goal}, lambda queue: split(queue)[0] not in known, done)
        self._acks.read(start, end, attachment, planned_here=end == self._planned)
        if self._blind:
            attachment.compare([queue for queue in begin if self._wanted(queue)], begin)
        if (
            self._options.starting != "earliest" and not self._options.discard
        ):  # where the checkpoint was not known when this was planned; else it was checked then
            entered = {queue: position for queue, position in goal.items() if queue not in begin and split(queue)[0] not in known}
            attachment.check_backlog({queue: Position(p.born, p.start) for queue, p in entered.items() if p.start})
        prefetched = self._prefetched if end == self._planned else {}  # what is fetched belongs to the batch that was planned last
        self._planned, self._blind = end, False
        servers = attachment.store.locate(list(goal))
        ranges = []
        for queue, position in goal.items():
            if done[queue] < position.last:
                ranges.append(Range(queue, position.born, done[queue] + 1, position.last, servers[queue]))
        parts = tasks(ranges, self._options.min_partitions, self._options.max_per_partition)
        return [Partition(part, {r: rows for r in part if (rows := within(prefetched.get(r.queue, ()), r))}, goal) for part in parts]

    def commit(self, end: dict[str, Any]) -> None:
        done = self._offsets.decode(end)
        self._acks.commit(end, done, self._attach(done))

    def stop(self) -> None:
        """Spark rarely calls this (spark-facts A), so nothing depends on it: leases and threads end by themselves."""
        if self._discovery:
            self._discovery.stop()
        if self._attachment:
            self._attachment.stop()

    # -- what Spark calls in tasks --------------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Partition)
        return read_ranges(self._options, self._schema, partition)

    # -- planning -------------------------------------------------------------------------------------------------------------------------

    def _attach(
        self, known: Mapping[str, Position], fresh: Callable[[str], bool] = lambda _: False, done: Mapping[str, int] = MappingProxyType({})
    ) -> Attachment:
        """Take hold of the queues of the query: at the first call, and of new ones later. ``fresh``: whether startingOffsets counts for one."""
        if self._attachment is None:
            self._notified = threading.Event()
            store = planning_store(self._options)
            self._attachment = Attachment(self._options, store, push_notifiers(self._options, store, self._notified))
        attachment = self._attachment
        attachment.raise_if_taken()
        names = [spell(source, queue) for source in self._options.sources for queue in self._options.subscribe]
        if known and not self._compared:
            mention_changes({queue: self._wanted(queue) for queue in known}, names)
        self._compared |= bool(known)
        if self._options.subscribe_pattern:
            # One of the checkpoint that does not exist any more is not discovered, yet must be missed.
            acquired = set(attachment.queues)
            names = [queue for queue in known if queue not in acquired and self._wanted(queue)]
            names = list(dict.fromkeys([*names, *self._discovered(attachment.store)]))
        attachment.acquire(names, known, fresh, done=done, blind=self._blind)
        return attachment

    def _discovered(self, store: SourceStore) -> Sequence[str]:
        """The queues that match the pattern: looked for here at the first call, so that it misses none; then beside the planning."""
        if self._discovery is not None:
            found = self._discovery.take()
            self._listed |= set(found.listed) - set(store.unavailable)
            return found.queues
        first = store.discover(self._wanted)
        options = self._options
        self._discovery = Discovery(lambda: planning_store(options, quiet=True), self._wanted, links=bool(options.links))
        if self._ceiling is None:  # what comes after the start of Trigger.AvailableNow is not available now
            self._discovery.start()
        return first

    def _check_sources(self, planned: Mapping[str, Position]) -> None:
        """A batch that was planned is read as it was planned, from wherever."""
        if gone := {split(queue)[0] for queue in planned} - set(self._options.sources) - {""}:
            reason = f"the last batch in the checkpoint reads from link {min(gone)!r}, which federation.url does not name any more"
            raise ConfigError(reason=f"{reason}; name it until that batch is done")

    def _wanted(self, queue: str) -> bool:
        """Whether the options name the queue, or their pattern does."""
        pattern = self._options.subscribe_pattern
        source, own = split(queue)
        return source in self._options.sources and (own in self._options.subscribe if pattern is None else re.fullmatch(pattern, own) is not None)

    def _news(self, begin: Mapping[str, Position]) -> bool:
        """Whether planning may find anything beyond ``begin``; the cheap answer of an idle query, at most one small command per poll."""
        assert self._attachment is not None
        assert self._notified is not None
        queues, away = self._attachment.queues, self._attachment.store.unavailable
        if set(queues) - self._unknown_last_ids != set(begin) - self._attachment.paused:
            return True
        if any(self._reachable(queue) > begin[queue].last for queue in queues if queue in begin and not (away and split(queue)[0] in away)):
            return True
        if not self._notified.wait(max(0.0, min(WAIT_S, self._next_poll - time.monotonic()))) and time.monotonic() < self._next_poll:
            return False
        self._notified.clear()
        counters = self._attachment.store.counters(queues)
        self._next_poll = time.monotonic() + max(self._options.idle_poll_ms / 1000, LINK_POLL_S if self._options.links else 0.045)
        return counters != self._counters

    def _reachable(self, queue: str) -> int:
        last_id = self._known[queue].last_id if queue in self._known else 0
        return last_id if self._ceiling is None else min(last_id, self._ceiling.get(queue, 0))

    def _plan(self, begin: Mapping[str, Position], attachment: Attachment, known: Collection[str], *, unlimited: bool) -> dict[str, Position]:
        counters = attachment.store.counters(attachment.queues)  # before the states: a push in between is seen by the next poll
        states = attachment.store.states({queue: begin[queue].last if queue in begin else -1 for queue in attachment.queues})
        paused = {queue for queue in begin if queue in attachment.paused or (queue in attachment.queues and queue not in states)}
        self._known, self._counters = {**{queue: self._known[queue] for queue in paused if queue in self._known}, **states}, counters
        self._unknown_last_ids = frozenset(queue for queue, state in states.items() if state.last_id == UNKNOWN_ID)
        if self._ceiling is not None and not self._ceiling:
            self._ceiling = {queue: state.last_id for queue, state in states.items()}
        found = {queue: attachment.entry(queue, begin.get(queue), state, fresh=split(queue)[0] not in known) for queue, state in states.items()}
        entries = {queue: entry for queue, entry in found.items() if entry is not None}
        goals = {queue: max(entry.last, self._newest(queue, states[queue])) for queue, entry in entries.items()}
        if not unlimited:
            goals = self._capped(entries, goals, attachment)
        moved = self._fetched({queue: goal for queue, goal in goals.items() if goal > entries[queue].last}, entries, attachment.store)
        marks = self._marks(moved, states, attachment)
        ends = {queue: _advanced(entry, begin.get(queue), moved.get(queue), marks.get(queue)) for queue, entry in entries.items()}
        return {**ends, **{queue: begin[queue] for queue in paused}}

    def _fetched(self, moved: dict[str, int], entries: Mapping[str, Position], store: SourceStore) -> dict[str, int]:
        """The same, without queues of links that are away just now. What is planned must be read, and a batch waits for its slowest task: so the
        rows of links are fetched before they are planned, while they are few, and travel with the batch."""
        self._prefetched = {}
        if not isinstance(store, LinkedStore) or self._options.on_unavailable != "wait":
            return moved
        few = [queue for queue, goal in moved.items() if split(queue)[0] and goal - entries[queue].last <= PREFETCHED_ROWS]
        parts = [Range(queue, entries[queue].born, entries[queue].last + 1, moved[queue]) for queue in few]
        found = store.fetch(parts, PREFETCHED_BYTES, self._options.fail_on_data_loss)
        self._prefetched = {queue: rows for queue, rows in found.items() if rows}
        return {queue: goal for queue, goal in moved.items() if queue not in few or queue in found}

    def _newest(self, queue: str, state: QueueState) -> int:
        return state.newest if self._ceiling is None else min(state.newest, self._ceiling.get(queue, 0))

    def _capped(self, entries: Mapping[str, Position], goals: dict[str, int], attachment: Attachment) -> dict[str, int]:
        """Goals within the caps of the options."""
        available = {queue: goals[queue] - entries[queue].last for queue in goals}
        if (most := self._options.max_messages) is not None and sum(available.values()) > most:
            available = share(available, most)
        if (budget := self._options.max_bytes) is not None:
            available = self._within_bytes(entries, available, budget, attachment)
        return {queue: entries[queue].last + rows for queue, rows in available.items()}

    def _within_bytes(self, entries: Mapping[str, Position], available: dict[str, int], budget: int, attachment: Attachment) -> dict[str, int]:
        """Rows such that their values fit the budget: every queue gets the same part, what one leaves goes to the next; at least one row in all.

        A queue whose next message was larger than its part is first in line for the next batch, and may use all of it.
        """
        line = sorted((q for q in available if available[q] > 0), key=lambda q: (q not in self._passed_over, available[q], q))
        fitting = dict.fromkeys(available, 0)
        left = budget
        for place, queue in enumerate(line):
            first = entries[queue].last + 1
            part = left if queue in self._passed_over else left // (len(line) - place)
            reached, used = attachment.store.bytes_until(queue, first, first + available[queue] - 1, part)
            if reached < first and place == 0 and part == budget:
                reached, used = first, budget  # one message over the whole budget: it must pass alone, or the queue stands still for ever
            fitting[queue], left = reached - first + 1, left - used
            if left <= 0:
                break
        if line and not any(fitting.values()):
            fitting[line[0]] = 1
        self._passed_over = frozenset(queue for queue in line if not fitting[queue])
        return fitting

    @staticmethod
    def _marks(goals: Mapping[str, int], states: Mapping[str, QueueState], attachment: Attachment) -> dict[str, str]:
        """Fingerprints of the last messages of a batch: known for the newest, else asked for in one more round trip."""
        inner = {queue: goal for queue, goal in goals.items() if goal != states[queue].newest}
        asked = attachment.store.marks(inner) if inner else {}
        return {**{queue: states[queue].newest_mark for queue in goals if queue not in inner}, **asked}


def _advanced(entry: Position, before: Position | None, goal: int | None, mark: str | None) -> Position:
    """The end position of a queue. One that enters (or goes on after a loss) keeps ``start``, from which the batch begins.

    Without a fingerprint, since its source has just become unreachable, the position stays.
    """
    if goal is None or mark is None:
        return entry
    return Position(entry.born, goal, mark, None if entry is before else entry.start, entry.lost)
