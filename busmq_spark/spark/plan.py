"""Decisions of the source, without a socket: how much to read, how to cut it, what is lost. Ranges are first..last, inclusive."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from busmq_spark.core.state import QueueState
from busmq_spark.store.loss import Loss
from busmq_spark.store.position import Position, Range

PACK_OVER = 32
"""With more ranges than this, small ones share a task: a Python task costs milliseconds, however little it reads."""
PACK_ROWS = 1000
"""A shared task is full when it reads so many messages."""


def share(available: Mapping[str, int], most: int) -> dict[str, int]:
    """Deal ``most`` messages out to queues that have ``available``: equal shares, and what small queues leave goes to the others.

    Nothing is left over while a queue could take more; a rest that cannot be divided goes to the queues with the most.
    """
    given = dict.fromkeys(available, 0)
    open_ = sorted((q for q in available if available[q] > 0), key=lambda q: (available[q], q))
    left = most
    while open_ and left > 0:
        fair = left // len(open_)
        if fair == 0:
            for queue in open_[-left:]:
                given[queue] += 1
            break
        queue = open_.pop(0)  # the smallest: if it has less than its share, the others' share grows
        given[queue] = min(available[queue], fair)
        left -= given[queue]
    return given


def split(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Cut ids first..last into at most ``parts`` runs of nearly the same length; keeps order, loses none."""
    size = last - first + 1
    parts = max(0, min(parts, size))
    return [(first + size * i // parts, first + size * (i + 1) // parts - 1) for i in range(parts)]


def tasks(ranges: Sequence[Range], min_partitions: int | None, max_rows: int | None) -> list[tuple[Range, ...]]:
    """What each task reads. One range a task, cut further for the two options; many small ranges share tasks."""
    total = sum(r.rows for r in ranges)
    cut: list[Range] = []
    for r in ranges:
        parts = 1
        if min_partitions and min_partitions > len(ranges):
            parts = max(1, round(min_partitions * r.rows / total))
        if max_rows:
            parts = max(parts, -(-r.rows // max_rows))
        cut += [r] if parts == 1 else [Range(r.queue, r.born, first, last, r.server) for first, last in split(r.first, r.last, parts)]
    most = max(PACK_OVER, min_partitions or 0)
    return _pack(cut) if len(cut) > most else [(r,) for r in cut]


def _pack(ranges: Sequence[Range]) -> list[tuple[Range, ...]]:
    packed: list[tuple[Range, ...]] = []
    shared: list[Range] = []
    rows = 0
    for r in ranges:
        if r.rows >= PACK_ROWS:
            packed.append((r,))
            continue
        shared.append(r)
        rows += r.rows
        if rows >= PACK_ROWS:
            packed.append(tuple(shared))
            shared, rows = [], 0
    if shared:
        packed.append(tuple(shared))
    return packed


def dropped(state: QueueState, last: int, own: int | None, others: Collection[int]) -> int:
    """How many stored messages that this reader has not read are deleted once it has acked ``last``: at most so many where ids have holes.

    ``own`` is the acked id of its subscription, None when it has none yet; ``others`` are those of the other subscriptions.
    """
    if own is None and others:
        return 0  # what is stored waits for the others, and what none of them waits for they have read
    return max(0, min(state.count, min(last, state.newest, *others) - max(state.floor, own or 0)))


def lost(at: Position, now: QueueState) -> Loss | None:
    """What is lost between a position and the queue as it is now; None when everything after the position is still there."""
    following = f"ids from {at.last + 1} on"
    if not now.exists:
        return Loss("expired", f"{following} of incarnation {at.born}", "no such queue")
    if now.born != at.born:
        found = f"incarnation {now.born or 'unnamed'} with ids up to {now.last_id}"
        return Loss("recreated", f"incarnation {at.born} read up to id {at.last}", found)
    if now.last_id < at.last:
        return Loss("rolled-back", f"a last id of at least {at.last}", f"last id {now.last_id}")
    if at.mark and now.mark and at.mark != now.mark:
        return Loss("reissued", f"message {at.last} with fingerprint {at.mark}", f"one with fingerprint {now.mark}")
    if now.floor > at.last:
        oldest = f"oldest stored id {now.oldest}" if now.count else f"nothing stored after id {now.last_id}"
        return Loss("removed", following, oldest, now.floor - at.last)
    return None
