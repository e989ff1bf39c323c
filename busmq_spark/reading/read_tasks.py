"""Which task reads what: the ranges of a batch, cut and packed. Ranges are first..last,
inclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from busmq_spark.queue.position import Position, Range

MAX_UNPACKED_RANGES = 32
"""With more ranges than this, small ones share a task: a Python task costs milliseconds, however
little it reads.
"""
ROWS_PER_PACKED_TASK = 1000
"""A shared task is full when it reads so many messages."""


def split(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Cut ids first..last into at most ``parts`` runs of nearly the same length; keeps order, loses
    none.
    """
    size = last - first + 1
    parts = max(0, min(parts, size))
    return [(first + size * i // parts, first + size * (i + 1) // parts - 1) for i in range(parts)]


def ranges(
    done: Mapping[str, int], goals: Mapping[str, Position], servers: Mapping[str, int]
) -> list[Range]:
    """Return the ranges of a batch that ends at ``goals``: of each queue the ids after the one that
    was ``done`` before.
    """
    return [
        Range(q, end.born, done[q] + 1, end.last, servers[q])
        for q, end in goals.items()
        if done[q] < end.last
    ]


def tasks(
    ranges: Sequence[Range], min_partitions: int | None, max_rows: int | None
) -> list[tuple[Range, ...]]:
    """Return the ranges of each task. A task has one range, cut further for the two options; many
    small ranges share tasks.
    """
    total = sum(r.rows for r in ranges)
    cut: list[list[Range]] = []
    for r in ranges:
        parts = 1
        if min_partitions and min_partitions > len(ranges):
            parts = max(1, round(min_partitions * r.rows / total))
        if max_rows:
            parts = max(parts, -(-r.rows // max_rows))
        cut.append(
            [r]
            if parts == 1
            else [
                Range(r.queue, r.born, first, last, r.server)
                for first, last in split(r.first, r.last, parts)
            ]
        )
    if sum(map(len, cut)) <= max(MAX_UNPACKED_RANGES, min_partitions or 0):
        return [(r,) for parts_of_one in cut for r in parts_of_one]
    return _pack_small_ranges(cut)


def _pack_small_ranges(cut: Sequence[Sequence[Range]]) -> list[tuple[Range, ...]]:
    """Small ranges share tasks. All parts of a queue do, or none of them does: so they stay in
    their order.
    """
    packed: list[tuple[Range, ...]] = []
    shared: list[Range] = []
    rows = 0
    for parts in cut:
        sizes = [r.rows for r in parts]
        if max(sizes) >= ROWS_PER_PACKED_TASK:
            packed += [(r,) for r in parts]
            continue
        for r, size in zip(parts, sizes, strict=True):
            shared.append(r)
            rows += size
            if rows >= ROWS_PER_PACKED_TASK:
                packed.append(tuple(shared))
                shared, rows = [], 0
    return [*packed, tuple(shared)] if shared else packed
