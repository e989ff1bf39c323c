"""A range reply as Redis sends it, taken apart without an object per message.

The reply is ``*2n\r\n`` and then id, value, id, value … as bulk strings
``$<length>\r\n<bytes>\r\n``. Three ways, each the cheapest somewhere
(``python -m tests.benchmarks reply`` measures them):

- **even**: as long as values have one length, the headers repeat at one distance. Numpy compares
  them all with the first.
- **scan**: small values of many lengths. Every ``$`` after a line end is a header, unless a value
  contains one itself; then the lengths do not add up, which is checked, and the next way is gone.
- **hop**: large values of many lengths, or values with headers in them. Every header says where the
  next is.

Packing values in Lua instead costs the single Redis thread 5 to 17 times as much as the plain
reply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

_MIN_HEADER_DISTANCE = np.array([0] + [10**digits + digits + 5 for digits in range(1, 10)])
"""Least distance of two headers whose length has 1, 2, 3 … digits: ``$``, digits, CR LF, bytes, CR
LF.
"""
_PAIR = re.compile(rb"\$(\d+)\r\n(\d+)\r\n\$(\d+)\r\n")
_MAX_PAIR_HEAD_BYTES = 64
"""More bytes than the head of a pair can have."""
_SAMPLE_MESSAGES = 16
"""Messages looked at to see whether lengths are even, and how long the values are where they are
not.
"""
_MIN_MESSAGES_TO_SAMPLE = 1000
"""So many heads are compared in less time than it takes to ask twice."""
MIN_MEAN_LENGTH_TO_HOP = 1500
"""From this mean length on hopping is cheaper than scanning: 300 ns a message against 0.2 ns a
byte.
"""


@dataclass(frozen=True, slots=True)
class ValueSpans:
    """The places of the values in a reply: ``starts`` and ``lengths`` into ``data``; the ids of the
    first and the last (0 when there is none).
    """

    data: Any
    starts: Any
    lengths: Any
    first: int
    last: int

    def __len__(self) -> int:
        return len(self.starts)


NO_PAIRS = ValueSpans(b"", np.array([], np.int64), np.array([], np.int64), 0, 0)


class RangeReplyParser:
    """Takes a reply in as it arrives, piece by piece, in a buffer that only grows while the reply
    is read.

    All offsets are true ones: the first pair begins at ``body``, and the length in a header says
    where the next header is.
    """

    def __init__(self, count: int, body: int) -> None:
        """``count`` bulk strings (ids and values) follow from offset ``body`` on."""
        self._left = count // 2
        self._first = self._last = self._at = body
        self._places: list[tuple[Any, Any]] = []
        self._way = self._take_even_run
        self._scan: BulkHeaderScan | None = None

    def end(self, data: Any, used: int) -> int | None:
        """The offset after the reply once it is all there in ``data[:used]``; return None while
        more must come. ValueError: not a reply of pairs.
        """
        while self._left and self._way(data, used):
            pass
        return None if self._left else self._at

    def pairs(self, data: Any) -> ValueSpans:
        """The values of a complete reply."""
        starts, lengths = (
            np.concatenate(part) if len(part) > 1 else part[0]
            for part in zip(*self._places, strict=True)
        )
        first, last = (
            int(self._head(data, at, at + _MAX_PAIR_HEAD_BYTES)[2])  # type: ignore[index]  # complete
            for at in (self._first, self._last)
        )
        return ValueSpans(data, starts, lengths, first, last)

    def _take_even_run(self, data: Any, used: int) -> bool:
        """Take a run of values of one length. Like every way: False when more bytes must come
        first.
        """
        if (head := self._head(data, self._at, used)) is None:
            return False
        start, size = head.end(), int(head[3])
        stride = start + size + 2 - self._at
        many = min(self._left, (used - self._at) // stride)
        if not many:
            return False
        run = _count_even_heads(
            data, head, stride, many if many < _MIN_MESSAGES_TO_SAMPLE else _SAMPLE_MESSAGES
        )
        if run == _SAMPLE_MESSAGES < many:
            run = _count_even_heads(data, head, stride, many)
        self._add_places(
            start + stride * np.arange(run),
            np.full(run, size),
            self._at + stride * (run - 1),
            self._at + stride * run,
        )
        if run < min(many, _SAMPLE_MESSAGES):
            self._way = self._sample
        return True

    def _sample(self, data: Any, used: int) -> bool:
        """Lengths differ: hop over a few messages to see which way is the cheapest."""
        at, left = self._at, self._left
        if not self._take_by_hops(data, used, _SAMPLE_MESSAGES):
            return False
        self._way = (
            self._take_by_hops
            if self._at - at >= MIN_MEAN_LENGTH_TO_HOP * (left - self._left)
            else self._take_rest_by_scan
        )
        return True

    def _take_by_hops(self, data: Any, used: int, most: int = 1 << 62) -> bool:
        at, last, match = self._at, self._at, _PAIR.match
        starts, lengths = [], []
        for _ in range(min(most, self._left)):
            if (head := match(data, at, used)) is None:
                break
            start, size = head.end(), int(head[3])
            if (following := start + size + 2) > used:
                break
            starts.append(start)
            lengths.append(size)
            last, at = at, following
        if not starts:
            self._head(data, at, used)
            return False
        self._add_places(np.array(starts), np.array(lengths), last, at)
        return True

    def _take_rest_by_scan(self, data: Any, used: int) -> bool:
        scan = self._scan = self._scan or BulkHeaderScan(2 * self._left, self._at)
        if (end := scan.find_end_of_last_value(data, used)) is not None:
            self._add_places(*scan.places(data), scan.last_pair, end)
            self._left = 0
            return True
        if scan.confused:
            self._way = self._take_by_hops
        return scan.confused

    def _add_places(self, starts: Any, lengths: Any, last: int, at: int) -> None:
        self._places.append((starts, lengths))
        self._last, self._at = last, at
        self._left -= len(starts)

    @staticmethod
    def _head(data: Any, at: int, used: int) -> re.Match[bytes] | None:
        head = _PAIR.match(data, at, used)
        if head is None and used - at > _MAX_PAIR_HEAD_BYTES:
            raise ValueError(
                f"expected a message, found {bytes(data[at : at + _MAX_PAIR_HEAD_BYTES])!r}"
            )
        return head


def _count_even_heads(data: Any, head: re.Match[bytes], stride: int, many: int) -> int:
    """Return the number of heads, this one included, that follow at one distance with the same
    lengths; at most ``many``.

    The first ones prove themselves, which makes the next offset a true one, so that nothing else
    must be compared.
    """
    for at, end in ((head.start(), head.start(2)), (head.end(2), head.end())):
        size = 8 if end - at >= 8 else 4
        for offset in range(at, end, size):  # the last word may overlap the one before
            words = np.ndarray((many,), f"<u{size}", data, min(offset, end - size), (stride,))
            differ = words != words[0]
            if differ.any():
                many = int(differ.argmax())
    return many


class BulkHeaderScan:
    """Finds all headers at once. Exact: a value that looks like a header makes it ``confused``, and
    then nothing was found.
    """

    def __init__(self, count: int, body: int) -> None:
        self._count = count
        self._scanned = body
        self._headers: list[Any] = []
        self._found = 0
        self._places: tuple[Any, Any] | None = None
        self._last = 0
        self.last_pair = 0
        """Offset of the last id's header."""
        self.confused = False

    def find_end_of_last_value(self, data: Any, used: int) -> int | None:
        """The offset after the last value once all is there in ``data[:used]``; return None while
        more must come, or when ``confused``.
        """
        if used > self._scanned:
            bytes_ = np.frombuffer(data, np.uint8, used)
            found = np.flatnonzero(bytes_[self._scanned :] == ord("$")) + self._scanned
            found = found[(bytes_[found - 1] == ord("\n")) & (bytes_[found - 2] == ord("\r"))]
            self._headers.append(found)
            self._found += len(found)
            self._scanned = used
        if self._found < self._count:
            return None
        if self._places is None and not self._check(np.frombuffer(data, np.uint8, used)):
            self.confused = True
            return None
        line = bytes(data[self._last + 1 : min(used, self._last + 24)]).partition(b"\r\n")
        if not line[1]:
            return None
        end = self._last + 1 + len(line[0]) + 2 + int(line[0]) + 2
        return end if end <= used else None

    def places(self, data: Any) -> tuple[Any, Any]:
        """Starts and lengths of the values."""
        assert self._places is not None
        starts, lengths = self._places
        line = bytes(data[self._last + 1 : self._last + 24]).partition(b"\r\n")[0]
        return np.append(starts, self._last + 3 + len(line)), np.append(lengths, int(line))

    def _check(self, data: Any) -> bool:
        """Whether each header says the distance to the next. Then the last one is a true one, too,
        and may be waited for.
        """
        headers = np.concatenate(self._headers)[: self._count]
        ids = _find_strings(data, headers[0::2], headers[1::2])
        values = _find_strings(data, headers[1:-1:2], headers[2::2])
        if ids is None or values is None:
            return False
        self._places, self._last, self.last_pair = values, int(headers[-1]), int(headers[-2])
        return True


def _find_strings(data: Any, headers: Any, following: Any) -> tuple[Any, Any] | None:
    """Starts and lengths of the bulk strings between headers and what follows each; return None
    when a header has another length than it must have.

    The check is what makes the scan exact, and values harmless that try to look like messages: the
    first header is a true one, and one that says the distance to the next proves that one true.
    """
    spans = following - headers
    if not len(spans):
        return headers, spans
    least, most = int(spans.min()), int(spans.max())
    count = int(np.searchsorted(_MIN_HEADER_DISTANCE, least, side="right"))
    if most < _MIN_HEADER_DISTANCE[count]:  # nearly always: lengths with the same number of digits
        lengths = spans - (count + 5)
        return (
            (headers + (count + 3), lengths)
            if _holds_lengths(data, headers, count, lengths, least == most)
            else None
        )
    digits = np.searchsorted(_MIN_HEADER_DISTANCE, spans, side="right")
    lengths = spans - digits - 5
    for count in range(1, len(_MIN_HEADER_DISTANCE)):
        of = digits == count
        if of.any() and not _holds_lengths(data, headers[of], count, lengths[of], same=False):
            return None
    return (headers + digits + 3, lengths) if (digits > 0).all() else None


def _holds_lengths(data: Any, headers: Any, count: int, lengths: Any, same: bool) -> bool:
    """Whether every header is ``$``, the length in ``count`` digits, CR; ``same`` when all lengths
    are equal.
    """
    left = lengths[:1] if same else lengths.astype(np.int32)
    for place in range(count, 0, -1):
        tens = left // 10
        if (data[headers + place] != left - 10 * tens + ord("0")).any():
            return False
        left = tens
    return not left.any() and bool((data[headers + (count + 1)] == ord("\r")).all())
