"""The readers of queues, with their lag and their state (READER_STATES).

A renewal of a lease notes a look at the position of its reader (lua/include/announce.lua), so one
question shows how a reader has moved. Of a reader without a record, as of npm or of a version
before, only the lease and the positions are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

from busmq_spark.queue.command_generators import Flow, command, script, slices
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import checked_id, split_into_calls
from busmq_spark.reading.reader_record import ReaderRecord, describe_reader, id_of, lease_field
from busmq_spark.reading.times_of_ids import ages, note_times_if_allowed

QUEUES_PER_STEP = 1000
QUEUES_PER_CALL = 50
READERS_PER_CALL = 150
"""A call ends with the queue that brings it to so many readers: each takes Redis some 5 us."""
STUCK_AFTER_S = 60.0
CLOCK_SLACK_MS = 60_000
"""So far ahead a time may be without being that of another clock."""
MIN_LOOK_MS = 1000
"""Fewest milliseconds between two looks that are compared."""
BEHIND_LOOKS = 4
"""The state ``behind`` needs a lag that grew from each of so many looks to the next."""
RECORD_LIFE_MS = 24 * 3600 * 1000
"""An older record counts as deleted: the renewals of other readers keep its hash."""
ReaderState: TypeAlias = Literal["ok", "behind", "stuck", "replaying", "gone", "paused"]
READER_STATES: tuple[ReaderState, ...] = ("ok", "behind", "stuck", "replaying", "gone", "paused")
_STORED = re.compile(r"(\d{1,16}):(\d{1,16}):(\d{1,16}):(r?)((?:;\d{1,16}:\d{1,16}:\d{1,16})*) ")


class Look(NamedTuple):
    """The position of a reader at a time, in ms since 1970 of the server."""

    ms: int
    position: int
    newest: int


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A field of the hash ``readers``. Times are ms since 1970 of the server."""

    field: str
    seen_ms: int = 0
    hold_ms: int = 0
    """The reader counts as present for so long after ``seen_ms``."""
    moved_ms: int = 0
    """The last time at which the position had moved, or no message waited."""
    below: bool = False
    """Whether the reader reads again what is acknowledged."""
    looks: tuple[Look, ...] = ()
    record: ReaderRecord | None = None
    """The record; None where the field holds none, as after a change by hand."""

    @classmethod
    def parse(cls, name: bytes, value: bytes) -> StoredRecord:
        """Return the record of a field; one that is damaged has neither times nor looks."""
        name_text, text = name.decode("utf-8", "replace"), value.decode("utf-8", "replace")
        head = _STORED.match(text)
        if head is None:
            return cls(name_text)
        looks = [Look(*map(int, each.split(":"))) for each in head[5].split(";")[1:]]
        times = (int(head[1]), int(head[2]), int(head[3]))
        record = ReaderRecord.decode(text[head.end() :])
        return cls(name_text, *times, bool(head[4]), tuple(looks), record)

    def is_present(self, now_ms: int) -> bool:
        """Whether the reader has announced itself recently."""
        return -CLOCK_SLACK_MS <= now_ms - self.seen_ms <= self.hold_ms

    @property
    def clock_off_ms(self) -> int:
        """By how much the reader's clock is ahead of the server's; 0 where that is not known."""
        at = self.record.at if self.record else None
        return 0 if at is None else at - self.seen_ms


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """A reader of a queue: the holder of a lease, a group, a mirror, or a consumer without a
    name.
    """

    queue: str
    reader: str
    """The name of its group or subscription, of a mirror its own; empty for a reader without."""
    kind: str
    """The kind of its record; else ``ordered`` or ``shared`` for a group, ``query`` for another
    holder of a lease, ``consumer`` for whatever reads without one.
    """
    state: ReaderState
    position: int
    """Everything up to this id is acknowledged; of a mirror, copied."""
    newest: int
    """The newest id of the queue; of a mirror, of its origin."""
    behind: int
    """Messages that it has not acknowledged."""
    behind_s: int | None
    """Seconds since the oldest of them came, or a little less; the age is None where it is not
    known.
    """
    rate: float | None
    """Messages a second over the last looks, if these are enough."""
    unmoved_s: int | None
    """Seconds for which messages wait and the position has not moved, if that is known."""
    holder: str
    """The token of the lease holder; empty when there is none, and for a shared group."""
    held: bool
    """Whether a reader is present."""
    records: tuple[StoredRecord, ...] = ()
    """Its record; of a shared group those of its holders, the newest first."""
    damaged: bool = False
    """Whether a record was damaged."""

    @property
    def record(self) -> ReaderRecord | None:
        """The newest record."""
        return self.records[0].record if self.records else None

    @property
    def name(self) -> str:
        """The name that the reader gives itself; empty where it has no record."""
        return self.record.name if self.record else ""


@dataclass(frozen=True, slots=True)
class _QueueReply:
    """The reply about one queue."""

    keys: QueueKeys
    now_ms: int
    last: int
    floor: int
    done: int
    acked: int
    taken: int | None
    holder: str
    subscriptions: dict[str, tuple[int, int, str, int | None, bool, int]]
    """Name → acked id, when it was last in use (s), holder; of a shared group its newest leased id,
    whether it is paused, and its leases that have not ended.
    """
    records: dict[str, StoredRecord]


@dataclass(frozen=True, slots=True)
class _FoundReader:
    """A reader before the age of its oldest waiting message is known."""

    queue: _QueueReply
    name: str
    last: int
    newest: int
    at_s: int = 0
    holder: str = ""
    leased: int | None = None
    paused: bool = False
    open_leases: int = 0
    records: tuple[StoredRecord, ...] = ()
    is_mirror: bool = False

    @property
    def next_id(self) -> int:
        """The oldest id that it has not acknowledged; a reliable consumer has taken it."""
        return max(self.last, self.queue.floor if self.name else 0) + 1


def read_readers(
    queues: Sequence[QueueKeys],
    is_dead: Callable[[str], bool] = lambda _: False,
    stuck_after_s: float = STUCK_AFTER_S,
) -> Flow[list[ReaderStatus]]:
    """Return the readers of queues of one server. Queues that do not exist, and those without
    messages and readers, have none.

    ``is_dead`` says whether the holder of a lease is known to be gone
    (``redis_io.lease_token.is_dead``). Raises QueueDamaged.
    """
    found: list[ReaderStatus] = []
    for part in slices(queues, QUEUES_PER_STEP):
        asked = [each for one in (yield from _ask_queues(part)) for each in _readers_of(one)]
        late = [each for each in asked if each.last < each.queue.last]
        by_name = {each.queue.keys.name: each.queue.keys for each in late}
        if late:
            yield from note_times_if_allowed(list(by_name.values()))
        ages_ms = dict(
            zip(
                map(id, late),
                (yield from ages([(each.queue.keys, each.next_id) for each in late])),
                strict=True,
            )
        )
        found += [_status(each, ages_ms.get(id(each), 0), is_dead, stuck_after_s) for each in asked]
    return found


def _ask_queues(queues: Sequence[QueueKeys]) -> Flow[list[_QueueReply]]:
    found: dict[str, _QueueReply] = {}
    open_ = [(part, b"0") for part in split_into_calls(queues, queues, QUEUES_PER_CALL)]
    while open_:
        replies = yield [
            script(
                "readers",
                [
                    key
                    for keys in part
                    for key in (*keys.peer_keys, keys.acks, keys.readers, keys.lease(""))
                ],
                (READERS_PER_CALL, cursor),
            )
            for part, cursor in open_
        ]
        left: list[tuple[Sequence[QueueKeys], bytes]] = []
        for (part, _), (now, cursor, count, *items) in zip(open_, replies, strict=True):
            rest = iter(items)
            for keys in part[:count]:
                _add_reply(found, keys, int(now), list(islice(rest, next(rest))))
            rest_of_part = part[count - 1 if cursor != b"0" else count :]
            if rest_of_part:
                left.append((rest_of_part, cursor))
        open_ = left
    return list(found.values())


def _add_reply(
    found: dict[str, _QueueReply], keys: QueueKeys, now_ms: int, items: list[Any]
) -> None:
    if not items:
        return
    last, floor, done, acked, taken, holder, count, *rest = items
    end = 7 * count
    ids = [
        checked_id(keys.name, what, text or b"0")
        for what, text in (
            ("last id", last),
            ("oldest stored id", floor),
            ("id that all have acknowledged", done),
            ("acked id", acked),
        )
    ]
    reply = found.setdefault(
        keys.name,
        _QueueReply(
            keys,
            now_ms,
            ids[0],
            ids[1],
            ids[2],
            ids[3],
            checked_id(keys.name, "oldest taken id", taken) if taken else None,
            holder.decode("utf-8", "replace"),
            {},
            {},
        ),
    )
    for name, acked, at, token, leased, paused, open_leases in zip(
        *[iter(rest[:end])] * 7, strict=True
    ):
        reply.subscriptions[name.decode("utf-8", "replace")] = (
            checked_id(keys.name, "acked id of a subscription", acked),
            int(at) if at.isdigit() else 0,
            token.decode("utf-8", "replace"),
            (int(leased) if leased.isdigit() else 0) if leased else None,
            bool(paused),
            open_leases,
        )
    for name, value in zip(*[iter(rest[end:])] * 2, strict=True):
        stored = StoredRecord.parse(name, value)
        if stored.record and now_ms - stored.seen_ms > RECORD_LIFE_MS:
            continue
        reply.records[stored.field] = stored


def _readers_of(queue: _QueueReply) -> Iterator[_FoundReader]:
    shared: dict[str, list[StoredRecord]] = {}
    for field, stored in queue.records.items():
        kind, _, rest = field.partition(":")
        if kind == "g":
            shared.setdefault(rest.partition(":")[2], []).append(stored)
        elif kind == "m":
            newest = max(queue.last, stored.looks[-1].newest if stored.looks else 0)
            yield _FoundReader(queue, rest, queue.last, newest, records=(stored,), is_mirror=True)
    for name, (last, at_s, holder, leased, paused, open_leases) in queue.subscriptions.items():
        own = _records_of_holder(queue, name, holder) if leased is None else shared.get(name, [])
        yield _FoundReader(
            queue, name, last, queue.last, at_s, holder, leased, paused, open_leases, tuple(own)
        )
    if not queue.subscriptions or queue.holder:
        own = _records_of_holder(queue, "", queue.holder)
        last = max(queue.floor, queue.done, queue.acked)
        if queue.taken is not None:  # by a reliable consumer, and not acknowledged
            last = queue.taken - 1
        if own and own[0].below and own[0].looks:
            last = min(last, own[0].looks[-1].position)
        if queue.holder or own or last < queue.last:
            yield _FoundReader(queue, "", last, queue.last, holder=queue.holder, records=tuple(own))


def _records_of_holder(queue: _QueueReply, name: str, holder: str) -> list[StoredRecord]:
    """The record beside a lease, unless it is that of an earlier holder."""
    stored = queue.records.get(lease_field(name))
    if stored is None or (holder and stored.record and stored.record.id != id_of(holder)):
        return []
    return [stored]


def _status(
    reader: _FoundReader, age_ms: int, is_dead: Callable[[str], bool], stuck_after_s: float
) -> ReaderStatus:
    queue, now_ms = reader.queue, reader.queue.now_ms
    known = sorted((each for each in reader.records if each.record), key=lambda each: -each.seen_ms)
    present = any(each.is_present(now_ms) for each in known)
    progress = max(reader.last if reader.leased is None else reader.leased, queue.floor)
    held = bool(reader.holder) and not is_dead(reader.holder)
    if reader.leased is not None or reader.is_mirror:
        held = present or reader.open_leases > 0
    looks = list(known[0].looks) if known else []
    if looks and now_ms - looks[-1].ms >= MIN_LOOK_MS:
        looks.append(Look(now_ms, progress, reader.newest))
    unmoved_ms = _unmoved_ms(reader, progress, known, age_ms)
    behind = max(0, reader.newest - reader.last)
    return ReaderStatus(
        queue.keys.name,
        reader.name,
        _kind(reader, known),
        state_of(
            looks,
            held=held,
            paused=reader.paused,
            replaying=reader.last < queue.done or any(each.below for each in known[:1]),
            stuck=unmoved_ms is not None and unmoved_ms >= 1000 * stuck_after_s,
        ),
        reader.last,
        reader.newest,
        behind,
        0 if not behind else None if age_ms < 0 else age_ms // 1000,
        rate_of(looks) if held else None,
        None if unmoved_ms is None else unmoved_ms // 1000,
        reader.holder,
        held,
        tuple(known),
        len(known) < len(reader.records),
    )


def _kind(reader: _FoundReader, known: Sequence[StoredRecord]) -> str:
    if known and known[0].record:
        return known[0].record.kind
    if reader.name:
        return "mirror" if reader.is_mirror else "ordered" if reader.leased is None else "shared"
    return "query" if reader.holder else "consumer"


def _unmoved_ms(
    reader: _FoundReader, progress: int, known: Sequence[StoredRecord], age_ms: int
) -> int | None:
    """For how long messages wait and the position has not moved. Without a record no longer than
    since the subscription was last in use.
    """
    now_ms = reader.queue.now_ms
    if progress >= reader.newest:
        return 0
    if known and known[0].looks:
        moved = known[0].looks[-1].position != progress
        return 0 if moved else max(0, now_ms - known[0].moved_ms)
    if not reader.at_s or not now_ms or age_ms < 0:
        return None
    return max(0, min(age_ms, now_ms - 1000 * reader.at_s))


def state_of(
    looks: Sequence[Look], *, held: bool, paused: bool, replaying: bool, stuck: bool
) -> ReaderState:
    """Return the state of a reader. With ``behind`` it moves, and its lag grew in BEHIND_LOOKS
    looks.
    """
    if paused:
        return "paused"
    if not held:
        return "gone"
    if stuck:
        return "stuck"
    if replaying:
        return "replaying"
    last = looks[-BEHIND_LOOKS:]
    lags = [each.newest - each.position for each in last]
    moves = len(last) == BEHIND_LOOKS and last[-1].position > last[0].position
    return "behind" if moves and all(a < b for a, b in pairwise(lags)) else "ok"


def rate_of(looks: Sequence[Look]) -> float | None:
    """Return the messages a second between the first and the last look."""
    if len(looks) < 2 or looks[-1].ms - looks[0].ms < MIN_LOOK_MS:
        return None
    moved = looks[-1].position - looks[0].position
    return None if moved < 0 else 1000 * moved / (looks[-1].ms - looks[0].ms)


def describe_holder_of(
    keys: QueueKeys, subscription: str, token: str, describe_holder: Callable[[str], str]
) -> Flow[str]:
    """Return a description of the holder of a lease for people, by its record where it has one."""
    value = yield command("HGET", keys.readers, lease_field(subscription))
    record = StoredRecord.parse(b"", value or b"").record
    if record is not None and record.id != id_of(token):
        record = None  # of an earlier holder
    return describe_reader(token, record, describe_holder)
