"""The one thread that writes to a store: what callers ask for while it waits for the disk is written together, in their order, with one fsync."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from busmq_spark.errors import BusError, OutboxFull, StateError
from busmq_spark.outbox import rows
from busmq_spark.outbox.reserve import RESERVE_BYTES, Reserve
from busmq_spark.outbox.schema import translate

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]
MOST_TOGETHER = 1000
"""Calls in one transaction."""


@dataclass(frozen=True, slots=True)
class _Job:
    work: Work[Any]
    future: Future[Any]
    durable: bool
    after: Callable[[Any], None] | None


class Writer:
    """Begins with its creation, and has the connection from then on, until :meth:`close`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, reserve: Reserve) -> None:
        self._connection, self._path, self._reserve = connection, path, reserve
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._synced = True
        self._thread = threading.Thread(target=self._run, name="busmq-outbox-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T], *, durable: bool = True, after: Callable[[T], None] | None = None) -> Future[T]:
        """Do it in a transaction; its result once that is on the disk or, where it need not be ``durable``, with the operating system.

        ``after`` is called with the result then, awaited or not; it is quick and raises nothing.

        The future raises OutboxFull, OutboxUnusable or what the work raises; then nothing of it was stored. Raises StateError when closed.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise closed()
            self._jobs.append(_Job(work, future, durable, after))
            if len(self._jobs) == 1:
                self._changed.notify()
        return future

    def close(self) -> None:
        """Write what was asked for, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                some = [self._jobs.popleft() for _ in range(min(len(self._jobs), MOST_TOGETHER))]
            if not some:
                return
            some = [job for job in some if job.future.set_running_or_notify_cancel()]
            if (error := self._together(some)) is not None and len(some) > 1:
                for job in some:  # one of them may be to blame, or all fit one by one
                    self._settle([job], self._alone(job))
            elif error is not None and some:
                self._settle(some, self._alone(some[0]) if isinstance(error, OutboxFull) else error)
            else:
                self._settle(some, error)

    def _alone(self, job: _Job) -> BaseException | None:
        """As of :meth:`_together`. On a full disk deletions may use the reserve."""
        error = self._together([job])
        if isinstance(error, OutboxFull) and not job.durable:
            self._reserve.give_up()
            self._shrink()
            error = self._together([job])
        return error

    def _shrink(self) -> None:
        """Give free pages back to the disk, and empty the log of what the file has."""
        with suppress(sqlite3.Error):
            self._connection.execute(f"PRAGMA incremental_vacuum({rows.SPARE_PAGES})").fetchall()
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _has_room(self) -> bool:
        """Whether something new may be stored."""
        if self._reserve.take():
            return True
        self._shrink()
        return self._reserve.take()

    def _together(self, jobs: list[_Job]) -> BaseException | None:
        """All of them in one transaction, or nothing; what went wrong then. Results wait in the jobs' futures."""
        connection = self._connection
        durable = any(job.durable for job in jobs)
        try:
            if durable and not self._has_room():
                return OutboxFull(path=str(self._path), reason=f"it has no {RESERVE_BYTES >> 20} MB left, which it needs to forward what it has")
            self._sync(durable)
            connection.execute("BEGIN IMMEDIATE")
            self._results = [job.work(connection) for job in jobs]
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            return translate(error, self._path)
        except Exception as error:  # noqa: BLE001  whatever a work raises is for who asked for it
            self._undo()
            return error
        return None

    def _settle(self, jobs: list[_Job], error: BaseException | None) -> None:
        for job, result in zip(jobs, self._results if error is None else jobs, strict=True):
            if error is None:
                if job.after is not None:
                    job.after(result)
                job.future.set_result(result)
            else:
                job.future.set_exception(error if len(jobs) == 1 else _copied(error))

    def _undo(self) -> None:
        with suppress(sqlite3.Error):  # it was rolled back by what failed
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _sync(self, durable: bool) -> None:
        if durable != self._synced:
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._synced = durable


def _copied(error: BaseException) -> BaseException:
    """Each caller raises one of its own: a traceback grows where it is raised."""
    return type(error)(**error.details) if isinstance(error, BusError) else error


def closed() -> StateError:
    """The error for an outbox that is not open."""
    return StateError(event="use", what="the outbox", state="not open", remedy="Use it inside 'async with Outbox(...) as outbox:'")
