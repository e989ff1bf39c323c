"""State of the mirrors of one process: plans what is read, checks it, writes it. Only one thread
may use it.

Each queue is in one of three states. A queue that is not begun may be stopped, too.

| state | attributes | event | next state |
|---|---|---|---|
| new | not ``begun`` | ``on_spans``, and the mirror begins here | copying |
| new | | ``on_spans``, and this Redis has a queue that may not be given up | stopped |
| copying | ``begun``, no ``stopped`` | rows are appended | copying |
| copying | | ``on_spans`` finds another life at the origin | copying that life, or stopped |
| copying | | the queue is gone at the origin | new, or forgotten if it has no name |
| copying | | ids or messages differ from those at the origin | stopped |
| copying | | an append finds that the mirror here has changed | new |
| stopped | ``stopped`` is the error | a later append succeeds | copying |
| any | | ``forget`` after a lost link | new |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from busmq_spark.errors import BusError
from busmq_spark.mirror.copy_planning import (
    NO_CLOCK,
    SHORT_WINDOW_ROWS,
    WINDOW_BYTES,
    ClockExcerpt,
    CopyRange,
    CopyRangeReadResult,
    MirroredQueue,
    MirroredQueueDecision,
    Witness,
    compare_with_origin,
    drop_copied_rows,
    new_life_error,
    no_mirror_error,
    other_origin_error,
    reissued_error,
)
from busmq_spark.mirror.origin_reader import LookedAtQueue
from busmq_spark.mirror.settings import (
    MirroredQueueStatus,
    MirrorMetrics,
    MirrorSettings,
    status_of,
)
from busmq_spark.mirror.target import MirrorTarget
from busmq_spark.reading.reader_record import mirror_field
from busmq_spark.redis_io.reader_announcer import ReaderAnnouncer
from busmq_spark.writing.mirror import (
    NO_MARK,
    BeginMirrorResult,
    MirrorAppendResult,
    MirrorChunk,
    MirrorOf,
    OriginQueueState,
    Positions,
)

WINDOWS_PER_READ = 64
"""Queues with few messages whose windows are read in one call."""
TOUCH_INTERVAL_S = 3600.0
MIRROR_HOLD_MS = 2 * 3600 * 1000
log = logging.getLogger("busmq_spark")


class MirrorCopier:
    """``mark_there(queue, id)`` asks the origin for a fingerprint."""

    def __init__(
        self,
        settings: MirrorSettings,
        target: MirrorTarget,
        counts: MirrorMetrics,
        mark_there: Callable[[str, int], str],
    ) -> None:
        self.queues: dict[str, MirroredQueue] = {}
        self.look = True
        """Whether all queues shall be looked at."""
        self.name = settings.name or target.masked_url
        self._settings, self._target, self._counts, self._mark_there = (
            settings,
            target,
            counts,
            mark_there,
        )
        self._announcer = ReaderAnnouncer("mirror", "", default_name=settings.masked_origin)
        self._ready: dict[str, None] = {}
        self._read_at = 0.0

    def status(self) -> list[MirroredQueueStatus]:
        """Of each queue, by name. From any thread."""
        now = time.monotonic()
        return [status_of(queue, now) for _, queue in sorted(self.queues.copy().items())]

    @property
    def last_copied_ids(self) -> dict[str, int]:
        """The queues whose id counters say whether there is something to copy, and up to where they
        are copied.
        """
        return {
            name: queue.last
            for name, queue in self.queues.items()
            if queue.begun and not queue.stopped
        }

    @property
    def mirrored_queues(self) -> tuple[str, ...]:
        """The queues that are mirrors here."""
        return tuple(name for name, queue in self.queues.items() if queue.begun)

    def add(self, names: Sequence[str]) -> None:
        """Queues that are to be mirrored, known or new."""
        for name in names:
            if name not in self.queues:
                self.queues[name] = MirroredQueue(name)
                self.look = True

    def forget(self) -> None:
        """Drop windows under way; progress is read from the mirrors again."""
        self._target.forget_places()
        self._ready.clear()
        self.look = True
        for queue in self.queues.values():
            queue.begun = False
            queue.reset()

    def count(self, counters: Mapping[str, int], asked: Mapping[str, int]) -> None:
        """The last ids that the origin has given; ``asked``: up to where each queue was copied when
        that was asked.
        """
        now = time.monotonic()
        for name, last in counters.items():
            queue = self.queues.get(name)
            if queue is None or not queue.begun:
                continue
            if last < asked[name]:
                self.look = True
            else:
                queue.note_last_id(max(last, queue.seen), now)
                if queue.behind:
                    self._ready[name] = None

    def on_spans(
        self,
        spans: Mapping[str, OriginQueueState],
        positions: Mapping[str, tuple[str, Positions]],
        clocks: Mapping[str, ClockExcerpt],
        asked: Mapping[str, LookedAtQueue],
    ) -> None:
        """Queues as they were at the origin, and the groups of those that have some. ``asked`` has
        the state of each queue at the time of the question.
        """
        wanted: dict[str, OriginQueueState] = {}
        trims: dict[str, MirrorChunk] = {}
        for name, span in spans.items():
            queue = self.queues.get(name)
            if queue is None:
                continue
            seen = span
            if (
                queue.begun and asked[name].last != queue.last and span.last_id >= asked[name].last
            ):  # more was copied meanwhile
                seen = replace(
                    span, after_mark="", last_id=max(span.last_id, queue.last, queue.seen)
                )
            clock = clocks.get(name, NO_CLOCK) if asked[name].witness == queue.witness else NO_CLOCK
            verdict = compare_with_origin(queue, seen, clock, name=self.name)
            if verdict.action == "copy" and clock.born == queue.born:
                queue.checked = span.last_id
            if verdict.action == "begin":
                wanted[name] = span
            elif (
                self._apply_verdict(queue, seen, verdict)
                and self._settings.retention == "origin"
                and min(span.floor, queue.last) > queue.floor
            ):
                trims[name] = MirrorChunk(
                    queue.born, queue.last, queue.last, span.last_id, span.floor
                )
        self._begin_mirrors(wanted)
        for name, answer in self._target.trim(trims).items() if trims else ():
            self._on_append_answer(self.queues[name], answer, trims[name].floor)
        mirrored = {
            name: of
            for name, of in positions.items()
            if name in self.queues and of[0] in ("", self.queues[name].born)
        }
        if here := {
            name: (self.queues[name].born, of)
            for name, (_, of) in mirrored.items()
            if self.queues[name].begun
        }:
            self._target.set_positions(here)
        self.keep_alive()

    def looked_at(self) -> dict[str, LookedAtQueue]:
        """The queues to look at, as they are now."""
        return {
            name: (
                LookedAtQueue(queue.last, queue.witness, queue.checked)
                if queue.begun
                else LookedAtQueue(NO_MARK)
            )
            for name, queue in self.queues.items()
        }

    def _apply_verdict(
        self, queue: MirroredQueue, span: OriginQueueState, verdict: MirroredQueueDecision
    ) -> bool:
        """Apply a verdict to a queue. Whether mirroring goes on."""
        queue.note_last_id(span.last_id, time.monotonic())
        match verdict.action:
            case "drop":
                queue.begun = queue.copy_here = False
                queue.reset()
                if queue.name not in self._settings.named_queues:
                    del self.queues[queue.name]
            case "compare":
                self._stop_queue(
                    queue, reissued_error(queue, self._find_first_difference(queue, span))
                )
            case "stop":
                assert verdict.error is not None
                self._stop_queue(queue, verdict.error)
            case "copy":
                if queue.stopped:
                    queue.reset()
                if queue.behind:
                    self._ready[queue.name] = None
                return True
        return False

    def _begin_mirrors(
        self,
        wanted: Mapping[str, OriginQueueState],
        replaced: Mapping[str, str] | None = None,
        tries: int = 3,
    ) -> None:
        """Make mirrors, or resume them. ``replaced``: the lives here that may be given up for those
        at the origin.
        """
        expected = dict.fromkeys(wanted, "") | dict(replaced or {})
        of = {
            name: MirrorOf(self._settings.masked_origin, self._mirror_path(span))
            for name, span in wanted.items()
        }
        given_up: dict[str, str] = {}
        for name, begun in self._target.begin(wanted, of, expected).items() if wanted else ():
            queue, span = self.queues[name], wanted[name]
            if begun.status == "ok":
                self._on_begun(queue, span, begun)
            elif begun.status == "own":
                self._replace_or_stop_own_queue(queue, span, begun, of[name])
            elif self._may_give_up(queue, span, begun):
                queue.born, queue.last = begun.born, begun.last
                given_up[name] = begun.born
        if given_up and tries:
            self._begin_mirrors({name: wanted[name] for name in given_up}, given_up, tries - 1)

    def _replace_or_stop_own_queue(
        self, queue: MirroredQueue, span: OriginQueueState, begun: BeginMirrorResult, of: MirrorOf
    ) -> None:
        """Here is a queue of this bus' own."""
        if self._settings.replace and not span.mirror_of:
            self._replace(queue, span, begun, of)
            return
        queue.copy_here = False
        queue.note_last_id(span.last_id, time.monotonic())
        self._stop_queue(queue, no_mirror_error(queue, span, begun))

    def _may_give_up(
        self, queue: MirroredQueue, span: OriginQueueState, begun: BeginMirrorResult
    ) -> bool:
        """Whether what is here of another life may be given up for the life at the origin. Else the
        queue is stopped.
        """
        if not begun.mirror_of:
            return True
        origin = MirrorOf.parse(begun.mirror_of).origin
        if origin != self._settings.masked_origin:
            if self._settings.replace:
                return True
            queue.copy_here = False
            self._stop_queue(queue, other_origin_error(queue, begun, origin))
            return False
        if not begun.last or self._settings.new_life != "stop":
            return True
        queue.begun, queue.copy_here, queue.born, queue.last, queue.ttl_s = (
            False,
            True,
            begun.born,
            begun.last,
            span.ttl_s,
        )
        self._stop_queue(queue, new_life_error(queue, span, begun))
        return False

    def _on_begun(
        self, queue: MirroredQueue, span: OriginQueueState, begun: BeginMirrorResult
    ) -> None:
        if queue.born and queue.born != begun.born:
            self._counts.lives.add()
            log.warning(
                "queue %r was made anew at its origin: the copy of its life %s, up to id %d, ends"
                " here, and life %s begins behind id %d",
                queue.name,
                queue.born,
                queue.last,
                begun.born,
                begun.last,
            )
        queue.begun = queue.copy_here = True
        queue.born, queue.last, queue.mark, queue.ttl_s, queue.floor = (
            begun.born,
            begun.last,
            begun.mark,
            span.ttl_s,
            0,
        )
        queue.witness = Witness.parse(begun.witness)
        queue.reset()
        queue.note_last_id(span.last_id, time.monotonic())
        if queue.behind:
            self._ready[queue.name] = None
        elif queue.last > span.last_id or queue.witness.id:
            self.look = True

    def _replace(
        self, queue: MirroredQueue, span: OriginQueueState, begun: BeginMirrorResult, of: MirrorOf
    ) -> None:
        log.warning(
            "queue %r of this bus, with ids up to %d, is given up for the copy of %s",
            queue.name,
            begun.last,
            self._settings.masked_origin,
        )
        again = self._target.begin(
            {queue.name: span}, {queue.name: of}, {queue.name: begun.born}, replace=True
        )[queue.name]
        if again.status == "ok":
            queue.born = again.born
            self._on_begun(queue, span, again)

    def _mirror_path(self, span: OriginQueueState) -> tuple[str, ...]:
        before = MirrorOf.parse(span.mirror_of).path if span.mirror_of else ()
        return (*before, self._settings.origin_name or self._settings.masked_origin)

    def find_copies(self) -> None:
        """Of queues whose first look found the origin away: those that another process has copied,
        and how far, live on as well.
        """
        unknown = [name for name, queue in self.queues.items() if queue.copy_here is None]
        copies = self._target.copies(self._settings.masked_origin, unknown) if unknown else {}
        for name in unknown:
            queue, copy = self.queues[name], copies.get(name)
            queue.copy_here = copy is not None
            if copy is not None:
                queue.last = copy.last
                queue.note_last_id(copy.seen, time.monotonic())

    def keep_alive(self) -> None:
        """A mirror lives as long as its origin does, and its ttl more; and while the origin is
        away.
        """
        now = time.monotonic()
        due = [
            queue
            for queue in self.queues.values()
            if queue.copy_here and now - queue.touched >= min(TOUCH_INTERVAL_S, queue.ttl_s / 4)
        ]
        if due:
            self._announcer.own = {queue.name: queue.seen for queue in due}
            field = mirror_field(self._settings.masked_origin)
            said = self._announcer.announcement(field, MIRROR_HOLD_MS)
            self._target.touch([queue.name for queue in due], said)
        for queue in due:
            queue.touched = now

    def _find_first_difference(self, queue: MirroredQueue, span: OriginQueueState) -> int:
        """The first id that has another message at the origin than here, as far as both have it."""
        low, high = max(span.oldest, 1), queue.last
        while low < high:
            middle = (low + high) // 2
            here = self._target.mark(queue.name, middle)
            if not here or here == self._mark_there(queue.name, middle):
                low = middle + 1
            else:
                high = middle
        return low

    def plan(self, now: float) -> list[CopyRange]:
        """Return the ranges to read next in one call: a window of one queue, or short ones of
        many.
        """
        windows: list[CopyRange] = []
        size = 0
        rate = self._settings.bytes_per_s
        for name in list(self._ready):
            if now < self._read_at:
                break
            queue = self.queues.get(name)
            window = (
                queue.window(min(WINDOW_BYTES, rate // 4) if rate else WINDOW_BYTES)
                if queue
                else None
            )
            if (
                windows
                and window
                and (window.rows > SHORT_WINDOW_ROWS or size + window.bytes > WINDOW_BYTES)
            ):
                continue
            del self._ready[name]
            if queue is None or window is None:
                continue
            windows.append(window)
            size += window.bytes
            self._note_bytes_read(window.bytes)
            queue.planned = window.upto or window.newest
            if queue.seen > queue.planned:
                self._ready[name] = None  # after the others
            if window.rows > SHORT_WINDOW_ROWS or len(windows) == WINDOWS_PER_READ:
                break
        return windows

    def _note_bytes_read(self, bytes_: int) -> None:
        if rate := self._settings.bytes_per_s:
            self._read_at = max(self._read_at, time.monotonic()) + bytes_ / rate

    @property
    def next_read(self) -> list[float]:
        """Return the time of the next read, where reading is limited."""
        return [self._read_at] if self._ready and self._settings.bytes_per_s else []

    def append(self, found: Sequence[CopyRangeReadResult]) -> None:
        """Append what was read, as far as it is what was planned."""
        sound: dict[str, CopyRangeReadResult] = {}
        for rows in found:
            queue = self.queues.get(rows.window.queue)
            if (
                queue is None
                or not queue.begun
                or queue.born != rows.window.born
                or not rows.window.after <= queue.last < rows.upto
            ):
                continue  # planned before something went otherwise, or had by another mirror
            queue.learn_row_size(rows)
            clock = rows.clock if rows.window.witness == queue.witness else NO_CLOCK
            verdict = compare_with_origin(
                queue, drop_copied_rows(rows, queue.last), clock, name=self.name
            )
            if verdict.action == "copy" and rows.sound:
                sound[queue.name] = rows
                continue
            queue.reset()
            if verdict.action == "copy":
                self._ready[queue.name] = None
            else:
                self.look = True
        for name, answer in self._target.append([*sound.values()]).items() if sound else ():
            self._note_copied(self.queues[name], sound[name], answer)

    def _note_copied(
        self, queue: MirroredQueue, rows: CopyRangeReadResult, answer: MirrorAppendResult | BusError
    ) -> None:
        if not self._on_append_answer(queue, answer, 0):
            return
        assert isinstance(answer, MirrorAppendResult)
        ours = answer.last == rows.upto
        queue.last = answer.last
        queue.mark = rows.mark(rows.upto) if ours else ""
        if ours and rows.witness.id:
            queue.witness = rows.witness
        queue.planned = max(queue.planned, queue.last)
        queue.note_last_id(max(queue.seen, rows.span.last_id, queue.last), time.monotonic())
        count = rows.count
        skipped = rows.upto - rows.after - count
        queue.copied, queue.skipped = queue.copied + count, queue.skipped + skipped
        self._counts.messages.add(count)
        self._counts.bytes.add(rows.bytes)
        self._counts.skipped.add(skipped)
        if queue.seen > queue.planned:
            self._ready[queue.name] = None
        self._note_bytes_read(rows.bytes - rows.window.bytes)

    def _on_append_answer(
        self, queue: MirroredQueue, answer: MirrorAppendResult | BusError, floor: int
    ) -> bool:
        """Handle the answer of the servers here to a chunk, and return whether it is stored."""
        if isinstance(answer, BusError):
            self._stop_queue(queue, answer)
            return False
        if answer.status != "ok":
            queue.begun = queue.copy_here = False
            queue.reset()
            self.look = True
            return False
        if queue.stopped:
            log.info("queue %r is mirrored again", queue.name)
            queue.stopped = None
        queue.floor = max(queue.floor, min(floor, answer.last))
        return True

    def _stop_queue(self, queue: MirroredQueue, error: BusError) -> None:
        if str(queue.stopped) != str(error):
            log.error("%s", error)
        queue.stopped = error
        queue.reset()
        self._ready.pop(queue.name, None)
