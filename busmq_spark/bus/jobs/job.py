"""A job: its fields, its outcomes, and the wait for them.

A job: its fields, here and in Redis, and its outcomes.

job = jobs.new()
job["inbound"] = "Hello"
await job.save()

Waiting for outcomes of jobs: many waits, one subscription, and one task that reads what pub/sub
may have lost.

Rule 1. Subscribed first, then read, then waited for, then read again: no wake-up is lost.
Rule 2. A script writes and publishes outcomes in one step, so a published one need not be read.
Rule 3. A wait may be for many jobs: they share its future and its timer.
Rule 4. An iteration over outcomes reads them as they are published, and misses those that are
        published while its link is down; ``read_stored_outcomes`` reads ``<name>.done`` instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from busmq_spark.arguments import check_items, check_text
from busmq_spark.bus.emitter import Handle
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.queue.shared_group import MAX_LEASE_S, check_seconds
from busmq_spark.bus.waiting import DropOldestBuffer, wait_at_most
from busmq_spark.errors import (
    BusError,
    ConfigError,
    JobFailed,
    JobTimeout,
    LinkLost,
    MessageRefused,
    MessagesMissed,
    Released,
    StateError,
)
from busmq_spark.groups import job as flows
from busmq_spark.groups.job import JobOutcome, decode_outcome, split_publication
from busmq_spark.queue.keys import JobKeys
from busmq_spark.redis_io.queue_location import new_token

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.redis_io.pubsub_connection import PubSubConnection


MIN_FIELD_TTL_S = 0.001


class JobOwner(Protocol):
    """The object for the jobs of one queue, as its jobs and its workers see it (``Jobs``)."""

    bus: BusContext
    outcome_ttl_s: int
    done: str
    """The queue to which outcomes are pushed as well; empty for none."""
    at_work: set[Any]
    """Its workers that have begun and not stopped."""

    @property
    def queue(self) -> Queue:
        """The queue of the jobs."""

    async def _attached_queue(self) -> Queue:
        """Return the queue, attached."""

    async def wait(
        self, job: Job, groups: Iterable[str], *, timeout_s: float = 5, fail_fast: bool = True
    ) -> dict[str, JobOutcome]:
        """See Job.wait."""


class Job(Mapping[str, Any]):
    """A job of a queue. As a mapping it has the fields that were assigned or loaded here."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __init__(self, jobs: JobOwner, id: str, tries: int = 0) -> None:
        self.jobs, self.id = jobs, id
        self.tries = tries
        """For a handler: how often the group has begun it, with this time."""
        self._values: dict[str, Any] = {}
        self._unsaved: dict[str, float | None] = {}

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    @property
    def in_redis(self) -> JobKeys:
        """Its keys."""
        return JobKeys(self.id, self.jobs.queue.keys.cluster)

    def __getitem__(self, name: str) -> Any:
        return self._values[check_text("the name of a field", name)]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def set(self, name: str, value: Any, *, ttl_s: float | None = None) -> None:
        """Set a field for the next save. Bytes are stored unchanged, every other value as JSON.

        Args:
            name: Name of the field.
            value: Value of the field.
            ttl_s: Seconds that the field lives after the save; by default the ttl of the queue.

        Raises:
            ConfigError: The name or the ttl is not valid.
            MessageRefused: The value cannot be stored.
        """
        flows.check_field(name)
        if ttl_s is not None:
            check_seconds("ttl_s", ttl_s, MIN_FIELD_TTL_S, 52 * MAX_LEASE_S)
        flows.encode_field(name, value)
        self._values[name] = value
        self._unsaved[name] = ttl_s

    @property
    def changed(self) -> bool:
        """Whether anything was set since the last save."""
        return bool(self._unsaved)

    def release(self, reason: str = "handed back", *, delay_s: float = 0) -> NoReturn:
        """End the handler and return the job. This run counts no try.

        Args:
            reason: Text for the log.
            delay_s: Seconds until the job may begin again.

        Raises:
            Released: Always. The handler must let it pass.
            ConfigError: An argument is not valid.
        """
        raise Released(reason, delay_s=delay_s)

    async def save(self) -> bool:
        """Store the fields that were set since the last save.

        Returns:
            Whether there was such a field. If not, nothing is sent.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await save_all([self])

    def unsaved_fields(self, ttl_s: int, only: str | None = None) -> dict[str, tuple[bytes, int]]:
        """Return the fields that changed since the last save, or ``only`` one of them, encoded,
        with their ttl in milliseconds: that of the queue, unless a field has its own.
        """
        return {
            name: (
                flows.encode_field(name, self._values[name]),
                round(1000 * (ttl_s if own_s is None else own_s)),
            )
            for name, own_s in self._unsaved.items()
            if only in (None, name)
        }

    async def load(self, *names: str, forget: Iterable[str] = ()) -> dict[str, Any]:
        """Read fields, and delete some of them in the same step. A missing field is None.

        Of several calls that delete a field, one gets its value.

        Args:
            *names: Names of the fields.
            forget: Names of fields to delete.

        Raises:
            MessageRefused: A field was not written by busmq_spark.
            LinkLost: The server cannot be reached in time.
        """
        several = (forget,) if isinstance(forget, str) else check_items("forget", forget)
        gone = [flows.check_field(name) for name in several]
        for name in names:
            flows.check_field(name)
        if not (names or gone):
            return {}
        queue, token = await self.jobs._attached_queue(), new_token()
        try:
            stored = await queue.run(flows.load_fields(self.in_redis, names, gone, token))
        except LinkLost:
            stored = await queue.run(
                flows.load_fields(self.in_redis, names, gone, token, again=True)
            )
        else:
            if gone:
                queue.begin(
                    flows.forget_call(self.in_redis, gone, token)
                )  # a field that is left goes by its ttl
        found = {
            name: flows.decode_field(name, value) for name, value in zip(names, stored, strict=True)
        }
        self._values |= found
        for name in (*names, *gone):
            self._unsaved.pop(name, None)
        return found

    async def result(self) -> Any:
        """Return the last value other than None that a handler of a worker returned, or that was
        saved as the field ``result``; None where there is none.

        A job that is sent again keeps it until a handler returns another value.
        """
        return (await self.load("result"))["result"]

    async def outcomes(self) -> dict[str, JobOutcome]:
        """Return the stored outcomes by group.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        queue = await self.jobs._attached_queue()
        [found] = await queue.run(flows.read_outcomes([self.in_redis]))
        return {each.group: each for each in found if each.queue == queue.name}

    async def wait(
        self, groups: Iterable[str], *, timeout_s: float = 5, fail_fast: bool = True
    ) -> dict[str, JobOutcome]:
        """Wait for the outcomes of this job.

        Args:
            groups: Names of the groups whose outcomes are waited for.
            timeout_s: Longest wait in seconds.
            fail_fast: Raise at the first job that is given up.

        Returns:
            The outcomes by group.

        Raises:
            JobFailed: A job was given up.
            JobTimeout: An outcome is missing after ``timeout_s``.
            ConfigError: An argument is not valid.
        """
        return await self.jobs.wait(self, groups, timeout_s=timeout_s, fail_fast=fail_fast)


async def save_all(jobs: Iterable[Job]) -> bool:
    """Save several jobs, like ``Job.save``, in few round trips for the jobs of one queue."""
    changed: dict[JobOwner, list[Job]] = {}
    for job in jobs:
        if job._unsaved:
            changed.setdefault(job.jobs, []).append(job)
    for owner, some in changed.items():
        taken = [(job, job._unsaved) for job in some]
        try:
            queue = await owner._attached_queue()
            fields = [(job.in_redis, job.unsaved_fields(queue.ttl_s)) for job in some]
            for job in some:
                job._unsaved = {}
            await queue.run(flows.save_fields(fields))
        except BaseException:
            for job, unsaved in taken:
                job._unsaved = {**unsaved, **job._unsaved}
            raise
    return bool(changed)


OUTCOME_POLL_S = 1.0
"""A pending wait reads its outcomes this often without a wake-up."""
JOBS_PER_OUTCOME_READ = 200
MAX_BUFFERED_OUTCOMES, MAX_BUFFERED_BYTES = 10_000, 16 * 1024 * 1024
MESSAGES_PER_READ = 100
log = logging.getLogger("busmq_spark")


class JobOutcomeWaiter:
    """A wait for some groups of jobs, each of them once. For no group it ends when the jobs are
    sent.
    """

    def __init__(
        self, jobs: Sequence[Job], queue: str, groups: Collection[str], *, fail_fast: bool
    ) -> None:
        self.jobs, self._queue, self._fail_fast = jobs, queue, fail_fast
        self.groups = sorted(groups)
        self.open = {job.id for job in jobs}
        """The jobs that some group has no outcome of yet, or that are not sent."""
        self.failed = ""
        """With ``fail_fast``: the failed job that ended this wait."""
        self.found: dict[str, dict[str, JobOutcome]] = {}
        """Job → group → outcome, of those that count."""
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.old = False
        """Whether it waited at the last read already, so that its outcomes must be read now."""
        self.timeouts: _EqualTimeouts | None = None
        """The timeouts that the waiter belongs to, if it has one."""
        self._counts: dict[
            str, tuple[str, int]
        ] = {}  # job → what counts: an outcome for this message of this life, or a later one
        self._early: list[JobOutcome] = []  # which may be of an earlier sending
        self._of_other_life: list[JobOutcome] = []

    def any_counts(self) -> None:
        """Outcomes of whatever sending count."""
        self._counts = dict.fromkeys(self.open, ("", 0))

    def on_sent(self, first: int, count: int, life: str) -> None:
        """The next ``count`` jobs were sent with messages from ``first`` on: outcomes of earlier
        ones do not count.
        """
        at = len(self._counts)
        for message, job in enumerate(self.jobs[at : at + count], first):
            self._counts[job.id] = (life, message)
            if not self.groups:
                self.open.discard(job.id)
        if not self.open:
            self.expire()
        if self._early:
            early, self._early = self._early, []
            for each in early:
                self.add(each)

    def add(self, outcome: JobOutcome) -> None:
        """An outcome of one of the jobs, which may not be one that counts."""
        id, group = outcome.job, outcome.group
        if group not in self.groups or outcome.queue != self._queue:
            return
        counts = self._counts.get(id)
        if counts is None:
            self._early.append(outcome)
            return
        life, message = counts
        if life and outcome.life != life:
            self._of_other_life.append(outcome)
            return
        if life and outcome.message < message:
            return
        found = self.found.setdefault(id, {})
        found[group] = outcome
        if len(found) == len(self.groups):
            self.open.discard(id)
        if self._fail_fast and not outcome.ok:
            self.failed = id
        if not self.open or self.failed:
            self.expire()

    @property
    def has_other_life(self) -> bool:
        """Whether outcomes arrived from a life of the queue other than the one we sent to."""
        return bool(self._of_other_life)

    def set_life(self, life: str) -> None:
        """The life that the queue has now: where another program has made it anew, it had that one
        already when messages were sent to it.
        """
        self._counts = {id: (its and life, message) for id, (its, message) in self._counts.items()}
        found, self._of_other_life = self._of_other_life, []
        for each in found:
            if each.life == life:
                self.add(each)

    def expire(self) -> None:
        """Wait no longer."""
        if not self.result.done():
            self.result.set_result(None)

    @property
    def is_over(self) -> bool:
        return not self.open or bool(self.failed)

    def missing(self, id: str) -> list[str]:
        """The groups that have no outcome of this job."""
        return sorted(set(self.groups) - self.found.get(id, {}).keys())

    @property
    def missing_of_any(self) -> list[str]:
        """The groups that have no outcome of some job."""
        return sorted({group for id in self.open for group in self.missing(id)})

    def outcomes(self) -> list[dict[str, JobOutcome]]:
        """Of each job, by group. Raises JobFailed."""
        if self.failed:
            errors = {
                group: each.error
                for group, each in sorted(self.found[self.failed].items())
                if not each.ok
            }
            raise JobFailed(job=self.failed, queue=self._queue, errors=errors)
        if len(self.groups) == 1:
            return [self.found[job.id] for job in self.jobs]
        return [{group: self.found[job.id][group] for group in self.groups} for job in self.jobs]

    def timeout(self, timeout_s: float) -> JobTimeout:
        """The error that says who has not finished."""
        late = [job.id for job in self.jobs if job.id in self.open]
        return JobTimeout(
            job=late[0],
            queue=self._queue,
            missing=self.missing(late[0]),
            timeout_s=timeout_s,
            jobs=late,
        )


class _EqualTimeouts:
    """Waits that may last equally long, in the order of their ends. One timer serves all waiters: a
    timer for each would cost as much as sending a job.
    """

    __slots__ = ("_loop", "_timer", "timeout_s", "waits")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s, self._loop = timeout_s, asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.waits: dict[JobOutcomeWaiter, float] = {}

    def add(self, wait: JobOutcomeWaiter) -> None:
        """It ends when its time is over, unless it is removed."""
        wait.timeouts = self
        self.waits[wait] = ends = self._loop.time() + self.timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(ends, self._expire_due_waits)

    def remove(self, wait: JobOutcomeWaiter) -> bool:
        """Whether the last one has left."""
        del self.waits[wait]
        if self.waits:
            return False
        if self._timer is not None:
            self._timer.cancel()
        return True

    def _expire_due_waits(self) -> None:
        self._timer, now = None, self._loop.time()
        for wait, ends in self.waits.items():
            if ends > now:
                self._timer = self._loop.call_at(ends, self._expire_due_waits)
                return
            wait.expire()


class JobOutcomeWaiters:
    """The waits of one object for jobs."""

    def __init__(self, queue: Queue, channel: str) -> None:
        self._queue, self._channel = queue, channel
        self._waits: dict[JobOutcomeWaiter, None] = {}
        self._timeouts: dict[float, _EqualTimeouts] = {}
        self._of: dict[str, list[JobOutcomeWaiter]] = {}
        self._look = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether no outcome of a job that is sent from now on can be missed."""
        return self._reader is not None

    async def open(self) -> None:
        """Returns when no outcome of a job that is sent from now on can be missed. Waits while
        Redis is unreachable.
        """
        if self._reader is None:
            async with self._opening:
                if self._reader is None:
                    await self._pubsub.subscribe(self._channel, self.on_publication)
                    self._reader = self._queue.bus._spawn(
                        self._read_missed_outcomes(), f"reading outcomes of {self._queue.name}"
                    )

    def close(self) -> None:
        """Waiters get a StateError."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
            self._pubsub.unsubscribe(self._channel, self.on_publication)
        for each in self._waits:
            if not each.result.done():
                what, remedy = (
                    f"for a job of queue {self._queue.name!r}",
                    "Wait inside the scope of the object for jobs",
                )
                each.result.set_exception(
                    StateError(event="wait", what=what, state="detached", remedy=remedy)
                )

    def add(self, wait: JobOutcomeWaiter) -> None:
        """From now on outcomes reach the wait."""
        self._waits[wait] = None
        for job in wait.jobs:
            self._of.setdefault(job.id, []).append(wait)

    def end_in(self, wait: JobOutcomeWaiter, timeout_s: float) -> None:
        """End the wait then, if it has not ended before."""
        timeouts = self._timeouts.get(timeout_s)
        if timeouts is None:
            timeouts = self._timeouts[timeout_s] = _EqualTimeouts(timeout_s)
        timeouts.add(wait)

    def remove(self, wait: JobOutcomeWaiter) -> None:
        """Stop delivering outcomes to this wait and cancel its timeout."""
        del self._waits[wait]
        if wait.timeouts is not None and wait.timeouts.remove(wait):
            del self._timeouts[wait.timeouts.timeout_s]
        for job in wait.jobs:
            waits = self._of[job.id]
            waits.remove(wait)
            if not waits:
                del self._of[job.id]

    @asynccontextmanager
    async def listen_to(self, channel: str) -> AsyncIterator[None]:
        """While the block runs, waits are reached by all that is published on the channel, too."""
        await self._pubsub.subscribe(channel, self.on_publication)
        try:
            yield
        finally:
            self._pubsub.unsubscribe(channel, self.on_publication)

    def on_publication(self, payload: bytes | None) -> None:
        """``payload`` is None after a new subscription: outcomes published before it are lost."""
        if payload is None:
            for each in self._waits:
                each.old = True
            self._look.set()
            return
        for outcome in flows.decode_publication(payload):
            if isinstance(outcome, MessageRefused):
                log.warning("queue %r: %s", self._queue.name, outcome)
                continue
            for wait in self._of.get(outcome.job, ()):
                wait.add(outcome)
                if wait.has_other_life:
                    wait.old = True
                    self._look.set()

    async def read_outcomes(self, waits: Collection[JobOutcomeWaiter]) -> None:
        """Read the outcomes that these wait for. Raises LinkLost."""
        some = [(wait, job) for wait in waits for job in wait.jobs if job.id in wait.open]
        for first in range(0, len(some), JOBS_PER_OUTCOME_READ):
            part = some[first : first + JOBS_PER_OUTCOME_READ]
            found = await self._queue.run(flows.read_outcomes([job.in_redis for _, job in part]))
            for (wait, _), outcomes in zip(part, found, strict=True):
                for each in outcomes:
                    wait.add(each)
        if any(wait.has_other_life for wait in waits):
            await self._queue.check_life()
            for wait in waits:
                wait.set_life(self._queue.life)

    async def _read_missed_outcomes(self) -> None:
        while True:
            self._look.clear()
            await wait_at_most(OUTCOME_POLL_S, self._look.wait)
            every = list(self._waits)
            try:
                await self.read_outcomes(
                    [each for each in every if each.old and not each.result.done()]
                )
            except LinkLost as error:
                self._queue._not_touched(error)
            except BusError as error:
                self._queue._report(error)
            for each in every:
                each.old = True

    @property
    def _pubsub(self) -> PubSubConnection:
        return self._queue.bus.servers.pubsub[self._queue.server]


class JobOutcomeIterator(Handle):
    """Outcomes that are published on one channel, or on those of a pattern. Listens from
    ``async with``, or from the first step of the loop, on.

    Outcomes are missed while the link is down, or when 10,000 wait here; the latter is logged.
    """

    def __init__(self, bus: BusContext, queue: Queue, channel: str, *, pattern: bool) -> None:
        self._bus, self._queue, self._channel, self._pattern = bus, queue, channel, pattern
        self._waiting = DropOldestBuffer(MAX_BUFFERED_OUTCOMES, MAX_BUFFERED_BYTES)
        self._wake = asyncio.Event()
        self._connections: list[PubSubConnection] = []
        self._warned = self._begun = False

    def __repr__(self) -> str:
        return f"JobOutcomeIterator({self._queue.name!r})"

    async def __aenter__(self) -> Self:
        if not self._begun:
            servers = self._bus.servers
            self._connections = (
                servers.pubsub
                if self._pattern
                else [servers.pubsub[await servers.locate(self._queue.keys.metadata)]]
            )
            for each in self._connections:
                await each.subscribe(self._channel, self._buffer_outcomes, pattern=self._pattern)
            self._begun = True
            self._bus._adopt(self)
        return self

    async def detach(self) -> None:
        """Listen no more: the loop ends."""
        connections, self._connections = self._connections, []
        for each in connections:
            each.unsubscribe(self._channel, self._buffer_outcomes, pattern=self._pattern)
        self._bus.release(self)
        self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobOutcome:
        if not self._begun:
            await self.__aenter__()
        while self._connections:
            while self._waiting:
                try:
                    return decode_outcome(self._waiting.take())
                except MessageRefused as error:
                    log.warning("%s", error)
            self._wake.clear()
            await self._wake.wait()
        raise StopAsyncIteration

    def _buffer_outcomes(self, payload: bytes | None) -> None:
        if payload is None:
            return
        for each in split_publication(payload):
            if self._waiting.put(each) and not self._warned:
                self._warned = True
                log.warning(
                    "%s", MessagesMissed(pubsub=self._channel, dropped=self._waiting.dropped)
                )
        self._wake.set()


async def read_stored_outcomes(
    bus: BusContext, name: str, group: str
) -> AsyncGenerator[JobOutcome, None]:
    """Outcomes that were pushed to a queue, each at least once for an ordered group. A batch is
    acked when the loop asks for the next one.
    """
    async with Queue(bus, name) as outcomes, outcomes.group(group) as reader:
        async for batch in reader.batches(MESSAGES_PER_READ):
            for message in batch:
                try:
                    found = decode_outcome(message.value)
                except MessageRefused as error:
                    log.warning("queue %r: %s", name, error)
                    continue
                yield found
            await reader.ack(batch)


def check_pattern(name: object) -> str:
    """The name of a queue, or a pattern of names with ``*``; every other character stands for
    itself. Raises ConfigError.
    """
    if not (isinstance(name, str) and name):
        raise ConfigError(
            reason=f"of is {name!r}; expected the name of a queue, or a pattern of names with '*'"
        )
    return name
