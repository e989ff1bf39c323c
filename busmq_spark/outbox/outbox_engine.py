"""The core of an outbox, with and without a loop: the store, its writer and its forwarders.

``push_request``, ``send_request`` … check what they are given and return what is to be stored;
``store_and_wait`` and ``store_async`` do that.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from busmq_spark.arguments import check_items
from busmq_spark.errors import (
    BusError,
    ConfigError,
    OutboxFull,
    OutboxUnusable,
    OutboxWaits,
    StateError,
)
from busmq_spark.outbox import report, sql
from busmq_spark.outbox.files import DiskReserveFile, check_home, real_path
from busmq_spark.outbox.forwarder import OutboxForwarder
from busmq_spark.outbox.group_commit import SqliteGroupCommitWriter, TransactionWork, not_open_error
from busmq_spark.outbox.lock import OutboxFileLock
from busmq_spark.outbox.sql import OutboxDestinationQueue, OutboxEntryKind
from busmq_spark.outbox.target_opener import lane_of, target_opener
from busmq_spark.queue.message import encode_value
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.routing.event_patterns import check_pattern
from busmq_spark.routing.event_routing import check_queue

T = TypeVar("T")
MAX_CACHED_DESTINATIONS = 100_000
"""Queues whose place in the store is remembered."""


class OutboxReceipt(NamedTuple):
    """The receipt for a stored message or event, which the outbox keeps until it is forwarded."""

    number: int
    """Rises with each message of this outbox; of several the last one's."""
    ids: tuple[str, ...] = ()
    """Of the events, in their order; a message of ``push`` has none before it is in its queue."""


class OutboxWriteRequest(NamedTuple):
    """The entries that a call stores."""

    work: TransactionWork[OutboxReceipt]
    after: Callable[[], None]
    """Called once the disk has it."""


class OutboxEngine:
    """Opens nothing before :meth:`open`. Raises ConfigError for a bad address or setting."""

    def __init__(
        self, path: Path, to: str | Sequence[str] | None, settings: Mapping[str, Any]
    ) -> None:
        self.path = path
        self._open_target, self._lanes = target_opener(to, settings)
        self._writer: SqliteGroupCommitWriter | None = None
        self._forwarders: list[OutboxForwarder] = []
        self._opening = 0
        self._destinations: dict[str, OutboxDestinationQueue] = {}

    def open(self) -> None:
        """Lock and open the store, and begin to forward. Raises OutboxBusy, OutboxUnusable,
        OutboxFull.
        """
        if self._writer is not None:
            raise StateError(
                event="enter",
                what="this outbox",
                state="open already",
                remedy="Make another Outbox, of another file",
            )
        self.path = real_path(self.path)
        lock, reserve = OutboxFileLock(self.path), DiskReserveFile(self.path)
        try:
            reserve.release()  # so that a store on a full disk can be opened, and forward
            lock.write_owner()
            connection = sql.create_or_open(self.path)
            try:
                with sql.translating_errors(self.path):
                    connection.execute("BEGIN IMMEDIATE")
                    is_new_home = check_home(connection, self.path)
                    self._opening = sql.begin_opening(connection, new_token(128))
                    connection.execute("COMMIT")
                    if is_new_home:  # the file itself has to say so, not its log
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except BaseException:
                connection.close()
                raise
        except BaseException:
            lock.release()
            raise
        self._lock, self._destinations = lock, {}
        self._writer = SqliteGroupCommitWriter(connection, self.path, reserve)
        self._forwarders = [self._make_forwarder(lane) for lane in range(self._lanes)]
        self._forwarders[0].rescan_all = self._rescan
        for forwarder in self._forwarders:
            forwarder.start()

    def close(self) -> None:
        """Write all requests, and end; messages that are not forwarded yet stay in the store.
        Nothing when this process does not have it open.
        """
        if self._writer is None or not self._lock.is_held:
            return
        writer, self._writer = self._writer, None
        for forwarder in self._forwarders:
            forwarder.stop()
        writer.close()
        self._lock.release()

    def push_request(self, queue: str, values: Sequence[object]) -> OutboxWriteRequest:
        """Messages for one queue. Raises ConfigError, MessageRefused."""
        return self._append_request(
            OutboxEntryKind.PUSH, check_queue(queue), [encode_value(value) for value in values], ()
        )

    def send_request(
        self, queue: str, values: Sequence[bytes], ids: tuple[str, ...]
    ) -> OutboxWriteRequest:
        """Commands for one queue."""
        return self._append_request(OutboxEntryKind.SEND, check_queue(queue), values, ids)

    def publish_request(
        self, keys: Sequence[str], values: Sequence[bytes], ids: tuple[str, ...]
    ) -> OutboxWriteRequest:
        """Events with the same keys."""
        return OutboxWriteRequest(
            lambda c: OutboxReceipt(sql.store_events(c, self._opening, keys, values), ids),
            self._wake,
        )

    def subscribe_request(
        self, patterns: str | Sequence[str], queue: str, *, end: bool
    ) -> OutboxWriteRequest:
        """Subscriptions to begin, or to end. Raises ConfigError."""
        given = [patterns] if isinstance(patterns, str) else check_items("patterns", patterns)
        if not given:
            raise ConfigError(
                reason=(
                    f"the patterns are {patterns!r}; expected one, such as 'user.*', or a list of"
                    " at least one"
                )
            )
        found = [check_pattern(pattern) for pattern in given]
        into = check_queue(queue)
        return OutboxWriteRequest(
            lambda c: OutboxReceipt(
                sql.store_subscriptions(c, self._opening, found, into, end=end)
            ),
            self._wake,
        )

    def store_and_wait(self, what: OutboxWriteRequest) -> OutboxReceipt:
        """Store it and wait until the disk has it. Raises OutboxFull, OutboxUnusable,
        StateError.
        """
        try:
            return self._require_writer().write(what.work, after=what.after)
        except BusError:
            raise
        except BaseException:
            # A signal handler raised, perhaps after it was stored: then it is to be forwarded
            self._rescan()
            raise

    def store_async(self, what: OutboxWriteRequest) -> asyncio.Future[OutboxReceipt]:
        """Store for the running loop."""
        return self._require_writer().submit_async(what.work, after=what.after)

    def status(self) -> report.OutboxStatus:
        """Return the waiting messages, and the reason. Raises OutboxUnusable."""
        try:
            return report.read_status(self.path)
        except OutboxUnusable as error:
            raise error if self._writer is None else self._writer.translate(error) from None

    def edit(self, work: TransactionWork[T]) -> T:
        """Run a change of waiting messages, which a full disk does not refuse: it may make room."""
        writer = self._require_writer()
        try:
            return writer.submit(work).result()
        except OutboxFull:
            return writer.submit(work, durable=False).result()

    def is_empty(self) -> bool:
        """Whether everything was forwarded."""
        return self._require_writer().submit(sql.is_empty, durable=False).result()

    def is_empty_async(self) -> asyncio.Future[bool]:
        """Check for the running loop."""
        return self._require_writer().submit_async(sql.is_empty, durable=False)

    def not_drained_error(self) -> OutboxWaits:
        """The error for what is not drained in time."""
        found = self.status()
        return OutboxWaits(
            path=str(self.path),
            waiting=found.incoming + found.outgoing,
            why=f" ({found.error})" if found.error else "",
        )

    def _append_request(
        self, kind: OutboxEntryKind, queue: str, values: Sequence[bytes], ids: tuple[str, ...]
    ) -> OutboxWriteRequest:
        if not values:
            raise ConfigError(
                reason=f"nothing is given for queue {queue!r}; expected at least one message"
            )

        found: list[OutboxDestinationQueue] = []

        def work(connection: sqlite3.Connection) -> OutboxReceipt:
            its = self._destinations.get(queue) or sql.find_or_add_destination(connection, queue)
            found[:] = [its]
            return OutboxReceipt(
                sql.store_messages(connection, self._opening, kind, its, values), ids
            )

        def after() -> None:
            if len(self._destinations) >= MAX_CACHED_DESTINATIONS:
                self._destinations = {}
            self._destinations[queue] = found[
                0
            ]  # not before: a write that is rolled back is noted nowhere
            self._wake(found[0])

        return OutboxWriteRequest(work, after)

    def _require_writer(self) -> SqliteGroupCommitWriter:
        if self._writer is None:
            raise not_open_error()
        if not self._lock.is_held:
            state = "open in the process that this one was forked from"
            raise StateError(
                event="use",
                what="the outbox",
                state=state,
                remedy="Open one of another file in each process, after the fork",
            )
        return self._writer

    def _wake(self, to: OutboxDestinationQueue | None = None) -> None:
        for forwarder in self._forwarders:
            forwarder.wake(to)

    def _rescan(self) -> None:
        for forwarder in self._forwarders:
            forwarder.rescan()

    def _make_forwarder(self, lane: int) -> OutboxForwarder:
        assert self._writer is not None
        return OutboxForwarder(
            self.path,
            self._open_target,
            self._writer,
            lambda queue: lane_of(queue, self._lanes) == lane,
        )
