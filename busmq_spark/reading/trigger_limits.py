"""Limits of a batch: the rows of each queue within ``maxMessagesPerTrigger`` and
``maxBytesPerTrigger``.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LastIdWithinBytesQuestion:
    """A question: up to which of the ids ``first``..``last`` the values take ``budget`` bytes at
    most. The answer is that id and these bytes; the id before ``first`` when none fits.
    """

    queue: str
    first: int
    last: int
    budget: int


def share_out(available: Mapping[str, int], most: int) -> dict[str, int]:
    """Deal ``most`` messages out to queues that have ``available``: equal shares, and what small
    queues leave goes to the others.

    Nothing is left over while a queue could take more; a rest that cannot be divided goes to the
    queues with the most.
    """
    fair = most // max(1, len(available))
    if most == fair * len(available) and min(available.values(), default=0) >= fair:
        return dict.fromkeys(available, fair)  # nothing to deal out further, and no order needed
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


def within_bytes(
    available: Mapping[str, int], done: Mapping[str, int], budget: int, passed_over: Collection[str]
) -> Generator[LastIdWithinBytesQuestion, tuple[int, int], dict[str, int]]:
    """Rows whose values fit ``budget``: it is divided equally, and what a queue does not use is
    passed to the next. At least one row in all.

    ``available`` is the number of rows of each queue after the id ``done``. The queues
    ``passed_over`` are those whose next message was larger than their part of the batch before:
    they are first in line, and may use all of it.
    """
    line = sorted(
        (q for q in available if available[q] > 0),
        key=lambda q: (q not in passed_over, available[q], q),
    )
    fitting = dict.fromkeys(available, 0)
    left = budget
    for place, queue in enumerate(line):
        first = done[queue] + 1
        part = left if queue in passed_over else left // (len(line) - place)
        reached, used = yield LastIdWithinBytesQuestion(
            queue, first, first + available[queue] - 1, part
        )
        if reached < first and place == 0 and part == budget:
            reached, used = (
                first,
                budget,
                # Larger than the whole budget: a batch of its own; otherwise the queue would never
                # progress
            )
        fitting[queue], left = reached - first + 1, left - used
        if left <= 0:
            break
    if line and not any(fitting.values()):
        fitting[line[0]] = 1
    return fitting
