"""This data centre: where the mirrors are. Only one thread may use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from busmq_spark.errors import BusError
from busmq_spark.mirror.copy_planning import CopyRangeReadResult
from busmq_spark.mirror.settings import MIRROR_PATIENCE_S
from busmq_spark.options import MEMORY, BusOptions, RedisOptions
from busmq_spark.queue.command_generators import Flow, run_flows_together, slices
from busmq_spark.queue.keys import QueueKeys, mirror_report, server_index
from busmq_spark.reading.reader_operations import keep_alive, marks
from busmq_spark.reading.reader_record import Announcement
from busmq_spark.redis_io.durability import DurableSyncLink
from busmq_spark.redis_io.layout import Link, redis_layout, sync_links
from busmq_spark.redis_io.queue_location import discover_queues, locate
from busmq_spark.writing import mirror as flows
from busmq_spark.writing.mirror import (
    BeginMirrorResult,
    MirrorAppendResult,
    MirrorChunk,
    MirrorOf,
    MirrorQueueState,
    OriginQueueState,
    Positions,
)

T = TypeVar("T")
MAX_CHUNKS_PER_ROUND_TRIP, MAX_BYTES_PER_ROUND_TRIP = 100, 1024 * 1024
"""Most chunks in one round trip, and of how many bytes about; a copy of them is sent."""
REPORT_TTL_S = 30


class MirrorTarget:
    """Writes of mirrors, to the server that each queue is on."""

    def __init__(self, options: RedisOptions) -> None:
        where = redis_layout(options)
        self.cluster, self.masked_url = where.cluster, where.masked_url
        self._links = sync_links(where, MIRROR_PATIENCE_S)
        durability = options.durable if isinstance(options, BusOptions) else MEMORY
        self._durable_links = [DurableSyncLink(link, durability) for link in self._links]
        self._places: dict[str, int] = {}

    def keys(self, queue: str) -> QueueKeys:
        """Return the keys of a queue as they are spelt here."""
        return QueueKeys(queue, self.cluster)

    def begin(
        self,
        wanted: Mapping[str, OriginQueueState],
        of: Mapping[str, MirrorOf],
        expected: Mapping[str, str],
        *,
        replace: bool = False,
    ) -> dict[str, BeginMirrorResult]:
        """Make these queues mirrors, or go on with them; ``expected``: their lives here, where that
        is known.
        """

        def flow(queue: str) -> Flow[BeginMirrorResult]:
            return flows.begin_mirror(
                self.keys(queue),
                wanted[queue],
                of[queue],
                expected=expected[queue],
                replace=replace,
            )

        return self._run_for_each(list(wanted), flow)

    def append(
        self, rows: Sequence[CopyRangeReadResult]
    ) -> dict[str, MirrorAppendResult | BusError]:
        """Append what was read, one window of each queue. Of each queue the last answer, or the
        error it is stopped by. Raises LinkLost.
        """
        found: dict[str, MirrorAppendResult | BusError] = {}
        pieces = [(each.window.queue, chunk) for each in rows for chunk in split_into_chunks(each)]
        self._locate([each.window.queue for each in rows])
        for server, link in enumerate(self._durable_links):
            own = [piece for piece in pieces if self._places[piece[0]] == server]
            for part in _group_into_calls(own):
                flow = run_flows_together(
                    [flows.append_chunk(self.keys(q), chunk) for q, chunk in part]
                )
                answers = link.run(flow, part[0][0])
                for (queue, _), answer in zip(part, answers, strict=True):
                    if not isinstance(found.get(queue), BusError):
                        found[queue] = answer
        return found

    def trim(self, chunks_: Mapping[str, MirrorChunk]) -> dict[str, MirrorAppendResult | BusError]:
        """Drop what the origin has dropped; of each queue the answer."""
        return self._run_each(
            list(chunks_), lambda queue: flows.append_chunk(self.keys(queue), chunks_[queue])
        )

    def set_positions(self, of: Mapping[str, tuple[str, Positions]]) -> None:
        """Set groups to where those of the origin are."""
        self._run_each(list(of), lambda queue: flows.set_positions(self.keys(queue), *of[queue]))

    def touch(self, queues: Sequence[str], said: Announcement | None = None) -> None:
        """Let mirrors live on; ``said``: the record of the process that copies them."""
        for link, keys in self._keys_by_link(queues):
            link.run(keep_alive(keys, said=said))

    def names(self, accepts: Callable[[str], bool]) -> list[str]:
        """The queues here, whatever they are."""
        return [queue for queue, _ in discover_queues(self._links) if accepts(queue)]

    def copies(self, of: str, queues: Sequence[str]) -> dict[str, MirrorQueueState]:
        """Return the mirror states of the queues that are copies of the origin ``of``, in its
        printable form.
        """
        states = chain.from_iterable(
            link.run(flows.read_mirror_states(keys)) for link, keys in self._keys_by_link(queues)
        )
        return {
            state.queue: state for state in states if state is not None and state.of.origin == of
        }

    def mark(self, queue: str, id: int) -> str:
        """The fingerprint of a message; empty when it is not stored."""
        self._locate([queue])
        [found] = self._links[self._places[queue]].run(marks([(self.keys(queue), id)]))
        return found

    def report(self, name: str, said: str) -> None:
        """Say how this process is."""
        self._links[server_index(mirror_report(name), len(self._links))].run(
            flows.write_report(name, said, REPORT_TTL_S)
        )

    def close(self) -> None:
        """Close the links."""
        for link in self._links:
            with suppress(BusError):
                link.close()

    def forget_places(self) -> None:
        """After an error: where queues are is looked up anew."""
        self._places.clear()

    def _locate(self, queues: Sequence[str]) -> None:
        if unknown := [queue for queue in dict.fromkeys(queues) if queue not in self._places]:
            self._places.update(
                zip(
                    unknown,
                    locate([self.keys(queue) for queue in unknown], self._links),
                    strict=True,
                )
            )

    def _keys_by_link(self, queues: Sequence[str]) -> Iterator[tuple[Link, list[QueueKeys]]]:
        self._locate(queues)
        for server, link in enumerate(self._links):
            if own := [self.keys(queue) for queue in queues if self._places[queue] == server]:
                yield link, own

    def _run_for_each(self, queues: Sequence[str], flow: Callable[[str], Flow[T]]) -> dict[str, T]:
        found: dict[str, T] = {}
        for queue, answer in self._run_each(queues, flow).items():
            if isinstance(answer, BusError):
                raise answer
            found[queue] = answer
        return found

    def _run_each(
        self, queues: Sequence[str], flow: Callable[[str], Flow[T]]
    ) -> dict[str, T | BusError]:
        self._locate(queues)
        found: dict[str, T | BusError] = {}
        for server, link in enumerate(self._links):
            own = [queue for queue in queues if self._places[queue] == server]
            for part in slices(own, 100):
                found.update(
                    zip(
                        part,
                        link.run(run_flows_together([flow(queue) for queue in part])),
                        strict=True,
                    )
                )
        return found


def split_into_chunks(rows: CopyRangeReadResult) -> list[MirrorChunk]:
    """Return the read messages, in chunks that go into one call each; the last one covers the whole
    window, also where its last ids were gone.
    """
    span, after = rows.span, rows.after
    found: list[MirrorChunk] = []
    for part in rows.parts:
        for last, count, pairs in part.chunks():
            found.append(MirrorChunk(span.born, after, last, span.last_id, rows=count, pairs=pairs))
            after = last
    last_one = found.pop() if found else MirrorChunk(span.born, after, 0, span.last_id)
    return [*found, replace(last_one, upto=rows.upto, witness=str(rows.witness))]


def _group_into_calls(
    pieces: Iterable[tuple[str, MirrorChunk]],
) -> Iterator[list[tuple[str, MirrorChunk]]]:
    """Yield the chunks of one round trip."""
    part: list[tuple[str, MirrorChunk]] = []
    size = 0
    for piece in pieces:
        part.append(piece)
        size += len(piece[1].pairs)
        if size >= MAX_BYTES_PER_ROUND_TRIP or len(part) == MAX_CHUNKS_PER_ROUND_TRIP:
            yield part
            part, size = [], 0
    if part:
        yield part
