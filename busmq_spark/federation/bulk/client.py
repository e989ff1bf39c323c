"""Calls over ``busmq.bulk.v1`` that survive broken links: repeatable calls are repeated, and a
range read goes on after the last id that came.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from busmq_spark.errors import BusError, FederationLost, LinkLost, MessageRefused, WireError
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.blocking_socket import BulkWebSocket
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame, decode_error
from busmq_spark.federation.bulk.operations import OPERATIONS, ServerHello
from busmq_spark.federation.bulk.row_frames import RemainingRanges
from busmq_spark.queue.position import Range
from busmq_spark.redis_io.retry import FAILOVER_PATIENCE_S, PATIENCE_S, LinkRetry
from busmq_spark.store.protocol import RowStream
from busmq_spark.writing.mirror import OriginQueueState, stored_ranges

READ_CREDIT_BYTES = 16 * 1024 * 1024
"""Bytes of rows that may be on their way; about four replies of Redis. Over a far link it bounds
the rate: credit by round trip.
"""

MAX_CALLS_UNDER_WAY = 64
"""Calls under way at once: as many as a server takes before it reads no further."""
log = logging.getLogger("busmq_spark")


class FederationBulkClient:
    """A connection, opened when it is needed and again when it breaks. Only one thread may use
    it.
    """

    def __init__(self, address: FederationAddress) -> None:
        self.address = address
        self.hello: ServerHello | None = None
        """The server's description of itself; it is None before the first connection."""
        self._socket: BulkWebSocket | None = None
        self._ids = itertools.count(1)
        self._inbox: dict[int, deque[BulkProtocolFrame]] = {}
        self._client = secrets.token_hex(16)

    def call(self, name: str, *arguments: Any, values: Sequence[bytes] = ()) -> Any:
        """The result. Repeated while the link breaks, or the server's own one to Redis, with
        patience; every operation is made for that.

        Raises what the server answers.
        """
        retry = LinkRetry(time.monotonic)
        while True:
            try:
                return self.wait_for_result(self.send_call(name, *arguments, values=values), name)
            except LinkLost as error:
                self._wait_before_retry(error, retry)

    def send_call(self, name: str, *arguments: Any, values: Sequence[bytes] = ()) -> int:
        """Send a call and do not wait: it needs a :meth:`wait_for_result`. Raises FederationLost
        when the link breaks; none sent has one then.
        """
        socket = self._ensure_connected()
        return self._send_call_on(
            socket, name, arguments, frames.pack_values(values) if values else b""
        )

    def wait_for_result(self, id: int, name: str) -> Any:
        """The result of a call that was sent."""
        frame = self._receive_frame(id)
        del self._inbox[id]
        if frame.kind is not BulkFrameKind.REPLY:
            raise self._drop_connection_and_return(
                frames.make_wire_error(f"{frame.kind.name} in answer to {name}", "REPLY or ERROR")
            )
        try:
            return OPERATIONS[name].decode_result(frame.head)
        except WireError as error:
            raise self._drop_connection_and_return(error) from None

    def call_many(
        self,
        name: str,
        argument_lists: Sequence[Sequence[Any]],
        returned_errors: tuple[type[BusError], ...] = (),
    ) -> list[Any]:
        """The results of calls of one operation, all under way at once; as :meth:`call` of each.
        ``returned_errors`` are results, too.
        """
        results: list[Any] = []
        while len(results) < len(argument_lists):
            waiting: deque[int] = deque()
            try:
                for arguments in argument_lists[len(results) :]:
                    waiting.append(self.send_call(name, *arguments))
                    if len(waiting) >= MAX_CALLS_UNDER_WAY:
                        results.append(
                            self._wait_for_result_or_error(waiting, name, returned_errors)
                        )
                while waiting:
                    results.append(self._wait_for_result_or_error(waiting, name, returned_errors))
            except LinkLost as error:
                log.debug("%s; asked again one by one", error)
                self._discard_results(waiting, name)
                arguments = argument_lists[len(results)]
                try:
                    results.append(self.call(name, *arguments))
                except returned_errors as known:
                    results.append(known)
            except BusError:
                self._discard_results(waiting, name)
                raise
        return results

    def _wait_for_result_or_error(
        self, waiting: deque[int], name: str, returned_errors: tuple[type[BusError], ...]
    ) -> Any:
        try:
            return self.wait_for_result(waiting.popleft(), name)
        except returned_errors as error:
            return error

    def _discard_results(self, waiting: deque[int], name: str) -> None:
        """Calls under way are answered, too, unless the connection is gone."""
        for id in waiting:
            with suppress(BusError):
                self.wait_for_result(id, name)

    def connect(self) -> ServerHello:
        """Connect, unless that is done, with patience, and return the server's description of
        itself.
        """
        if self.hello is None:
            self.call("hello", frames.PROTOCOL_VERSION, self._client)
        assert self.hello is not None
        return self.hello

    def read_ranges(
        self, parts: Sequence[Range], strict: bool, asked: int | None = None
    ) -> RowStream:
        """The rows of ranges, in order, each once, whatever happens to the link meanwhile. At most
        MAX_RANGES_PER_READ.

        ``asked``: the call whose answer they are, where it was sent.
        """
        rest, retry = list(parts), None
        while rest:
            expected = RemainingRanges(rest, strict)
            try:
                for rows in self._receive_rows(
                    self._send_read_call(rest, strict) if asked is None else asked, expected
                ):
                    retry = None
                    yield rows
                return
            except LinkLost as error:
                rest, asked = expected.unread_ranges, None
                self._wait_before_retry(error, retry := retry or LinkRetry(time.monotonic))

    def read_with_spans(
        self, parts: Sequence[Range]
    ) -> tuple[Mapping[str, OriginQueueState], RowStream]:
        """Return the states of the queues of the ranges, one range of each, and then the stored
        rows of the ranges; in one round trip.
        """
        retry = LinkRetry(time.monotonic)
        while True:
            try:
                id = self._send_call_on(
                    self._ensure_connected(), "read_with_spans", (parts, READ_CREDIT_BYTES), b""
                )
                spans = self._receive_spans(id)
                break
            except LinkLost as error:
                self._wait_before_retry(error, retry)
        if ranges := stored_ranges(parts, spans):
            return spans, self.read_ranges(ranges, False, id)
        return spans, self._receive_rows(id, None)

    def _receive_spans(self, id: int) -> Mapping[str, OriginQueueState]:
        frame = self._receive_frame(id)
        try:
            if frame.kind is not BulkFrameKind.SPANS:
                raise frames.make_wire_error(
                    f"{frame.kind.name} in answer to read_with_spans", "SPANS or ERROR"
                )
            found: Mapping[str, OriginQueueState] = OPERATIONS["read_with_spans"].decode_result(
                frame.head
            )
            return found
        except WireError as error:
            raise self._drop_connection_and_return(error) from None

    def drop_connection(self) -> None:
        """Close the connection; calls under way are dropped."""
        self._inbox.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _wait_before_retry(self, error: LinkLost, retry: LinkRetry) -> None:
        """Wait before the next try; raises the error when patience is over."""
        if isinstance(error, FederationLost):
            self.drop_connection()
        if not retry.failures:
            log.log(
                logging.WARNING if self.address.patience_s >= PATIENCE_S else logging.DEBUG,
                "%s; trying again",
                error,
            )
        retry_s = error.details.get(
            "patience_s"
        )  # how long it is worth while at the other side, where a fail-over may be under way
        patience_s = (
            max(self.address.patience_s, min(retry_s, FAILOVER_PATIENCE_S))
            if type(retry_s) is int
            else self.address.patience_s
        )
        with retry.pausing(error, patience_s) as pause_s:
            time.sleep(pause_s)

    def _send_read_call(self, parts: Sequence[Range], strict: bool) -> int:
        socket, one = self._ensure_connected(), len(parts) == 1
        return self._send_call_on(
            socket,
            "read" if one else "read_many",
            (parts[0] if one else parts, strict, READ_CREDIT_BYTES),
            b"",
        )

    def _receive_rows(self, id: int, expected: RemainingRanges | None) -> RowStream:
        """The answer to a call for rows; without ``expected`` there are none."""
        socket, schema, done = self._ensure_connected(), None, False
        try:
            while True:
                frame = self._receive_frame(id)
                if frame.kind is BulkFrameKind.SCHEMA:
                    schema = frames.decode_schema(frame.body)
                elif (
                    frame.kind is BulkFrameKind.ROWS and schema is not None and expected is not None
                ):
                    # Before it is handed over: the next is on its way while the reader is busy with
                    # this one.
                    socket.send(
                        BulkProtocolFrame(BulkFrameKind.CREDIT, id, len(frame.body)).encode()
                    )
                    yield from expected.take_rows(frame, schema)
                elif frame.kind is BulkFrameKind.END:
                    done = True
                    if expected is not None:
                        expected.check_complete()
                    return
                else:
                    raise frames.make_wire_error(
                        f"{frame.kind.name} in a range read", "SCHEMA, ROWS, END or ERROR"
                    )
        except BusError as error:
            done = True  # answered, or the link is gone
            if isinstance(error, WireError):
                self.drop_connection()
            raise
        finally:
            if self._inbox.pop(id, None) is not None and not done:
                self._send_cancel(id)

    def _send_cancel(self, id: int) -> None:
        if self._socket is not None:
            try:
                self._socket.send(BulkProtocolFrame(BulkFrameKind.CANCEL, id).encode())
            except FederationLost:
                self.drop_connection()

    def _receive_frame(self, id: int) -> BulkProtocolFrame:
        """The next frame of a call. Frames of other open calls are kept for them, those of ended
        calls dropped. Raises the server's error.
        """
        while not self._inbox.get(id):
            if self._socket is None or id not in self._inbox:
                raise FederationLost(
                    url=self.address.url, reason="the connection broke while this was under way"
                )
            try:
                frame = frames.decode_frame(self._socket.receive())
            except WireError as error:
                raise self._drop_connection_and_return(error) from None
            if frame.id in self._inbox:
                self._inbox[frame.id].append(frame)
        frame = self._inbox[id].popleft()
        if frame.kind is BulkFrameKind.ERROR:
            self._inbox.pop(id)
            raise decode_error(frame.head, self.address.url)
        return frame

    def _send_call_on(
        self, socket: BulkWebSocket, name: str, arguments: Sequence[Any], body: bytes
    ) -> int:
        id = next(self._ids) % frames.MAX_CALL_ID
        self._inbox[id] = deque()
        try:
            call = BulkProtocolFrame(
                BulkFrameKind.CALL,
                id,
                {"op": name, "args": OPERATIONS[name].arguments.encode(arguments)},
                body,
            ).encode()
            self._check_call_size(name, len(call), len(body))
            socket.send(call)
        except BaseException:
            self._inbox.pop(id, None)
            raise
        return id

    def _check_call_size(self, name: str, size: int, body: int) -> None:
        """Checked here, since a server closes the connection of a client that sends too much, which
        looks like a lost link.
        """
        most = self.hello.message_bytes if self.hello is not None else size
        if size > most or size - body > frames.MAX_HEAD_BYTES:
            limit = (
                f"{most} bytes (its limit message_bytes), {frames.MAX_HEAD_BYTES} of them names and"
                " the like"
            )
            raise MessageRefused(
                reason=(
                    f"a call {name!r} of {size} bytes is over what the federation server takes:"
                    f" {limit}"
                )
            )

    def _ensure_connected(self) -> BulkWebSocket:
        """The open connection; one that broke meanwhile is replaced, since that is better known
        before something is sent.
        """
        if self._socket is not None and not self._inbox and not self._socket.is_usable():
            self.drop_connection()
        if self._socket is None:
            self._socket = BulkWebSocket(self.address)
            id = self._send_call_on(
                self._socket, "hello", (frames.PROTOCOL_VERSION, self._client), b""
            )
            self.hello = self.wait_for_result(id, "hello")
        return self._socket

    def _drop_connection_and_return(self, error: BusError) -> BusError:
        """A server out of step: the connection is of no use any more."""
        self.drop_connection()
        return error
