"""Writes of one task to Redis, several chunks under way per server, and what happens to them when
the link breaks.

Staged chunks: those in doubt are staged again in a new segment (writing/sink.py), so each counts
once, whenever a packet of the old link arrives. Pushed chunks: those in doubt are sent again; some
may then be there twice, which is what at-least-once allows. Their order holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Self

from busmq_spark.errors import LinkLost, QueueMissing, ServerRefused, StagingLost
from busmq_spark.queue.command_generators import RedisCall, command, group_by, script, slices
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES, chunks
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.store.protocol import FullQueueWait
from busmq_spark.writing.sink import (
    RESTART_REMEDY,
    StagedList,
    digest,
    discard,
    encode_chunks,
    next_segment,
    stage,
    stage_more,
    total_digest,
)
from busmq_spark.writing.sink_runs import SinkRun

MAX_FULL_CHUNKS_UNDER_WAY = 3
"""Full chunks under way at once: Redis stores one while the next is packed."""
MAX_CHUNKS_UNDER_WAY = 256
"""Chunks under way that together are less than MAX_FULL_CHUNKS_UNDER_WAY full ones: with many
queues each has a few rows.
"""
QUEUES_PER_ROUND_TRIP = 16
"""Queues to which rows are pushed in one round trip, a chunk to each."""


@dataclass(slots=True)
class _OpenStagedList:
    """The staged rows of a task for one queue: closed segments, and the one that grows."""

    queue: str
    server: int
    key: str
    stages: str = ""
    epoch: int = 0
    """The record of the list, and its run."""
    sent: int = 0
    """Rows of the segment, confirmed or under way."""
    sizes: list[int] = field(default_factory=list)
    """The chunks of it that Redis has confirmed."""
    digest: int = 0
    """The digest of those chunks."""
    closed: list[StagedList] = field(default_factory=list)

    @property
    def segments(self) -> list[StagedList]:
        """The segments in their order, with what is confirmed of each."""
        return [
            *self.closed,
            StagedList(self.queue, self.server, self.key, encode_chunks(self.sizes), self.digest),
        ]

    def start_segment(self) -> None:
        """Go on in a new segment: calls under way to this one may arrive at any time."""
        self.closed = self.segments
        self.key, self.sent, self.sizes, self.digest = next_segment(self.key, new_token()), 0, [], 0


@dataclass(frozen=True, slots=True)
class _SentChunk:
    """A chunk of a staged list under way, and its place there."""

    part: _OpenStagedList
    before: int
    values: Sequence[bytes]
    size: int
    """Bytes of the values."""

    @classmethod
    def next_of(cls, part: _OpenStagedList, values: Sequence[bytes]) -> Self:
        """The next chunk of the list, which counts it."""
        sent = cls(part, part.sent, values, sum(map(len, values)))
        part.sent += len(values)
        return sent

    @property
    def call(self) -> RedisCall:
        """The first chunk brings the ttl; the others need not be copied through Lua."""
        return stage_more(self.part.key, self.values) if self.before else self.repeatable_call

    @property
    def repeatable_call(self) -> RedisCall:
        """The call for a chunk in any place, safe to repeat."""
        return stage(self.part.key, self.before, self.values, self.part.stages, self.part.epoch)

    def confirm(self, found: int) -> None:
        """The reply has come. Raises StagingLost when other rows than ours are there, or ours are
        not.
        """
        expected = self.before + len(self.values)
        if found != expected:
            raise StagingLost(
                sink="",
                batch="?",
                queue=self.part.queue,
                expected=expected,
                found=found,
                key=self.part.key,
                remedy=RESTART_REMEDY,
            )
        self.part.sizes.append(len(self.values))
        self.part.digest = total_digest((self.part.digest, digest(self.values)))


class _ChunkPipeline:
    """Chunks under way to one server."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: deque[_SentChunk] = deque()

    def send(self, part: _OpenStagedList, values: Sequence[bytes]) -> None:
        sent = _SentChunk.next_of(part, values)
        self._waiting.append(sent)
        try:
            self._link.post(sent.call)
            while self._is_full():
                self._confirm_oldest()
        except LinkLost:
            self._stage_unconfirmed_again()

    def _is_full(self) -> bool:
        waiting = self._waiting
        if not MAX_FULL_CHUNKS_UNDER_WAY <= len(waiting) < MAX_CHUNKS_UNDER_WAY:
            return len(waiting) >= MAX_FULL_CHUNKS_UNDER_WAY
        rows, size = sum(len(sent.values) for sent in waiting), sum(sent.size for sent in waiting)
        return (
            rows >= MAX_FULL_CHUNKS_UNDER_WAY * CHUNK_MESSAGES
            or size >= MAX_FULL_CHUNKS_UNDER_WAY * CHUNK_BYTES
        )

    def confirm_all(self) -> None:
        while self._waiting:
            try:
                self._confirm_oldest()
            except LinkLost:
                self._stage_unconfirmed_again()

    def wait_for_replies(self) -> None:
        """Wait until everything under way is answered, be it with an error."""
        while self._waiting:
            with suppress(ServerRefused, StagingLost):
                self._confirm_oldest()

    def abandon(self) -> None:
        self._waiting.clear()
        self._link.abandon()

    def discard(self, keys: Sequence[str]) -> None:
        self._link.run(discard(keys))

    def _confirm_oldest(self) -> None:
        try:
            found = self._link.fetch()
        except ServerRefused:
            self._waiting.popleft()
            raise
        self._waiting.popleft().confirm(found)

    def _stage_unconfirmed_again(self) -> None:
        """After a broken link: calls in doubt are staged again one by one, with the link's own
        patience, where nothing else writes.
        """
        self._link.abandon()
        waiting, self._waiting = list(self._waiting), deque()
        for part in {id(sent.part): sent.part for sent in waiting}.values():
            part.start_segment()
        for sent in waiting:
            again = _SentChunk.next_of(sent.part, sent.values)
            again.confirm(self._link.execute(again.repeatable_call))


def stage_at(
    link: Link,
    part: StagedList,
    before: int,
    values: Sequence[bytes],
    stages: str = "",
    epoch: int = 0,
) -> int:
    """Append values to a staged list that ``before`` rows precede, unless they are there; safe to
    repeat. The rows up to and with them.

    For writes that another machine numbers and repeats. Raises StagingLost when the list has fewer
    rows than ``before``.
    """
    borders, calls = [before], []
    for chunk in chunks(values):
        calls.append(stage(part.key, borders[-1], chunk, stages, epoch))
        borders.append(borders[-1] + len(chunk))
    try:
        with closing(
            link.stream(calls, MAX_FULL_CHUNKS_UNDER_WAY)
        ) as replies:  # now: an error keeps it alive, and the next call would get its replies
            _check_staged_rows(part, replies, borders)
    except LinkLost:
        _check_staged_rows(part, map(link.execute, calls), borders)
    return borders[-1]


def _check_staged_rows(part: StagedList, replies: Iterable[int], borders: Sequence[int]) -> None:
    for found, expected in zip(replies, borders[1:], strict=True):
        if found < expected:
            raise StagingLost(
                sink="",
                batch="?",
                queue=part.queue,
                expected=expected,
                found=found,
                key=part.key,
                remedy=RESTART_REMEDY,
            )


def append(link: Link, keys: QueueKeys, values: Sequence[bytes]) -> tuple[int, int]:
    """Append values to the queue itself: how many were stored, and the queue's ``maxsize`` if that
    is not all. May store some twice.
    """
    done = 0
    for chunk in chunks(values):
        stored = _append_chunk(link, keys, chunk)
        done += stored
        if stored < len(chunk):
            return done, int(link.execute(command("HGET", keys.metadata, "maxsize")) or 0)
    return done, 0


def _append_chunk(link: Link, keys: QueueKeys, values: Sequence[bytes]) -> int:
    return _stored_count(keys, link.execute(_push_call(keys, values)))


def _push_call(keys: QueueKeys, values: Sequence[bytes]) -> RedisCall:
    # Not truly idempotent: at least once allows to send the chunk again after a broken connection.
    return script("push", keys.appending, (keys.available, *values))


def _stored_count(keys: QueueKeys, reply: Sequence[int]) -> int:
    if reply[1] < 0:
        raise QueueMissing(queue=keys.name)
    return reply[1]


class RedisSinkAppender:
    """Satisfies SinkAppender."""

    def __init__(
        self,
        links: Sequence[Link],
        locate: Callable[[Sequence[str]], Mapping[str, int]],
        keys: Callable[[str], QueueKeys],
    ) -> None:
        self._links = links
        self._keys = keys
        self._locate = locate
        self._pipes = [_ChunkPipeline(link) for link in links]
        self._lists: dict[str, _OpenStagedList] = {}

    def stage(
        self, queue: str, key: str, values: Sequence[bytes], run: SinkRun | None = None
    ) -> None:
        """Append values to the staged list ``key`` of a queue."""
        staged = self._lists.get(key)
        if staged is None:
            noted = (self._keys(queue).stages(run.sink), run.epoch) if run else ()
            staged = self._lists[key] = _OpenStagedList(
                queue, self._locate([queue])[queue], key, *noted
            )
        pipe = self._pipes[staged.server]
        for chunk in chunks(values):
            pipe.send(staged, chunk)

    def push(self, queue: str, values: Sequence[bytes], full: FullQueueWait) -> None:
        """Append values to the queue itself. Push one chunk at a time, since a full queue may take
        a part of it.
        """
        keys = self._keys(queue)
        link = self._links[self._locate([queue])[queue]]
        for chunk in chunks(values):
            full.push_all(queue, chunk, lambda left: append(link, keys, left))

    def push_each(self, parts: Mapping[str, Sequence[bytes]], full: FullQueueWait) -> None:
        """Push to each queue, like ``push``; the first chunks of several are one round trip, and so
        are all small parts.
        """
        for server, queues in self._group_by_server(list(parts)):
            keys = [self._keys(queue) for queue in queues]
            replies = self._links[server].execute(
                [_push_call(own, next(chunks(parts[own.name]))) for own in keys]
            )
            for own, reply in zip(keys, replies, strict=True):
                if stored := _stored_count(own, reply):
                    full.restart_deadline()
                self.push(own.name, parts[own.name][stored:], full)

    def _group_by_server(self, queues: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Queues of one server each, some at a time."""
        servers = self._locate(queues)
        for server, own in group_by(servers, servers.__getitem__).items():
            yield from ((server, part) for part in slices(own, QUEUES_PER_ROUND_TRIP))

    def wait_until_stored(self) -> None:
        """Wait until everything staged so far is stored. Only then may the links be used for
        anything else.
        """
        for pipe in self._pipes:
            pipe.confirm_all()

    def finish(self) -> list[StagedList]:
        """Wait until everything is stored; the staged lists in the order of their first row."""
        self.wait_until_stored()
        return [
            segment for part in self._lists.values() for segment in part.segments if segment.chunks
        ]

    def discard(self) -> None:
        """Take back what was staged, once every chunk under way is answered. A call that comes even
        later finds no list, or makes one with a ttl.
        """
        for server, pipe in enumerate(self._pipes):
            if keys := [
                segment.key
                for part in self._lists.values()
                if part.server == server
                for segment in part.segments
            ]:
                pipe.wait_for_replies()
                pipe.discard(keys)

    def abandon(self) -> None:
        """Stop in the middle; rows that were sent stay."""
        for pipe in self._pipes:
            pipe.abandon()
