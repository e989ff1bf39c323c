"""A queue that is the copy of one elsewhere: the same ids, the same life. Its progress is the copy
itself (lua/mirror_append.lua).

While the metadata has the field ``mirror_of``, programs of ours push nothing to it; :func:`promote`
ends that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from busmq_spark.errors import MirrorStopped, QueueMissing
from busmq_spark.queue.command_generators import Flow, command, script
from busmq_spark.queue.keys import QueueKeys, mirror_report
from busmq_spark.queue.message import Range
from busmq_spark.queue.queue import MAX_MESSAGES_PER_ACK, MIN_RECORD_TTL_S
from busmq_spark.reading.reader_operations import checked_id, split_into_calls

NEWEST_MESSAGE, NO_MARK = 0, -1
"""In the place of an id whose fingerprint is wanted: the newest stored message, none."""
_ORIGIN_STATE_ITEMS = 9
Positions: TypeAlias = Mapping[str, tuple[int, bool]]
"""Groups of a queue: name → last acked id, and whether it is a shared group."""


@dataclass(frozen=True, slots=True)
class OriginQueueState:
    """A queue at its origin, all of one moment. Ids are 0 where there is none."""

    ttl_s: int
    """0 when the queue does not exist."""
    born: str
    maxsize: int
    last_id: int
    """The id given last."""
    oldest: int
    """The oldest stored id; 0 when none is stored."""
    upto: int
    """The id asked for, or the newest stored one."""
    after_mark: str
    """Fingerprint of the message that was copied last; empty when it is not stored any more."""
    upto_mark: str
    mirror_of: str
    """The origin of the queue if it is a mirror itself, as JSON; else empty."""

    @property
    def floor(self) -> int:
        """Return one less than the oldest stored id, or the newest id when nothing is stored."""
        return self.oldest - 1 if self.oldest else self.last_id


@dataclass(frozen=True, slots=True)
class MirrorOf:
    """The field ``mirror_of``: where the copy comes from, and over which buses, the first of them
    the true origin.
    """

    origin: str
    """The address, without credentials."""
    path: tuple[str, ...] = ()
    """Names of buses."""

    def to_json(self) -> str:
        """Return the value of the field."""
        return json.dumps(
            {"from": self.origin, "path": self.path}, ensure_ascii=False, separators=(",", ":")
        )

    @classmethod
    def parse(cls, text: str) -> MirrorOf:
        """Parse the field; invalid text raises nothing."""
        try:
            found = json.loads(text)
            return cls(str(found["from"]), tuple(map(str, found["path"])))
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls(text[:200])


@dataclass(frozen=True, slots=True)
class BeginMirrorResult:
    """The result of :func:`begin_mirror`."""

    status: Literal["ok", "life", "own"]
    """ok: it is the mirror of that life. life: another life than the caller expects is here. own: a
    queue of this place's own.
    """
    born: str
    last: int
    """Copied up to this id; of a queue of its own the id given last."""
    mark: str = ""
    """Fingerprint of the message copied last, where it is known."""
    witness: str = ""
    """A pair ``ms:id`` of the origin's clock that the copy was made under."""
    promoted: int = -1
    """The id after which a queue of its own was promoted; -1 without a promotion."""
    mirror_of: str = ""
    """Of status life: whose mirror it is."""


@dataclass(frozen=True, slots=True)
class MirrorChunk:
    """All that the origin has of the ids ``after + 1 .. upto``, and what else is known of it."""

    born: str
    after: int
    upto: int
    seen: int
    """The last id that the origin has given."""
    floor: int = 0
    """Up to this id nothing is stored there any more; 0 drops nothing here."""
    rows: int = 0
    pairs: bytes | memoryview = b""
    """Id and value of each of ``rows`` messages, as words of a command (:class:`RedisCall`)."""
    witness: str = ""
    """A pair ``ms:id`` of the origin's clock, for the mirror to keep."""


@dataclass(frozen=True, slots=True)
class MirrorAppendResult:
    """The result of :func:`append_chunk`. ``last``: copied up to this id, of status ok and at."""

    status: Literal["ok", "at", "life", "own", "missing"]
    last: int = 0


@dataclass(frozen=True, slots=True)
class MirrorQueueState:
    """A mirror as its own place has it."""

    queue: str
    of: MirrorOf
    last: int
    """Copied up to this id."""
    seen: int
    """The last id that the origin is known to have given."""

    @property
    def behind(self) -> int:
        """Ids that are known to be given and not copied."""
        return max(0, self.seen - self.last)


def read_spans(wanted: Sequence[tuple[QueueKeys, tuple[int, int]]]) -> Flow[list[OriginQueueState]]:
    """Each queue at its origin; with each the id copied last, and the id up to which is read next:
    NEWEST_MESSAGE, or NO_MARK for both.
    """
    replies = yield [
        script(
            "span",
            [key for keys, _ in part for key in (keys.metadata, keys.messages, keys.msgid)],
            [id for _, ids in part for id in ids],
        )
        for part in split_into_calls(wanted, [keys for keys, _ in wanted[:1]])
    ]
    rows = [
        row for reply in replies for row in zip(*[iter(reply)] * _ORIGIN_STATE_ITEMS, strict=True)
    ]
    return [_origin_state(keys.name, row) for (keys, _), row in zip(wanted, rows, strict=True)]


def _origin_state(queue: str, row: tuple[Any, ...]) -> OriginQueueState:
    ttl_s, born, maxsize, last, oldest, upto, after_mark, upto_mark, mirror_of = row
    ids = (
        checked_id(queue, "last id", last),
        checked_id(queue, "oldest stored id", oldest or b"0"),
        max(0, int(upto)),
    )
    return OriginQueueState(
        ttl_s,
        born.decode("utf-8", "replace"),
        maxsize,
        *ids,
        after_mark.decode(),
        upto_mark.decode(),
        mirror_of.decode("utf-8", "replace"),
    )


def spans_to_ask_for(parts: Sequence[Range]) -> dict[str, tuple[int, int]]:
    """The spans to ask for before ranges are read, one of each queue: with the id before the first,
    and the last, which may be NEWEST_MESSAGE.
    """
    return {part.queue: (part.first - 1, part.last) for part in parts}


def stored_ranges(parts: Sequence[Range], spans: Mapping[str, OriginQueueState]) -> list[Range]:
    """Return the stored parts of the ranges, by their spans. Nothing of one whose queue has another
    life, or has not given its last id.
    """
    found: list[Range] = []
    for part in parts:
        span = spans[part.queue]
        first, last = max(part.first, span.oldest), part.last or span.upto
        if (
            span.born == part.born
            and span.last_id >= part.last
            and span.oldest > 0
            and first <= last
        ):
            found.append(part._replace(first=first, last=last))
    return found


def read_group_positions(queues: Sequence[QueueKeys]) -> Flow[list[tuple[str, Positions]]]:
    """The life that the groups of each queue belong to ('' where it has none), and where they
    are.
    """
    replies = yield [
        script("positions", [keys.acks for keys in part], ())
        for part in split_into_calls(queues, queues)
    ]
    found: list[tuple[str, Positions]] = []
    for keys, items in zip(queues, (each for reply in replies for each in reply), strict=True):
        fields = {
            name.decode("utf-8", "replace"): value
            for name, value in zip(items[0::2], items[1::2], strict=True)
        }
        names = [name for name in fields if not name.startswith(":")]
        of = {
            name: (
                checked_id(keys.name, "acked id of a subscription", fields[name]),
                f":shared:{name}" in fields,
            )
            for name in names
        }
        found.append((fields.get(":born", b"").decode("utf-8", "replace"), of))
    return found


def begin_mirror(
    keys: QueueKeys,
    span: OriginQueueState,
    of: MirrorOf,
    *,
    expected: str = "",
    replace: bool = False,
) -> Flow[BeginMirrorResult]:
    """Make a queue the mirror of ``span``, or go on with it. A new life begins only in the place of
    the life ``expected``.

    ``replace``: a queue of this place's own is given up for the copy, if its life is the one
    expected.
    """
    args = (
        span.born,
        expected,
        of.to_json(),
        span.ttl_s,
        span.maxsize,
        span.floor,
        int(replace),
        MIN_RECORD_TTL_S,
    )
    names = (*keys.peer_keys, keys.acks, keys.clock)
    status, born, last, detail = yield script("mirror_begin", names, args)
    found, text = status.decode(), detail.decode()
    life = born.decode("utf-8", "replace")
    if found == "own":
        return BeginMirrorResult("own", life, int(last), promoted=int(text.partition(":")[0] or -1))
    if found == "life":
        return BeginMirrorResult("life", life, int(last), mirror_of=text)
    mark, _, witness = text.partition(":")
    return BeginMirrorResult("ok", life, int(last), mark, witness)


def append_chunk(keys: QueueKeys, chunk: MirrorChunk) -> Flow[MirrorAppendResult]:
    """Append a chunk to the mirror, as far as it is not there. At most CHUNK_MESSAGES messages, of
    CHUNK_BYTES about (see queue/message.py).

    Safe to send twice or late. Raises MirrorStopped when ids were given here, by a program that
    does not know mirrors.
    """
    args = (
        keys.available,
        chunk.born,
        chunk.after,
        chunk.upto,
        chunk.seen,
        chunk.floor,
        MAX_MESSAGES_PER_ACK,
        chunk.witness,
    )
    call = script("mirror_append", (*keys.peer_keys, keys.acks, keys.clock), args)
    status, a, more = yield (
        call._replace(wired=(2 * chunk.rows, chunk.pairs)) if chunk.rows else call
    )
    while status == b"ok" and more:
        status, a, more = yield call  # the messages are there
    if status == b"foreign":
        raise foreign_ids_error(keys.name, int(a), int(more))
    return MirrorAppendResult(status.decode(), int(a) if status in (b"ok", b"at") else 0)


def foreign_ids_error(queue: str, first: int, last: int) -> MirrorStopped:
    """Ids that were given at the mirror itself."""
    found = (
        f"ids {first}..{last} were given here"
        if last >= first
        else f"its id counter says {last} here, and {first - 1} messages were copied"
    )
    remedy = (
        "Stop that program, and copy the queue anew with --replace; or promote it (busmq mirror"
        " promote), which keeps them"
    )
    reason = f"{found}, by a program that does not know mirrors, such as npm busmq"
    return MirrorStopped(
        queue=queue, kind="foreign", reason=reason, first=first, last=last, remedy=remedy
    )


def set_positions(keys: QueueKeys, born: str, of: Positions) -> Flow[bool]:
    """Set the groups of a mirror to where those of its origin are; false when it is no mirror of
    that life.
    """
    names = [key for name in of for key in (keys.lease(name), keys.group(name)[0])]
    words = [word for name, (last, shared) in of.items() for word in (name, last, int(shared))]
    return (
        int(
            (
                yield script(
                    "mirror_positions",
                    (keys.metadata, keys.acks, *names),
                    (born, MIN_RECORD_TTL_S, *words),
                )
            )
        )
        >= 0
    )


def promote(keys: QueueKeys) -> Flow[tuple[bool, int, int]]:
    """Make a mirror a queue of its own: whether it was one, the last id that was copied, and the
    last that the origin is known to have given.

    Raises QueueMissing.
    """
    status, last, seen = yield script("mirror_promote", (keys.metadata, keys.msgid), ())
    if status == b"missing":
        raise QueueMissing(queue=keys.name)
    return status == b"ok", int(last), int(seen)


def read_mirror_states(queues: Sequence[QueueKeys]) -> Flow[list[MirrorQueueState | None]]:
    """Return the mirror state of each queue; return None for a queue that is no mirror. Raises
    QueueDamaged.
    """
    replies = yield [command("HMGET", keys.metadata, "mirror_of", "mirrored") for keys in queues]
    found: list[MirrorQueueState | None] = []
    for keys, (of, mirrored) in zip(queues, replies, strict=True):
        if of is None:
            found.append(None)
            continue
        last, _, rest = (mirrored or b"0::0").partition(b":")
        last_id = checked_id(keys.name, "last copied id", last)
        seen = checked_id(keys.name, "last id of its origin", rest.rpartition(b":")[2])
        of_text = of.decode("utf-8", "replace")
        found.append(MirrorQueueState(keys.name, MirrorOf.parse(of_text), last_id, seen))
    return found


def write_report(name: str, said: str, ttl_s: int) -> Flow[None]:
    """Say how a mirroring process is; it is forgotten ``ttl_s`` later."""
    yield command("SET", mirror_report(name), said, "EX", ttl_s)
