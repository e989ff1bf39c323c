"""A store over several sources: Redis itself and links to others.

The calls of a store over several sources to each of them: in its own thread, or in one of each,
so that an unreachable one delays no other.

A store over several: Redis itself and links to others. Satisfies ReadStore; queues are named as
``sources.spell`` does.

Answers about many queues leave out those of an unreachable source : the state of such
a queue is unknown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import methodcaller
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.queue.keys import QueueKeys, by_source, display_name, qualified_name, split_name
from busmq_spark.queue.message import Position, Range
from busmq_spark.redis_io.queue_location import no_pause
from busmq_spark.redis_io.retry import LinkRetry, Pauses
from busmq_spark.store.protocol import (
    ConsecutiveMessages,
    FailureDomain,
    LossCauseEvidence,
    MultiQueueCallSplitter,
    ReadStore,
    restrict_to,
)
from busmq_spark.store.redis_store import RedisStore

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


V = TypeVar("V")
FETCH_BUDGET_S = ANSWER_BUDGET_S / 2
"""Rows that a slow link has not brought by then are left to the tasks: the link is there, only
slow.
"""


class MultiSourceStore(MultiQueueCallSplitter):
    """``callers`` by source, '' for Redis itself."""

    def __init__(self, callers: Mapping[str, StoreCaller]) -> None:
        self._callers = callers
        self.listed_sources: set[str] = set()
        """Sources that have listed their queues."""
        self.unanswered_count = 0

    @property
    def unavailable(self) -> set[str]:
        """The sources that cannot be asked now."""
        return {source for source, caller in self._callers.items() if caller.unavailable}

    @property
    def redis_store(self) -> RedisStore | None:
        """The store of Redis itself, where it takes part."""
        caller = self._callers.get("")
        return (
            caller.store
            if isinstance(caller, SameThreadStoreCaller) and isinstance(caller.store, RedisStore)
            else None
        )

    def keys(self, queue: str) -> QueueKeys:
        """Return the keys in the spelling of one server; a link spells its own."""
        return QueueKeys(split_name(queue)[1])

    def locate(self, queues: Sequence[str]) -> Mapping[str, int]:
        """A link's queues are located where they are read: planning may not wait for it."""
        own = [queue for queue in queues if not split_name(queue)[0]]
        return {**dict.fromkeys(queues, 0), **(self.ask_each("locate", own) if own else {})}

    def failure_domains(self, queues: Collection[str]) -> Mapping[str, FailureDomain]:
        """A link is one failure domain, whatever servers it has."""
        own = [queue for queue in queues if not split_name(queue)[0]]
        return {
            **{queue: (split_name(queue)[0], 0, "") for queue in queues},
            **(self.redis_store.failure_domains(own) if own and self.redis_store else {}),
        }

    def set_failure_domain(self, queues: Collection[str], domain: FailureDomain) -> None:
        if not domain[0] and self.redis_store is not None:
            self.redis_store.set_failure_domain(queues, domain)

    def discover(
        self, accept: Callable[[str], bool], pace: Callable[[], object] = no_pause
    ) -> list[str]:
        def ask(source: str) -> Callable[[ReadStore], list[str]]:
            # A name that does not come back whole would be taken for another source's.
            return lambda store: store.discover(
                lambda queue: (
                    split_name(qualified_name(source, queue)) == (source, queue)
                    and accept(qualified_name(source, queue))
                ),
                pace,
            )

        return self._list_queues({source: ask(source) for source in self._callers})

    def topic_queues(self, topics: Sequence[str], partitions: int | None = None) -> list[str]:
        return self._list_queues(
            dict.fromkeys(self._callers, methodcaller("topic_queues", topics, partitions))
        )

    def _list_queues(self, asks: Mapping[str, Callable[[ReadStore], list[str]]]) -> list[str]:
        found: list[str] = []
        for source, queues in self._answers(asks).items():
            self.listed_sources.add(source)
            found += [qualified_name(source, queue) for queue in queues]
        return found

    def counters(self, queues: Sequence[str]) -> Sequence[object]:
        """The counter is None for a queue that cannot be asked for now."""
        found = self._ask_with_full_names(
            {source: _bind_part(_counters, own) for source, own in by_source(queues).items()}
        )
        return [found.get(queue) for queue in queues]

    def intact(
        self, wanted: Mapping[str, tuple[Position, int]]
    ) -> Mapping[str, tuple[int, str] | None]:
        """Links are not asked."""
        return self.ask_each("intact", wanted)

    def traces(self, queue: str) -> LossCauseEvidence:
        """Return the evidence of the source; nothing is known of a source that has become
        unreachable.
        """
        return self._ask_one(
            queue, lambda store, own: store.traces(own), LossCauseEvidence(None, 0, empty=False)
        )

    def bytes_until(self, queue: str, first: int, last: int, budget: int) -> tuple[int, int]:
        """Nothing of a source that became unreachable meanwhile."""
        return self._ask_one(
            queue, lambda store, own: store.bytes_until(own, first, last, budget), (first - 1, 0)
        )

    def fetch(
        self, parts: Sequence[Range], most_bytes: int, fail_on_data_loss: bool
    ) -> Mapping[str, Sequence[ConsecutiveMessages] | None]:
        """The rows of ranges of links; the value is None for a range over ``most_bytes`` of a link,
        or of a slow link. Queues of an unreachable link are left out.
        """
        asked: dict[str, list[Range]] = {}
        for part in parts:
            source, queue = split_name(part.queue)
            asked.setdefault(source, []).append(part._replace(queue=queue))
        found = self._ask_with_full_names(
            {
                s: _bind_part(
                    lambda store, own: _fetch_parts(store, own, most_bytes, fail_on_data_loss), own
                )
                for s, own in asked.items()
            }
        )
        return {
            name: rows and [replace(piece, queue=name) for piece in rows]
            for name, rows in found.items()
        }

    def read(self, part: Range, fail_on_data_loss: bool) -> Iterator[ConsecutiveMessages]:
        return self.read_many([part], fail_on_data_loss)

    def read_many(
        self, parts: Sequence[Range], fail_on_data_loss: bool
    ) -> Iterator[ConsecutiveMessages]:
        """For tasks, so with direct callers only. With patience it resumes after the last row
        received, however long its link was unreachable.
        """
        for source, group in groupby(parts, key=lambda part: split_name(part.queue)[0]):
            if not source and self.redis_store is not None:
                yield from self.redis_store.read_many(list(group), fail_on_data_loss)
            else:
                yield from self._read(
                    source,
                    [part._replace(queue=split_name(part.queue)[1]) for part in group],
                    fail_on_data_loss,
                )

    def _read(self, source: str, rest: list[Range], strict: bool) -> Iterator[ConsecutiveMessages]:
        caller = self._callers[source]
        assert isinstance(caller, SameThreadStoreCaller), (
            "a reading task waits for its own source alone"
        )
        while rest:
            try:
                for rows in caller.store.read_many(_locate_parts(caller.store, rest), strict):
                    caller.report_reached()
                    rest = _ranges_after(rest, rows)
                    yield replace(rows, queue=qualified_name(source, rows.queue))
                return
            except BusError as error:
                caller.wait_or_raise(error)

    def ask_each(
        self, name: str, queues: Sequence[str] | Mapping[str, Any], *rest: Any
    ) -> dict[str, Any]:
        """Each source is asked about its own queues."""
        asked = {
            source: [restrict_to(own, argument, source) for argument in (queues, *rest)]
            for source, own in by_source(queues).items()
        }
        return self._ask_with_full_names(
            {source: methodcaller(name, *arguments) for source, arguments in asked.items()}
        )

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()

    def _ask_one(self, name: str, ask: Callable[[ReadStore, str], T], absent: T) -> T:
        source, queue = split_name(name)
        return self._answers({source: _bind_part(ask, queue)}).get(source, absent)

    def _ask_with_full_names(
        self, asks: Mapping[str, Callable[[ReadStore], Mapping[str, T]]]
    ) -> dict[str, T]:
        return {
            qualified_name(source, queue): answer
            for source, found in self._answers(asks).items()
            for queue, answer in found.items()
        }

    def _answers(self, asks: Mapping[str, Callable[[ReadStore], T]]) -> dict[str, T]:
        """The answers of the sources that are there, asked all at the same time. An error is raised
        once all have answered.
        """
        answers = {source: self._callers[source].begin_asking(ask) for source, ask in asks.items()}
        found: dict[str, T] = {}
        errors: list[BusError] = []
        for source, answer in answers.items():
            try:
                found[source] = answer()
            except SourceUnavailable:
                self.unanswered_count += 1
            except BusError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return found


def rows_within(rows: Sequence[ConsecutiveMessages], part: Range) -> list[ConsecutiveMessages]:
    """Return the part of ``rows`` in a range; nothing when they do not reach over all of it."""
    if not rows or rows[0].first > part.first or rows[-1].first + len(rows[-1].values) <= part.last:
        return []
    found = []
    for piece in rows:
        first, end = (
            max(piece.first, part.first),
            min(piece.first + len(piece.values), part.last + 1),
        )
        if first < end:
            found.append(
                replace(
                    piece, first=first, values=piece.values.slice(first - piece.first, end - first)
                )
            )
    return found


def _fetch_parts(
    store: ReadStore, parts: Sequence[Range], most_bytes: int, strict: bool
) -> dict[str, list[ConsecutiveMessages] | None]:
    """Return the rows that have come when ``most_bytes`` or the time are used up, of the ranges
    that are complete then.
    """
    found: dict[str, list[ConsecutiveMessages] | None] = dict.fromkeys(
        (part.queue for part in parts), None
    )
    rest, coming = list(parts), dict[str, list[ConsecutiveMessages]]()
    until = time.monotonic() + FETCH_BUDGET_S
    for rows in store.read_many(_locate_parts(store, parts), strict):
        most_bytes -= rows.values.nbytes
        if most_bytes < 0 or time.monotonic() > until:
            break
        coming.setdefault(rows.queue, []).append(rows)
        rest = _ranges_after(rest, rows)
    else:
        rest = []
    open_ = {part.queue for part in rest}
    found.update(
        {part.queue: coming.get(part.queue, []) for part in parts if part.queue not in open_}
    )
    return found


def _locate_parts(store: ReadStore, parts: Sequence[Range]) -> list[Range]:
    servers = store.locate(list(dict.fromkeys(part.queue for part in parts)))
    return [part._replace(server=servers[part.queue]) for part in parts]


def _ranges_after(parts: list[Range], rows: ConsecutiveMessages) -> list[Range]:
    """Return the parts of the ranges after these rows: rows come in the order of the ranges."""
    at = next(
        at
        for at, part in enumerate(parts)
        if part.queue == rows.queue and part.first <= rows.first <= part.last
    )
    need = rows.first + len(rows.values)
    return (
        [parts[at]._replace(first=need), *parts[at + 1 :]]
        if need <= parts[at].last
        else parts[at + 1 :]
    )


def _counters(store: ReadStore, queues: list[str]) -> dict[str, object]:
    return dict(zip(queues, store.counters(queues), strict=True))


def _bind_part(ask: Callable[[ReadStore, V], T], part: V) -> Callable[[ReadStore], T]:
    return lambda store: ask(store, part)
