"""Connections for range reads: windows of a list, several under way, each reply taken apart in one
buffer (redis_io/range_reply_parser.py).
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

import numpy as np
import redis
import redis.exceptions as rx

from busmq_spark.errors import BusError, LinkLost, ServerRefused
from busmq_spark.queue.command_generators import RedisCall
from busmq_spark.redis_io.dial import dial
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.link_factory import Link
from busmq_spark.redis_io.range_reply_parser import NO_PAIRS, RangeReplyParser, ValueSpans
from busmq_spark.redis_io.resp_codec import pack
from busmq_spark.redis_io.slots import NodeAddress, Redirect, key_of, parse_redirect
from busmq_spark.redis_io.sync_link import SyncClusterLink
from busmq_spark.redis_io.translate import CONNECTION_ERRORS, translate_redis_error

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
