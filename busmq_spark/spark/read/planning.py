"""The batches of one streaming query, planned on the driver: ends of batches, acks, polls, lag.

Spark calls one process of ours on the driver, in one thread. The state of a query is in the fields
of ``StreamingQueryPlanner``; a restart begins with ``new`` and knows the checkpoint only.

========= ============================================= ==========================================
state     what is known                                 field
========= ============================================= ==========================================
new       nothing: no queue is held                     ``stream_queues`` is None
blind     Spark gave no start (before 4.2) and there    ``_start_unknown``
          was no planning: a checkpoint may exist
planned   the end of the next batch                     ``_planned``
========= ============================================= ==========================================

====================== ======================= ===================================================
call of Spark          state                   steps, in this order
====================== ======================= ===================================================
``latestOffset``       any to planned          hold the queues: compare, create, lease, subscribe;
                                               note times; ack the start if it is in the logs;
                                               plan, or find nothing new; return the end
``latestOffset``       blind stays blind       the same, but a link is unreachable: return None, and
                                               the caller asks again
``partitions``         any to planned          hold the queues; compare them with the start; cut the
                                               ids between start and end into tasks
``commit``             stays                   ack the end
====================== ======================= ===================================================

============================= ====================================================================
crash after                   what the next process finds
============================= ====================================================================
subscribe, before the end is  the same queues and positions; it plans the batch anew
in the offset log
the offset log                Spark asks for the tasks of the logged end: the same ids
the commit log, before the    the messages are still stored; the end is the next start, and is
ack                           acknowledged by the second ``latestOffset``
the ack                       an ack that comes again changes nothing
============================= ====================================================================
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from busmq_spark.errors import BusError
from busmq_spark.options import ReadOptions
from busmq_spark.queue.keys import split_name
from busmq_spark.queue.message import Position, Range
from busmq_spark.reading import offsets
from busmq_spark.reading.batch_planner import AcquiredQueues, BatchPlanner, ranges, tasks
from busmq_spark.reading.loss import Loss
from busmq_spark.reading.skipping import ranges_without
from busmq_spark.reading.times_of_ids import TimesOfIds
from busmq_spark.spark import compat
from busmq_spark.spark.read.acquisition import (
    QueueSelection,
    StreamQueueAcquirer,
    warn_queues_differ_from_checkpoint,
)
from busmq_spark.spark.read.tasks import (
    IdTimeRecorder,
    RangePartition,
    fetch_times,
    note_times_if_allowed,
)
from busmq_spark.spark.stores import planning_store, push_listeners
from busmq_spark.store.multi_source_store import MultiSourceStore, rows_within
from busmq_spark.store.protocol import ConsecutiveMessages, ReadStore


class StreamingQueryPlanner:
    """The batches of one query, one after the other. The first call that asks Redis opens
    connections and threads.
    """

    def __init__(self, options: ReadOptions, *, timed: bool = False) -> None:
        """``timed``: the rows have their times, which must be noted before they are read."""
        self.planner = BatchPlanner(options)
        self._timed = timed
        self.names = QueueSelection(options)
        self.stream_queues: StreamQueueAcquirer | None = None
        self.prefetched: Mapping[str, Sequence[ConsecutiveMessages]] = {}
        self._prefetched_times: Mapping[str, TimesOfIds] = {}
        self._options = options
        self._offsets = offsets.OffsetCodec()
        self._idle = EmptyBatchTrigger()
        self._times = IdTimeRecorder()
        self._lag = QueryLagMeter()
        self._acks = QueryAcks(options)
        self._polling: PollSchedule | None = None
        self._planned: dict[str, Any] | None = None
        self._acks_put_off = False
        """Whether it was too early for the acks of the start."""
        self._start_unknown = False
        """Spark has not handed over the start: a checkpoint may exist."""
        self._compared = False
        """Whether the queues of the checkpoint were compared with those of the options."""

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        """An error goes into the record of the reader, and on to Spark."""
        try:
            yield
        except Exception as error:
            if self.stream_queues:
                self.stream_queues.announcer.note_error(error)
            raise

    def latest_offset(self, start: dict[str, Any] | None, limit: Any) -> dict[str, Any] | None:
        """Return the end of the next batch; return None while a link cannot be reached whose
        positions an unread checkpoint may have.
        """
        self._start_unknown = start is None and self._planned is None
        unanswered = self._unanswered_count()
        start = start and self._offsets.canonical(start)
        at = start or self._planned or offsets.INITIAL_OFFSET
        is_first = at == offsets.INITIAL_OFFSET
        self._compared |= is_first and not self._start_unknown
        begin, sources = self._offsets.decode(at), offsets.sources_of(at)
        queues = self._acquire_stream_queues(begin, sources)
        queues.announcer.own = {queue: position.last for queue, position in begin.items()}
        self._times.note_new_times(self.planner.last_ids, queues.store)
        self._acks_put_off = not self._acks.ack_start(start, begin, queues)
        held = queues.held_queues(sources)
        if at == self._planned and not is_first and not self._has_news(begin, held, queues):
            return self._offset_without_news(at, begin, queues)
        positions = self._plan(begin, held, limit, queues)
        if self._start_unknown and (
            queues.store.unavailable or self._unanswered_count() > unanswered
        ):
            # The unread checkpoint may have positions of this link; the offset must keep them
            self._acks = QueryAcks(self._options)
            return None
        end = self._offsets.encode(positions, self._known_links(sources, queues))
        if not is_first and offsets.have_same_positions(end, at):
            return self._offset_without_news(at, begin, queues)
        if self._timed:
            self._times.note_new_times(self.planner.last_ids, queues.store, at_once=True)
        self._planned = end
        queues.announcer.note_planned(_rows_between(begin, positions))
        self._idle.end()
        return end

    def _plan(
        self,
        begin: Mapping[str, Position],
        held: AcquiredQueues,
        limit: Any,
        stream_queues: StreamQueueAcquirer,
    ) -> dict[str, Position]:
        """Return the positions at the end of the batch, by the present states of the queues. The
        rows that were fetched for it are in ``prefetched`` then.
        """
        unlimited = self._start_unknown or (
            limit is not None and compat.is_unlimited(limit) and not self.planner.available_now
        )
        io = QueryPlannerIO(
            stream_queues, strict=self._options.fail_on_data_loss, timed=self._timed
        )
        positions = self.planner.plan(begin, held, io, unlimited=unlimited, now_ms=_now_ms())
        self.prefetched, self._prefetched_times = io.prefetched, io.times
        return positions

    def _unanswered_count(self) -> int:
        return self.stream_queues.store.unanswered_count if self.stream_queues else 0

    def report_latest_offset(self) -> dict[str, Any] | None:
        """Return the report for ``reportLatestOffset``: the newest ids, and the lag of the
        query.
        """
        if not self.planner.last_ids or self.stream_queues is None:
            return None
        away = self.stream_queues.store.unavailable
        lag = self._lag.measure(
            self._offsets.decode(self._planned or offsets.INITIAL_OFFSET),
            self.planner.last_ids,
            self.stream_queues.store,
        )
        report = offsets.nest_by_source(
            {queue: {"last": max(0, id)} for queue, id in self.planner.last_ids.items()}, away
        )
        for link in away:
            report["sources"][link]["away"] = True
        return {**report, "lag": lag.messages, "lag_s": lag.seconds}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """The tasks of a batch, planned here or before a restart."""
        start, end = self._offsets.canonical(start), self._offsets.canonical(end)
        begin, goal = self._offsets.decode(start), self._offsets.decode(end)
        self.names.check_planned_sources(goal)
        sources = offsets.sources_of(start)
        done = {
            queue: offsets.last_id_before_batch(begin.get(queue), position)
            for queue, position in goal.items()
        }
        stream_queues = self._acquire_stream_queues({**begin, **goal}, sources, done)
        self._acks.count_synchronous_commits(
            start, end, stream_queues, planned_here=end == self._planned
        )
        # If a queue that was entered without the checkpoint lost messages, its start is the oldest
        # message that was stored then.
        unseen = {
            queue
            for queue, position in goal.items()
            if queue in begin and is_planned_without_checkpoint(begin[queue], position)
        }
        compared = [
            queue
            for queue in begin
            if queue in unseen or (self._start_unknown and self.names.includes(queue))
        ]
        for queue, loss in stream_queues.find_losses(compared, begin).items():
            if loss and queue in unseen:
                stream_queues.warn_of_loss(queue, loss, begin[queue])
                done[queue] = goal[queue].start or 0
        # Only if the checkpoint was not known when this was planned; else it was checked then.
        entered = {
            queue: Position(p.born, p.start)
            for queue, p in goal.items()
            if queue not in begin and p.start
        }
        first = {
            queue: start for queue, start in entered.items() if split_name(queue)[0] not in sources
        }
        if self._start_unknown or not self._options.discard:
            stream_queues.check_backlog(first)
        if self._start_unknown and first and self._options.subscription:
            # It was registered at the oldest message, as no more was known: messages before the
            # start would look unread when this batch is read again.
            stream_queues.store.ack(first, self._options.subscription)
        done.update(
            stream_queues.ids_before_oldest_messages(
                {
                    queue: start
                    for queue, start in entered.items()
                    if split_name(queue)[0] in sources
                }
            )
        )
        prefetched = (
            self.prefetched if end == self._planned else {}
        )  # fetched rows belong to the batch that was planned last
        self._planned, self._start_unknown = end, False
        cut = tasks(
            ranges_without(
                ranges(done, goal, stream_queues.store.locate(list(goal))), stream_queues.skipped
            ),
            self._options.min_partitions,
            self._options.max_per_partition,
        )
        found = [
            {r: rows for r in part if (rows := rows_within(prefetched.get(r.queue, ()), r))}
            for part in cut
        ]
        return [
            RangePartition(part, rows, goal, self._prefetched_times)
            for part, rows in zip(cut, found, strict=True)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge a batch that is in the commit log."""
        end = self._offsets.canonical(end)
        done = self._offsets.decode(end)
        queues = self._acquire_stream_queues(done, {"", *self._options.sources})
        before = queues.announcer.own
        queues.announcer.own = {**before, **{queue: at.last for queue, at in done.items()}}
        self._acks.ack_end(end, done, queues)
        queues.announcer.note_committed(
            sum(max(0, at.last - before.get(queue, at.last)) for queue, at in done.items())
        )

    def stop(self) -> None:
        """End threads and connections."""
        self.names.stop()
        if self.stream_queues:
            self.stream_queues.stop()

    def _known_links(self, sources: frozenset[str], stream_queues: StreamQueueAcquirer) -> set[str]:
        """The links whose queues are known: a link is in an offset from then on."""
        entering = {split_name(queue)[0] for queue in self.planner.unknown_last_ids}
        return {
            *sources & {*self._options.sources},
            *stream_queues.store.listed_sources,
            *self.names.listed_sources,
            *entering,
        } - {""}

    def _has_news(
        self,
        begin: Mapping[str, Position],
        held: AcquiredQueues,
        stream_queues: StreamQueueAcquirer,
    ) -> bool:
        """Whether planning may find anything beyond ``begin``; the cheap answer of an idle query,
        at most one small command per poll.
        """
        assert self._polling is not None
        if self.planner.has_more(begin, held, stream_queues.store.unavailable, _now_ms()):
            return True
        # After a push a planning costs no more than the question whether it finds something
        woken = self._polling.wait_for_push()
        if not woken and not self._polling.is_due():
            return False
        pushed = woken or self.planner.has_pushes(held, QueryPlannerIO(stream_queues, strict=True))
        self._polling.schedule_next_poll()
        return pushed

    def _offset_without_news(
        self, at: dict[str, Any], begin: Mapping[str, Position], stream_queues: StreamQueueAcquirer
    ) -> dict[str, Any]:
        """Return the same offset again; or one that differs, while messages of the last batch wait
        for Spark's commit and can be acknowledged.
        """
        away = stream_queues.store.unavailable
        waiting = any(
            split_name(queue)[0] not in away
            for queue in self._acks.unacked_positions(begin, stream_queues)
        )
        self._planned = (
            self._idle.next(
                at,
                time.monotonic(),
                early=self._acks_put_off,
                available_now=self.planner.available_now,
            )
            if waiting
            else at
        )
        return self._planned

    def _acquire_stream_queues(
        self,
        known: Mapping[str, Position],
        sources: Collection[str],
        done: Mapping[str, int] = MappingProxyType({}),
    ) -> StreamQueueAcquirer:
        """Take hold of the queues of the query: at the first call, and of new ones later.
        ``known``: positions of the checkpoint, or of a batch.
        """
        if self.stream_queues is None:
            self._polling = PollSchedule(self._options)
            store = planning_store(self._options)
            self.stream_queues = StreamQueueAcquirer(
                self._options, store, push_listeners(self._options, store, self._polling.notified)
            )
        stream_queues = self.stream_queues
        stream_queues.raise_if_taken()
        if known and not self._compared:
            warn_queues_differ_from_checkpoint(
                {queue: self.names.includes(queue) for queue in known}, self.names.named_queues
            )
        self._compared |= bool(known)
        # Messages after the start of Trigger.AvailableNow are not available now.
        names = self.names.queues_to_acquire(
            known,
            stream_queues.queues,
            stream_queues.store,
            new_ones=not self.planner.available_now,
        )
        stream_queues.acquire(names, known, sources, done=done, start_unknown=self._start_unknown)
        return stream_queues


def is_planned_without_checkpoint(before: Position, end: Position) -> bool:
    """Whether ``end`` was planned without the position ``before``: Spark before 4.2 does not show
    it to the first planning of a process.

    A loss after that position is found when the tasks are planned; if the batch fails for it, by
    each process that repeats the batch.
    """
    return end.start is not None and end != before and end.lost <= before.lost


def _now_ms() -> int:
    return int(1000 * time.monotonic())


def _rows_between(begin: Mapping[str, Position], end: Mapping[str, Position]) -> int:
    """The rows of a batch, where ids have no holes; a queue that enters counts from its start."""
    return sum(
        max(0, at.last - (begin[queue].last if queue in begin else at.start or 0))
        for queue, at in end.items()
    )


PREFETCHED_BYTES = 4 * 1024 * 1024
"""Bytes of a link up to which rows are fetched with the planning of a batch."""


class QueryPlannerIO:
    """The partner of one planning. Satisfies PlannerIO. ``prefetched``: rows that were fetched for
    the batch, by queue; ``times``: their times, where rows have times.
    """

    def __init__(
        self, stream_queues: StreamQueueAcquirer, *, strict: bool, timed: bool = False
    ) -> None:
        self.store = stream_queues.store
        self.prefetched: Mapping[str, Sequence[ConsecutiveMessages]] = {}
        self.times: Mapping[str, TimesOfIds] = {}
        self._stream_queues, self._strict, self._timed = stream_queues, strict, timed

    def handle_loss(self, queue: str, at: Position | None, loss: Loss) -> Position | None:
        """Return the position to go on from after a loss. Raises DataLoss where it is not
        allowed.
        """
        return self._stream_queues.handle_loss(queue, at, loss)

    def drop_expired_queue(self, queue: str) -> None:
        """Hold the queue no more."""
        self._stream_queues.drop_expired_queue(queue)

    def prefetch(self, ranges: Sequence[Range]) -> Collection[str]:
        """Fetch rows of links. A link that goes away now must not be needed by the batch: its
        queues are left out, also where only their times are missing.
        """
        store = self.store
        assert isinstance(store, MultiSourceStore), "only rows of links are fetched ahead"
        found = store.fetch(ranges, PREFETCHED_BYTES, self._strict)
        if self._timed:
            note_times_if_allowed(store, list(found))
            self.times = fetch_times(store, [part for part in ranges if found.get(part.queue)])
            found = {
                queue: rows for queue, rows in found.items() if not rows or queue in self.times
            }
        self.prefetched = {queue: rows for queue, rows in found.items() if rows}
        return found


SYNCHRONOUS_ACK_COMMITS = 3
"""Spark calls ``commit`` of a batch after it has written the batch to its commit log: without async
progress tracking before it asks for the tasks of the next batch, with it in a thread of its own, by
chance before or after. So many batches in a row in this order show that the logs are synchronous; a
single one in the other order shows that they are not.
"""


class QueryAcks:
    """The acknowledged positions of a query, and the ones that it may acknowledge: those that are
    certainly in Spark's logs.

    ================ =========================================== ==================================
    what is known    when it changes                             the start of a batch is acked
    ================ =========================================== ==================================
    first start      ``ack_start`` is called once                not yet: other readers of the
                                                                 query may begin before it
    durable start    set by the first call, until another start  while the start is that one, unless
                     comes or tasks are asked for                its batch was executed again
    synchronous      +1 where the start of the tasks asked for   from SYNCHRONOUS_ACK_COMMITS in a
                     was committed before                        row on
    not synchronous  a start was not committed before; for good  never: only ``ack_end`` acks
    ================ =========================================== ==================================
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._acked_positions: dict[str, Position] = {}
        self._last_committed: dict[str, Any] | None = None
        self._last_read_end: dict[str, Any] | None = (
            None  # the end of the batch whose tasks were asked for last
        )
        self._synchronous_batches: int | None = (
            # Batches that Spark committed while it planned the next; the value is None once one was
            # not
            0
        )
        self._is_first_start = True  # no start was handed over to ``ack_start`` yet
        # Tasks were asked for before that: the batch of the first start is executed again
        self._first_start_was_replayed = False
        self._durable_start: dict[str, Any] | None = (
            None  # a start that is in the checkpoint for certain
        )

    def ack_start(
        self,
        start: dict[str, Any] | None,
        positions: Mapping[str, Position],
        stream_queues: StreamQueueAcquirer,
    ) -> bool:
        """Acknowledge the start of a batch, where it is in the logs; false when that is put off to
        the next call.

        The first start of a process comes from the checkpoint itself. With the first call it is too
        early for an ack: other readers of the same query may not have been asked yet, and theirs
        may begin before it.
        """
        if self._is_first_start:
            self._is_first_start, self._durable_start = (
                False,
                None if self._first_start_was_replayed else start,
            )
            return False
        stream_queues.siblings.stop_admitting_readers()
        if start is not None and (
            start == self._durable_start
            or (self._synchronous_batches or 0) >= SYNCHRONOUS_ACK_COMMITS
        ):
            self.ack_now(positions, stream_queues)
        if start != self._durable_start:
            self._durable_start = None
        return True

    def count_synchronous_commits(
        self,
        start: dict[str, Any],
        end: dict[str, Any],
        stream_queues: StreamQueueAcquirer,
        *,
        planned_here: bool,
    ) -> None:
        """Called when Spark asks for the tasks of a batch. Notes whether Spark had committed the
        batch before, if this one was planned here.
        """
        if self._is_first_start:
            # The batch of the first start is executed again, so the start after it is no more
            # durable than later ones.
            self._first_start_was_replayed = True
        else:
            stream_queues.siblings.stop_admitting_readers()
        self._durable_start = None
        if (
            planned_here
            and end != self._last_read_end
            and start != offsets.INITIAL_OFFSET
            and self._synchronous_batches is not None
        ):
            self._synchronous_batches = (
                self._synchronous_batches + 1 if self._last_committed == start else None
            )
        self._last_read_end = end  # a batch that is read several times asks for its tasks each time

    def ack_end(
        self,
        end: dict[str, Any],
        positions: Mapping[str, Position],
        stream_queues: StreamQueueAcquirer,
    ) -> None:
        """Acknowledge the end of a batch that is in the commit log."""
        self._last_committed = end
        stream_queues.siblings.stop_admitting_readers()
        self.ack_now(positions, stream_queues)

    def ack_now(
        self, positions: Mapping[str, Position], stream_queues: StreamQueueAcquirer
    ) -> None:
        """Acknowledge, unless that was done before. Refused positions are a loss that planning will
        report.
        """
        fresh = self.unacked_positions(positions, stream_queues)
        lowest = stream_queues.siblings.lowest_positions(fresh) if fresh else {}
        results = stream_queues.store.ack(lowest, self._options.subscription) if lowest else {}
        for queue, position in fresh.items():
            if queue in results and results[queue].status != "ok":
                stream_queues.fail_on_refused_ack(queue, lowest[queue], results[queue])
            if queue in results or queue not in lowest:  # else its source is unreachable
                self._acked_positions[queue] = position

    def unacked_positions(
        self, positions: Mapping[str, Position], stream_queues: StreamQueueAcquirer
    ) -> dict[str, Position]:
        """Return the positions that have not been acknowledged."""
        if self._options.ack != "commit":
            return {}
        held = set(stream_queues.queues)
        return {
            queue: p
            for queue, p in positions.items()
            if self._acked_positions.get(queue) != p and p.last > 0 and queue in held
        }


IDLE_BEFORE_EMPTY_BATCH_S = 5.0
"""The idle seconds after which a query plans a batch without rows."""
MAX_EMPTY_BATCHES = 3
"""Most empty batches in a row. One is enough for Spark to commit the last batch; async progress
tracking may need more.
"""


class EmptyBatchTrigger:
    """Decides what an idle query returns: the same offset, so that Spark runs no batch, or one with
    a higher ``idle``, so that Spark runs an empty batch.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def next(
        self, at: dict[str, Any], now: float, *, early: bool, available_now: bool
    ) -> dict[str, Any]:
        """The offset to plan while messages of the batch that ends ``at`` are not acknowledged and
        nothing is new. ``now`` in seconds.

        ``early``: acks are put off, so a commit would not help. ``available_now``: the query ends
        once nothing is new, so there is no time to wait.
        """
        self._since = now if self._since is None else self._since
        soon = (early or now - self._since < IDLE_BEFORE_EMPTY_BATCH_S) and not available_now
        if soon or at.get("idle", 0) >= (1 if available_now else MAX_EMPTY_BATCHES):
            return at
        self._since = None
        return {**at, "idle": at.get("idle", 0) + 1}

    def end(self) -> None:
        """Something is new."""
        self._since = None


PUSH_WAIT_S = 0.01
"""Seconds for which an idle planning call waits for a push: about as long as Spark pauses between
two calls.
"""
MIN_POLL_S = 0.045
"""The least interval: with this 25 commands a second, however small the option is."""
LINK_POLL_S = 1.0
"""Seconds between two polls of federation servers by an idle query, at least. Their pushes wake it,
too; over a far link asking all the time is not cheap.
"""


class PollSchedule:
    """The pace of one query. ``notified`` is set by the push listeners."""

    def __init__(self, options: ReadOptions) -> None:
        self.notified = threading.Event()
        self._options = options
        self._next = 0.0

    def wait_for_push(self) -> bool:
        """Whether a push was notified; waits ``PUSH_WAIT_S`` for one at most, and not beyond the
        time of the next question.
        """
        woken = self.notified.wait(max(0.0, min(PUSH_WAIT_S, self._next - time.monotonic())))
        if woken:
            self.notified.clear()
        return woken

    def is_due(self) -> bool:
        """Whether to ask now, though no push was notified."""
        return time.monotonic() >= self._next

    def schedule_next_poll(self) -> None:
        """The answer has come; the next question is due an interval from now."""
        self._next = time.monotonic() + max(
            self._options.idle_poll_ms / 1000, LINK_POLL_S if self._options.links else MIN_POLL_S
        )


LAG_INTERVAL_S = 1.0
"""Seconds between two reads of ages, at least: Spark asks with every poll."""


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The lag of a query: the messages stored after the end of its last batch."""

    messages: int
    seconds: int | None
    """Since the oldest of them came, or a little less, as far as that is known; the age is None
    where it is known of none.
    """


class QueryLagMeter:
    """A meter of the lag of one query."""

    def __init__(self) -> None:
        self._next = 0.0
        self._seconds: int | None = None

    def measure(
        self, ends: Mapping[str, Position], last_ids: Mapping[str, int], store: ReadStore
    ) -> QueryLag:
        """``ends`` of the last batch, ``last_ids`` of the last planning. A lag that cannot be read
        now is unknown.
        """
        waiting = {
            queue: end.last + 1 for queue, end in ends.items() if last_ids.get(queue, 0) > end.last
        }
        if not waiting:
            self._next = 0.0
            return QueryLag(0, 0)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LAG_INTERVAL_S
            try:
                ages = [age for age in store.ages(waiting).values() if age >= 0]
            # Also of a federation server that is older than this question; an error comes up where
            # it counts
            except BusError:
                ages = []
            self._seconds = max(ages) // 1000 if ages else None
        return QueryLag(sum(last_ids[queue] - ends[queue].last for queue in waiting), self._seconds)
