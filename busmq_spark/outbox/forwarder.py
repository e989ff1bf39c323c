"""Sends on what waits in a store: a thread for each server, so that one that is away holds up no
other.

Rule 1. To each queue in the order of the calls, one chunk under way. A message that the queue has
        confirmed is deleted. After a crash the rest is sent; the queue knows a confirmed message
        that is not deleted yet by its number.
Rule 2. The first thread routes events in their order, before any later entry is sent.
Rule 3. Of a long backlog of one queue the next chunk is read while the one before is on its way. It
        is used if that one was confirmed as a whole.
Rule 4. After all waiting messages were sent there is a short rest, so that the next ones go
        together.
Rule 5. A failed send is repeated after 0.1 to 30 s: for all queues of a server that is unreachable,
        else for the one queue.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from busmq_spark.errors import BusError, LinkLost, QueueFull
from busmq_spark.errors.foreign import error_text, exc_info
from busmq_spark.outbox import sql
from busmq_spark.outbox.group_commit import GroupCommitFuture, SqliteGroupCommitWriter
from busmq_spark.outbox.sql import (
    EntryAwaitingRouting,
    OutboxChunk,
    OutboxDestinationQueue,
    OutboxEntryKind,
    open_to_read,
)
from busmq_spark.outbox.target_bus import OutboxTarget
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.retry import Pauses

RETRY_PAUSES_S = (0.2, 30.0)
"""The first and the longest pause; each is between half of it and all of it."""
STOP_TIMEOUT_S = 5.0
PAUSE_BETWEEN_TURNS_S = 0.005
"""The rest of Rule 4: as long as some calls take. Without it each message of a program that calls
again and again is read, sent and confirmed on its own, which takes more of the interpreter and of
the store than its call does.
"""
log = logging.getLogger("busmq_spark")


@dataclass(slots=True)
class _BackOff:
    """The times of retries after a failure."""

    pauses: Pauses = field(default_factory=lambda: Pauses(*RETRY_PAUSES_S))
    until: float = 0.0

    def count_failure(self) -> bool:
        """Whether it is the first time."""
        first = not self.pauses.failures
        self.until = time.monotonic() + self.pauses.next_s()
        return first

    @property
    def failures(self) -> int:
        """Return the number of failures since the last success."""
        return self.pauses.failures

    def reset(self) -> None:
        if self.pauses.failures:
            self.pauses.failures, self.until = 0, 0.0


@dataclass(slots=True)
class _DestinationProgress:
    """The progress of one queue."""

    to: OutboxDestinationQueue
    sent: int = 0
    """The last number that the queue has confirmed to this process."""
    noted: GroupCommitFuture[None] | None = None
    """The confirmation on its way to the store, or the last one."""
    noted_upto: int = 0
    back_off: _BackOff = field(default_factory=_BackOff)
    failure_domain: str = ""
    """The failure domain in which it became unreachable."""
    error: str = ""


class OutboxForwarder:
    """A thread that forwards to the queues that are ``mine``. The first of several ``routes``."""

    def __init__(
        self,
        path: Path,
        open_target: Callable[[], OutboxTarget],
        writer: SqliteGroupCommitWriter,
        mine: Callable[[str], bool],
    ) -> None:
        self._path, self._open_target, self._writer, self._mine = path, open_target, writer, mine
        self.rescan_all: Callable[[], None] | None = None
        """Called when events were routed; of the thread that routes."""
        self._target: OutboxTarget | None = None
        self._readers: ExitStack | None = None
        """Open before :meth:`start` returns: SQLite finds the log by its path, and from then on the
        file may be moved.
        """
        self._reader: sqlite3.Connection
        self._reader_ahead: sqlite3.Connection
        self._reading_ahead: ThreadPoolExecutor
        self._ahead: tuple[int, int, Future[OutboxChunk | None]] | None = None
        """The destination of the chunk that is read ahead, and the number before it."""
        self._active: dict[int, _DestinationProgress] = {}
        self._domain_back_offs: dict[str, _BackOff] = {}
        self._routing, self._route_error = _BackOff(), ""
        self._lock = (
            threading.RLock()
        )  # a signal handler may take it again (group_commit.py, Rule 2)
        self._changed = threading.Condition(self._lock)
        self._woken: set[OutboxDestinationQueue | None] = set()
        self._known: dict[int, _DestinationProgress] = {}
        self._sent, self._more = False, False
        """In this turn: whether something was sent, and whether more waits after it."""
        self._rescan, self._stopped = True, False
        self._thread = threading.Thread(
            target=self._run, name="busmq-outbox-forwarder", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        with suppress(BusError):  # the thread tries it again, and notes why it fails
            self._readers = self._open_readers()
        self._thread.start()

    def wake(self, to: OutboxDestinationQueue | None) -> None:
        """Something waits for this queue; ``to`` is None when an event is to be routed."""
        if (to is None and self.rescan_all is None) or (
            to is not None and not self._mine(to.queue)
        ):
            return
        with self._lock:
            self._woken.add(to)
            if not (self._routing.until if to is None else to.id in self._active):
                # Otherwise it looks there when the pause is over, if it is waiting at all
                self._changed.notify()

    def rescan(self) -> None:
        """Something may wait for any queue."""
        with self._lock:
            self._rescan = True
            self._changed.notify()

    def stop(self) -> None:
        """End. Sends under way may still arrive; their repetition is dropped there."""
        with self._lock:
            self._stopped = True
            self._changed.notify()
        if self._target is not None:
            self._target.stop()
        self._thread.join(STOP_TIMEOUT_S)

    # -- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        back_off = _BackOff()
        while not self._stopped:
            try:
                readers, self._readers = self._readers or self._open_readers(), None
                with (
                    readers,
                    ThreadPoolExecutor(1, "busmq-outbox-reader") as self._reading_ahead,
                ):
                    while not self._stopped:
                        if not self._run_turn():
                            self._wait_for_change(self._idle_s())
                        elif self._sent and not (self._more or self._rescan):
                            self._pause_between_turns()
                        if back_off.failures:
                            back_off.reset()
                            self._note_error("forwarder_error", None)
            except Exception as error:  # whatever it is, what waits must be tried again
                if self._stopped:
                    break
                first = back_off.count_failure()
                found = self._writer.translate(error)
                log.log(
                    logging.ERROR if first else logging.DEBUG,
                    "the outbox %s forwards nothing for now: %s",
                    *(self._path, error_text(found)),
                    exc_info=exc_info(found) if first else None,
                )
                self._note_error("forwarder_error", f"the forwarder fails: {error_text(found)}")
                self._wait_until_due(back_off)
        if self._target is not None:
            self._target.close()

    def _open_readers(self) -> ExitStack:
        with ExitStack() as stack:
            self._reader = stack.enter_context(closing(open_to_read(self._path)))
            self._reader_ahead = stack.enter_context(closing(open_to_read(self._path)))
            return stack.pop_all()

    def _wait_until_due(self, back_off: _BackOff) -> None:
        """Until it may be tried again, whatever comes meanwhile. Everything is looked at anew
        then.
        """
        with self._changed:
            while not self._stopped and not self._is_due(back_off):
                self._changed.wait(max(0.01, back_off.until - time.monotonic()))
            self._rescan = True

    def _run_turn(self) -> bool:
        """Route, and send each queue one chunk. Whether there was anything to do."""
        with self._changed:
            woken, self._woken = self._woken, set()
            rescan, self._rescan = self._rescan, False
        if rescan:
            woken.update(
                to for to in sql.waiting_destinations(self._reader) if self._mine(to.queue)
            )
        for to in sorted(filter(None, woken), key=lambda each: each.id):
            self._active[to.id] = self._known.setdefault(to.id, _DestinationProgress(to))
        self._sent = self._more = False
        busy = self.rescan_all is not None and self._is_due(self._routing) and self._route_entries()
        for progress in tuple(self._active.values()):
            if self._stopped:
                break
            if self._is_due(progress.back_off) and self._is_due(self._domain_back_off(progress)):
                busy = self._forward(progress) or busy
        return busy

    def _forward(self, progress: _DestinationProgress) -> bool:
        to = progress.to
        chunk = self._next_chunk(to, progress.sent)
        if chunk is None:
            return self._finish_destination(progress)
        if not chunk.sender:
            opening, sender = chunk.opening, new_token(128)
            self._writer.submit(lambda c: sql.add_opening(c, opening, sender)).result()
            return True
        try:
            done, maxsize = self._require_target().push(to.queue, chunk)
            if maxsize:
                done += self._leave_out_events(to.queue, chunk.numbers[done:])
        except BusError as error:
            self._keep_for_retry(progress, error)
            return False
        self._domain_back_off(progress).reset()
        self._sent, self._more = True, self._more or chunk.more or done < len(chunk.numbers)
        if done:
            progress.sent, progress.error = chunk.numbers[done - 1], ""
            progress.back_off.reset()
            self._note_progress(progress)
        if done < len(chunk.numbers) and maxsize:
            self._keep_for_retry(
                progress,
                QueueFull(
                    queue=to.queue, maxsize=maxsize, left=len(chunk.numbers) - done, waited=""
                ),
            )
        return True

    def _leave_out_events(self, queue: str, numbers: Sequence[int]) -> int:
        """Return the number of messages, from the first on, that a full queue need not have: events
        that peers of a federation server alone want there.
        """
        found = (
            sql.count_events(self._reader, numbers)
            if numbers and self._require_target().is_of_peers(queue)
            else 0
        )
        if found:
            log.warning(
                "the outbox %s leaves %d events out of queue %r, which is full and which peers"
                " alone have subscribed",
                self._path,
                found,
                queue,
            )
        return found

    def _next_chunk(self, to: OutboxDestinationQueue, behind: int) -> OutboxChunk | None:
        ahead, self._ahead = self._ahead, None
        chunk = ahead[2].result() if ahead is not None and ahead[:2] == (to.id, behind) else None
        if chunk is None:  # also where the read-ahead found nothing: it ran early
            chunk = sql.next_chunk(self._reader, to, behind, CHUNK_MESSAGES, CHUNK_BYTES)
        if chunk is not None and chunk.more and len(self._active) == 1:
            last = chunk.numbers[-1]
            with suppress(RuntimeError):  # the program ends
                reading = self._reading_ahead.submit(
                    sql.next_chunk, self._reader_ahead, to, last, CHUNK_MESSAGES, CHUNK_BYTES
                )
                self._ahead = (to.id, last, reading)
        return chunk

    def _note_progress(self, progress: _DestinationProgress) -> None:
        """Note how far it is, unless that is under way: then what came meanwhile goes with the
        next, without a wait for the disk.
        """
        if progress.noted is None or progress.noted.done():
            to, upto = progress.to, progress.sent
            progress.noted, progress.noted_upto = (
                self._writer.submit(lambda c: sql.confirm_sent(c, to, upto), durable=False),
                upto,
            )

    def _finish_destination(self, progress: _DestinationProgress) -> bool:
        """Nothing waits for the queue: it is idle once that is noted."""
        try:
            if progress.noted is not None:
                progress.noted.result()
        except BusError as error:
            if not self._stopped:
                self._keep_for_retry(progress, error)
                self._note_progress(progress)
            return False
        if progress.noted_upto < progress.sent:
            self._note_progress(progress)
            return True
        del self._active[progress.to.id], self._known[progress.to.id]
        if not self._active:
            self._shrink_file()
        return False

    def _shrink_file(self) -> None:
        """A file that has grown while a server was away shrinks when there is nothing else to
        do.
        """
        with suppress(BusError):
            while self._writer.submit(sql.release_free_pages, durable=False).result() and not (
                self._woken or self._stopped
            ):
                pass

    def _keep_for_retry(self, progress: _DestinationProgress, error: BusError) -> None:
        if self._stopped:
            return
        back_off = progress.back_off
        if isinstance(error, LinkLost):
            progress.failure_domain = self._require_target().failure_domain(progress.to.queue)
            back_off = self._domain_back_off(progress)
        first = back_off.count_failure()
        if progress.error != error_text(error):
            progress.error = error_text(error)
            to, text = progress.to, progress.error
            self._writer.submit(lambda c: sql.record_failure(c, to, text), durable=False)
            log.log(
                logging.WARNING if first else logging.DEBUG,
                "the outbox %s keeps what is for queue %r: %s",
                self._path,
                to.queue,
                error,
            )

    def _route_entries(self) -> bool:
        found = sql.unrouted_entries(self._reader)
        if not found:
            return False
        try:
            self._route_first_entries(found)
        except BusError as error:
            first, text = self._routing.count_failure(), error_text(error)
            if text != self._route_error and not self._stopped:
                self._route_error = text
                self._note_error("routing_error", text)
                log.log(
                    logging.WARNING if first else logging.DEBUG,
                    "the outbox %s keeps its events: %s",
                    self._path,
                    error,
                )
            return False
        self._routing.reset()
        if self._route_error:
            self._route_error = ""
            self._note_error("routing_error", None)
        return True

    def _route_first_entries(self, found: list[EntryAwaitingRouting]) -> None:
        events = list(takewhile(lambda entry: entry.kind == OutboxEntryKind.PUBLISH, found))
        if not events:
            self._send_subscription(found[0])
            return
        queues, table = self._require_target().route(
            [entry.keys for entry in events], sql.subscriptions_made(self._reader)
        )

        def write(connection: sqlite3.Connection) -> None:
            for entry, its in zip(events, queues, strict=True):
                sql.route_event(connection, entry.id, its)
            sql.note_subscriptions(connection, table)

        self._writer.submit(write, durable=False).result()
        assert self.rescan_all is not None
        self.rescan_all()

    def _send_subscription(self, entry: EntryAwaitingRouting) -> None:
        end = entry.kind == OutboxEntryKind.UNSUBSCRIBE
        self._require_target().set_subscription(entry.keys, entry.queue, end=end)

        def write(connection: sqlite3.Connection) -> None:
            sql.note_subscription_made(connection, entry.keys, entry.queue, end=end)
            sql.delete_entry(connection, entry.id)

        self._writer.submit(write, durable=False).result()
        assert self.rescan_all is not None
        self.rescan_all()

    def _note_error(self, name: str, text: str | None) -> None:
        """Note for the status why nothing goes out; a ``text`` of None means success."""
        with suppress(BusError):  # closed meanwhile
            self._writer.submit(lambda c: sql.set_note(c, name, text), durable=False)

    # -- pauses ------------------------------------------------------------------------------------

    def _require_target(self) -> OutboxTarget:
        if self._target is None:
            self._target = self._open_target()
        return self._target

    def _domain_back_off(self, progress: _DestinationProgress) -> _BackOff:
        return self._domain_back_offs.setdefault(progress.failure_domain, _BackOff())

    def _is_due(self, *back_offs: _BackOff) -> bool:
        return all(back_off.until <= time.monotonic() for back_off in back_offs)

    def _idle_s(self) -> float | None:
        """Return the seconds without work; return None when only a wake-up brings work."""
        until: list[float] = [
            max(progress.back_off.until, self._domain_back_off(progress).until)
            for progress in self._active.values()
        ]
        if self._routing.until:
            until.append(self._routing.until)
        return max(0.0, min(until) - time.monotonic()) if until else None

    def _pause_between_turns(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, PAUSE_BETWEEN_TURNS_S)

    def _wait_for_change(self, for_s: float | None) -> None:
        with self._changed:
            if not (self._woken or self._rescan or self._stopped):
                self._changed.wait(for_s)
