"""The end of the next batch of the source: decided from the positions before it, the options, and
the states of the queues.

The planner asks an object that satisfies ``PlannerIO``. It has no connection, no clock and no
thread, so tests/golden/plans-v1.json tests it and the planner of the Java module alike. An answer
about many queues leaves out those that cannot be asked now; such queues keep their positions.

A planning only reads: a crash in it leaves nothing. In one planning a queue is in one state:

========= ================================================== =====================================
state     how it is recognized                               its position at the end
========= ================================================== =====================================
intact    has a position, and ``intact`` answers for it      its position and its share of rows
unchanged no answer of ``intact``, no loss in ``states``     its position and its share of rows
lost      ``states`` shows a loss after the position         ``handle_loss`` says: before the oldest
                                                             stored message, none yet, or DataLoss
new       has no position: it enters with this batch         its start and its share of rows; the
                                                             position keeps the start as ``start``
unknown   new and empty, and its last id cannot be read      none until its next message
expired   new, and does not exist any more                   none, by ``drop_expired_queue``
paused    has a position, and its source cannot be asked     its position
========= ================================================== =====================================

The questions come in this order, each only where a queue needs it:

1. ``intact``: the queues of Redis itself that have a position.
2. ``states``: all others, and those without an answer to 1.
3. ``handle_loss``, ``drop_expired_queue``, ``find_times``: lost, expired, new queues, one by one.
4. ``bytes_until``: with maxBytesPerTrigger, queue by queue.
5. ``prefetch``: few rows of links.
6. ``marks``: fingerprints at the ends, where 1 and 2 have not shown them.

Which task reads what: the ranges of a batch, cut and packed. Ranges are first..last,
inclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from busmq_spark.errors import ConfigError
from busmq_spark.options import ReadOptions
from busmq_spark.queue.keys import display_name, split_name
from busmq_spark.queue.message import MAX_ID, Position, Range
from busmq_spark.reading.loss import Loss, loss_between
from busmq_spark.reading.reader_operations import UNKNOWN_ID, QueueState
from busmq_spark.reading.times_of_ids import TimeLookupResult
from busmq_spark.starting_offsets import AtTime, NewestMessages, OffsetBound

PREFETCHED_ROWS = 20_000
"""Rows of a queue of a link up to which they are fetched with the planning of a batch; more than
that is read by its tasks.
"""

Positions: TypeAlias = Mapping[str, Position]
FindTimes: TypeAlias = Callable[[Mapping[str, int]], Mapping[str, TimeLookupResult]]
"""Looks a time up in the clock of each queue."""
BytesUntil: TypeAlias = Callable[[str, int, int, int], tuple[int, int]]
"""Takes a queue, its ids ``first``..``last`` and a budget; returns the last id up to which values
fit the budget, and their bytes. The id is the one before ``first`` when none fits.
"""


class QueueQuestions(Protocol):
    """The questions about queues. A planning store answers them."""

    def counters(self, queues: Sequence[str]) -> object:
        """Return the newest ids of the queues, to be compared with the next answer only."""
        ...

    def intact(
        self, wanted: Mapping[str, tuple[Position, int]]
    ) -> Mapping[str, tuple[int, str] | None]:
        """Whether queues of Redis have all messages after a position. An answer is the id given
        last, and the fingerprint of the message with that id or, if it is lower, the one in
        ``wanted``; '' where nothing follows. It is None where ``states`` must tell.

        An intact queue is one in which ``loss_between`` finds nothing; the check takes Redis half
        the time of a state.
        """
        ...

    def states(self, wanted: Mapping[str, int]) -> Mapping[str, QueueState]:
        """Return the state of each queue. ``wanted`` names the message whose fingerprint is
        compared, -1 for none.
        """
        ...

    def marks(self, ids: Mapping[str, int]) -> Mapping[str, str]:
        """Return the fingerprint of one message of each queue."""
        ...

    def find_times(self, wanted: Mapping[str, int]) -> Mapping[str, TimeLookupResult]:
        """Look a time up in the clock of each queue."""
        ...

    def bytes_until(self, queue: str, first: int, last: int, budget: int) -> tuple[int, int]:
        """Return the last of the ids ``first``..``last`` up to which values fit ``budget``, and
        their bytes. The id is the one before ``first`` when none fits.
        """
        ...


class PlannerIO(Protocol):
    """The partner of one planning: it answers questions, and acts where a queue has lost
    messages.
    """

    @property
    def store(self) -> QueueQuestions: ...

    def prefetch(self, ranges: Sequence[Range]) -> Collection[str]:
        """Read rows now, to travel with the batch. Return the queues whose rows were read."""
        ...

    def handle_loss(self, queue: str, at: Position | None, loss: Loss) -> Position | None:
        """Return the position to go on from after a loss, or None to decide later. Messages after
        ``at`` were lost, or after the start of startingOffsets where ``at`` is None. Raises
        DataLoss where a loss is not allowed.
        """
        ...

    def drop_expired_queue(self, queue: str) -> None:
        """A queue that was new has expired: it is not held any more."""
        ...


@dataclass(frozen=True, slots=True)
class AcquiredQueues:
    """The queues that a reader holds, and what is decided of those that it does not read yet."""

    queues: Sequence[str]
    paused: Collection[str] = ()
    """Queues of the checkpoint whose source could not be reached when they were to be acquired."""
    entering: Positions = field(default_factory=dict)
    """The starts of queues that startingOffsets applies to. Decided once: with ``latest``, messages
    pushed since then are read.
    """
    sources: Collection[str] = ()
    """The sources of the checkpoint; startingOffsets applies to queues of the others."""


@dataclass(frozen=True, slots=True)
class BatchPlanInput:
    """The present contents of the queues."""

    entries: Positions
    """The start of the batch."""
    entered: Collection[str]
    """Queues that enter the query with this batch, or go on after a loss: their end keeps the start
    of the batch.
    """
    paused: Collection[str]
    """Queues with a position that cannot be asked now."""
    newest: Mapping[str, int]
    """The id of the newest message."""
    marks: Mapping[str, tuple[int, str]]
    """The id and the fingerprint of the newest message, or of an earlier one at which the batch is
    likely to end.
    """


class BatchPlanner:
    """Plans batch after batch. Its memory between batches makes planning faster and sharing fairer;
    a new planner loses nothing by it.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.last_ids: Mapping[str, int] = {}
        """The id given last by each queue, or UNKNOWN_ID, at the last planning; of one that could
        not be asked then as it was before.
        """
        self.unknown_last_ids: frozenset[str] = frozenset()
        """Empty queues whose last id only the next message shows: they enter with it."""
        self._options = options
        # From before the last planning; the value is None where they were not asked for then
        self._counters: object = None
        self._asked: object = None  # since the last planning
        self._ceiling: dict[str, int] | None = None
        self._passed_over: frozenset[str] = frozenset()
        self._batch_ms: int | None = None  # when a batch with messages was planned last

    def prepare_for_available_now(self) -> None:
        """Trigger.AvailableNow: the query reads the messages that are stored at the first
        planning.
        """
        self._ceiling = {}

    @property
    def available_now(self) -> bool:
        """Whether only what was stored at the first planning is read."""
        return self._ceiling is not None

    def has_more(
        self, begin: Positions, held: AcquiredQueues, away: Collection[str], now_ms: int = 0
    ) -> bool:
        """Whether planning finds something beyond ``begin`` by what is known already. ``away``:
        sources that cannot be reached.

        ``now_ms`` here and for ``plan``: by a clock that only goes forward.
        """
        if {*held.queues} - self.unknown_last_ids != {*begin} - {*held.paused}:
            return True
        reachable = (
            queue
            for queue in held.queues
            if queue in begin and not (away and split_name(queue)[0] in away)
        )
        counts = (
            rows
            for queue in reachable
            if (
                rows := self._within_ceiling(queue, self.last_ids.get(queue, 0)) - begin[queue].last
            )
            > 0
        )
        if self._options.min_messages is None:
            return any(counts)  # looks at the first queues only
        return (count := sum(counts)) > 0 and not self._are_too_few(count, now_ms)

    def has_pushes(self, held: AcquiredQueues, io: PlannerIO) -> bool:
        """Whether ids were given out since the last planning, as far as is known. A planning right
        after a true answer makes that known again.
        """
        self._asked = io.store.counters(held.queues)
        return bool(self._asked != self._counters)

    def plan(
        self,
        begin: Positions,
        held: AcquiredQueues,
        io: PlannerIO,
        *,
        unlimited: bool,
        now_ms: int = 0,
    ) -> dict[str, Position]:
        """Return the positions at the end of the batch that begins at ``begin``. ``unlimited``
        ignores the caps and the minimum of the options.
        """
        found = self._ask_queues(begin, held, io, unlimited=unlimited)
        rows = self._available(found.entries, found.newest)
        if not unlimited:
            # An entry must be in the offset log, however few messages there are.
            wait = not found.entered and self._are_too_few(sum(rows.values()), now_ms)
            rows = {} if wait else self._within_caps(found.entries, rows, io)
        goals = {queue: found.entries[queue].last + count for queue, count in rows.items() if count}
        goals = self._fetch_few_rows(goals, found.entries, io)
        self._batch_ms = now_ms if goals else self._batch_ms
        marks = _goal_marks(goals, found, io)
        return {
            **found.entries,
            **_end_positions(goals, marks, found),
            **{queue: begin[queue] for queue in found.paused},
        }

    def _ask_queues(
        self, begin: Positions, held: AcquiredQueues, io: PlannerIO, *, unlimited: bool
    ) -> BatchPlanInput:
        """Asks little of the queues that have all that follows their position, and the state of the
        others.
        """
        predicted = self._predict_ends(begin, held.queues, unlimited=unlimited)
        wanted = {queue: (begin[queue], upto) for queue, upto in predicted.items()}
        answers = io.store.intact(wanted) if wanted else {}
        intact = {queue: answer for queue, answer in answers.items() if answer is not None}
        rest = {
            queue: begin[queue].last if queue in begin else -1
            for queue in held.queues
            if queue not in intact
        }
        states = io.store.states(rest) if rest else {}
        paused = begin.keys() & {*held.paused, *(queue for queue in rest if queue not in states)}
        last_ids = {queue: last_id for queue, (last_id, _) in intact.items()}
        self._remember(
            {**last_ids, **{queue: state.last_id for queue, state in states.items()}}, paused
        )
        entries, entered = self._entries(begin, held, states, io)
        marks = {
            queue: (min(last_id, predicted[queue]), mark)
            for queue, (last_id, mark) in intact.items()
        }
        return BatchPlanInput(
            entries={**{queue: begin[queue] for queue in intact}, **entries},
            entered=entered,
            paused=paused,
            newest={**last_ids, **{queue: state.newest for queue, state in states.items()}},
            marks={
                **marks,
                **{queue: (state.newest, state.newest_mark) for queue, state in states.items()},
            },
        )

    def _predict_ends(
        self, begin: Positions, queues: Sequence[str], *, unlimited: bool
    ) -> dict[str, int]:
        """Predict the end of the batch in queues of Redis itself that have a position, from the
        last planning: at least the next message.
        """
        at = {
            queue: begin[queue] for queue in queues if queue in begin and not split_name(queue)[0]
        }
        if self._options.max_bytes is not None and not unlimited:
            return {queue: position.last + 1 for queue, position in at.items()}
        if (most := self._options.max_messages) is None or unlimited:
            upto = dict.fromkeys(at, MAX_ID)
        else:
            available = self._available(at, self.last_ids)
            rows = self._share_out_max_messages(available)
            upto = {
                queue: position.last + (most if rows is available else max(1, rows.get(queue, 0)))
                for queue, position in at.items()
            }
        if self._ceiling is None:
            return upto
        return {
            queue: max(self._within_ceiling(queue, id), at[queue].last + 1)
            for queue, id in upto.items()
        }

    def _available(self, entries: Positions, newest: Mapping[str, int]) -> dict[str, int]:
        """Return the number of messages after the position of each queue, where it has some. With
        Trigger.AvailableNow, of those that are available now.
        """
        if self._ceiling is not None:
            newest = {queue: self._within_ceiling(queue, id) for queue, id in newest.items()}
        return {
            queue: rows
            for queue, at in entries.items()
            if (rows := newest.get(queue, 0) - at.last) > 0
        }

    def _are_too_few(self, count: int, now_ms: int) -> bool:
        """Whether so many new messages are too few for a batch: never for the first one of this
        planner, nor for what is available now.
        """
        if self._options.min_messages is None or self.available_now or self._batch_ms is None:
            return False
        return (
            count < self._options.min_messages
            and now_ms - self._batch_ms < 1000 * self._options.trigger_delay_s
        )

    def _remember(self, last_ids: Mapping[str, int], paused: Collection[str]) -> None:
        self.last_ids = {
            **{queue: self.last_ids[queue] for queue in paused if queue in self.last_ids},
            **last_ids,
        }
        self._counters, self._asked = (
            self._asked,
            None,
        )  # they are from before the last ids: a push in between is seen by the next poll
        self.unknown_last_ids = frozenset(
            queue for queue, id in last_ids.items() if id == UNKNOWN_ID
        )
        if self._ceiling is not None and not self._ceiling:
            self._ceiling = dict(last_ids)

    def _within_ceiling(self, queue: str, id: int) -> int:
        return id if self._ceiling is None else min(id, self._ceiling.get(queue, 0))

    def _entries(
        self,
        begin: Positions,
        held: AcquiredQueues,
        states: Mapping[str, QueueState],
        io: PlannerIO,
    ) -> tuple[dict[str, Position], set[str]]:
        """Return the start of the batch in each queue, and the entering queues: those without a
        position before, and those that lost messages. The others begin at their position.
        """
        entries: dict[str, Position] = {}
        entered: set[str] = set()
        for queue, state in states.items():
            at = begin.get(queue)
            if at is None:
                entry = self._enter(queue, state, held, io)
            elif loss := loss_between(at, state):
                entry = io.handle_loss(queue, at, loss)
            else:
                entries[queue] = at
                continue
            if entry is not None:
                entries[queue] = entry
                entered.add(queue)
        return entries, entered

    def _enter(
        self, queue: str, state: QueueState, held: AcquiredQueues, io: PlannerIO
    ) -> Position | None:
        if not state.exists or not state.born:
            # It expired after it was acquired. It is acquired anew when it is found again
            io.drop_expired_queue(queue)
            return None
        decided = held.entering.get(queue)
        first = (
            decided.last
            if decided and decided.born == state.born
            else first_start(self._options, queue, held.sources)
        )
        start = without_times(
            {queue: first}, io.store.find_times, self._options.timestamp_strategy
        ).get(queue)
        if start is None:
            return None  # its source has just become unreachable
        last = starts_after(queue, start, state)
        if state.last_id == UNKNOWN_ID:  # the next message is new, and shows the last id
            return None if last == UNKNOWN_ID else Position(state.born, last, "", last)
        if (loss := loss_before_start(last, state)) and self._options.fail_on_data_loss:
            # No answer: a missing row is an error here, and with failOnDataLoss=false no deleted
            # row was asked for.
            io.handle_loss(queue, None, loss)
        last = max(last, state.floor)
        return Position(state.born, last, state.newest_mark if last == state.newest else "", last)

    def _share_out_max_messages(self, available: dict[str, int]) -> dict[str, int]:
        """Rows within ``maxMessagesPerTrigger``; ``available`` itself where that is no more."""
        most = self._options.max_messages
        return (
            available
            if most is None or sum(available.values()) <= most
            else share_out(available, most)
        )

    def _within_caps(
        self, entries: Positions, available: dict[str, int], io: PlannerIO
    ) -> dict[str, int]:
        """Return the rows of each queue within the caps of the options."""
        available = self._share_out_max_messages(available)
        if (budget := self._options.max_bytes) is None:
            return available
        done = {queue: entries[queue].last for queue in available}
        fitting = within_bytes(available, done, budget, self._passed_over, io.store.bytes_until)
        self._passed_over = frozenset(
            queue for queue, rows in available.items() if rows and not fitting[queue]
        )
        return fitting

    def _fetch_few_rows(
        self, moved: dict[str, int], entries: Positions, io: PlannerIO
    ) -> dict[str, int]:
        """Return the goals without those of queues of unreachable links. Few rows of a link are
        fetched now and travel with the batch, so that no task must wait for the link.
        """
        if self._options.on_unavailable != "wait":
            return moved
        few = [
            queue
            for queue, goal in moved.items()
            if split_name(queue)[0] and goal - entries[queue].last <= PREFETCHED_ROWS
        ]
        if not few:
            return moved
        found = io.prefetch(
            [
                Range(queue, entries[queue].born, entries[queue].last + 1, moved[queue])
                for queue in few
            ]
        )
        return {queue: goal for queue, goal in moved.items() if queue not in few or queue in found}


def first_start(options: ReadOptions, queue: str, sources: Collection[str]) -> OffsetBound:
    """Return the start of a queue that is not in the checkpoint: the one of startingOffsets, but
    for queues of ``sources``, which the checkpoint knows; these begin at their oldest message.
    """
    source, name = split_name(queue)
    return "earliest" if source in sources else options.start_of(source, name)


def without_times(
    starts: Mapping[str, OffsetBound], find_times: FindTimes, unknown: str = "error"
) -> dict[str, OffsetBound]:
    """Return the starts with each time replaced by the last id before it. Queues that cannot be
    asked now are left out.

    ``unknown``: earliest or latest where a clock does not reach back to the time, else that raises
    TimeUnknown. Raises ConfigError for a time that is still to come.
    """
    times = {queue: start.ms for queue, start in starts.items() if isinstance(start, AtTime)}
    found = find_times(times) if times else {}
    ids = {
        queue: unknown if at.id < 0 and unknown != "error" else at.last_id(display_name(queue))
        for queue, at in found.items()
    }
    return {**{queue: start for queue, start in starts.items() if queue not in times}, **ids}


def starts_after(queue: str, start: OffsetBound, state: QueueState) -> int:
    """The last id that counts as read where a queue enters the query. Raises ConfigError for one
    that was not given out yet.
    """
    if isinstance(start, NewestMessages):
        return max(state.floor, state.last_id - start.count)
    last = {"earliest": state.floor, "latest": state.last_id}.get(str(start), start)
    assert isinstance(last, int)
    check_given("startingOffsets", queue, last, state)
    return last


def check_given(option: str, queue: str, last: int, state: QueueState) -> None:
    """Raises ConfigError where an option names an id that was not given out yet."""
    if last > state.last_id != UNKNOWN_ID:
        to = {
            "startingOffsets": "begin with the next message",
            "endingOffsets": "end with the newest message",
        }[option]
        remedy = f"Name that id or a smaller one, or {option}=latest to {to}"
        raise ConfigError(
            reason=(
                f"{option} says {display_name(queue)!r} is read up to id {last}, but its last id is"
                f" {state.last_id}. {remedy}"
            )
        )


def loss_before_start(last: int, state: QueueState) -> Loss | None:
    """Return the lost messages after an id of startingOffsets."""
    if (ids := state.floor - last) <= 0:
        return None
    oldest = (
        f"oldest stored id {state.oldest}"
        if state.count
        else f"nothing stored after id {state.last_id}"
    )
    return Loss("removed", f"ids from {last + 1} on, as startingOffsets says", oldest, ids)


def _goal_marks(
    goals: Mapping[str, int], found: BatchPlanInput, io: PlannerIO
) -> Mapping[str, str]:
    """Return the fingerprints of the messages at the goals; none for a queue whose source has just
    become unreachable.
    """
    known = {queue: at[1] for queue, goal in goals.items() if (at := found.marks[queue])[0] == goal}
    unknown = {queue: goal for queue, goal in goals.items() if queue not in known}
    return {**known, **io.store.marks(unknown)} if unknown else known


def _end_positions(
    goals: Mapping[str, int], marks: Mapping[str, str], found: BatchPlanInput
) -> dict[str, Position]:
    """The end positions of the queues with goals. An entering queue keeps ``start``, from which the
    batch begins.

    A queue without a fingerprint, since its source has just become unreachable, is left out.
    """
    entries, entered = found.entries, found.entered
    return {
        queue: Position(
            (entry := entries[queue]).born,
            goal,
            marks[queue],
            entry.start if queue in entered else None,
            entry.lost,
        )
        for queue, goal in goals.items()
        if queue in marks
    }


def share_out(available: Mapping[str, int], most: int) -> dict[str, int]:
    """Deal ``most`` messages out to queues that have ``available``: equal shares, and what small
    queues leave goes to the others.

    Nothing is left over while a queue could take more; a rest that cannot be divided goes to the
    queues with the most.
    """
    fair = most // max(1, len(available))
    if most == fair * len(available) and min(available.values(), default=0) >= fair:
        return dict.fromkeys(available, fair)  # nothing to deal out further, and no order needed
    given = dict.fromkeys(available, 0)
    open_ = sorted((q for q in available if available[q] > 0), key=lambda q: (available[q], q))
    left = most
    while open_ and left > 0:
        fair = left // len(open_)
        if fair == 0:
            for queue in open_[-left:]:
                given[queue] += 1
            break
        queue = open_.pop(0)  # the smallest: if it has less than its share, the others' share grows
        given[queue] = min(available[queue], fair)
        left -= given[queue]
    return given


def within_bytes(
    available: Mapping[str, int],
    done: Mapping[str, int],
    budget: int,
    passed_over: Collection[str],
    bytes_until: BytesUntil,
) -> dict[str, int]:
    """Return the rows of each queue whose values fit ``budget``, at least one row in all. The
    budget is divided equally; the unused rest of a queue is passed to the next.

    ``available`` is the number of rows of each queue after the id ``done``. The queues
    ``passed_over`` are those whose next message was larger than their part of the batch before:
    they are first in line, and may use all of it.
    """
    line = sorted(
        (q for q in available if available[q] > 0),
        key=lambda q: (q not in passed_over, available[q], q),
    )
    fitting = dict.fromkeys(available, 0)
    left = budget
    for place, queue in enumerate(line):
        first = done[queue] + 1
        part = left if queue in passed_over else left // (len(line) - place)
        reached, used = bytes_until(queue, first, first + available[queue] - 1, part)
        if reached < first and place == 0 and part == budget:
            # Larger than the whole budget: a batch of its own, or the queue would never progress
            reached, used = first, budget
        fitting[queue], left = reached - first + 1, left - used
        if left <= 0:
            break
    if line and not any(fitting.values()):
        fitting[line[0]] = 1
    return fitting


MAX_UNPACKED_RANGES = 32
"""With more ranges than this, small ones share a task: a Python task costs milliseconds, however
little it reads.
"""
ROWS_PER_PACKED_TASK = 1000
"""A shared task is full when it reads so many messages."""


def split(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Cut ids first..last into at most ``parts`` runs of nearly the same length; keeps order, loses
    none.
    """
    size = last - first + 1
    parts = max(0, min(parts, size))
    return [(first + size * i // parts, first + size * (i + 1) // parts - 1) for i in range(parts)]


def ranges(
    done: Mapping[str, int], goals: Mapping[str, Position], servers: Mapping[str, int]
) -> list[Range]:
    """Return the ranges of a batch that ends at ``goals``: of each queue the ids after the one that
    was ``done`` before.
    """
    return [
        Range(q, end.born, done[q] + 1, end.last, servers[q])
        for q, end in goals.items()
        if done[q] < end.last
    ]


def tasks(
    ranges: Sequence[Range], min_partitions: int | None, max_rows: int | None
) -> list[tuple[Range, ...]]:
    """Return the ranges of each task. A task has one range, cut further for the two options; many
    small ranges share tasks.
    """
    total = sum(r.rows for r in ranges)
    cut: list[list[Range]] = []
    for r in ranges:
        parts = 1
        if min_partitions and min_partitions > len(ranges):
            parts = max(1, round(min_partitions * r.rows / total))
        if max_rows:
            parts = max(parts, -(-r.rows // max_rows))
        cut.append(
            [r]
            if parts == 1
            else [
                Range(r.queue, r.born, first, last, r.server)
                for first, last in split(r.first, r.last, parts)
            ]
        )
    if sum(map(len, cut)) <= max(MAX_UNPACKED_RANGES, min_partitions or 0):
        return [(r,) for parts_of_one in cut for r in parts_of_one]
    return _pack_small_ranges(cut)


def _pack_small_ranges(cut: Sequence[Sequence[Range]]) -> list[tuple[Range, ...]]:
    """Small ranges share tasks. All parts of a queue do, or none of them does: so they stay in
    their order.
    """
    packed: list[tuple[Range, ...]] = []
    shared: list[Range] = []
    rows = 0
    for parts in cut:
        sizes = [r.rows for r in parts]
        if max(sizes) >= ROWS_PER_PACKED_TASK:
            packed += [(r,) for r in parts]
            continue
        for r, size in zip(parts, sizes, strict=True):
            shared.append(r)
            rows += size
            if rows >= ROWS_PER_PACKED_TASK:
                packed.append(tuple(shared))
                shared, rows = [], 0
    return [*packed, tuple(shared)] if shared else packed
