"""Reading id ranges from one Redis server: Redis works ahead by a reply, broken connections are
reopened, the causes of loss distinguished.

Many short ranges come in one round trip.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from busmq_spark.errors import LinkLost, QueueExpired, QueueRecreated
from busmq_spark.queue.command_generators import RedisCall, command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Range
from busmq_spark.reading.range_reader import (
    TARGET_REPLY_BYTES,
    RangeCursor,
    ReplyRowBounds,
    find_id,
    read_range_start,
    read_short_ranges,
)
from busmq_spark.redis_io.endpoint import retry_time_s
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.range_connection import (
    INITIAL_BUFFER_BYTES,
    AnyRangeConnection,
    ValueSpans,
    range_connection,
)
from busmq_spark.redis_io.retry import LinkRetry
from busmq_spark.store.loss_errors import check_life, raise_removed
from busmq_spark.store.protocol import ConsecutiveMessages

_MAX_INT32 = 2**31 - 1
MAX_MISSES = 2
"""Looks at the head in a row that find the expected id nowhere, until the list counts as one with a
hole.
"""
SHORT_RANGE_ROWS = 250
"""Longer ranges are read alone: their replies go into Arrow as they are, which costs a fixed price
for each and next to nothing for a row.
"""
SHORT_RANGE_BYTES = 64 * 1024
"""Most bytes of values taken of one range this way."""
MAX_SHORT_RANGES_PER_ROUND_TRIP, MAX_SHORT_ROWS_PER_ROUND_TRIP = 64, 2_500
"""In one round trip: at most 4 MB in all, and about 2 ms of Redis, which serves no other client
meanwhile.
"""
log = logging.getLogger("busmq_spark")


@dataclass(frozen=True, slots=True)
class RangeReadLinks:
    """Two links to one server: ``single`` for questions, ``many`` for windows."""

    single: Link
    many: AnyRangeConnection
    patience_s: float | None = None
    reply_bytes: int = TARGET_REPLY_BYTES

    def keys(self, queue: str) -> QueueKeys:
        """Return the keys of the queue as they are spelt there."""
        return QueueKeys(queue, cluster=self.single.cluster)


def open_range_links(
    links: Sequence[Link], patience_s: float | None, reply_bytes: int
) -> list[RangeReadLinks]:
    """Open the links to each server; nothing is connected yet."""
    many = [range_connection(link, min(INITIAL_BUFFER_BYTES, 2 * reply_bytes)) for link in links]
    return [
        RangeReadLinks(*both, patience_s, reply_bytes) for both in zip(links, many, strict=True)
    ]


def read_range(
    links: RangeReadLinks, part: Range, fail_on_data_loss: bool
) -> Iterator[ConsecutiveMessages]:
    """The messages of a range, in order, each once, whatever happens to the link meanwhile.

    A pure function of the range while its messages are stored. Raises DataLoss when one is gone,
    unless ``fail_on_data_loss`` is false: then what is left of the range follows. Raises LinkLost
    when Redis stays away.
    """
    need = part.first
    retry: LinkRetry | None = None
    while need <= part.last:
        try:
            for rows in _read_until_lost(links, part, need, fail_on_data_loss):
                yield rows
                need = rows.first + len(rows.values)
                retry = None
            return
        except (QueueExpired, QueueRecreated) as loss:
            if fail_on_data_loss:
                raise
            log.warning(
                "%s; skipped", loss
            )  # nothing of that life is left; the next batch begins in the new one, and counts
            return
        except LinkLost as error:
            retry = retry or LinkRetry(time.monotonic, (0, 0))  # the links pause
            retry.pause_s(error, retry_time_s(links.single.endpoint, error, links.patience_s))


def _read_until_lost(
    links: RangeReadLinks, part: Range, need: int, strict: bool
) -> Iterator[ConsecutiveMessages]:
    keys = links.keys(part.queue)
    misses = 0
    while need <= part.last:
        born, oldest, value_bytes, sizes = links.single.run(read_range_start(keys, need))
        check_life(part, born, need)
        found = oldest
        if (
            misses > MAX_MISSES and 0 < oldest <= need
        ):  # the head stands still and yet the id is not where it should be: the list has a hole
            position, exact, following = links.single.run(find_id(keys, need))
            found, oldest = (
                (need if exact else following),
                need - position if exact else following - position - 1,
            )
        if found == 0 or found > need:
            _report_missing_ids(links, part, need, found, strict)
            if found == 0:
                return
            need = found
            continue
        misses += 1
        cursor = RangeCursor(
            keys, need, part.last, oldest, value_bytes, sizes=sizes, target_bytes=links.reply_bytes
        )
        for rows in _read_windows(links, part, cursor, need, strict):
            yield rows
            need, misses = rows.first + len(rows.values), 0


def _report_missing_ids(
    links: RangeReadLinks, part: Range, need: int, found: int, strict: bool
) -> None:
    """Ids from ``need`` up to ``found`` (0: to the end) are not stored: an error, or a warning."""
    if strict:
        raise_removed(
            links.single,
            links.keys(part.queue),
            f"ids {need}..{part.last}",
            f"oldest stored id {found}" if found else "nothing after them",
            need,
            found,
        )
    log.warning(
        "queue %r: ids %d..%d are gone and were skipped",
        part.queue,
        need,
        min(part.last, found - 1) if found else part.last,
    )


def _read_windows(
    links: RangeReadLinks, part: Range, cursor: RangeCursor, need: int, strict: bool
) -> Iterator[ConsecutiveMessages]:
    """Replies while they fit the cursor; ends at the end of the range, or early when the head moved
    or the list has a hole.
    """
    # The incarnation travels after each window: if it still holds there, the window before was of
    # the same life.
    life = command("HGET", links.keys(part.queue).metadata, "born")
    many = links.many
    window = cursor.ask()
    try:
        if window is not None:
            many.post(window, life)
        while window is not None:
            pairs = many.fetch_values()
            piece = cursor.take(pairs.first, pairs.last, len(pairs), int(pairs.lengths.sum()))
            # Only now: Redis fills this one while Spark takes the other, and never holds more than
            # one for a reader.
            following = None if piece is None else cursor.ask()
            if following is not None:
                many.post(following, life)
            values = (
                None if piece is None else _value_array(pairs, piece)
            )  # copied: the next fetch overwrites the buffer
            check_life(part, (many.fetch() or b"").decode(), need)
            if piece is None or values is None:
                if pairs.last - pairs.first >= len(pairs) > 0:
                    yield from _read_around_holes(links, part, window, need, strict)
                return
            yield ConsecutiveMessages(part.queue, pairs.first + piece.start, values)
            need = pairs.first + piece.stop
            window = following
    finally:
        if many.waiting:
            many.drop()


def _value_array(pairs: ValueSpans, piece: ReplyRowBounds) -> Any:
    """The values of a reply as an Arrow binary array: the reply is seen as one array of value,
    rubbish, value, rubbish …, of which half is taken.
    """
    starts, lengths = (
        pairs.starts[piece.start : piece.stop],
        pairs.lengths[piece.start : piece.stop],
    )
    rows = len(starts)
    wide = len(pairs.data) > _MAX_INT32
    borders = np.empty(2 * rows + 1, np.int64 if wide else np.int32)
    borders[0:-1:2] = starts
    borders[1::2] = starts + lengths
    borders[-1] = borders[-2]
    kind = pa.large_binary() if wide else pa.binary()
    whole = pa.Array.from_buffers(
        kind, 2 * rows, [None, pa.py_buffer(borders), pa.py_buffer(pairs.data)]
    )
    return whole.take(whole_numbers(0, 2 * rows, 2))


def whole_numbers(start: int, stop: int, step: int = 1) -> Any:
    """An Arrow array of them, without ``pa.array``: of a numpy array that imports pandas where it
    is installed, 54 MB.
    """
    found = np.arange(start, stop, step, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(found), [None, pa.py_buffer(found)])


def _read_around_holes(
    links: RangeReadLinks, part: Range, window: RedisCall, need: int, strict: bool
) -> Iterator[ConsecutiveMessages]:
    """A window with holes, read again and cut into rows that follow each other; only ids from
    ``need`` to the end of the range.
    """
    reply = links.single.execute(window)
    wanted = [
        (int(reply[i]), reply[i + 1])
        for i in range(0, len(reply), 2)
        if need <= int(reply[i]) <= part.last
    ]
    for _, run in groupby(enumerate(wanted), key=lambda item: item[1][0] - item[0]):
        rows = [pair for _, pair in run]
        if rows[0][0] > need:
            _report_missing_ids(links, part, need, rows[0][0], strict)
        yield ConsecutiveMessages(
            part.queue, rows[0][0], pa.array([value for _, value in rows], pa.binary())
        )
        need = rows[-1][0] + 1


def read_ranges(
    links: RangeReadLinks, parts: Sequence[Range], fail_on_data_loss: bool
) -> Iterator[ConsecutiveMessages]:
    """The messages of ranges, one range after the other; as ``read_range`` of each."""
    for group in _group_into_round_trips(parts):
        if len(group) == 1:
            yield from read_range(links, group[0], fail_on_data_loss)
            continue
        found = links.single.run(
            read_short_ranges(
                [(links.keys(part.queue), part.first, part.last) for part in group],
                SHORT_RANGE_BYTES,
            )
        )
        for part, (born, values) in zip(group, found, strict=True):
            need = part.first
            if values and born == part.born:
                yield ConsecutiveMessages(part.queue, need, pa.array(values, pa.binary()))
                need += len(values)
            if (
                need <= part.last
            ):  # too large, gone, or of another incarnation: read_range finds out which
                yield from read_range(links, part._replace(first=need), fail_on_data_loss)


def _group_into_round_trips(parts: Sequence[Range]) -> Iterator[list[Range]]:
    """Short ranges that follow each other, as many as fit one round trip; a long one alone."""
    group: list[Range] = []
    rows = 0
    for part in parts:
        if group and (
            part.rows > SHORT_RANGE_ROWS
            or len(group) == MAX_SHORT_RANGES_PER_ROUND_TRIP
            or rows + part.rows > MAX_SHORT_ROWS_PER_ROUND_TRIP
        ):
            yield group
            group, rows = [], 0
        group.append(part)
        rows += part.rows
        if part.rows > SHORT_RANGE_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group
