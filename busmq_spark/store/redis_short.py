"""Reading many short id ranges of one Redis server: one round trip for dozens of them. What it does not bring, redis_range.py reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from busmq_spark.core.position import Range
from busmq_spark.core.ranges import shorts
from busmq_spark.store.protocol import Rows
from busmq_spark.store.redis_range import RangeLinks, read_range

SHORT_ROWS = 250
"""Longer ranges are read alone: their replies go into Arrow as they are, which costs a fixed price for each and next to nothing for a row."""
SHORT_BYTES = 64 * 1024
"""Most bytes of values taken of one range this way."""
MOST_RANGES, MOST_ROWS = 64, 2_500
"""In one round trip: at most 4 MB in all, and about 2 ms of Redis, which serves no other client meanwhile."""


def read_ranges(links: RangeLinks, parts: Sequence[Range], fail_on_data_loss: bool) -> Iterator[Rows]:
    """The messages of ranges, one range after the other; as ``read_range`` of each."""
    for group in _groups(parts):
        if len(group) == 1:
            yield from read_range(links, group[0], fail_on_data_loss)
            continue
        found = links.single.run(shorts([(links.keys(part.queue), part.first, part.last) for part in group], SHORT_BYTES))
        for part, (born, values) in zip(group, found, strict=True):
            need = part.first
            if values and born == part.born:
                yield Rows(part.queue, need, pa.array(values, pa.binary()))
                need += len(values)
            if need <= part.last:  # too large, gone, or of another incarnation: read_range finds out which
                yield from read_range(links, replace(part, first=need), fail_on_data_loss)


def _groups(parts: Sequence[Range]) -> Iterator[list[Range]]:
    """Short ranges that follow each other, as many as fit one round trip; a long one alone."""
    group: list[Range] = []
    rows = 0
    for part in parts:
        if group and (part.rows > SHORT_ROWS or len(group) == MOST_RANGES or rows + part.rows > MOST_ROWS):
            yield group
            group, rows = [], 0
        group.append(part)
        rows += part.rows
        if part.rows > SHORT_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group
