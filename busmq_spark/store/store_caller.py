"""The calls of a store over several sources to each of them: in its own thread, or in one of each,
so that an unreachable one delays no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.queue.qualified_queue_names import display_name, qualified_name
from busmq_spark.redis_io.retry import LinkRetry, Pauses
from busmq_spark.store.protocol import ReadStore

T = TypeVar("T")
Ask = Callable[[ReadStore], T]

ANSWER_BUDGET_S = 2.0
"""A link without an answer for so long counts as unreachable. After a late answer the budget
doubles, until many answers were prompt.
"""
MAX_ANSWER_BUDGET_S = 30.0
PROBE_PAUSES_S = (0.1, 2.0)
"""The first and the longest pause between two probes of an unreachable link."""
log = logging.getLogger("busmq_spark")


class SourceUnavailable(Exception):  # a state, not an error: it never leaves the store
    """The source cannot be asked now."""


class StoreCaller(Protocol):
    """A source. ``begin_asking`` sends a question and returns a function that waits for the answer;
    many sources can be asked at the same time.
    """

    @property
    def unavailable(self) -> bool: ...
    def begin_asking(self, ask: Ask[T]) -> Callable[[], T]: ...
    def close(self) -> None: ...


def with_link_name(source: str, error: BusError) -> BusError:
    """Return the error, with the name of the link in it."""
    if not source:
        return error
    details = dict(error.details)
    if "queue" in details:
        details["queue"] = display_name(qualified_name(source, str(details["queue"])))
    elif "reason" in details:
        details["reason"] = f"link {source!r}: {details['reason']}"
    return type(error)(**details)


class SameThreadStoreCaller:
    """Calls the source in the caller's thread. After LinkLost it retries for ``patience_s``, with
    one line in the log.
    """

    unavailable = False

    def __init__(self, source: str, store: ReadStore, patience_s: float = 0.0) -> None:
        self.store = store
        self._source, self._patience_s = source, patience_s
        self._retry: LinkRetry | None = None

    def begin_asking(self, ask: Ask[T]) -> Callable[[], T]:
        return lambda: self._ask_with_patience(ask)

    def wait_or_raise(self, error: BusError) -> None:
        """Returns when the question that met this error is to be asked again, else raises the
        error.
        """
        retry, self._retry = self._retry or LinkRetry(time.monotonic), None
        with retry.pausing(with_link_name(self._source, error), self._patience_s) as pause_s:
            if retry.failures == 1:
                log.warning("link %r cannot be reached (%s); waiting for it", self._source, error)
            self._retry = retry
            time.sleep(pause_s)

    def report_reached(self) -> None:
        """An answer came."""
        if self._retry is not None:
            log.warning("link %r is reached again", self._source)
        self._retry = None

    def close(self) -> None:
        self.store.close()

    def _ask_with_patience(self, ask: Ask[T]) -> T:
        while True:
            try:
                found = ask(self.store)
            except BusError as error:
                self.wait_or_raise(error)
                continue
            self.report_reached()
            return found


class _QueuedQuestion:
    """A question that waits for the thread of a source, or is answered there."""

    def __init__(self, ask: Ask[Any]) -> None:
        self.ask = ask
        self.began = time.monotonic()
        self.done = threading.Event()
        self.late = False
        self.answer: Any = None
        self.error: Exception | None = None

    def answer_from(self, store: ReadStore) -> None:
        try:
            self.answer = self.ask(store)
        except Exception as error:  # noqa: BLE001  # it is raised where the answer is waited for
            self.error = error


class ThreadedStoreCaller:
    """A source that does not delay the others: a caller waits for a budget at most, then the source
    is paused until a probe has reached it.

    The store belongs to the thread alone. Every call here may be repeated: the probe is the call
    that failed.
    """

    def __init__(self, source: str, make: Callable[[], ReadStore], *, quiet: bool = False) -> None:
        self._source, self._make, self._quiet = source, make, quiet
        self._budget_s = ANSWER_BUDGET_S
        self._jobs: SimpleQueue[_QueuedQuestion | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._reason: str | None = None

    @property
    def unavailable(self) -> bool:
        return self._reason is not None

    def begin_asking(self, ask: Ask[T]) -> Callable[[], T]:
        if self._reason is not None:
            return self._raise_unavailable
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._answer_questions, name=f"busmq-link-{self._source}", daemon=True
            )
            self._thread.start()
        job, until = _QueuedQuestion(ask), time.monotonic() + self._budget_s
        self._jobs.put(job)
        return lambda: self._wait_for_answer(job, until)

    def close(self) -> None:
        """Ends the thread and its store; returns at once."""
        self._closed.set()
        self._jobs.put(None)

    def _raise_unavailable(self) -> Any:
        raise SourceUnavailable

    def _wait_for_answer(self, job: _QueuedQuestion, until: float) -> Any:
        job.done.wait(max(0.0, until - time.monotonic()))
        with self._lock:
            if not job.done.is_set():
                job.late = True
                self._mark_unavailable(f"no answer within {self._budget_s:g} s")
                raise SourceUnavailable
        if isinstance(job.error, LinkLost):
            raise SourceUnavailable
        if job.error is not None:
            raise (
                with_link_name(self._source, job.error)
                if isinstance(job.error, BusError)
                else job.error
            )
        return job.answer

    def _answer_questions(self) -> None:
        store = self._make()
        while (job := self._jobs.get()) is not None:
            job.answer_from(store)
            with self._lock:
                if lost := isinstance(job.error, LinkLost):
                    self._mark_unavailable(str(job.error))
                elif job.late:
                    self._budget_s = min(MAX_ANSWER_BUDGET_S, 2 * self._budget_s)
                    self._mark_available()
                elif time.monotonic() - job.began < ANSWER_BUDGET_S / 2:
                    self._budget_s = max(ANSWER_BUDGET_S, 0.9 * self._budget_s)
                job.done.set()
            if lost:
                self._wait_until_reached(store, job.ask)
        store.close()

    def _wait_until_reached(self, store: ReadStore, ask: Ask[Any]) -> None:
        pauses = Pauses(*PROBE_PAUSES_S)
        while not self._closed.wait(pauses.next_s()):
            probe = _QueuedQuestion(ask)
            probe.answer_from(store)
            if not isinstance(
                probe.error, LinkLost
            ):  # another error comes up when the question is asked next
                with self._lock:
                    self._mark_available()
                return

    def _mark_unavailable(self, reason: str) -> None:
        if self._reason is None and not self._quiet:
            log.warning(
                "link %r cannot be reached (%s); its queues wait where they are, the others go on",
                self._source,
                reason,
            )
        self._reason = reason

    def _mark_available(self) -> None:
        if self._reason is not None and not self._quiet:
            log.warning("link %r is reached again; its queues go on where they were", self._source)
        self._reason = None
