"""The plan of a copy: the next messages of a queue, their form, and the history of the origin.

Messages on their way: as Arrow arrays when they are read, then as words of the command that
appends them; without an object for each.

Whether an origin still has the history that was copied, once the last copied message is gone
there.

A push of ours notes in the clock of its queue which id was the newest in that second
(reading/times_of_ids.py). A mirror keeps one such pair as a witness. An origin that lost messages
and issued their ids again has later pairs for these ids, and none in the second of the witness.

Not provable: ids that only npm busmq pushed, which notes no times; pairs that the clock has
dropped; queues that keep what is acknowledged, whose pairs may be further apart
(lua/include/clock.lua).

The next messages to copy of a queue, and the check that it may still be copied: decisions
without a connection.

Rule 1. Rows are appended only if two fingerprints equal those of one snapshot before the read: of
        the message copied last, and of the last one read.
Rule 2. A conflict stops the queue and names its ids; nothing is overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from busmq_spark.errors import BusError, LinkLost, MirrorStopped
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES
from busmq_spark.reading.reader_operations import fingerprint
from busmq_spark.reading.times_of_ids import format_time
from busmq_spark.store.protocol import MirrorOriginReadStore
from busmq_spark.store.redis_range import whole_numbers
from busmq_spark.writing.mirror import (
    NEWEST_MESSAGE,
    NO_MARK,
    BeginMirrorResult,
    MirrorOf,
    OriginQueueState,
)

_CR_LF = b"\r\n"


def _arrow_scalar(text: bytes) -> Any:
    """An Arrow scalar, without ``pa.scalar``, which imports pandas where it is installed (see
    whole_numbers).
    """
    return pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, len(text)], np.int32)), pa.py_buffer(text)]
    )[0]


_EMPTY_TEXT, _DOLLAR_SIGN, _LINE_END, _LINE_END_AND_DOLLAR = map(
    _arrow_scalar, (b"", b"$", _CR_LF, b"\r\n$")
)


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """Consecutive messages, the first of them with id ``first``; each element of ``words`` has id
    and value of one, as a command has them.
    """

    first: int
    words: Any

    @classmethod
    def of(cls, first: int, values: Any) -> EncodedMessages:
        """``values`` is an Arrow array of binary, in the order of ids."""
        values = values.cast(pa.binary())
        ids = whole_numbers(first, first + len(values)).cast(pa.string()).cast(pa.binary())
        columns = (
            _DOLLAR_SIGN,
            _lengths(ids),
            _LINE_END,
            ids,
            _LINE_END_AND_DOLLAR,
            _lengths(values),
            _LINE_END,
            values,
            _LINE_END,
        )
        # Arrow's own pool keeps what it once had, for each thread.
        return cls(
            first,
            pc.binary_join_element_wise(*columns, _EMPTY_TEXT, memory_pool=pa.system_memory_pool()),
        )

    def __len__(self) -> int:
        return len(self.words)

    @property
    def last(self) -> int:
        """The id of the last one."""
        return self.first + len(self.words) - 1

    def value(self, id: int) -> bytes:
        """The value of one of them."""
        words: bytes = self.words[id - self.first].as_py()
        return words.split(_CR_LF, 3)[3][: -len(_CR_LF)]

    def rows_after(self, id: int) -> EncodedMessages:
        """Return the messages with a higher id; this may be none."""
        gone = min(max(0, id + 1 - self.first), len(self.words))
        return EncodedMessages(self.first + gone, self.words[gone:])

    def chunks(self) -> Iterator[tuple[int, int, memoryview]]:
        """Runs that go into one call each: the last id, how many, and their words."""
        _, borders, data = self.words.buffers()
        ends = np.frombuffer(borders, np.int32)[
            self.words.offset : self.words.offset + len(self.words) + 1
        ]
        start, bytes_ = 0, memoryview(data)
        while start < len(self.words):
            fitting = int(np.searchsorted(ends, ends[start] + CHUNK_BYTES, "right")) - 1
            stop = max(start + 1, min(start + CHUNK_MESSAGES, fitting))
            yield self.first + stop - 1, stop - start, bytes_[int(ends[start]) : int(ends[stop])]
            start = stop


def _lengths(texts: Any) -> Any:
    """Of each, in decimal digits."""
    return pc.binary_length(texts).cast(pa.string()).cast(pa.binary())


log = logging.getLogger("busmq_spark")


class Witness(NamedTuple):
    """A pair of the origin's clock: at ``ms`` the newest id was ``id``."""

    ms: int = 0
    id: int = 0
    """0 where no pair is known."""

    @classmethod
    def parse(cls, text: str) -> Witness:
        """Return the witness that a mirror keeps as ``ms:id``; an empty one for any other text."""
        ms, _, id = text.partition(":")
        return cls(int(ms), int(id)) if ms.isdecimal() and id.isdecimal() else cls()

    def __str__(self) -> str:
        return f"{self.ms}:{self.id}" if self.id else ""


NO_WITNESS = Witness()


class ClockExcerpt(NamedTuple):
    """The pairs of an origin's clock around some ids, read after the messages."""

    born: str = ""
    pairs: Sequence[Witness] = ()

    def witness_upto(self, id: int) -> Witness:
        """Return the last pair whose id is not higher."""
        return next((pair for pair in reversed(self.pairs) if pair.id <= id), NO_WITNESS)

    def contradiction(self, witness: Witness) -> tuple[Witness, Witness] | None:
        """Return the neighbours of the witness that prove another history; return None if nothing
        contradicts it.

        The pair before it shows that the clock has not dropped its second.
        """
        if not witness.id:
            return None
        before = next((pair for pair in reversed(self.pairs) if pair.id < witness.id), None)
        after = next((pair for pair in self.pairs if pair.id >= witness.id), None)
        if before is None or before.ms >= witness.ms:
            return None
        if after is not None and after.ms // 1000 <= witness.ms // 1000:
            return None
        return before, after or NO_WITNESS


NO_CLOCK = ClockExcerpt()


def read_clocks(
    store: MirrorOriginReadStore, wanted: Mapping[str, tuple[Witness, int]]
) -> dict[str, ClockExcerpt]:
    """Return the pairs of each queue from before its witness up to an id. Raises LinkLost.

    Empty where the origin does not tell them: a user without the right, an older server.
    """
    ids = {name: (min(witness.id or upto, upto), upto) for name, (witness, upto) in wanted.items()}
    try:
        answers = store.times(ids) if ids else {}
        found = {
            name: ClockExcerpt(each.born, [Witness(*pair) for pair in each.pairs])
            for name, each in answers.items()
        }
        suspects = [name for name, clock in found.items() if clock.contradiction(wanted[name][0])]
        # A long retention sets pairs apart: there a missing one proves nothing.
        for name, state in (
            store.states(dict.fromkeys(suspects, NO_MARK)).items() if suspects else ()
        ):
            if state.done:
                del found[name]
    except LinkLost:
        raise
    except BusError as error:
        log.debug("the clocks of %s cannot be read: %s", [*ids], error)
        return {}
    return found


WINDOW_BYTES = 3 * 1024 * 1024
"""Bytes of values that are read in one call, about, of however many queues. So many calls as there
are readers (mirror/runner.py) are under way.
"""
MAX_CALL_BYTES = 8 * 1024 * 1024
"""A call with more bytes ends there; the rest of its ranges is read again in smaller windows."""
FIRST_WINDOW_ROWS, MAX_WINDOW_ROWS = 1_000, 50_000
"""Most messages of the first window of a queue, for which it is not known how long its values are,
and of any.
"""
SHORT_WINDOW_ROWS = 250
"""Windows up to this are read together with those of other queues."""


@dataclass(frozen=True, slots=True)
class CopyRange:
    """The ids ``after + 1 .. upto`` of a queue, to be read; or to the end (NEWEST_MESSAGE).
    ``newest``: the last id that is known to be given.
    """

    queue: str
    born: str
    after: int
    upto: int
    newest: int
    bytes: int = 0
    """About how many bytes of values; 0: not known."""
    witness: Witness = NO_WITNESS
    """Of the copy, when the window was planned."""

    @property
    def rows(self) -> int:
        """Return the largest number of messages, about."""
        return (self.upto or self.newest) - self.after


@dataclass(slots=True)
class CopyRangeReadResult:
    """The messages of a window. ``span`` is from before the reading; ``parts`` are all that was
    stored of ``after + 1 .. upto``, in order.
    """

    window: CopyRange
    span: OriginQueueState
    upto: int = 0
    after: int = 0
    parts: list[EncodedMessages] = field(default_factory=list)
    bytes: int = 0
    """Of their values."""
    clock: ClockExcerpt = NO_CLOCK
    """Of after the reading, where the window ends at the newest message or the last copied one is
    gone.
    """
    sound: bool = False
    """Whether it may be appended. Else it is of another history than planned, or too large: look
    again.
    """

    @property
    def count(self) -> int:
        """Return the number of messages."""
        return sum(map(len, self.parts))

    @property
    def witness(self) -> Witness:
        """A pair of the origin's clock from which ids up to ``upto`` are known."""
        return (
            self.clock.witness_upto(self.upto)
            if self.clock.born == self.window.born
            else NO_WITNESS
        )

    @property
    def last(self) -> int:
        """The id of the last message that was read; 0 when there is none."""
        return self.parts[-1].last if self.parts else 0

    def mark(self, id: int) -> str:
        """The fingerprint of a message; empty when it was not read."""
        return next(
            (fingerprint(part.value(id)) for part in self.parts if part.first <= id <= part.last),
            "",
        )


@dataclass(slots=True)
class MirroredQueue:
    """The knowledge of the process about one queue."""

    name: str
    begun: bool = False
    born: str = ""
    """The life that is mirrored here."""
    last: int = 0
    """Copied up to this id."""
    mark: str = ""
    """Fingerprint of that message; empty where it is not known."""
    witness: Witness = NO_WITNESS
    """A pair of the origin's clock that the copy was made under."""
    checked: int = -1
    """The last id of the origin at which its clock was compared with the witness."""
    seen: int = 0
    """The last id that the origin has given."""
    planned: int = 0
    """Windows up to this id are under way."""
    floor: int = 0
    """Messages up to this id are dropped here."""
    ttl_s: int = 0
    row_bytes: float = 0.0
    """About how long values are; 0: not known."""
    copied: int = 0
    skipped: int = 0
    """Ids that were gone at the origin before they were copied."""
    behind_since: float | None = None
    touched: float = 0.0
    stopped: BusError | None = None
    """Why it is mirrored no further; it is looked at now and then all the same."""
    copy_here: bool | None = None
    """Whether this Redis has a mirror of the queue, also one of a life that has ended at the
    origin. The value is None before the first look.
    """

    @property
    def behind(self) -> int:
        """Ids that are given and not copied."""
        return max(0, self.seen - self.last)

    def window(self, bytes_: int) -> CopyRange | None:
        """Return the next window to read, after the windows under way; return None when there is
        nothing, or the first window has not told yet how long values are.
        """
        left = self.seen - self.planned
        if not self.begun or left <= 0 or (not self.row_bytes and self.planned > self.last):
            return None
        most = (
            FIRST_WINDOW_ROWS
            if not self.row_bytes
            else max(1, min(MAX_WINDOW_ROWS, int(bytes_ / max(1.0, self.row_bytes))))
        )
        size = int(min(left, most) * self.row_bytes)
        return CopyRange(
            self.name,
            self.born,
            self.planned,
            NEWEST_MESSAGE if left <= most else self.planned + most,
            self.seen,
            size,
            self.witness,
        )

    def reset(self) -> None:
        """Forget what is under way."""
        self.planned, self.checked = self.last, -1

    def note_last_id(self, last_id: int, now: float) -> None:
        """The origin has given ids up to this one."""
        self.seen = last_id
        if self.behind and self.behind_since is None:
            self.behind_since = now
        elif not self.behind:
            self.behind_since = None

    def learn_row_size(self, rows: CopyRangeReadResult) -> None:
        """Learn how long values are."""
        if count := rows.count:
            mean = rows.bytes / count
            self.row_bytes = (
                mean
                if not self.row_bytes or mean > self.row_bytes
                else (3 * self.row_bytes + mean) / 4
            )


def drop_copied_rows(rows: CopyRangeReadResult, last: int) -> OriginQueueState:
    """Drop rows up to ``last``, copied meanwhile. Returns the span as of ``last``."""
    if last <= rows.after:
        return rows.span
    span = replace(rows.span, after_mark=rows.mark(last))
    rows.after, rows.parts = (
        last,
        [part.rows_after(last) for part in rows.parts if part.last > last],
    )
    return span


class MirroredQueueDecision(NamedTuple):
    """The decision about a queue after a look at it, there and here."""

    action: Literal["copy", "begin", "drop", "compare", "stop"]
    """copy: go on. begin: it is not mirrored yet, or its life at the origin is another. drop: the
    origin has it no more. compare: ids are other messages there than here, find out from which on,
    and stop. stop: with ``error``.
    """
    error: MirrorStopped | None = None
    """Why it stops."""


def compare_with_origin(
    queue: MirroredQueue, span: OriginQueueState, clock: ClockExcerpt = NO_CLOCK, *, name: str = ""
) -> MirroredQueueDecision:
    """Return the decision after this look at a queue. ``name`` is that of this bus."""
    if not span.ttl_s:
        return MirroredQueueDecision("drop")
    if name and name in (path := MirrorOf.parse(span.mirror_of).path if span.mirror_of else ()):
        reason = (
            f"at its origin it is a mirror itself, of {' → '.join(path)}, and {name!r} is this bus"
        )
        return MirroredQueueDecision(
            "stop",
            _stop_verdict(
                queue,
                "loop",
                reason,
                0,
                0,
                "Mirror it from its true origin, or promote it in one place",
            ),
        )
    if not queue.begun or span.born != queue.born:
        return MirroredQueueDecision("begin")
    if span.last_id < queue.last:
        ids = f"ids {span.last_id + 1}..{queue.last}"
        reason = (
            f"its origin has lost {ids}: it was restored, or a fail-over lost its last pushes. They"
            " are here"
        )
        return MirroredQueueDecision(
            "stop",
            _stop_verdict(
                queue, "diverged", reason, span.last_id + 1, queue.last, _DIVERGED_REMEDY
            ),
        )
    if queue.mark and span.after_mark and queue.mark != span.after_mark:
        return MirroredQueueDecision("compare")
    if (
        not (queue.mark and span.after_mark)
        and clock.born == queue.born
        and (proof := clock.contradiction(queue.witness))
    ):
        return MirroredQueueDecision("stop", other_history_error(queue, *proof))
    return MirroredQueueDecision("copy")


_DIVERGED_REMEDY = (
    "Promote it to keep what is here, or copy it anew from its origin with --replace, once what"
    " only is here is saved (busmq peek)"
)


def reissued_error(queue: MirroredQueue, first: int) -> MirrorStopped:
    """The ids from ``first`` on are other messages at the origin than here."""
    reason = (
        f"ids {first}..{queue.last} are other messages here than at its origin, which has lost some"
        " and given their ids anew"
    )
    return _stop_verdict(queue, "diverged", reason, first, queue.last, _DIVERGED_REMEDY)


def other_history_error(queue: MirroredQueue, before: Witness, after: Witness) -> MirrorStopped:
    """The clock of the origin has other times for ids that were copied, and the last copied message
    is gone there.
    """
    first, known = before.id + 1, queue.witness
    there = f"from {format_time(after.ms)} or just before it on" if after.id else "not at all"
    reason = (
        f"ids {first}..{queue.last} are of another history here than at its origin: copied was the"
        f" one in which id {known.id} was given by {format_time(known.ms)}; at the origin id"
        f" {first} was given after {format_time(before.ms)}, and id {known.id} {there}. It has lost"
        " messages, and given their ids anew"
    )
    return _stop_verdict(queue, "diverged", reason, first, queue.last, _DIVERGED_REMEDY)


def no_mirror_error(
    queue: MirroredQueue, span: OriginQueueState, found: BeginMirrorResult
) -> MirrorStopped:
    """There is a queue of this bus' own."""
    if found.promoted >= 0 and found.born == span.born:
        first = found.promoted + 1
        if span.last_id < first:
            return _stop_verdict(
                queue,
                "promoted",
                f"it was promoted behind id {found.promoted}, and nothing of its old origin is"
                " missing",
                0,
                0,
                _PROMOTED_REMEDY,
            )
        given = (
            f", and here ids {first}..{found.last} were given to others"
            if found.last >= first
            else ""
        )
        reason = (
            f"it was promoted behind id {found.promoted}; ids {first}..{span.last_id} of its old"
            f" origin were not copied{given}"
        )
        return _stop_verdict(queue, "promoted", reason, first, span.last_id, _PROMOTED_REMEDY)
    reason = f"here is a queue of this name that is no mirror, with ids up to {found.last}"
    return _stop_verdict(
        queue,
        "own",
        reason,
        1,
        found.last,
        "Remove or rename one of them, or copy over it with --replace",
    )


def new_life_error(
    queue: MirroredQueue, span: OriginQueueState, found: BeginMirrorResult
) -> MirrorStopped:
    """Here is the copy of a life that has ended at the origin; it may be the only one."""
    reason = (
        f"it was made anew at its origin, as life {span.born}; here is the copy of its life"
        f" {found.born}, up to id {found.last}"
    )
    remedy = (
        "Promote the copy to keep it (busmq mirror promote), or give it up for the new life with"
        " new_life=follow (--new-life follow)"
    )
    return _stop_verdict(queue, "life", reason, 1, found.last, remedy)


def other_origin_error(
    queue: MirroredQueue, found: BeginMirrorResult, origin: str
) -> MirrorStopped:
    """It is the mirror of another queue elsewhere: two processes would end each other's copies for
    ever.
    """
    reason = f"here it is a mirror of {origin}, of another life, up to id {found.last}"
    return _stop_verdict(
        queue,
        "own",
        reason,
        1,
        found.last,
        "Mirror one of them under this name only; --replace gives up the other copy",
    )


_PROMOTED_REMEDY = (
    "Save what only the old origin has (busmq peek, there), then mirror in the other direction with"
    " --replace"
)


def _stop_verdict(
    queue: MirroredQueue, kind: str, reason: str, first: int, last: int, remedy: str
) -> MirrorStopped:
    return MirrorStopped(
        queue=queue.name, kind=kind, reason=reason, first=first, last=last, remedy=remedy
    )
