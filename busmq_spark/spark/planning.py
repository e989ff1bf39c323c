"""The state of the reader on the driver: its queues, its last planning, its acks. It decides where
each batch ends.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from busmq_spark.options import ReadOptions
from busmq_spark.queue.command_generators import run_sync
from busmq_spark.queue.position import Position
from busmq_spark.queue.qualified_queue_names import split_name
from busmq_spark.reading import offsets
from busmq_spark.reading.batch_planner import AcquiredQueues, BatchPlanner
from busmq_spark.reading.read_tasks import ranges, tasks
from busmq_spark.reading.times_of_ids import TimesOfIds
from busmq_spark.spark import compat
from busmq_spark.spark.acks import QueryAcks
from busmq_spark.spark.empty_batch_trigger import EmptyBatchTrigger
from busmq_spark.spark.id_time_recorder import IdTimeRecorder
from busmq_spark.spark.planner_io import PlannerIO
from busmq_spark.spark.polling import PollSchedule
from busmq_spark.spark.query_lag import QueryLagMeter
from busmq_spark.spark.queue_selection import QueueSelection
from busmq_spark.spark.range_partition import RangePartition
from busmq_spark.spark.stores import planning_store, push_listeners
from busmq_spark.spark.stream_queue_acquirer import (
    StreamQueueAcquirer,
    warn_queues_differ_from_checkpoint,
)
from busmq_spark.store.multi_source_store import rows_within
from busmq_spark.store.protocol import ConsecutiveMessages


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

    def latest_offset(self, start: dict[str, Any] | None, limit: Any) -> dict[str, Any] | None:
        """The end of the next batch; return None while a link cannot be reached whose positions an
        unread checkpoint may have.
        """
        self._start_unknown = start is None and self._planned is None
        skipped = self.stream_queues.store.unanswered_count if self.stream_queues else 0
        start = start and self._offsets.canonical(start)
        at = start or self._planned or offsets.INITIAL_OFFSET
        self._compared |= at == offsets.INITIAL_OFFSET and not self._start_unknown
        begin, sources = self._offsets.decode(at), offsets.sources_of(at)
        stream_queues = self._acquire_stream_queues(begin, sources)
        self._times.note_new_times(self.planner.last_ids, stream_queues.store)
        self._acks_put_off = not self._acks.ack_start(start, begin, stream_queues)
        held = stream_queues.held_queues(sources)
        if (
            at == self._planned
            and at != offsets.INITIAL_OFFSET
            and not self._has_news(begin, held, stream_queues)
        ):
            return self._offset_without_news(at, begin, stream_queues)
        positions = self._plan(begin, held, limit, stream_queues)
        if self._start_unknown and (
            stream_queues.store.unavailable or stream_queues.store.unanswered_count > skipped
        ):
            self._acks = QueryAcks(
                self._options
            )  # this is tried again within the same call of Spark
            # The unread checkpoint may have positions of unreachable sources; the next one must
            # keep them
            return None
        planned = self._offsets.encode(positions, self._known_links(sources, stream_queues))
        if at != offsets.INITIAL_OFFSET and offsets.have_same_positions(planned, at):
            return self._offset_without_news(at, begin, stream_queues)
        if self._timed:
            self._times.note_new_times(self.planner.last_ids, stream_queues.store, at_once=True)
        self._planned = planned
        self._idle.end()
        return planned

    def _plan(
        self,
        begin: Mapping[str, Position],
        held: AcquiredQueues,
        limit: Any,
        stream_queues: StreamQueueAcquirer,
    ) -> dict[str, Position]:
        """The positions at the end of the batch, by what the queues hold now; the rows that were
        fetched for it are in ``prefetched`` then.
        """
        unlimited = self._start_unknown or (
            limit is not None and compat.is_unlimited(limit) and not self.planner.available_now
        )
        answers = PlannerIO(
            stream_queues, strict=self._options.fail_on_data_loss, timed=self._timed
        )
        positions = run_sync(
            self.planner.plan(begin, held, unlimited=unlimited, now_ms=_now_ms()), answers
        )
        self.prefetched, self._prefetched_times = answers.prefetched, answers.times
        return positions

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
            ranges(done, goal, stream_queues.store.locate(list(goal))),
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
        self._acks.ack_end(
            end, done, self._acquire_stream_queues(done, {"", *self._options.sources})
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
        woken = (
            self._polling.wait_for_push()
        )  # then a planning is not dearer than the question whether it finds something
        if not woken and not self._polling.is_due():
            return False
        pushed = woken or run_sync(
            self.planner.has_pushes(held), PlannerIO(stream_queues, strict=True)
        )
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
