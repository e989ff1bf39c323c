"""Reading ids first..last of a stored queue, with O(1) round trips per reply and nothing removed.

The list holds id, value, id, value …, and ids have no holes, so an id's place follows from the id at the head. The reply carries the ids.
When it starts elsewhere than expected (an ack trimmed the head meanwhile) the place is computed anew from what came; the overlap is used.
First id, last id and number of rows prove a reply whole, since every writer appends ids in rising order inside one script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from busmq_spark.core.flow import Call, Flow, command, script
from busmq_spark.core.keys import QueueKeys

FIRST_ROWS = 1000
"""Most rows of the first reply, for which only a few values have been looked at. It grows fourfold from reply to reply."""
DEEP = 1_000_000
"""Messages before a window from which on it is deep: Redis walks the list to it from the head, 0.14 ms for so many of 100 B, and so it does for every
window. Redis 6.2 always starts at the head, also for windows near the tail and for negative indices (measured)."""
MOST_ROWS = 30_000
"""Most rows in one reply: about 4 ms of Redis at 100 B, so that others need not wait for long; the walk into 10 million (1.5 ms) is a part of it."""
TARGET_BYTES = 4 * 1024 * 1024
"""Bytes of values aimed at in one reply; half of what a reply may ever be, so that messages may grow meanwhile. At 10 KB 1 MB costs Redis half as
much again, for the walks."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start..stop`` (stop exclusive) of a reply are the ids that were expected next."""

    start: int
    stop: int


class RangeCursor:
    """Walks first..last (inclusive) through list windows. Pure: it is told what came and says what to ask.

    Several windows may be under way at once: ``ask`` may run ahead of ``take``. After ``take`` returned None the windows under way are of no
    use: look where the head is now, and go on with a new cursor.
    """

    def __init__(self, keys: QueueKeys, first: int, last: int, head: int, value_bytes: int = 0, target_bytes: int = TARGET_BYTES) -> None:
        """``head`` is the oldest stored id, ``value_bytes`` about how long values are (0: unknown), ``target_bytes`` what a reply aims at."""
        self._target = target_bytes
        self._keys = keys
        self._need, self._last = first, last
        self._asked = first
        self._head = head
        rows = 4 * FIRST_ROWS if first - head >= DEEP else FIRST_ROWS
        self._rows = max(1, min(rows, target_bytes // max(1, value_bytes)))

    @property
    def done(self) -> bool:
        """Everything up to the last id was taken."""
        return self._need > self._last

    def ask(self) -> Call | None:
        """The next window to read; None when everything has been asked for."""
        if self._asked > self._last:
            return None
        stop = min(self._asked + self._rows - 1, self._last)
        index = max(0, self._asked - self._head)
        call = command("LRANGE", self._keys.messages, 2 * index, 2 * (index + stop - self._asked) + 1)
        self._asked = stop + 1
        return call

    def take(self, first: int, last: int, rows: int, size_bytes: int) -> Slice | None:
        """Account for a reply: ids ``first..last`` in ``rows`` rows (rows 0: an empty reply) of ``size_bytes`` bytes.

        The slice of it that was needed, or None when it does not hold the next id or has a hole.
        """
        need = self._need
        if not rows or not first <= need <= last or last - first != rows - 1:
            return None
        self._rows = self._sized(rows, size_bytes)
        stop = min(rows, self._last - first + 1)
        self._need = first + stop
        return Slice(need - first, stop)

    def _sized(self, rows: int, size_bytes: int) -> int:
        fitting = self._target * rows // max(1, size_bytes)
        return max(1, min(fitting, 4 * rows, MOST_ROWS))


def probe(keys: QueueKeys, first: int) -> Flow[tuple[str, int, int]]:
    """The incarnation of the queue ('' when it is missing), its oldest stored id (0 when it is empty), and how long values at ``first`` are."""
    born, oldest, longest = yield script("probe", (keys.metadata, keys.messages), (first, DEEP))
    return born.decode(), int(oldest or 0), longest


def seek(keys: QueueKeys, id: int) -> Flow[tuple[int, bool, int]]:
    """Find an id in a list with holes: position of the last message up to it (-1: none), whether it is that id, the next id (0: none)."""
    position, exact, following = yield script("seek", (keys.messages,), (id,))
    return position, bool(exact), int(following or 0)


def shorts(ranges: Sequence[tuple[QueueKeys, int, int]], most_bytes: int) -> Flow[list[tuple[str, list[bytes]]]]:
    """The beginnings of id ranges (inclusive) of many queues: for each its incarnation ('' when it is missing) and its values from the first id on.

    They end before the first id that is not stored or does not fit ``most_bytes``; no values where the range lies deep.
    """
    replies = yield [script("short", (keys.metadata, keys.messages), (first, last, most_bytes, DEEP)) for keys, first, last in ranges]
    found = []
    for (_, first, _), (born, *pairs) in zip(ranges, replies, strict=True):
        whole = next((row for row, id in enumerate(pairs[0::2]) if int(id) != first + row), len(pairs) // 2)
        found.append((born.decode(), pairs[1 : 2 * whole : 2]))
    return found
