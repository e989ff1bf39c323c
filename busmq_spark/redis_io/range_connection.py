"""Connections for range reads, and the parser of their replies.

A range reply as Redis sends it, taken apart without an object per message.

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

Connections for range reads: windows of a list, several under way, each reply taken apart in one
buffer.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import redis
import redis.exceptions as rx

from busmq_spark.errors import BusError, LinkLost, ServerRefused
from busmq_spark.queue.command_generators import RedisCall
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.moving_endpoints import dial
from busmq_spark.redis_io.resp_codec import pack
from busmq_spark.redis_io.slots import NodeAddress, Redirect, key_of, parse_redirect
from busmq_spark.redis_io.sync_link import SyncClusterLink
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error

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


INITIAL_BUFFER_BYTES = 4 * 1024 * 1024
_READ_BYTES = 256 * 1024
_SCAN_BYTES = 512 * 1024
_MAX_KEPT_BUFFER_BYTES = 64 * 1024 * 1024
"""A buffer that grew beyond this for a huge message is not kept."""


class RangeConnection:
    """Sends calls and takes their replies in the same order. For one thread. After LinkLost the
    caller goes on after the last reply it took.

    Works on the socket below redis-py's connection, which does what redis-py is good at: address,
    TLS, AUTH, timeouts.
    """

    def __init__(self, endpoint: RedisEndpoint, start_bytes: int = INITIAL_BUFFER_BYTES) -> None:
        """``start_bytes``: of the buffer, until a longer reply comes."""
        self.endpoint = endpoint
        self._connection: redis.Connection | None = None
        self._socket: Any = None
        self._start_bytes = start_bytes
        self._buffer = bytearray(start_bytes)
        self._used = self._at = 0
        self.waiting = 0
        """Replies that are still to come."""

    def post(self, *calls: RedisCall) -> None:
        """Send calls without waiting. Each needs its ``fetch``."""
        try:
            if self._socket is None:
                self._connection = dial(self.endpoint)
                self._socket = self._connection._sock
                self._used = self._at = 0
            self._socket.sendall(
                pack(calls, whole=True)
            )  # a script that Redis no longer has cannot be sent again before what follows it
        except CONNECTION_ERRORS as error:
            self.drop()
            raise translate_redis_error(error, self.endpoint) from error
        self.waiting += len(calls)

    def fetch_values(self) -> ValueSpans:
        """The reply to a LRANGE over whole messages. It is valid until the next fetch."""
        try:
            return self._read_value_spans()
        except CONNECTION_ERRORS as error:
            self.drop()
            raise translate_redis_error(error, self.endpoint) from error

    def fetch(self) -> Any:
        """The reply to a command that answers with one string or nothing: bytes or None. Raises the
        translated error of an error reply.
        """
        try:
            reply = self._read_string()
        except CONNECTION_ERRORS as error:
            self.drop()
            raise translate_redis_error(error, self.endpoint) from error
        self.waiting -= 1
        return reply

    def drop(self) -> None:
        """Close the connection; replies still under way are dropped."""
        if self._connection is not None:
            self._connection.disconnect()
        self._connection = self._socket = None
        self.waiting = 0
        if len(self._buffer) > _MAX_KEPT_BUFFER_BYTES:
            self._buffer = bytearray(self._start_bytes)

    def _read_value_spans(self) -> ValueSpans:
        self._compact()
        count, body = self._read_array_head()
        if count == 0:
            self.waiting -= 1
            return NO_PAIRS
        scanner = RangeReplyParser(count, body)
        try:
            while (end := scanner.end(self._buffer, self._used)) is None:
                self._receive_enough()
        except ValueError as error:
            raise rx.ConnectionError(f"replies are out of step: {error}") from None
        self._at = end
        self.waiting -= 1
        return scanner.pairs(self._buffer)

    def _read_array_head(self) -> tuple[int, int]:
        """Number of elements of the array that begins the buffer, and the offset of the first."""
        line = self._read_line()
        if line[:1] != b"*":
            raise rx.ConnectionError(f"replies are out of step: {line[:80]!r}")
        return int(line[1:]), self._at

    def _read_line(self) -> bytes:
        """The line at ``_at``; moves after it. Raises what Redis says when it is an error reply."""
        while (stop := self._buffer.find(b"\r\n", self._at, self._used)) < 0:
            self._receive()
        line = bytes(self._buffer[self._at : stop])
        self._at = stop + 2
        if line[:1] == b"-":
            self.waiting -= 1
            raise translate_redis_error(
                rx.ResponseError(line[1:].decode("utf-8", "replace")), self.endpoint
            )
        return line

    def _read_string(self) -> bytes | None:
        start, size = self._read_string_span()
        return None if size < 0 else bytes(self._buffer[start : start + size])

    def _read_string_span(self) -> tuple[int, int]:
        """Start and length (-1: nil) of the bulk string at ``_at``, once it is all there; moves
        after it.
        """
        line = self._read_line()
        if line[:1] != b"$":
            raise rx.ConnectionError(f"replies are out of step: {line[:80]!r}")
        start, size = self._at, int(line[1:])
        if size >= 0:
            self._at = start + size + 2
            while self._used < self._at:
                self._receive()
        return start, size

    def _receive_enough(self) -> None:
        """Receive until it is worth looking: Redis sends 16 KB at a time, and every look costs
        numpy a fixed price.

        A reply ends with a line end, so while the buffer does not, more comes for sure and waiting
        for it cannot block for ever.
        """
        enough = self._used + _SCAN_BYTES
        self._receive()
        while self._used < enough and not self._buffer.endswith(b"\r\n", 0, self._used):
            self._receive()

    def _receive(self) -> None:
        if len(self._buffer) - self._used < _READ_BYTES:
            # A new one, not resized: numpy views of the old one may still be held.
            self._buffer = self._buffer + bytearray(max(len(self._buffer), _READ_BYTES))
        # No more than that at once: bytes of the next reply must be moved, and new bytes are read
        # while a core has them.
        got = self._socket.recv_into(
            memoryview(self._buffer)[self._used : self._used + _READ_BYTES]
        )
        if not got:
            raise rx.ConnectionError("Connection closed by server.")
        self._used += got

    def _compact(self) -> None:
        """Move what is left of the last read to the front."""
        if self._at:
            view, left = memoryview(self._buffer), self._used - self._at
            view[:left] = view[self._at : self._used]
            self._used, self._at = left, 0


class ClusterRangeConnection:
    """A RangeConnection for clusters: MOVED, ASK and an unreachable node are LinkLost, and the
    reader resumes after its last row.

    A list that was migrated before its slot (ASK) is read through ``single``, call by call, until
    the range ends.
    """

    def __init__(self, single: SyncClusterLink, start_bytes: int = INITIAL_BUFFER_BYTES) -> None:
        self.endpoint = single.endpoint
        self._start_bytes = start_bytes
        self._single = single
        self._links: dict[NodeAddress, RangeConnection] = {}
        self._link: RangeConnection | None = None
        self._detour = False
        self._left: deque[RedisCall] = deque()

    @property
    def waiting(self) -> int:
        """Replies that are still to come."""
        return len(self._left) + (self._link.waiting if self._link else 0)

    def post(self, *calls: RedisCall) -> None:
        """Send calls about one queue without waiting. Each needs its ``fetch``."""
        if not self.waiting:
            self._detour, slowly = False, self._detour
            self._link = None if slowly else self._link_for(calls[0])
        if self._link is None:
            self._left.extend(calls)
            return
        try:
            self._link.post(*calls)
        except LinkLost:
            self._single.forget_slot_map()
            raise

    def fetch_values(self) -> ValueSpans:
        """The reply to a LRANGE over whole messages. It is valid until the next fetch."""
        if self._link is None:
            return _value_spans(self._single.execute(self._left.popleft()))
        try:
            return self._link.fetch_values()
        except (LinkLost, ServerRefused) as error:
            raise self._as_link_lost(error) from error

    def fetch(self) -> Any:
        """The reply to a command that answers with one string or nothing: bytes or None."""
        if self._link is None:
            return self._single.execute(self._left.popleft())
        try:
            return self._link.fetch()
        except (LinkLost, ServerRefused) as error:
            raise self._as_link_lost(error) from error

    def drop(self) -> None:
        """Close the connections; replies still under way are dropped."""
        self._left.clear()
        for link in self._links.values():
            link.drop()

    def _link_for(self, call: RedisCall) -> RangeConnection:
        key = key_of(call)
        assert key is not None
        node = self._single.owner_address(key)
        for other in self._links.keys() - {node}:
            if not self._single.owns_slots(other):
                self._links.pop(other).drop()
        if node not in self._links:
            self._links[node] = RangeConnection(self.endpoint.server_of(node), self._start_bytes)
        return self._links[node]

    def _as_link_lost(self, error: BusError) -> BusError:
        """LinkLost when the node has said that the list is elsewhere, or said nothing at all; else
        the error itself.
        """
        found: Redirect | None = None
        if isinstance(error, ServerRefused):
            found = parse_redirect(str(error.details["reason"]), "")
            if found is None and not str(error.details["reason"]).startswith("READONLY"):
                return error
        self._single.forget_slot_map()
        self._detour = found is not None and found.asking
        self.drop()
        return error if isinstance(error, LinkLost) else LinkLost(**error.details)


def _value_spans(reply: list[bytes]) -> ValueSpans:
    if not reply:
        return NO_PAIRS
    lengths = np.fromiter(map(len, reply[1::2]), np.int64)
    return ValueSpans(
        b"".join(reply[1::2]), np.cumsum(lengths) - lengths, lengths, int(reply[0]), int(reply[-2])
    )


AnyRangeConnection: TypeAlias = RangeConnection | ClusterRangeConnection


def range_connection(link: Link, start_bytes: int = INITIAL_BUFFER_BYTES) -> AnyRangeConnection:
    """A link for windows beside one for questions, whatever the layout."""
    return (
        ClusterRangeConnection(link, start_bytes)
        if isinstance(link, SyncClusterLink)
        else RangeConnection(link.endpoint, start_bytes)
    )
