"""The store whose messages are in another data centre: a federation server asks its Redis for us,
over ``busmq.bulk.v1``.

    store = FederationBulkStore(FederationAddress("wss://eu.example.com/bus", secret))    # nothing
    is connected yet for rows in store.read(part, True): …
    # as of a RedisStore

A queue's server is always 0: which Redis it is on there, the other side knows. Only one thread may
use a store.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from busmq_spark.errors import (
    BusError,
    FederationLost,
    LinkLost,
    MessageRefused,
    QueueMissing,
    StagingLost,
)
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.client import (
    MAX_CALLS_UNDER_WAY,
    FederationBulkClient,
    FederationPushListenerThread,
)
from busmq_spark.federation.bulk.operations import MAX_EVENT_KEYS_PER_CALL
from busmq_spark.federation.bulk.row_frames import MAX_RANGES_PER_READ
from busmq_spark.groups.topic import topic_partition
from busmq_spark.queue.command_generators import slices
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Range, chunks
from busmq_spark.redis_io.queue_location import no_pause
from busmq_spark.store.protocol import (
    ConsecutiveMessages,
    FullQueueWait,
    Method,
    MirrorOriginReadStore,
    MultiQueueCallSplitter,
    P,
    ReadStore,
    RowStream,
    SinkAppender,
    T,
    WriteStore,
    make_forwarder,
    make_per_queue_method,
    restrict_to,
)
from busmq_spark.writing.mirror import OriginQueueState
from busmq_spark.writing.sink import (
    RESTART_REMEDY,
    CommitStoppedAtMaxsize,
    StagedList,
    by_queue,
    digest,
    encode_chunks,
    total_digest,
)
from busmq_spark.writing.sink_runs import SinkRun

MAX_PIECE_BYTES = 256 * 1024
"""Bytes of values in one call: so much that a far link is busy, so little that the server's other
peers need not wait.
"""
MAX_PIECE_ROWS = 5_000
MAX_PIECES_UNDER_WAY = MAX_CALLS_UNDER_WAY
"""Pieces under way at once: 16 MB, which a link 100 ms away carries at 160 MB/s."""
QUEUES_PER_CALL = 1_000
"""Queues, or staged lists, in one call."""
_HEAD_BYTES = 64 * 1024
_MAX_NAMES_BYTES_PER_CALL, _MAX_RANGE_BYTES = 56 * 1024, 100
"""Names of ranges in one call, and what a range has beside its name at most: life, ids, server."""
log = logging.getLogger("busmq_spark")


def _forward_to_server(method: Method[P, T]) -> Method[P, T]:
    """The operation of this name, in one call."""
    return make_forwarder(method, lambda store, *asked: store._link.call(*asked))


class FederationBulkStore(MultiQueueCallSplitter):
    """Reads and writes of named queues through a federation server. Satisfies ReadStore and
    WriteStore.
    """

    def __init__(self, address: FederationAddress) -> None:
        address.check_offline()
        self.address = address
        self._link = FederationBulkClient(address)

    def connect(self) -> None:
        """Connect, unless that is done. Raises FederationRefused; ``details["status"]`` is the HTTP
        status.
        """
        self._link.connect()

    def keys(self, queue: str) -> QueueKeys:
        """Return the keys in the spelling of the other side; the first call connects to find
        out.
        """
        return QueueKeys(queue, cluster=self._link.connect().cluster)

    def locate(self, queues: Sequence[str]) -> Mapping[str, int]:
        return dict.fromkeys(queues, 0)

    def discover(
        # It is there that keys are walked
        self,
        accept: Callable[[str], bool],
        pace: Callable[[], object] = no_pause,  # noqa: ARG002
    ) -> list[str]:  # it is there that keys are walked
        return [queue for queue in self._link.call("discover") if accept(queue)]

    # Topics are made at their Redis
    def topic_queues(self, topics: Sequence[str], partitions: int | None = None) -> list[str]:  # noqa: ARG002
        """The partition queues that exist and that the secret may list: it may be for some of them
        only.
        """
        return self.discover(
            lambda queue: (place := topic_partition(queue)) is not None and place[0] in topics
        )

    def counters(self, queues: Sequence[str]) -> Sequence[object]:
        return [
            counter
            for some in slices(queues, QUEUES_PER_CALL)
            for counter in self._link.call("counters", some)
        ]

    spans = make_per_queue_method(MirrorOriginReadStore.spans)
    positions = make_per_queue_method(MirrorOriginReadStore.positions)
    traces = _forward_to_server(ReadStore.traces)
    bytes_until = _forward_to_server(ReadStore.bytes_until)

    def read(self, part: Range, fail_on_data_loss: bool) -> Iterator[ConsecutiveMessages]:
        return self._link.read_ranges([part], fail_on_data_loss)

    def read_many(
        self, parts: Sequence[Range], fail_on_data_loss: bool
    ) -> Iterator[ConsecutiveMessages]:
        for some in _cut_ranges(parts):
            yield from self._link.read_ranges(some, fail_on_data_loss)

    def read_with_spans(
        self, parts: Sequence[Range]
    ) -> tuple[Mapping[str, OriginQueueState], RowStream]:
        return self._link.read_with_spans(parts)

    def push_from(
        self, queue: str, sender: str, sequences: Sequence[int], values: Sequence[bytes]
    ) -> tuple[int, int]:
        """Push like RedisStore.push_from. In one call, so many of them as the server takes in a
        message.
        """
        fitting, room = 0, self._link.connect().message_bytes - _HEAD_BYTES
        for value in values:
            if (room := room - len(value) - 4) < 0:
                break
            fitting += 1
        if not fitting:
            _check_message_size(len(values[0]), room + len(values[0]))
        stored: tuple[int, int] = self._link.call(
            "push_from", queue, sender, tuple(sequences[:fitting]), values=values[:fitting]
        )
        return stored

    # Topics are made at their Redis
    def partitions(self, topic: str, create: int | None = None) -> int:  # noqa: ARG002
        found: int = self._link.call("partitions", topic)
        return found

    def take_commands(self, queue: str) -> None:
        self._link.call("take_commands", queue)

    def event_queues(self, events: Sequence[Sequence[str]]) -> list[Sequence[str]] | None:
        """The queues that are subscribed to the keys of each event, of those that may be pushed to.
        Return None when the server keeps no subscriptions.
        """
        found: list[Sequence[str]] = []
        for some in _cut_events(events):
            found += self._link.call("event_queues", some)
        return found

    def subscribe_events(self, queue: str, patterns: Sequence[str], end: bool) -> None:
        self._link.call("subscribe_events", queue, patterns, end)

    def appender(self) -> FederationBulkSinkAppender:
        return FederationBulkSinkAppender(self._link)

    def begin(self, sink: str, run: str, queues: Sequence[str]) -> SinkRun:
        first, *_ = [
            self._link.call("begin", sink, run, some) for some in slices(queues, QUEUES_PER_CALL)
        ]
        return cast(SinkRun, first)

    renew = _forward_to_server(WriteStore.renew)
    recorded = _forward_to_server(WriteStore.recorded)
    record = _forward_to_server(WriteStore.record)  # without ``least``
    sink_state = _forward_to_server(WriteStore.sink_state)
    commit = _forward_to_server(WriteStore.commit)
    forget = _forward_to_server(WriteStore.forget)

    def commit_many(
        self, sink: str, batch: int, staged: Sequence[StagedList]
    ) -> dict[str, CommitStoppedAtMaxsize | QueueMissing | None]:
        """Commit each queue of ``staged``, all under way at once; a queue that is missing is an
        answer.
        """
        asked = [(queue, sink, batch, parts) for queue, parts in by_queue(staged).items()]
        return dict(
            zip(
                [queue for queue, *_ in asked],
                self._link.call_many("commit", asked, (QueueMissing,)),
                strict=True,
            )
        )

    def discard(self, staged: Sequence[StagedList]) -> None:
        for some in slices(staged, QUEUES_PER_CALL):
            self._link.call("discard", some)

    def truncate(self, queues: Sequence[str]) -> None:
        if queues:
            self._link.call(
                "trim", self._link.call("ends", queues)
            )  # bounded: one that arrives late deletes nothing that came after it

    def push_listeners(self, notified: threading.Event) -> list[FederationPushListenerThread]:
        """Return threads that wake an idle reader, not started; like
        push_listeners.RedisPushListeners.
        """
        return [FederationPushListenerThread(self.address, notified)]

    def close(self) -> None:
        self._link.drop_connection()

    def ask_each(
        self, name: str, queues: Sequence[str] | Mapping[str, Any], *rest: Any
    ) -> dict[str, Any]:
        """Call for as many queues at once as fit; without queues the server is not called."""
        asked = [
            [restrict_to(some, argument) for argument in (queues, *rest)]
            for some in slices(list(queues), QUEUES_PER_CALL)
        ]
        found: dict[str, Any] = {}
        for answer in (
            [self._link.call(name, *asked[0])]
            if len(asked) == 1
            else self._link.call_many(name, asked)
        ):
            found.update(answer)
        return found


def _cut_events(events: Sequence[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    """Yield as many events as a server looks up in one call."""
    some: list[Sequence[str]] = []
    count = 0
    for keys in events:
        if some and count + len(keys) > MAX_EVENT_KEYS_PER_CALL:
            yield some
            some, count = [], 0
        some.append(keys)
        count += len(keys)
    if some:
        yield some


def _cut_ranges(parts: Sequence[Range]) -> Iterator[list[Range]]:
    """Yield groups of ranges that fit a call which a server begins at once."""
    some: list[Range] = []
    size = 0
    for part in parts:
        more = len(json.dumps(part.queue)) + _MAX_RANGE_BYTES
        if some and (len(some) == MAX_RANGES_PER_READ or size + more > _MAX_NAMES_BYTES_PER_CALL):
            yield some
            some, size = [], 0
        some.append(part)
        size += more
    if some:
        yield some


def _check_message_size(size: int, most: int) -> None:
    if size > most:
        raise MessageRefused(
            reason=(
                f"a message of {size} bytes is over what the federation server takes ({most});"
                " raise its limit message_bytes, or push less"
            )
        )


class _StageCall:
    """Some rows of a staged list, and their place there."""

    def __init__(self, part: _StagedListBuilder, before: int, values: Sequence[bytes]) -> None:
        self.part, self.before, self.values = part, before, values
        self.arguments = (part.queue, part.key, before, part.run)

    def check_reply(self, answer: tuple[int, int]) -> None:
        rows, self.part.server = answer
        expected = self.before + len(self.values)
        if rows < expected:
            key = self.part.key
            raise StagingLost(
                sink="",
                batch="?",
                queue=self.part.queue,
                expected=expected,
                found=rows,
                key=key,
                remedy=RESTART_REMEDY,
            )


class _StagedListBuilder:
    """A staged list that grows."""

    def __init__(self, queue: str, key: str, run: SinkRun) -> None:
        self.queue, self.key, self.run = queue, key, run
        self.server = self.rows = self.digest = 0
        self.sizes: list[int] = []

    @property
    def staged_list(self) -> StagedList:
        return StagedList(self.queue, self.server, self.key, encode_chunks(self.sizes), self.digest)


class FederationBulkSinkAppender(SinkAppender):
    """Every piece of a staged list carries its place, so that one sent twice is there once."""

    def __init__(self, link: FederationBulkClient) -> None:
        self._link = link
        self._lists: dict[str, _StagedListBuilder] = {}
        self._waiting: deque[tuple[int, _StageCall]] = deque()

    def stage(
        self, queue: str, key: str, values: Sequence[bytes], run: SinkRun | None = None
    ) -> None:
        """Append values to the staged list ``key`` of a queue."""
        part = self._lists.setdefault(key, _StagedListBuilder(queue, key, run or SinkRun("", 0)))
        for piece, sizes in self._split_into_calls(values):
            self._send_chunk(_StageCall(part, part.rows, piece))
            part.digest = total_digest((part.digest, digest(piece)))
            part.rows += len(piece)
            part.sizes += sizes

    def push(self, queue: str, values: Sequence[bytes], full: FullQueueWait) -> None:
        """Append values to the queue itself, piece by piece, since a full queue may take a part of
        one.
        """
        for piece, _ in self._split_into_calls(values):
            full.push_all(queue, piece, lambda left: self._link.call("push", queue, values=left))

    def wait_until_stored(self) -> None:
        """Wait until everything staged so far is stored."""
        while self._waiting:
            self._settle_oldest_chunk()

    def finish(self) -> list[StagedList]:
        """Wait until everything is stored; the staged lists in the order of their first row."""
        self.wait_until_stored()
        return [part.staged_list for part in self._lists.values()]

    def discard(self) -> None:
        """Take back what was staged, once every piece under way is answered."""
        while self._waiting:
            try:
                self._settle_oldest_chunk()
            except BusError as error:
                log.debug("discarding: %s", error)
        if self._lists:
            self._link.call("discard", [part.staged_list for part in self._lists.values()])

    def abandon(self) -> None:
        """Stop in the middle; rows that were sent stay."""
        if self._waiting:
            self._waiting.clear()
            self._link.drop_connection()

    def _split_into_calls(
        self, values: Sequence[bytes]
    ) -> Iterator[tuple[Sequence[bytes], list[int]]]:
        """Values cut into calls, each with the sizes of the chunks in it, by which a commit moves
        them later.
        """
        most = self._link.connect().message_bytes - _HEAD_BYTES
        piece: list[bytes] = []
        sizes: list[int] = []
        room = MAX_PIECE_BYTES
        for chunk in chunks(values):
            size = sum(map(len, chunk))
            _check_message_size(size, most)
            if piece and (size > room or len(piece) + len(chunk) > MAX_PIECE_ROWS):
                yield piece, sizes
                piece, sizes, room = [], [], MAX_PIECE_BYTES
            piece += chunk
            sizes.append(len(chunk))
            room -= size
        if piece:
            yield piece, sizes

    def _send_chunk(self, piece: _StageCall) -> None:
        while len(self._waiting) >= MAX_PIECES_UNDER_WAY:
            self._settle_oldest_chunk()
        try:
            self._waiting.append(
                (self._link.send_call("stage", *piece.arguments, values=piece.values), piece)
            )
        except FederationLost:
            self._link.drop_connection()
            self._waiting.append((-1, piece))
            self._resend_unanswered()

    def _settle_oldest_chunk(self) -> None:
        id, piece = self._waiting.popleft()
        try:
            answer = self._link.wait_for_result(id, "stage")
        except LinkLost as error:
            if isinstance(error, FederationLost):
                self._link.drop_connection()
            else:
                self._discard_replies()
            self._waiting.appendleft((id, piece))
            self._resend_unanswered()
            return
        piece.check_reply(answer)

    def _discard_replies(self) -> None:
        """The server's Redis could not be reached for one piece: those after it are answered, too,
        and may have found their place missing.
        """
        for id, _ in self._waiting:
            with suppress(BusError):
                self._link.wait_for_result(id, "stage")

    def _resend_unanswered(self) -> None:
        """Calls in doubt are sent again one by one, with the link's own patience."""
        waiting, self._waiting = self._waiting, deque()
        for _, piece in waiting:
            piece.check_reply(self._link.call("stage", *piece.arguments, values=piece.values))
