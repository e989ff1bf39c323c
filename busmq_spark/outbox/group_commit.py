"""The writer of a store: one thread at a time. Requests that come while another thread writes go
together, in their order, with one fsync.

Rule 1. A caller that waits in a thread of its own writes in it when no other caller does: to hand a
        call to another thread and back takes as long as a fast disk. A loop never writes, since a
        slow disk would hold up all that is in it: for it, and for those that come meanwhile, a
        thread does.
Rule 2. In the thread of a caller a signal handler may raise at any moment. An unfinished
        transaction is rolled back by the next writing thread; locks are taken by ``with`` on the
        lock itself, which no handler comes between (in a Condition, and so in a Future, it does).
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from busmq_spark.errors import OutboxFull, OutboxUnusable, StateError
from busmq_spark.outbox import sql
from busmq_spark.outbox.files import DiskReserveFile, FileSizeLimit, OpenFiles
from busmq_spark.outbox.sql import translate_sqlite_error

T = TypeVar("T")
TransactionWork: TypeAlias = Callable[[sqlite3.Connection], T]
MAX_CALLS_PER_TRANSACTION = 1000
"""Calls in one transaction."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    result: Any = None
    error: Exception | None = None


class GroupCommitFuture(Generic[T]):
    """A request, and its result once it is done."""

    def __init__(self) -> None:
        self._outcome = _Outcome()
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def done(self) -> bool:
        """Whether there is a result or an error."""
        return not self._under_way.locked()

    def result(self) -> T:
        """Wait for it. Raises what went wrong."""
        with self._under_way:
            pass
        if self._outcome.error is not None:
            raise self._outcome.error
        found: T = self._outcome.result
        return found

    def set_outcome(self, outcome: _Outcome) -> None:
        """It is done."""
        self._outcome = outcome
        self._under_way.release()


@dataclass(frozen=True, slots=True)
class _QueuedWork:
    work: TransactionWork[Any]
    durable: bool
    after: Callable[[], None] | None
    reply: GroupCommitFuture[Any] | asyncio.Future[Any]

    @property
    def is_cancelled(self) -> bool:
        return not isinstance(self.reply, GroupCommitFuture) and self.reply.cancelled()


class _ReentrancyGuard(threading.local):
    writing = False
    """Whether this thread is a caller that writes."""


class SqliteGroupCommitWriter:
    """Begins with its creation, and has the connection from then on, until :meth:`close`."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, reserve: DiskReserveFile
    ) -> None:
        self._connection, self._path, self._reserve = connection, path, reserve
        self._files, self._limit = OpenFiles(path), FileSizeLimit(connection)
        self._jobs: SimpleQueue[_QueuedWork | None] = SimpleQueue()
        self._asking = threading.RLock()  # no request comes after the end
        self._writing = threading.Lock()
        self._here = _ReentrancyGuard()
        self._waits = False
        self._closed = False
        self._synced = True
        self._thread = threading.Thread(
            target=self._write_until_closed, name="busmq-outbox-writer", daemon=True
        )
        self._thread.start()

    def write(self, work: TransactionWork[T], *, after: Callable[[], None] | None = None) -> T:
        """Do it in a transaction; its result once that is on the disk. ``after`` is called then; it
        is quick and raises nothing.

        Raises OutboxFull, OutboxUnusable, an error of the work, or StateError when closed; then
        nothing of it was stored. An exception of a signal handler comes through, stored or not.
        """
        if self._here.writing:
            state = "writing at this moment for the call that was interrupted"
            raise StateError(
                event="use",
                what="the outbox",
                state=state,
                remedy="Call it from another thread than a signal handler or __del__ does",
            )
        if self._waits or not self._jobs.empty() or self._writing.locked():
            return self.submit(work, after=after).result()
        self._here.writing = True
        try:
            with self._writing:
                if self._closed:
                    raise not_open_error()
                [result] = self._run_in_one_transaction([work], durable=True)
                if after is not None:
                    after()
        finally:
            self._here.writing = False
        found: T = result
        return found

    def submit(
        self,
        work: TransactionWork[T],
        *,
        durable: bool = True,
        after: Callable[[], None] | None = None,
    ) -> GroupCommitFuture[T]:
        """Submit without a wait; the future has the result of :meth:`write`. Raises StateError when
        closed.

        A request that need not be ``durable`` is done when the operating system has it.
        """
        reply: GroupCommitFuture[T] = GroupCommitFuture()
        self._enqueue(_QueuedWork(work, durable, after, reply))
        return reply

    def submit_async(
        self,
        work: TransactionWork[T],
        *,
        durable: bool = True,
        after: Callable[[], None] | None = None,
    ) -> asyncio.Future[T]:
        """Submit for the running loop. A cancelled request is not written if it was not begun."""
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(_QueuedWork(work, durable, after, reply))
        return reply

    def close(self) -> None:
        """Write what was asked for, and end."""
        with self._asking:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()
        with self._writing:
            if (
                not self._files.are_in_place
            ):  # SQLite would leave messages in its log, at the old path
                with suppress(sqlite3.Error):
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._connection.close()

    def translate(self, error: Exception) -> Exception:
        """Return the error of ours for one of SQLite's. Where a file is not at its path any more,
        that is the cause.
        """
        found = (
            translate_sqlite_error(error, self._path) if isinstance(error, sqlite3.Error) else error
        )
        if isinstance(found, OutboxUnusable):
            try:
                self._files.check()
            except OutboxUnusable as moved:
                return moved
        return found

    def _enqueue(self, job: _QueuedWork) -> None:
        with self._asking:
            if self._closed:
                raise not_open_error()
            self._jobs.put(job)

    # -- in the thread -----------------------------------------------------------------------------

    def _write_until_closed(self) -> None:
        while (first := self._jobs.get()) is not None:
            self._waits = True  # no caller goes first from now on
            with self._writing:
                self._waits = False
                self._write(
                    [job for job in self._collect_waiting_works(first) if not job.is_cancelled]
                )

    def _collect_waiting_works(self, first: _QueuedWork) -> list[_QueuedWork]:
        """Return the requests that came meanwhile."""
        some = [first]
        while len(some) < MAX_CALLS_PER_TRANSACTION and not self._jobs.empty():
            if (job := self._jobs.get()) is None:
                self._jobs.put(None)
                break
            some.append(job)
        return some

    def _write(self, jobs: list[_QueuedWork]) -> None:
        if not jobs:
            return
        try:
            results = self._run_in_one_transaction(
                [job.work for job in jobs], durable=any(job.durable for job in jobs)
            )
        except Exception as error:  # noqa: BLE001  # whatever a work raises is for who asked for it
            if len(jobs) == 1 and not isinstance(error, OutboxFull):
                self._set_outcomes(jobs, [_Outcome(error=error)])
            else:  # one of them may be to blame, or all fit one by one
                for job in jobs:
                    self._set_outcomes([job], [self._run_alone(job)])
        else:
            self._set_outcomes(jobs, [_Outcome(result) for result in results])

    def _run_alone(self, job: _QueuedWork) -> _Outcome:
        """On a full disk deletions may use the reserve."""
        outcome = self._run_and_catch(job)
        if isinstance(outcome.error, OutboxFull) and not job.durable:
            self._reserve.release()
            self._free_disk_space()
            outcome = self._run_and_catch(job)
        return outcome

    def _run_and_catch(self, job: _QueuedWork) -> _Outcome:
        try:
            [result] = self._run_in_one_transaction([job.work], job.durable)
        except Exception as error:  # noqa: BLE001  # as above
            return _Outcome(error=error)
        return _Outcome(result)

    def _set_outcomes(self, jobs: list[_QueuedWork], outcomes: list[_Outcome]) -> None:
        """Callers come first: later work is for others."""
        awaited: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], _Outcome]]] = {}
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(job.reply, GroupCommitFuture):
                job.reply.set_outcome(outcome)
            else:
                awaited.setdefault(job.reply.get_loop(), []).append((job.reply, outcome))
        for loop, some in awaited.items():
            with suppress(
                RuntimeError
            ):  # the loop is closed, and so is every call that waited in it
                loop.call_soon_threadsafe(
                    _set_outcomes_in_loop, some
                )  # once for all, as each call wakes the loop
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.error is None and job.after is not None:
                job.after()

    # -- with the lock -----------------------------------------------------------------------------

    def _run_in_one_transaction(
        self, works: list[TransactionWork[Any]], durable: bool
    ) -> list[Any]:
        """All of them in one transaction, or nothing. Raises OutboxFull, OutboxUnusable, or
        what a work raises.
        """
        connection = self._connection
        if durable:
            self._files.check()
            if not self._has_room():
                raise self._disk_full_error()
        try:
            self._roll_back()
            self._limit.apply()
            self._set_durability(durable)
            connection.execute("BEGIN IMMEDIATE")
            results = [work(connection) for work in works]
            connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                found = self.translate(error)
                raise (
                    self._disk_full_error() if isinstance(found, OutboxFull) else found
                ) from error
            raise
        return results

    def _disk_full_error(self) -> OutboxFull:
        return OutboxFull(path=str(self._path), reason=self._reserve.explain())

    def _has_room(self) -> bool:
        """Whether something new may be stored."""
        if self._reserve.try_to_hold():
            return True
        self._free_disk_space()
        return self._reserve.try_to_hold()

    def _free_disk_space(self) -> None:
        """Give free pages back to the disk, and empty the log of what the file has."""
        with suppress(sqlite3.Error):
            self._connection.execute(f"PRAGMA incremental_vacuum({sql.MAX_FREE_PAGES})").fetchall()
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):  # it was rolled back by what failed
                self._connection.execute("ROLLBACK")

    def _set_durability(self, durable: bool) -> None:
        if durable != self._synced:
            self._synced = False  # until it is certain
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._synced = durable


def _set_outcomes_in_loop(some: list[tuple[asyncio.Future[Any], _Outcome]]) -> None:
    """In their loop."""
    for reply, outcome in some:
        if reply.done():
            continue  # it was cancelled meanwhile
        if outcome.error is None:
            reply.set_result(outcome.result)
        else:
            reply.set_exception(outcome.error)


def not_open_error() -> StateError:
    """The error for an outbox that is not open."""
    return StateError(
        event="use",
        what="the outbox",
        state="not open",
        remedy="Use it inside 'async with Outbox(...) as outbox:'",
    )
