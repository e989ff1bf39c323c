"""Range reads as frames: the server makes them from rows, and the client reads rows from them.

A read of one range says ``first`` of each frame. A read of many says ``runs``: [which range, first
id, how many], so that short ones share a frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.frames import BulkProtocolFrame, make_wire_error
from busmq_spark.queue.message import Range
from busmq_spark.store.protocol import ConsecutiveMessages
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.writing.mirror import OriginQueueState, spans_to_ask_for, stored_ranges

MAX_RANGES_PER_READ = 1_000
"""Ranges in one call of ``read_many``."""
SHARED_FRAME_BYTES = 256 * 1024
"""Bytes of values of several ranges that share a frame: on a far link a frame of this size takes no
longer than a small one.
"""


@dataclass(frozen=True, slots=True)
class RangeReadFrame:
    """A frame of rows."""

    head: dict[str, Any]
    rows: int
    schema: Any
    data: Any
    parts: list[Range]


class RangeReadFrameProducer:
    """The frames of a read, made one after the other in a thread. ``many``: of several ranges, else
    of one.
    """

    def __init__(
        self, store: RedisStore, parts: Sequence[Range], strict: bool, *, many: bool
    ) -> None:
        self._rows = store.read_many(parts, strict) if many else store.read(parts[0], strict)
        self._parts, self._many = parts, many
        self._at = 0
        self._next_rows: ConsecutiveMessages | None = None

    def next_frame(self) -> RangeReadFrame | None:
        """Return None at the end."""
        taken: list[ConsecutiveMessages] = []
        size = 0
        while (
            size < SHARED_FRAME_BYTES
            and (rows := self._next_rows or next(self._rows, None)) is not None
        ):
            self._next_rows = rows if taken and rows.values.type != taken[0].values.type else None
            if self._next_rows is not None:
                break
            taken.append(rows)
            size += rows.values.nbytes
            if not self._many:
                break
        return self._make_frame(taken) if taken else None

    def _make_frame(self, taken: list[ConsecutiveMessages]) -> RangeReadFrame:
        values = (
            taken[0].values
            if len(taken) == 1
            else pa.concat_arrays([rows.values for rows in taken])
        )
        runs = [[self._index_of_range(rows), rows.first, len(rows.values)] for rows in taken]
        head: dict[str, Any] = {"runs": runs} if self._many else {"first": taken[0].first}
        parts = [self._parts[index] for index, _, _ in runs]
        return RangeReadFrame(
            head, len(values), frames.rows_schema(values), frames.encode_rows(values), parts
        )

    def _index_of_range(self, rows: ConsecutiveMessages) -> int:
        """Rows come in the order of the ranges."""
        while not (
            rows.queue == self._parts[self._at].queue
            and self._parts[self._at].first <= rows.first <= self._parts[self._at].last
        ):
            self._at += 1
        return self._at


def ask_spans_and_stored_ranges(
    store: RedisStore, parts: Sequence[Range]
) -> tuple[Mapping[str, OriginQueueState], list[Range]]:
    """The spans around ranges whose server is known, one of each queue, and what of them is to be
    read; in a thread.
    """
    for part in parts:
        store.set_failure_domain([part.queue], ("", part.server, ""))
    spans = store.spans(spans_to_ask_for(parts))
    return spans, stored_ranges(parts, spans)


class RemainingRanges:
    """The parts of some ranges that have not come yet."""

    def __init__(self, parts: Sequence[Range], strict: bool) -> None:
        self._parts, self._strict = parts, strict
        self._at, self._need = 0, parts[0].first

    @property
    def unread_ranges(self) -> list[Range]:
        """To ask for after a broken link."""
        here = (
            [self._parts[self._at]._replace(first=self._need)]
            if self._need <= self._parts[self._at].last
            else []
        )
        return [*here, *self._parts[self._at + 1 :]]

    def take_rows(self, frame: BulkProtocolFrame, schema: Any) -> Iterator[ConsecutiveMessages]:
        """The rows of a frame. Raises WireError for others than those that come next."""
        values, head = (
            frames.decode_rows(frame.body, schema),
            frame.head if isinstance(frame.head, dict) else {},
        )
        runs = head.get("runs", [[0, head.get("first"), len(values)]])
        if not isinstance(runs, list) or not all(
            isinstance(run, list) and len(run) == 3 and all(type(n) is int for n in run)
            for run in runs
        ):
            raise make_wire_error("rows of no range", "which range, first id, how many")
        if sum(run[2] for run in runs) != len(values):
            raise make_wire_error(
                f"runs of {sum(run[2] for run in runs)} rows in {len(values)}"[:100], "as many"
            )
        done = 0
        for index, first, count in runs:
            part = self._check_and_advance(index, first, count)
            yield ConsecutiveMessages(
                part.queue, first, values.slice(done, count) if count < len(values) else values
            )
            done += count

    def _check_and_advance(self, index: int, first: int, count: int) -> Range:
        at, need = self._at, self._need
        while at < len(self._parts) - 1 and (
            need > self._parts[at].last or (at < index and not self._strict)
        ):
            at, need = at + 1, self._parts[at + 1].first
        part = self._parts[at]
        if (
            index != at
            or count < 1
            or not need <= first <= part.last + 1 - count
            or (self._strict and first != need)
        ):
            raise make_wire_error(
                (
                    f"{count} rows from id {first}"[:100]
                    if index == at
                    else f"rows of range {index}"[:100]
                ),
                f"ids {need}..{part.last} of range {at}",
            )
        self._at, self._need = at, first + count
        return part

    def check_complete(self) -> None:
        """Raises WireError when something is missing."""
        if self._strict and (rest := self.unread_ranges):
            raise make_wire_error(
                f"the end of a read with {len(rest)} ranges to come, from id {rest[0].first}",
                "all of their rows",
            )
