"""The exactly-once sink: stage, one commit point, then append with progress.

Rule 1. A task writes its rows to lists that no consumer reads (``stage``), one list per queue and
        attempt.
Rule 2. The driver writes down which lists make up the batch (``record``). This is the commit point:
        before it nothing is visible, after it exactly these lists are appended, even when the batch
        is computed again with other rows or another order.
Rule 3. A staged list is a segment: one connection writes it, and what counts of it are the chunks
        that Redis has confirmed there. When the link breaks, the rows in doubt go into a new
        segment; a packet that comes late lies after the counted rows, where no commit looks.
Rule 4. Each chunk moves from a staged list to its queue together with the progress (``commit``), in
        one script. A crash resumes there; two drivers that commit at once append each row once,
        because the script compares the progress it was called for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeAlias
from zlib import crc32

from busmq_spark.errors import (
    BatchChanged,
    QueueMissing,
    ServerRefused,
    SinkRolledBack,
    SinkTargetsError,
    StagingLost,
    StaleBatch,
    StaleRun,
)
from busmq_spark.groups.topic import topic_partition
from busmq_spark.queue.command_generators import Arg, Flow, RedisCall, command, group_by, script
from busmq_spark.queue.keys import QueueKeys, sink_record
from busmq_spark.queue.message import MAX_ID
from busmq_spark.queue.queue import MIN_RECORD_TTL_S

RESTART_REMEDY = "Restart the query to stage them again"
_ABANDON_BATCH_REMEDY = (
    "The batch is recorded, so a restart cannot stage it again: replay its source with a new"
    " checkpoint"
)
STAGE_TTL_S = 3600
"""Seconds for which staged rows of an attempt that never commits stay in Redis."""
MAX_ROWS_PER_COMMIT, MAX_QUEUES_PER_COMMIT = 10_000, 1_000
"""Rows and queues that are committed in one round trip, at most; a queue with more rows has its
own.
"""
CHUNKS_PER_COMMIT = 4
"""Chunks of a queue that are committed in one round trip, at most. Redis serves others only after
all of them: 3 to 4 ms, up to 7 with values of 10 KB, as they wait for a long reply to a reader
(MAX_REPLY_ROWS in reading/range_reader.py).
"""
STAGED_KEY_SUFFIX = re.compile(
    r"(?:batch|[0-9a-fA-F-]{36}):[0-9]{1,19}:[0-9]{1,10}:[0-9a-f]{16}", re.ASCII
)
"""The form of the names that :func:`attempt_name` makes. No other key of the bus ends like this."""


def attempt_name(query: str, batch: str, partition: int, token: str) -> str:
    """Return the name of a task's try of a partition: ``query`` is empty in a batch write,
    ``token`` is random.
    """
    return f"{query or 'batch'}:{batch}:{partition}:{token}"


def next_segment(key: str, token: str) -> str:
    """The key of another segment of the same attempt; ``token`` is random."""
    return key[: -len(token)] + token


@dataclass(frozen=True, slots=True)
class StagedList:
    """A staged list: rows of one task attempt for one queue. ``chunks`` are the chunk sizes as
    [size, how often] pairs.

    They are the rows at its head; what lies after them does not count.
    """

    queue: str
    server: int
    key: str
    chunks: tuple[tuple[int, int], ...]
    digest: int | None = None
    """:func:`digest` of the rows; the digest is None in a manifest of version 1."""
    made: int = field(default=0, compare=False)
    """Epoch of the run that has recorded the list; 0 where it is not recorded, or that is not
    known.
    """

    @property
    def rows(self) -> int:
        """Return the number of staged rows."""
        return sum(size * times for size, times in self.chunks)

    def chunk_at(self, moved: int) -> int:
        """Return the number of rows of the next move after ``moved`` rows: up to the next chunk
        border.
        """
        at = 0
        for size, times in self.chunks:
            if moved < at + size * times:
                return size - (moved - at) % size
            at += size * times
        return 0


def digest(values: Sequence[bytes]) -> int:
    """A checksum of rows that does not depend on their order, chunks or partitions: digests of
    parts add up (:func:`total_digest`).
    """
    return sum(map(crc32, values)) & MAX_ID


def total_digest(digests: Iterable[int]) -> int:
    """The digest of all rows, from those of their parts."""
    return sum(digests) & MAX_ID


def by_queue(staged: Sequence[StagedList]) -> dict[str, list[StagedList]]:
    """The lists of each queue, in their order."""
    return group_by(staged, lambda part: part.queue)


def commit_groups(staged: Sequence[StagedList]) -> list[dict[str, list[StagedList]]]:
    """The lists of each queue, in groups of queues that are committed together."""
    found: list[dict[str, list[StagedList]]] = []
    room = 0
    for queue, parts in by_queue(staged).items():
        rows = sum(part.rows for part in parts)
        if not found or rows > room or len(found[-1]) == MAX_QUEUES_PER_COMMIT:
            found.append({})
            room = MAX_ROWS_PER_COMMIT
        found[-1][queue] = parts
        room -= rows
    return found


def encode_chunks(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Chunk sizes as [size, how often] pairs: a million rows are two pairs, not a thousand
    numbers.
    """
    chunks: list[tuple[int, int]] = []
    for size in sizes:
        if chunks and chunks[-1][0] == size:
            chunks[-1] = (size, chunks[-1][1] + 1)
        else:
            chunks.append((size, 1))
    return tuple(chunks)


def encode_manifest(staged: Sequence[StagedList], made: int = 0) -> str:
    """The manifest of a batch, in the order of appending (version 2). ``made`` is the epoch of the
    run that records it, if it is known.
    """
    lists = [[s.queue, s.server, s.key, s.chunks, s.digest] for s in staged]
    return json.dumps(
        {"v": 2, "lists": lists, **({"made": made} if made else {})},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def decode_manifest(text: str | bytes) -> tuple[StagedList, ...]:
    """The inverse of :func:`encode_manifest`, also for version 1, which has no digests."""
    manifest = json.loads(text)
    lists = [
        StagedList(queue, server, key, tuple((size, times) for size, times in runs), *more)
        for queue, server, key, runs, *more in manifest["lists"]
    ]
    return tuple(replace(part, made=manifest.get("made", 0)) for part in lists)


def stage(
    key: str, before: int, values: Sequence[Arg], stages: str = "", epoch: int = 0
) -> RedisCall:
    """Append a chunk that ``before`` rows of the list precede, unless it is there; safe to repeat.
    The reply is the rows in the list.

    The list, its ttl and its note in ``stages`` (writing/sink_runs.py) appear in one step, so a
    task killed at any moment leaves no list without a ttl.
    """
    noted = (stages,) if stages else ()
    return script(
        "stage", (key, *noted), (before, STAGE_TTL_S, key.rpartition(":stage:")[2], epoch, *values)
    )


def stage_more(key: str, values: Sequence[Arg]) -> RedisCall:
    """Append a chunk on the connection that has written the whole list so far. The reply is the
    rows in the list.

    Never to be repeated on the same list: the first try may still arrive. To a list that is gone it
    adds nothing, so no key is left without a ttl.
    """
    return command("RPUSHX", key, *values, idempotent=False)


def keep_staged(sink: str, batch: int, staged: Sequence[StagedList]) -> Flow[None]:
    """Let staged lists live as long as a record does, before it names them: so long a query may be
    down from the commit point on.

    Raises StagingLost when one does not hold what was staged: better before the commit point, when
    it can still be staged again.
    """
    replies = yield [
        call
        for s in staged
        for call in (command("EXPIRE", s.key, MIN_RECORD_TTL_S), command("LLEN", s.key))
    ]
    for s, found in zip(staged, replies[1::2], strict=True):
        if found < s.rows:
            raise StagingLost(
                sink=sink,
                batch=batch,
                queue=s.queue,
                expected=s.rows,
                found=found,
                key=s.key,
                remedy=RESTART_REMEDY,
            )


def record(  # noqa: PLR0913  # as WriteStore.record
    sink: str,
    batch: int,
    staged: Sequence[StagedList],
    query: str = "",
    span: str = "",
    epoch: int = 0,
    *,
    least: int = -1,
) -> Flow[tuple[StagedList, ...]]:
    """Make ``staged`` what the batch consists of, unless the batch has been recorded before: then
    that holds.

    ``span`` says which part of its sources the batch covers (:func:`make_span`); empty where that
    is not known. ``epoch`` is that of the run which staged it. ``least``: a batch that the sink has
    recorded before.

    Raises SinkRolledBack when the record is older than ``least``. Raises StaleBatch when the sink
    has recorded a later batch, or this one for another query (a new checkpoint counts from 0
    again), StaleRun when a later run of the sink has begun, and BatchChanged when the batch on
    record is another one. Raises SinkTargetsError when a copy of the checkpoint writes the batch
    to other queues.
    """
    reply = yield script(
        "record",
        (sink_record(sink),),
        (batch, encode_manifest(staged, epoch), MIN_RECORD_TTL_S, query, span, epoch, least),
    )
    if not reply:
        raise StaleRun(sink=sink, batch=batch)
    if len(reply) == 1:
        raise StaleBatch(sink=sink, batch=batch, found=int(reply[0]))
    if len(reply) == 2:
        known = "no batch of it" if int(reply[1]) < 0 else f"batch {int(reply[1])}"
        raise SinkRolledBack(sink=sink, found=known, expected=least)
    held = decode_manifest(reply[1])
    checkpoints = [split_span(text)[2] for text in (reply[2].decode(), span)]
    if all(checkpoints) and checkpoints[0] != checkpoints[1]:
        before, now = targets(held), targets(staged)
        if not {*now} <= {*before}:
            raise targets_changed(sink, batch, before, now)
    if found := differences((reply[2].decode(), held), (span, staged)):
        raise BatchChanged(sink=sink, batch=batch, **found)
    return held


StagedBatchContent: TypeAlias = tuple[str, Sequence[StagedList]]
"""The content of a batch: its span, if that is known, and its lists."""


def differences(held: StagedBatchContent, given: StagedBatchContent) -> dict[str, str]:
    """Return the differences of a batch from the one recorded under its number, as details of
    BatchChanged; empty when it is the same.

    The offsets decide where both are known: the same part of the sources may give other rows, or
    the same in another order, when it is computed again. Else the rows decide, queue by queue.
    """
    spans = [split_span(span) for span, _ in (held, given)]
    if all(span[0] for span in spans):
        if spans[0][0] == spans[1][0]:
            return {}
        return {
            "by": "offsets",
            "found": f"up to {spans[0][1]}",
            "expected": f"up to {spans[1][1]}",
            "remedy": _CHECKPOINT_OLDER_REMEDY,
        }
    before, now = _content(held[1]), _content(given[1])
    unknown = any(digest is None for _, digest in (*before.values(), *now.values()))
    if before == now or (unknown and _rows(before) == _rows(now)):
        return {}
    remedy = f"{_TWO_WRITES_REMEDY}. {_CHECKPOINT_OLDER_REMEDY}. {_QUERY_VARIES_REMEDY}"
    return {"by": "rows", "found": _describe(before), "expected": _describe(now), "remedy": remedy}


def make_span(digest: str, end: str, checkpoint: str) -> str:
    """Return the span of a batch; ``checkpoint`` names the folder of the query."""
    return f"{digest}:{end}{_SPAN_CHECKPOINT}{checkpoint}"


def split_span(span: str) -> tuple[str, str, str]:
    """Return digest, end offsets and checkpoint of a span; each is empty where it is not known.

    Spans of older versions have no checkpoint.
    """
    digest, _, rest = span.partition(":")
    end, _, checkpoint = rest.partition(_SPAN_CHECKPOINT)
    return digest, end, checkpoint


_SPAN_CHECKPOINT = "\n@"
"""The mark before the checkpoint in a span; offsets are JSON, and have no line like this."""


def targets(staged: Sequence[StagedList], *, topics: bool = False) -> list[str]:
    """Return the queues of staged lists, or with ``topics`` their topics, in order."""
    names = dict.fromkeys(s.queue for s in staged if s.rows)
    places = {name: topic_partition(name) if topics else None for name in names}
    return list(dict.fromkeys(place[0] if place else name for name, place in places.items()))


def targets_changed(
    sink: str, batch: int, before: Sequence[str], now: Sequence[str]
) -> SinkTargetsError:
    """Return the error for a batch that is recorded for other queues than it is written to."""
    found, expected = (_describe_targets(names) for names in (before, now))
    return SinkTargetsError(sink=sink, batch=batch, found=found, expected=expected)


def _describe_targets(names: Sequence[str]) -> str:
    more = len(names) - _MAX_QUEUES_IN_ERROR
    shown = ", ".join(map(repr, names[:_MAX_QUEUES_IN_ERROR]))
    return shown + (f" and {more} more" if more > 0 else "")


_TWO_WRITES_REMEDY = (
    "If two writes of one batch have this sinkId, give each its own, and both are appended"
)
_CHECKPOINT_OLDER_REMEDY = (
    "The checkpoint is older than the sink: it was restored, or its last entry was not on disk when"
    " a machine failed (tune() keeps checkpoints with fsync). Start the query with a new checkpoint"
    " that begins after the recorded batches"
)
_QUERY_VARIES_REMEDY = (
    "If instead the query computes other rows each time from the same input (uuid(), rand(), a"
    " sample), onChangedBatch=keep takes those that were recorded first"
)
_RECORD_LOST_REMEDY = (
    "The record of the sink is gone (the Redis that had it lost its data), and these may be other"
    " rows than those that were appended. Compare the queue with the source, and start the query"
    " with a new checkpoint that begins after the stored messages"
)
_MAX_QUEUES_IN_ERROR = 5
"""Queues that an error names."""


def _content(staged: Sequence[StagedList]) -> dict[str, tuple[int, int | None]]:
    """Rows and digest of each queue."""
    found: dict[str, tuple[int, int | None]] = {}
    for s in staged:
        rows, digest = found.get(s.queue, (0, 0))
        found[s.queue] = (
            rows + s.rows,
            None if digest is None or s.digest is None else total_digest((digest, s.digest)),
        )
    return {queue: content for queue, content in found.items() if content[0]}


def _rows(content: dict[str, tuple[int, int | None]]) -> dict[str, int]:
    return {queue: rows for queue, (rows, _) in content.items()}


def _describe(content: dict[str, tuple[int, int | None]]) -> str:
    shown = [
        f"{rows} rows for {queue!r}"
        for queue, (rows, _) in list(content.items())[:_MAX_QUEUES_IN_ERROR]
    ]
    return ", ".join(shown or ["no rows"]) + (
        f" and {len(content) - _MAX_QUEUES_IN_ERROR} more queues"
        if len(content) > _MAX_QUEUES_IN_ERROR
        else ""
    )


def other_record_details(queue: str, staged: Sequence[StagedList]) -> dict[str, str]:
    """Details of BatchChanged where a queue has progress of a record that is gone."""
    rows = sum(s.rows for s in staged)
    return {
        "by": "rows",
        "found": f"rows that are appended to {queue!r}",
        "expected": f"{rows} rows for it",
        "remedy": _RECORD_LOST_REMEDY,
    }


def recorded_lists(sink: str, batch: int) -> Flow[tuple[StagedList, ...]]:
    """The lists recorded for this batch; empty when another batch, or none, is on record."""
    number, manifest = yield command("HMGET", sink_record(sink), "batch", "manifest")
    return decode_manifest(manifest) if number is not None and int(number) == batch else ()


@dataclass(frozen=True, slots=True)
class CommitStoppedAtMaxsize:
    """A commit stopped because the queue is at its ``maxsize``; calling it again goes on."""

    queue: str
    maxsize: int
    left: int


@dataclass(frozen=True, slots=True)
class BatchProgressConflict:
    """The queue has progress of this batch number by another record than the one that is committed:
    the run of epoch ``made`` wrote that record.
    """

    made: int


def commit(
    keys: QueueKeys, sink: str, batch: int, staged: Sequence[StagedList], void_below: int = 0
) -> Flow[CommitStoppedAtMaxsize | BatchProgressConflict | None]:
    """Append the staged lists of one queue in their order. The result is None when all is appended,
    :class:`CommitStoppedAtMaxsize` when the queue has no room.

    ``void_below``: progress of records that were made by runs with lower epochs counts for nothing.
    Safe to repeat at any time, by any process, until it returns None. Raises StagingLost,
    StaleBatch, QueueMissing.
    """
    marks = (staged[0].made if staged else 0, void_below, _order_free_digest(staged))
    at = 0, 0
    while 0 <= at[0] < len(staged):
        moves = list(islice(_moves(staged, *at), CHUNKS_PER_COMMIT))
        replies = yield [_move_call(keys, sink, batch, staged, move, marks) for move in moves]
        # A move does nothing unless the progress is at its start, so the moves after an incomplete
        # one do nothing.
        for (nth, moved, _), (status, a, b) in zip(moves, replies, strict=True):
            part = staged[nth]
            match status:
                case b"moved":
                    at = (nth, moved + a) if moved + a < part.rows else (nth + 1, 0)
                case b"at":
                    if a < 0:
                        return None
                    at = a, b
                case b"full":
                    return CommitStoppedAtMaxsize(
                        keys.name,
                        a,
                        part.rows - moved + sum(later.rows for later in staged[nth + 1 :]),
                    )
                case b"lost":
                    left = part.rows - moved
                    raise StagingLost(
                        sink=sink,
                        batch=batch,
                        queue=keys.name,
                        expected=left,
                        found=a,
                        key=part.key,
                        remedy=_ABANDON_BATCH_REMEDY,
                    )
                case b"stale":
                    raise StaleBatch(sink=sink, batch=batch, found=a)
                case b"other":
                    return BatchProgressConflict(a)
                case b"missing":
                    raise QueueMissing(queue=keys.name)
                case _:
                    raise ServerRefused(url="", reason=f"unknown commit status {status!r}")
    return None


def _moves(staged: Sequence[StagedList], nth: int, moved: int) -> Iterator[tuple[int, int, int]]:
    """Yield the moves after a progress: the list, the number of its rows moved before, and the
    number of this move.
    """
    while nth < len(staged):
        size = staged[nth].chunk_at(moved)
        yield nth, moved, size
        nth, moved = (nth, moved + size) if moved + size < staged[nth].rows else (nth + 1, 0)


def _move_call(
    keys: QueueKeys,
    sink: str,
    batch: int,
    staged: Sequence[StagedList],
    move: tuple[int, int, int],
    marks: tuple[Arg, ...],
) -> RedisCall:
    part, last = staged[move[0]], int(move[0] == len(staged) - 1)
    names = (
        *keys.peer_keys,
        keys.sinks,
        part.key,
        keys.stages(sink),
        keys.clock,
        keys.acks,
        keys.bytes,
    )
    return script(
        "commit",
        names,
        (
            keys.available,
            sink,
            batch,
            *move,
            part.rows,
            last,
            MIN_RECORD_TTL_S,
            keys.stage(""),
            *marks,
        ),
    )


def _order_free_digest(staged: Sequence[StagedList]) -> str:
    """Return a digest of the rows of a queue that does not depend on order and lists; empty where
    it is not known.
    """
    digests = [s.digest for s in staged if s.digest is not None]
    return (
        f"{sum(s.rows for s in staged)}-{total_digest(digests)}"
        if len(digests) == len(staged)
        else ""
    )


def discard(keys: Sequence[str]) -> Flow[None]:
    """Remove staged lists that did not win. UNLINK frees large lists outside Redis' main thread."""
    if keys:
        yield [
            command("UNLINK", key) for key in keys
        ]  # one call each: in a cluster they may be on different nodes


def forget(queues: Sequence[QueueKeys], sink: str) -> Flow[None]:
    """Drop the progress of a sink that will never commit again (a finished batch write)."""
    if queues:
        yield [command("HDEL", keys.sinks, sink) for keys in queues]
