"""One connection to one server for one thread: executes the steps of flows, reconnects, and gives up at a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterable
from typing import Any

import redis.exceptions as rx

from busmq_spark.core.flow import Call, Flow, Step, T, run_sync
from busmq_spark.errors import BusError, LinkLost
from busmq_spark.topology.connect import sync_connection
from busmq_spark.topology.translate import translate
from busmq_spark.topology.urls import Server
from busmq_spark.topology.wire import calls_of, first_error, pack, repeatable, result, unknown_scripts

PATIENCE_S = 8.0
"""How long one step is tried in all. A server that is down for longer ends the call with LinkLost, in under 10 s."""
_WIRE_ERRORS = (rx.RedisError, OSError)


class SyncLink:
    """A blocking link. The constructor connects nothing; the first step does. Not for use by two threads at once.

    A step whose calls are all idempotent is repeated after a broken link until ``patience_s`` is over; any other is repeated only while it
    is certain that Redis has not seen it.
    """

    def __init__(self, server: Server, patience_s: float = PATIENCE_S) -> None:
        self.server = server
        self._patience_s = patience_s
        self._connection = sync_connection(server)
        self._posted = 0

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return run_sync(flow, self.execute)

    def execute(self, step: Step) -> Any:
        """Send one step and return its reply, or the list of replies. Raises the translated error of the first call that failed."""
        assert not self._posted, "replies of posted calls are still to be fetched"
        calls = calls_of(step)
        if not calls:
            return []
        deadline = time.monotonic() + self._patience_s
        for attempt in range(1_000_000):
            try:
                self._ready()
            except _WIRE_ERRORS as error:
                self._pause_or_raise(translate(error, self.server), attempt, deadline)
                continue
            try:
                replies = self._exchange(calls)
            except _WIRE_ERRORS as error:
                self._connection.disconnect()
                lost = translate(error, self.server)
                if not repeatable(step):
                    raise lost from error
                self._pause_or_raise(lost, attempt, deadline)
                continue
            if (failed := first_error(replies)) is None:
                return result(step, replies)
            refused = translate(failed, self.server)
            if not isinstance(refused, LinkLost) or not (len(calls) == 1 or repeatable(step)):
                raise refused from None
            self._pause_or_raise(refused, attempt, deadline)  # LOADING and its like: not executed
        raise AssertionError("unreachable")

    def post(self, call: Call) -> None:
        """Send one call and do not wait; each needs one :meth:`fetch`. A script travels whole, so a flushed cache cannot break the order."""
        try:
            self._ready_for_more()
            self._connection.send_packed_command([pack((call,), whole=True)], check_health=False)
            self._posted += 1
        except _WIRE_ERRORS as error:
            self._drop()
            raise translate(error, self.server) from error

    def fetch(self) -> Any:
        """The reply to the oldest call posted and not fetched. Raises its translated error; LinkLost means that all posted calls are in doubt."""
        try:
            reply = self._read()
        except _WIRE_ERRORS as error:
            self._drop()
            raise translate(error, self.server) from error
        self._posted -= 1
        if isinstance(reply, Exception):
            raise translate(reply, self.server)
        return reply

    def stream(self, calls: Iterable[Call], depth: int = 2) -> Generator[Any, None, None]:
        """Replies in order, with up to ``depth`` calls under way, so that Redis works while the caller does.

        Calls are taken from the iterable as late as possible. Nothing is repeated: LinkLost leaves it to the caller how far it came.
        """
        source = iter(calls)
        try:
            while True:
                while self._posted < depth and (call := next(source, None)) is not None:
                    self.post(call)
                if not self._posted:
                    return
                yield self.fetch()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Forget calls that were posted and not fetched: the connection is dropped, since their replies would be taken for others'."""
        if self._posted:
            self._drop()

    def close(self) -> None:
        """Close the connection. A later step opens a new one."""
        self._drop()

    def _drop(self) -> None:
        self._posted = 0
        self._connection.disconnect()

    def _ready_for_more(self) -> None:
        if not self._posted:
            self._ready()

    def _ready(self) -> None:
        connection = self._connection
        if connection.is_connected:
            try:
                if not connection.can_read(timeout=0):
                    return
            except _WIRE_ERRORS:
                pass
            connection.disconnect()  # closed by the server meanwhile: better known before a push is sent
        connection.connect()

    def _exchange(self, calls: tuple[Call, ...] | list[Call] | Any) -> list[Any]:
        self._connection.send_packed_command([pack(calls)], check_health=False)
        replies = [self._read() for _ in calls]
        if missing := unknown_scripts(replies):
            self._connection.send_packed_command([pack([calls[i] for i in missing], whole=True)], check_health=False)
            for i in missing:
                replies[i] = self._read()
        return replies

    def _read(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)
        except (rx.ResponseError, rx.BusyLoadingError) as error:
            return error

    def _pause_or_raise(self, error: BusError, attempt: int, deadline: float) -> None:
        pause_s = min(1.0, 0.02 * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311  # jitter, not a secret
        if not isinstance(error, LinkLost) or time.monotonic() + pause_s > deadline:
            raise error from None
        time.sleep(pause_s)
