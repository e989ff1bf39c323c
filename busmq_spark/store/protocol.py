"""The place of the messages: the small protocol that reader and writer talk to. They never know
whether it is Redis or a federation server.

Queues are named; a store finds their server itself and caches it as a number (``server``) that
travels with ranges and staged lists. Every method raises LinkLost when the other side does not
answer in time, and repeats by itself what can be repeated.

Methods that pass their arguments on, made of the method of the protocol that they satisfy: name,
parameters and result are said once, there.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from busmq_spark.errors import QueueFull, QueueMissing
from busmq_spark.queue.keys import QueueKeys, qualified_name
from busmq_spark.queue.message import Position, Range
from busmq_spark.queue.queue import AttachResult
from busmq_spark.reading.reader_operations import AckResult, QueueState
from busmq_spark.reading.times_of_ids import TimeLookupResult, TimesOfIds
from busmq_spark.redis_io.queue_location import no_pause
from busmq_spark.writing.mirror import OriginQueueState, Positions
from busmq_spark.writing.sink import CommitStoppedAtMaxsize, StagedList
from busmq_spark.writing.sink_rollback import SinkState
from busmq_spark.writing.sink_runs import SinkRun

FailureDomain: TypeAlias = tuple[str, int, str]
"""Link ('' for Redis itself), server and node of a cluster ('' elsewhere): queues of one failure
domain are unavailable together.
"""


@dataclass(frozen=True, slots=True)
class QueueCreateOptions:
    """The settings of a queue that attach creates; ``allowed`` false raises QueueMissing
    instead.
    """

    allowed: bool
    ttl_s: int
    maxsize: int = 0


@dataclass(frozen=True, slots=True)
class ConsecutiveMessages:
    """Consecutive messages: the first has id ``first``, ``values`` is an Arrow array of binary in
    id order.
    """

    queue: str
    first: int
    values: Any


@dataclass(frozen=True, slots=True)
class LossCauseEvidence:
    """Evidence of the client that removed messages: ids held by a reliable consumer, listeners
    besides our own, an empty database.
    """

    unacked: tuple[int, int] | None
    listeners: int
    empty: bool
    acked: int = 0
    """The last id that a query without a subscription has acknowledged; 0 also where that is not
    known, as on a federation server.
    """


RowStream: TypeAlias = Generator[ConsecutiveMessages, None, None]
"""A lazy stream of rows. Read it to the end or close it."""


class FullQueueWait:
    """The wait for a queue at its ``maxsize``: it ends after ``timeout_ms`` without room, 0 fails
    at once.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._since: float | None = None
        self._left = -1

    def restart_deadline(self) -> None:
        """Some rows found room: the deadline starts anew with the next that do not."""
        self._since = None

    def push_all(
        self,
        queue: str,
        values: Sequence[bytes],
        push: Callable[[Sequence[bytes]], tuple[int, int]],
    ) -> None:
        """``push`` appends those of its values that have room, and returns how many, and the
        queue's maxsize. Raises QueueFull.
        """
        while values:
            stored, maxsize = push(values)
            values = values[stored:]
            if stored:
                self.restart_deadline()
            if values:
                self.wait_for_room(queue, maxsize, len(values))

    def wait_for_room(self, queue: str, maxsize: int, left: int) -> None:
        """Called each time there is no room for ``left`` rows; sleeps a little, or raises
        QueueFull.
        """
        now = time.monotonic()
        if self._since is None or left != self._left:
            self._since, self._left = now, left
        if now - self._since >= self._timeout_s:
            waited = f" for {self._timeout_s:g} s" if self._timeout_s else ""
            raise QueueFull(queue=queue, maxsize=maxsize, left=left, waited=waited)
        time.sleep(min(0.1, max(0.005, (now - self._since) / 4)))


class ReadStore(Protocol):
    """The operations of a source on the driver, and ``read`` in tasks."""

    def keys(self, queue: str) -> QueueKeys: ...
    def locate(self, queues: Sequence[str]) -> Mapping[str, int]: ...
    def discover(
        self, accept: Callable[[str], bool], pace: Callable[[], object] = no_pause
    ) -> list[str]:
        """Every queue that exists and is accepted. ``pace`` is called between two steps of a walk
        over the keys of a Redis, and may wait.
        """
        ...

    def topic_queues(self, topics: Sequence[str], partitions: int | None = None) -> list[str]:
        """The partition queues of topics. A topic that does not exist is created with so many
        ``partitions``.

        Raises TopicMissing where that is None. A federation server answers with those queues that
        exist.
        """
        ...

    def attach(
        self, queues: Sequence[str], creation: QueueCreateOptions
    ) -> Mapping[str, AttachResult]: ...
    def states(self, wanted: Mapping[str, int]) -> Mapping[str, QueueState]: ...
    def marks(self, ids: Mapping[str, int]) -> Mapping[str, str]: ...
    def counters(self, queues: Sequence[str]) -> Sequence[object]: ...
    def note_times(self, queues: Sequence[str]) -> Mapping[str, int]: ...
    def find_times(self, wanted: Mapping[str, int]) -> Mapping[str, TimeLookupResult]: ...
    def times(self, ids: Mapping[str, tuple[int, int]]) -> Mapping[str, TimesOfIds]:
        """Some of the known times around the ids of each queue, first and last;
        ``core.times_of_ids.TimesOfIdsCollector`` asks until it has all.
        """
        ...

    def ages(self, ids: Mapping[str, int]) -> Mapping[str, int]:
        """For how many milliseconds a message of each queue has been there, or a little less; -1
        where that is not known.
        """
        ...

    def ack(
        self, positions: Mapping[str, Position], subscription: str
    ) -> Mapping[str, AckResult]: ...
    def subscribe(
        self, starts: Mapping[str, str | int], subscription: str
    ) -> Mapping[str, int]: ...
    def subscriptions(self, queues: Sequence[str]) -> Mapping[str, Mapping[str, int]]: ...
    def lease(
        self, queues: Sequence[str], subscription: str, token: str, dead: Mapping[str, str]
    ) -> Mapping[str, str]: ...
    def holders(self, queues: Sequence[str], subscription: str) -> Mapping[str, str]: ...
    def keep_alive(
        self, queues: Sequence[str], subscription: str, token: str
    ) -> Mapping[str, int]: ...
    def traces(self, queue: str) -> LossCauseEvidence: ...
    def bytes_until(self, queue: str, first: int, last: int, budget: int) -> tuple[int, int]: ...
    def read(self, part: Range, fail_on_data_loss: bool) -> Iterator[ConsecutiveMessages]: ...
    def read_many(
        self, parts: Sequence[Range], fail_on_data_loss: bool
    ) -> Iterator[ConsecutiveMessages]:
        """The messages of ranges, one range after the other; as ``read`` of each, in fewer round
        trips where that can be.
        """
        ...

    def close(self) -> None: ...


class MirrorOriginReadStore(ReadStore, Protocol):
    """The operations of a mirror at its origin, beside the ranges (writing/mirror.py)."""

    def spans(self, wanted: Mapping[str, tuple[int, int]]) -> Mapping[str, OriginQueueState]: ...
    def read_with_spans(
        self, parts: Sequence[Range]
    ) -> tuple[Mapping[str, OriginQueueState], RowStream]:
        """The spans around ranges, one of each queue, and then what of them is stored; ``last`` may
        be NEWEST. It takes one round trip, where that can be.
        """
        ...

    def positions(self, queues: Sequence[str]) -> Mapping[str, tuple[str, Positions]]: ...


class PlanningStore(ReadStore, Protocol):
    """The operations with which a streaming source plans. Answers about many queues leave out those
    of an unreachable source (a counter is None).

    A source is a link of federation, or Redis itself: '' is the source that is no link.
    """

    @property
    def unavailable(self) -> Collection[str]:
        """The sources that cannot be asked now."""
        ...

    def intact(
        self, wanted: Mapping[str, tuple[Position, int]]
    ) -> Mapping[str, tuple[int, str] | None]:
        """Whether each queue, of Redis itself, has all that follows a position
        (reading/reader_operations.py).
        """
        ...

    @property
    def unanswered_count(self) -> int:
        """Return the number of questions that no source has answered so far. A caller compares it
        before and after: a source that recovered in between is no longer in ``unavailable``, but
        its answers are still missing.
        """
        ...

    @property
    def listed_sources(self) -> Collection[str]:
        """The sources that have listed their queues."""
        ...

    def failure_domains(self, queues: Collection[str]) -> Mapping[str, FailureDomain]:
        """Return the known failure domain of each queue."""
        ...

    def set_failure_domain(self, queues: Collection[str], domain: FailureDomain) -> None:
        """Say where queues are: no other server is asked for them."""
        ...


class PushListeners(Protocol):
    """Wakes a planner when something is pushed to one of the queues, where it can; the planner
    polls anyway.
    """

    def listen(self, queues: Sequence[str]) -> None:
        """Listen to exactly these queues from now on."""
        ...

    def stop(self) -> None: ...


class SinkAppender(Protocol):
    """Writes of one task: chunks go out while the next are made. Either ``stage`` or a ``push`` is
    used, then ``finish`` waits for the rest.

    While chunks are under way the store answers nothing else: ``wait_until_stored`` waits for them.
    """

    def stage(
        self, queue: str, key: str, values: Sequence[bytes], run: SinkRun | None = None
    ) -> None: ...
    def push(self, queue: str, values: Sequence[bytes], full: FullQueueWait) -> None: ...
    def push_each(self, parts: Mapping[str, Sequence[bytes]], full: FullQueueWait) -> None:
        """Push to each queue, like ``push``, in fewer round trips where that can be. No part is
        empty.
        """
        for queue, values in parts.items():
            self.push(queue, values, full)

    def wait_until_stored(self) -> None: ...
    def finish(self) -> list[StagedList]:
        """Wait until everything is stored, and return the staged lists, in the order of the first
        row of each.
        """
        ...

    def discard(self) -> None: ...
    def abandon(self) -> None: ...


class WriteStore(Protocol):
    """The operations of a sink: staging and appending in tasks, committing on the driver."""

    def keys(self, queue: str) -> QueueKeys: ...
    def locate(self, queues: Sequence[str]) -> Mapping[str, int]: ...
    def attach(
        self, queues: Sequence[str], creation: QueueCreateOptions
    ) -> Mapping[str, AttachResult]: ...
    def partitions(self, topic: str, create: int | None = None) -> int:
        """Return the number of partitions of a topic; one that does not exist is made with so many,
        but not by a federation server. Raises TopicMissing.
        """
        ...

    def appender(self) -> SinkAppender: ...
    def begin(self, sink: str, run: str, queues: Sequence[str]) -> SinkRun:
        """A task of a run will stage rows for queues. The first call removes lists that earlier
        runs of the sink have staged and not recorded.
        """
        ...

    def renew(self, run: SinkRun) -> None:
        """Let what the run has staged live on."""
        ...

    def record(  # noqa: PLR0913  # in the order of the operation on the wire
        self,
        sink: str,
        batch: int,
        staged: Sequence[StagedList],
        query: str = "",
        span: str = "",
        epoch: int = 0,
        *,
        least: int = -1,
    ) -> tuple[StagedList, ...]:
        """Record the batch (writing/sink.py). A federation server does not check ``least``."""
        ...

    def sink_state(self, sink: str, queues: Sequence[str]) -> SinkState:
        """The last batch that is on record, and the progress of the sink in queues."""
        ...

    def commit(
        self, queue: str, sink: str, batch: int, staged: Sequence[StagedList]
    ) -> CommitStoppedAtMaxsize | None: ...
    def commit_many(
        self, sink: str, batch: int, staged: Sequence[StagedList]
    ) -> Mapping[str, CommitStoppedAtMaxsize | QueueMissing | None]:
        """Commit each queue of ``staged``, like ``commit``, in fewer round trips where that can be;
        a queue that is missing is an answer.
        """
        ...

    def recorded(self, sink: str, batch: int) -> tuple[StagedList, ...]: ...
    def discard(self, staged: Sequence[StagedList]) -> None: ...
    def forget(self, sink: str, staged: Sequence[StagedList]) -> None: ...
    def truncate(self, queues: Sequence[str]) -> None: ...
    def close(self) -> None: ...


P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[Any, P], T]


def make_forwarder(method: Method[P, T], to: Callable[..., Any]) -> Method[P, T]:
    """A method with the signature of ``method`` that calls ``to(self, name, *arguments)``."""
    parameters, name = signature(method), method.__name__

    @wraps(method)
    def passing(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        bound = parameters.bind(self, *args, **named)
        bound.apply_defaults()
        return cast(T, to(self, name, *bound.args[1:]))

    return passing


def make_per_queue_method(method: Method[P, T]) -> Method[P, T]:
    """A method that asks each store, or call, for its queues."""
    return make_forwarder(method, lambda store, *asked: store.ask_each(*asked))


class MultiQueueCallSplitter(ABC):
    """The operations whose first argument says queues and whose answer is by queue. The subclass
    shares them out to several stores, or calls, in :meth:`ask_each`.
    """

    @abstractmethod
    def ask_each(
        self, name: str, queues: Sequence[str] | Mapping[str, Any], *rest: Any
    ) -> dict[str, Any]:
        """The answers to an operation, under the names of the queues."""

    attach = make_per_queue_method(ReadStore.attach)
    states = make_per_queue_method(ReadStore.states)
    marks = make_per_queue_method(ReadStore.marks)
    note_times = make_per_queue_method(ReadStore.note_times)
    find_times = make_per_queue_method(ReadStore.find_times)
    times = make_per_queue_method(ReadStore.times)
    ages = make_per_queue_method(ReadStore.ages)
    ack = make_per_queue_method(ReadStore.ack)
    subscribe = make_per_queue_method(ReadStore.subscribe)
    subscriptions = make_per_queue_method(ReadStore.subscriptions)
    lease = make_per_queue_method(ReadStore.lease)
    holders = make_per_queue_method(ReadStore.holders)
    keep_alive = make_per_queue_method(ReadStore.keep_alive)


def restrict_to(queues: Sequence[str], argument: Any, source: str = "") -> Any:
    """Return the part of an argument for these queues of a source: a part of a mapping, the queues
    themselves of a list, anything else unchanged.
    """
    if isinstance(argument, Mapping):
        return {
            queue: argument[name]
            for queue in queues
            if (name := qualified_name(source, queue)) in argument
        }
    return (
        queues if isinstance(argument, Collection) and not isinstance(argument, str) else argument
    )
