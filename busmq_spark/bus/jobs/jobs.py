"""The jobs of a queue: made, sent and waited for. The handlers of jobs are in worker.py.

    async with bus.jobs("concat") as jobs:
        job = jobs.new()
        job["inbound"] = "Hello"
        done = await jobs.send(job, wait=["worldConcat"], timeout_s=5)
        await job.load("outbound", forget=("outbound",))

Rule 1. A job's fields and outcomes are on the server of its queue; the message in the queue only
        names it.
Rule 2. ``async with`` attaches the queue; the first call that needs it does so, too, until the bus
        is left.
Rule 3. The calls of one turn of the loop go in one write, and their messages in one call;
        ``send_many`` spares the tasks as well.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Self, Unpack, overload

from busmq_spark.arguments import check_flag, check_items, check_words
from busmq_spark.bus.emitter import Handle
from busmq_spark.bus.jobs.job import (
    MIN_FIELD_TTL_S,
    Job,
    JobOutcomeIterator,
    JobOutcomeWaiter,
    JobOutcomeWaiters,
    check_pattern,
    read_stored_outcomes,
    save_all,
)
from busmq_spark.bus.jobs.worker import JobHandler, Worker, WorkerKeywords, WorkerOptions
from busmq_spark.bus.queue.push import PendingPush
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.queue.shared_group import MAX_LEASE_S, check_seconds
from busmq_spark.errors import BusError, ConfigError, JobsNotSent, LinkLost
from busmq_spark.groups import job as flows
from busmq_spark.groups.job import JobOutcome
from busmq_spark.option_parsing import from_call
from busmq_spark.queue.keys import client_channel, jobs_channel
from busmq_spark.reading.reader_subscriptions import check_name
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.tracing import current_traceparent

FINAL_OUTCOME_READ_TIMEOUT_S = 1.0


class PendingJobsPush(PendingPush[bytes]):
    """Messages of jobs; an error is the result of the wait."""

    __slots__ = ("queue", "wait")

    def __init__(self, messages: Sequence[bytes], wait: JobOutcomeWaiter, queue: Queue) -> None:
        super().__init__(messages, wait.result, single=False)
        self.wait, self.queue = wait, queue

    def on_stored(self, first: int, count: int) -> None:
        """The next ``count`` jobs have messages from ``first`` on."""
        self.ids.extend(range(first, first + count))
        self.wait.on_sent(first, count, self.queue.life)


class PendingJobBatchPush(PendingJobsPush):
    """Messages of jobs; an error says how many are sent."""

    __slots__ = ()

    def fail(self, error: BusError | None) -> None:
        """Nothing more is sent; an ``error`` of None cancels it."""
        if error is not None:
            count, sent = len(self.values), len(self.ids)
            unknown = self.sent - sent if isinstance(error, LinkLost) else 0
            found = JobsNotSent(
                queue=self.queue.name,
                sent=sent,
                unknown=unknown,
                left=count - sent - unknown,
                reason=str(error),
            )
            found.__cause__ = error
            error = found
        super().fail(error)


class Jobs(Handle):
    """The jobs of one queue."""

    def __init__(
        self,
        queue: Queue,
        *,
        durable: bool = False,
        outcome_ttl_s: float = flows.OUTCOME_TTL_S,
        client: str = "",
    ) -> None:
        check_flag("durable", durable)
        check_seconds("outcome_ttl_s", outcome_ttl_s, 1, 52 * MAX_LEASE_S)
        if outcome_ttl_s != round(outcome_ttl_s):
            raise ConfigError(reason=f"outcome_ttl_s is {outcome_ttl_s!r}; expected whole seconds")
        self.bus, self.queue = queue.bus, queue
        self.client = client or new_token()
        """Names this object where outcomes are published."""
        self.done = flows.outcome_queue(queue.name) if durable else ""
        """The queue to which outcomes of the jobs sent, or worked on, through this object are
        pushed as well.
        """
        self._reference = flows.reference_encoder(self.client, self.done)
        self.outcome_ttl_s = round(outcome_ttl_s)
        self._waits = JobOutcomeWaiters(self.queue, client_channel(self.client))
        self._groups: set[str] = set()
        self.at_work: set[Worker] = set()
        """Its workers that have begun and not stopped."""
        self._attaching = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Jobs({self.queue.name!r})"

    async def __aenter__(self) -> Self:
        await self._attached_queue()
        return self

    async def _attached_queue(self) -> Queue:
        """The queue, attached."""
        if not self.queue.attached:
            async with self._attaching:
                if not self.queue.attached:
                    await self.queue.attach()
                    self.bus._adopt(self)
        return self.queue

    async def detach(self) -> None:
        """Stop its workers, wait for nothing more, and let the ttl of the queue run. No error when
        not attached.
        """
        await self._stop_waiting()
        self.bus.release(self)
        await self.queue.detach()

    async def _stop_waiting(self) -> None:
        for worker in tuple(self.at_work):
            await worker.stop()
        self._waits.close()

    # -- sending -----------------------------------------------------------------------------------

    def new(self) -> Job:
        """Return a job with a new id. Nothing is sent before it is saved or sent."""
        return Job(self, new_token(128))

    def get(self, id: str) -> Job:
        """Return the job with this id, whether it exists or not.

        Args:
            id: Id of the job.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        return Job(self, flows.check_job(id))

    async def send(
        self, job: Job, *, wait: Iterable[str] = (), timeout_s: float = 5, fail_fast: bool = True
    ) -> dict[str, JobOutcome]:
        """Push a job with its unsaved fields, and wait for outcomes if ``wait`` names groups.

        Args:
            job: The job.
            wait: Names of groups.
            timeout_s: Longest wait in seconds. The job goes on afterwards.
            fail_fast: Raise JobFailed when a group gives up.

        Returns:
            The outcomes by group.

        Raises:
            JobFailed: A group gave the job up.
            JobTimeout: An outcome is missing after ``timeout_s``.
            ConfigError: The queue has no such group; the job was not pushed.
            LinkLost: The connection broke; it is unknown whether the job was pushed. While its
                fields were saved, it was certainly not.
        """
        wanted = await self._make_wait(self._distinct([job]), wait, timeout_s, fail_fast=fail_fast)
        if job.changed:
            await save_all([job])
        [outcomes] = await self._send_and_wait(wanted, PendingJobsPush, timeout_s)
        return outcomes

    async def send_many(
        self,
        jobs: Iterable[Job],
        *,
        wait: Iterable[str] = (),
        timeout_s: float = 5,
        fail_fast: bool = True,
    ) -> list[dict[str, JobOutcome]]:
        """Send jobs in their order, in few round trips. The fields of all are saved before the
        first is pushed.

        Args:
            jobs: The jobs.
            wait: Names of groups.
            timeout_s: Longest wait in seconds for all jobs together.
            fail_fast: Raise JobFailed for the first job that is given up; the others go on.

        Returns:
            For each job, in order, its outcomes by group.

        Raises:
            JobsNotSent: Redis is full or lost; the error has the number of sent jobs.
            JobFailed: A group gave a job up.
            JobTimeout: An outcome is missing after ``timeout_s``.
        """
        some = self._distinct(jobs)
        if not some:
            return []
        wanted = await self._make_wait(some, wait, timeout_s, fail_fast=fail_fast)
        try:
            await save_all(some)
        except BusError as error:
            raise JobsNotSent(
                queue=self.queue.name, sent=0, unknown=0, left=len(some), reason=str(error)
            ) from error
        return await self._send_and_wait(wanted, PendingJobBatchPush, timeout_s)

    async def wait(
        self, job: Job, groups: Iterable[str], *, timeout_s: float = 5, fail_fast: bool = True
    ) -> dict[str, JobOutcome]:
        """Wait for the outcomes of one job, like ``Job.wait``.

        Args:
            job: The job.
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
        [outcomes] = await self.wait_many([job], groups, timeout_s=timeout_s, fail_fast=fail_fast)
        return outcomes

    async def wait_many(
        self,
        jobs: Iterable[Job],
        groups: Iterable[str],
        *,
        timeout_s: float = 5,
        fail_fast: bool = True,
    ) -> list[dict[str, JobOutcome]]:
        """Wait for the outcomes of several jobs, in few round trips.

        Args:
            jobs: The jobs.
            groups: Names of the groups whose outcomes are waited for.
            timeout_s: Longest wait in seconds for all jobs together.
            fail_fast: Raise at the first job that is given up.

        Returns:
            For each job, in order, its outcomes by group.

        Raises:
            JobFailed: A job was given up.
            JobTimeout: An outcome is missing after ``timeout_s``.
            ConfigError: An argument is not valid.
        """
        some, names = self._distinct(jobs), self._names(groups)
        check_seconds("timeout_s", timeout_s, MIN_FIELD_TTL_S)
        if not names:
            raise ConfigError(
                reason=(
                    "no group is named to wait for; expected the names of those that work on"
                    " the job"
                )
            )
        if not some:
            return []
        queue = await self._attached_queue()
        wanted = JobOutcomeWaiter(some, queue.name, names, fail_fast=fail_fast)
        wanted.any_counts()
        await self._read_outcomes(wanted)
        if wanted.is_over:
            return wanted.outcomes()
        await self._need_groups(wanted.missing_of_any)
        self._waits.add(wanted)
        try:
            await self._waits.open()
            async with self._waits.listen_to(jobs_channel(queue.name)):
                await self._read_outcomes(wanted)
                self._waits.end_in(wanted, timeout_s)
                await wanted.result
                return await self._read_late_outcomes(wanted, timeout_s)
        finally:
            self._waits.remove(wanted)

    @overload
    def completions(self, of: str | None = None) -> JobOutcomeIterator: ...
    @overload
    def completions(
        self, of: str | None = None, *, group: str
    ) -> AsyncGenerator[JobOutcome, None]: ...
    def completions(
        self, of: str | None = None, *, group: str | None = None
    ) -> JobOutcomeIterator | AsyncGenerator[JobOutcome, None]:
        """Return outcomes as they come, from now on.

        Args:
            of: Name of a queue, or a pattern (``con*``); by default the jobs that this object
                sends.
            group: An ordered group. It gets each outcome of ``<name>.done`` at least once
                (``durable``).

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        if group is not None:
            check_name(group)
            return read_stored_outcomes(
                self.bus,
                flows.outcome_queue(self.queue.name if of is None else check_pattern(of)),
                group,
            )
        if of is None:
            return JobOutcomeIterator(
                self.bus, self.queue, client_channel(self.client), pattern=False
            )
        pattern = "*" in check_pattern(of)
        channel = jobs_channel(re.sub(r"([\[\]?\\])", r"\\\1", of) if pattern else of)
        return JobOutcomeIterator(self.bus, Queue(self.bus, of), channel, pattern=pattern)

    async def _make_wait(
        self, jobs: Sequence[Job], wait: Iterable[str], timeout_s: float, *, fail_fast: bool
    ) -> JobOutcomeWaiter:
        """The wait for jobs that are about to be sent. Raises ConfigError."""
        groups = self._names(wait)
        check_seconds("timeout_s", timeout_s, MIN_FIELD_TTL_S)
        if not self.queue.attached:
            await self._attached_queue()
        if not self._groups.issuperset(groups):
            await self._need_groups(groups)
        return JobOutcomeWaiter(jobs, self.queue.name, groups, fail_fast=fail_fast)

    async def _send_and_wait(
        self, wanted: JobOutcomeWaiter, push: type[PendingJobsPush], timeout_s: float
    ) -> list[dict[str, JobOutcome]]:
        """Push the messages of the jobs, and wait."""
        messages = [self._reference(job.id) for job in wanted.jobs]
        if (traceparent := current_traceparent()) is not None:
            messages = [flows.with_traceparent(each, traceparent) for each in messages]
        if not wanted.groups:
            self.queue.put(push(messages, wanted, self.queue))
            await wanted.result
            return wanted.outcomes()
        self._waits.add(wanted)
        try:
            if not self._waits.is_open:
                await self._waits.open()
            self.queue.put(push(messages, wanted, self.queue))
            self._waits.end_in(wanted, timeout_s)
            await wanted.result
            return (
                wanted.outcomes()
                if wanted.is_over
                else await self._read_late_outcomes(wanted, timeout_s)
            )
        finally:
            self._waits.remove(wanted)

    async def _read_outcomes(self, wanted: JobOutcomeWaiter) -> None:
        with suppress(LinkLost):  # it is looked after all the time
            await self._waits.read_outcomes([wanted])

    async def _read_late_outcomes(
        self, wanted: JobOutcomeWaiter, timeout_s: float
    ) -> list[dict[str, JobOutcome]]:
        """The outcomes after the last look at the end of the time. Raises JobFailed,
        JobTimeout.
        """
        if not wanted.is_over:
            with suppress(BusError, TimeoutError):
                async with asyncio.timeout(FINAL_OUTCOME_READ_TIMEOUT_S):
                    await self._waits.read_outcomes([wanted])
            if not wanted.is_over:
                raise wanted.timeout(timeout_s)
        return wanted.outcomes()

    @staticmethod
    def _distinct(jobs: Iterable[Job]) -> list[Job]:
        some: list[Job] = check_items("jobs", jobs, Job)
        if len({job.id for job in some}) < len(some):
            raise ConfigError(
                reason=(
                    "a job is there twice; expected each job once in a call. Send it again with"
                    " another call"
                )
            )
        return some

    def _names(self, groups: Iterable[str]) -> list[str]:
        names = list(dict.fromkeys(check_words("groups", groups)))
        return [name if name in self._groups else check_name(name) for name in names]

    async def _need_groups(self, names: Iterable[str]) -> None:
        """Raises ConfigError. A group once seen is not asked for again."""
        if unknown := [name for name in names if name not in self._groups]:
            found = await self.queue.run(flows.have_readers(self.queue.keys, unknown))
            for name, there in zip(unknown, found, strict=True):
                if not there:
                    raise ConfigError(
                        reason=(
                            f"queue {self.queue.name!r} has no group {name!r} to wait for; it is"
                            " made when a worker of it begins"
                        )
                    )
                self._groups.add(name)

    # -- working -----------------------------------------------------------------------------------

    def worker(
        self, group: str, **options: Unpack[WorkerKeywords]
    ) -> Callable[[JobHandler], Worker]:
        """Return a decorator that makes a function of one job a worker of a group.

        A handler that returns has done the job for the group. An exception is another try, until
        the tries are used up; ``Rejected`` allows no further try. Then the message is a dead
        letter, and the outcome has the reason.

        Args:
            group: Name of the group.
            **options: ``tries``: most tries (3). ``limit``: most handlers at once (8), and
                ``group_limit`` over all processes. ``deadline_s``: seconds after which a handler is
                cancelled (30; None: never). ``lease_s``: seconds until the job of a dead process is
                leased again (30). ``start``: start of a new group.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        checked = from_call(WorkerOptions, "worker", {"group": group, **options})
        return lambda handler: Worker(self, handler, checked)
