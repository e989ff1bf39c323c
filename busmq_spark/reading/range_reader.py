"""Reading ids first..last of a stored queue, with O(1) round trips per reply and nothing removed.

The list holds id, value, id, value …, and ids have no holes, so an id's place follows from the id
at the head. The reply carries the ids. If a reply starts elsewhere than expected (an ack trimmed
the head meanwhile) the place is computed anew from the reply; the overlap is used. First id, last
id and number of rows prove a reply whole, since every writer appends ids in rising order inside one
script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from busmq_spark.queue.command_generators import Flow, RedisCall, command, script
from busmq_spark.queue.keys import QueueKeys

FIRST_REPLY_ROWS = 1000
"""Most rows of the first reply, for which only a few values have been looked at."""
REPLY_GROWTH_FACTOR = 4
"""The most rows of a reply, in multiples of the previous one; the first reply deep in a list has so
many times FIRST_REPLY_ROWS.
"""
DEEP_WINDOW_MESSAGES = 1_000_000
"""Messages before a window from which on it is deep: Redis walks the list to it from the head, 0.14
ms for so many of 100 B, and so it does for every window. Redis 6.2 always starts at the head, also
for windows near the tail and for negative indices (measured).
"""
MAX_REPLY_ROWS = 30_000
"""Most rows in one reply: about 4 ms of Redis at 100 B, so that others need not wait for long; the
walk into 10 million (1.5 ms) is a part of it.
"""
TARGET_REPLY_BYTES = 4 * 1024 * 1024
"""Bytes of values aimed at in one reply. With 1 MB, values of 10 KB cost Redis half as much again,
since it traverses the list for each reply.
"""
MAX_REPLY_BYTES = 15 * 1024 * 1024
"""Bytes of values that one reply may come to, whatever the order of messages of up to 1 MB."""
ROWS_OF_UNKNOWN_SIZE = 15
"""Messages asked for where no writer has noted sizes: each may be of 1 MB."""
ROWS_NOT_WORTH_COUNTING = 250
"""A LRANGE of so many rows costs no more than the script that counts bytes while it reads, and
takes Redis two to five times as long for each row.
"""
MAX_COUNTED_ROWS = 2500
"""Most rows of a reply of that script: about 2 ms of Redis."""
MESSAGES_PER_LRANGE, MESSAGES_PER_DEEP_LRANGE = 64, 256
"""Messages in one LRANGE of that script, whose values Redis then holds twice; the second number
deep in a list, where the traversal costs more than the values.
"""


@dataclass(frozen=True, slots=True)
class ReplyRowBounds:
    """Rows ``start..stop`` (stop exclusive) of a reply are the ids that were expected next."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ValueSizeStats:
    """The sizes that writers have noted for ids ``since..upto`` (include/sizes.lua): bytes of the
    longest value; values over 64 KB are giants and count apart, and ``giant`` is the newest of
    them.
    """

    since: int = 1
    upto: int = 0
    longest: int = 0
    giant: int = 0
    giants: int = 0

    @classmethod
    def parse(cls, noted: bytes) -> ValueSizeStats:
        """Parse the field; empty where it is missing or no peer of ours wrote it."""
        return (
            cls(*map(int, noted.split(b":")))
            if re.fullmatch(rb"\d{1,16}(:\d{1,16}){4}", noted)
            else cls()
        )

    def rows(self, first: int) -> int:
        """Return the number of messages from ``first`` on that certainly fit MAX_REPLY_BYTES; at
        least 1.
        """
        longest = self.longest_of(first, first)
        return (
            ROWS_OF_UNKNOWN_SIZE
            if longest is None
            else max(
                1,
                min(
                    MAX_REPLY_BYTES // max(1, longest),
                    max(ROWS_OF_UNKNOWN_SIZE, self.upto - first + 1),
                ),
            )
        )

    def longest_of(self, first: int, last: int) -> int | None:
        """No value of ``first..last`` is longer; return None where it is not known."""
        if not self.since <= first <= last <= self.upto:
            return None
        return max(self.longest, self.giants) if first <= self.giant else self.longest


NO_SIZES_NOTED = ValueSizeStats()


class RangeCursor:
    """Walks first..last (inclusive) through list windows. Pure: it returns the next request, and is
    given each reply.

    A window is a LRANGE where its values stay below MAX_REPLY_BYTES, else a script that stops in
    time. After ``take`` returned None look where the head is now, and go on with a new cursor.
    """

    def __init__(  # noqa: PLR0913  # what a probe found
        self,
        keys: QueueKeys,
        first: int,
        last: int,
        head: int,
        value_bytes: int = 0,
        *,
        sizes: ValueSizeStats = NO_SIZES_NOTED,
        target_bytes: int = TARGET_REPLY_BYTES,
    ) -> None:
        """``head`` is the oldest stored id, ``value_bytes`` about how long values are (0: unknown),
        ``target_bytes`` what a reply aims at.
        """
        self._target = target_bytes
        self._sizes = sizes
        self._keys = keys
        self._need, self._last = first, last
        self._head = head
        rows = (
            REPLY_GROWTH_FACTOR * FIRST_REPLY_ROWS
            if first - head >= DEEP_WINDOW_MESSAGES
            else FIRST_REPLY_ROWS
        )
        self._rows = max(1, min(rows, target_bytes // max(1, value_bytes)))

    @property
    def done(self) -> bool:
        """Everything up to the last id was taken."""
        return self._need > self._last

    def ask(self) -> RedisCall | None:
        """The next window to read; return None when everything was taken."""
        if self.done:
            return None
        index = max(0, self._need - self._head)
        wanted = min(self._rows, self._last - self._need + 1)
        rows = min(wanted, self._sizes.rows(self._need))
        if rows < min(wanted, ROWS_NOT_WORTH_COUNTING):
            return script(
                "window",
                (self._keys.messages,),
                (
                    index,
                    min(wanted, MAX_COUNTED_ROWS),
                    self._target,
                    (
                        MESSAGES_PER_LRANGE
                        if index < DEEP_WINDOW_MESSAGES
                        else MESSAGES_PER_DEEP_LRANGE
                    ),
                ),
            )
        return command("LRANGE", self._keys.messages, 2 * index, 2 * (index + rows) - 1)

    def take(self, first: int, last: int, rows: int, size_bytes: int) -> ReplyRowBounds | None:
        """Account for a reply: ids ``first..last`` in ``rows`` rows (rows 0: an empty reply) of
        ``size_bytes`` bytes.

        The slice of it that was needed, or None when it does not hold the next id or has a hole.
        """
        need = self._need
        if not rows or not first <= need <= last or last - first != rows - 1:
            return None
        self._rows = self._rows_for(rows, size_bytes)
        stop = min(rows, self._last - first + 1)
        self._need = first + stop
        return ReplyRowBounds(need - first, stop)

    def _rows_for(self, rows: int, size_bytes: int) -> int:
        fitting = self._target * rows // max(1, size_bytes)
        return max(1, min(fitting, REPLY_GROWTH_FACTOR * rows, MAX_REPLY_ROWS))


def read_range_start(keys: QueueKeys, first: int) -> Flow[tuple[str, int, int, ValueSizeStats]]:
    """The incarnation of the queue ('' when it is missing), its oldest stored id (0 when it is
    empty), and how long values at ``first`` are.

    At last what is noted of the sizes of all of them.
    """
    born, oldest, longest, noted = yield script(
        "probe", (keys.metadata, keys.messages), (first, DEEP_WINDOW_MESSAGES)
    )
    return born.decode(), int(oldest or 0), longest, ValueSizeStats.parse(noted)


def find_id(keys: QueueKeys, id: int) -> Flow[tuple[int, bool, int]]:
    """Find an id in a list with holes: position of the last message up to it (-1: none), whether it
    is that id, the next id (0: none).
    """
    position, exact, following = yield script("seek", (keys.messages,), (id,))
    return position, bool(exact), int(following or 0)


def read_short_ranges(
    ranges: Sequence[tuple[QueueKeys, int, int]], most_bytes: int
) -> Flow[list[tuple[str, list[bytes]]]]:
    """The beginnings of id ranges (inclusive) of many queues: for each its incarnation ('' when it
    is missing) and its values from the first id on.

    They end before the first id that is not stored or does not fit ``most_bytes``; no values where
    the range lies deep.
    """
    replies = yield [
        script(
            "short", (keys.metadata, keys.messages), (first, last, most_bytes, DEEP_WINDOW_MESSAGES)
        )
        for keys, first, last in ranges
    ]
    found = []
    for (_, first, _), (born, *pairs) in zip(ranges, replies, strict=True):
        whole = next(
            (row for row, id in enumerate(pairs[0::2]) if int(id) != first + row), len(pairs) // 2
        )
        found.append((born.decode(), pairs[1 : 2 * whole : 2]))
    return found
