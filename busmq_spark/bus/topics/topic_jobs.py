"""The jobs of a topic: each is pushed to the partition of its key, and waited for as on one queue.

    async with bus.jobs(topic="orders") as jobs:
        job = jobs.new(key="customer-7")
        job["inbound"] = "Hello"
        done = await jobs.send(job, wait=["billing"], timeout_s=5)

Rule 1. The fields and outcomes of a job are on the server of its partition, which its id names: a
        topic may grow meanwhile.
Rule 2. Every partition queue has the groups, each with its own leases; handlers share one limit.
Rule 3. Workers of partitions do not wait for each other: one whose server is away is worked on when
        it is back. A partition that comes later is worked on from its oldest job.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from busmq_spark.arguments import check_instance, check_words
from busmq_spark.bus.emitter import Handle
from busmq_spark.bus.handler_calls import call_outside_handler
from busmq_spark.bus.jobs.job import Job, JobOutcomeIterator, read_stored_outcomes, save_all
from busmq_spark.bus.jobs.jobs import Jobs, PendingJobBatchPush
from busmq_spark.bus.jobs.worker import (
    BaseWorker,
    JobHandler,
    Worker,
    WorkerKeywords,
    WorkerOptions,
)
from busmq_spark.bus.waiting import wait_at_most
from busmq_spark.errors import BusError, ConfigError, JobsNotSent, LinkLost, StateError
from busmq_spark.groups import job as flows
from busmq_spark.groups.job import OUTCOME_TTL_S, JobOutcome
from busmq_spark.groups.topic import check_partition, partitions_of
from busmq_spark.option_parsing import from_call
from busmq_spark.queue.keys import client_channel
from busmq_spark.reading.reader_subscriptions import check_name
from busmq_spark.redis_io.queue_location import new_token

if TYPE_CHECKING:
    from busmq_spark.bus.topics.base_topic import BaseTopic, TopicPartitionQueue

GROWTH_POLL_S = 1.0
"""Seconds between two searches for stored outcomes in new partitions."""
_ID = re.compile(r"(0|[1-9][0-9]{0,3})-.+", re.DOTALL)
T = TypeVar("T")

RETRY_S = 1.0
"""Seconds between two tries of a server that was away."""
log = logging.getLogger("busmq_spark")


class PartitionJobs(Jobs):
    """The jobs of one partition, which its topic attaches and detaches."""

    queue: TopicPartitionQueue

    def __init__(self, queue: TopicPartitionQueue, of: TopicJobs) -> None:
        super().__init__(
            queue, durable=of.durable, outcome_ttl_s=of.outcome_ttl_s, client=of.client
        )

    async def _attached_queue(self) -> TopicPartitionQueue:
        """The queue, attached."""
        return await self.queue.ensure_attached()

    async def detach(self) -> None:
        """Stop its workers, and wait for nothing more."""
        await self._stop_waiting()


class TopicJobs(Handle):
    """The jobs of one topic. ``async with`` attaches the topic."""

    def __init__(
        self, topic: BaseTopic, *, durable: bool = False, outcome_ttl_s: float = OUTCOME_TTL_S
    ):
        self.bus, self.topic = topic.bus, topic
        self.durable, self.outcome_ttl_s = durable, outcome_ttl_s
        self.client = new_token()
        """Names this object where outcomes are published."""
        self.at_work: set[TopicWorker] = set()
        """Its workers that have begun and not stopped."""
        self._parts: list[PartitionJobs] = []

    def __repr__(self) -> str:
        return f"TopicJobs({self.topic.name!r})"

    async def __aenter__(self) -> Self:
        await self.topic.attach()
        self.bus._adopt(self)
        return self

    async def detach(self) -> None:
        """Stop its workers, wait for nothing more, and detach the topic."""
        for worker in tuple(self.at_work):
            await worker.stop()
        for part in self._parts:
            await part.detach()
        self._parts.clear()
        self.bus.release(self)
        await self.topic.detach()

    def parts(self) -> list[PartitionJobs]:
        """Return the jobs of each partition that is known here. Raises StateError until
        attached.
        """
        if not self.topic.attached:
            what, remedy = f"the jobs of topic {self.topic.name!r}", "Use them inside 'async with'"
            raise StateError(event="use", what=what, state="not attached", remedy=remedy)
        for queue in self.topic.queues[len(self._parts) :]:
            self._parts.append(PartitionJobs(queue, self))
        return self._parts

    # -- sending --------------------------------------------------------------------------------

    def new(self, *, key: bytes | str | None = None, partition: int | None = None) -> Job:
        """A job with a new id in the partition of its key; without one, partitions have their
        turns.

        Nothing is sent before it is saved or sent. Raises StateError until attached, ConfigError.
        """
        parts = self.parts()
        if partition is None:
            [partition] = partitions_of(
                [key], len(parts), self.topic._next_turn() if key is None else 0
            )
        check_partition(partition, self.topic.name, len(parts))
        return Job(parts[partition], f"{partition}-{new_token(128)}")

    def get(self, id: str) -> Job:
        """The job with this id, be it there or not. Raises ConfigError for an id of no
        partition.
        """
        found, parts = _ID.fullmatch(flows.check_job(id)), self.parts()
        if found is None or int(found[1]) >= len(parts):
            wanted = f"a partition of topic {self.topic.name!r} below {len(parts)}, and '-'"
            raise ConfigError(
                reason=f"the id of the job is {id!r}; expected it to begin with {wanted}"
            )
        return Job(parts[int(found[1])], id)

    async def send(
        self, job: Job, *, wait: Iterable[str] = (), timeout_s: float = 5, fail_fast: bool = True
    ) -> dict[str, JobOutcome]:
        """See Jobs.send."""
        part = self._part_of(job)
        return await part.send(job, wait=wait, timeout_s=timeout_s, fail_fast=fail_fast)

    async def send_many(
        self,
        jobs: Iterable[Job],
        *,
        wait: Iterable[str] = (),
        timeout_s: float = 5,
        fail_fast: bool = True,
    ) -> list[dict[str, JobOutcome]]:
        """See Jobs.send_many. Each partition gets its jobs in their order.

        A partition that refuses its jobs does not keep the others from theirs: JobsNotSent counts
        the jobs of that partition.
        """
        some, names = Jobs._distinct(jobs), check_words("wait", wait)
        by_part = self._by_part(some)
        waits = {
            part: await part._make_wait(own, names, timeout_s, fail_fast=fail_fast)
            for part, own in by_part.items()
        }
        try:
            await save_all(some)
        except BusError as error:
            left, reason = len(some), str(error)
            where = self.topic.name
            raise JobsNotSent(queue=where, sent=0, unknown=0, left=left, reason=reason) from error
        if names:
            for part in by_part:
                await part._waits.open()

        def begin(part: PartitionJobs) -> Coroutine[Any, Any, list[dict[str, JobOutcome]]]:
            return part._send_and_wait(waits[part], PendingJobBatchPush, timeout_s)

        return await self._in_order(some, by_part, begin)

    async def wait(
        self, job: Job, groups: Iterable[str], *, timeout_s: float = 5, fail_fast: bool = True
    ) -> dict[str, JobOutcome]:
        """See Job.wait."""
        return await self._part_of(job).wait(job, groups, timeout_s=timeout_s, fail_fast=fail_fast)

    async def wait_many(
        self,
        jobs: Iterable[Job],
        groups: Iterable[str],
        *,
        timeout_s: float = 5,
        fail_fast: bool = True,
    ) -> list[dict[str, JobOutcome]]:
        """See Jobs.wait_many."""
        some, names = Jobs._distinct(jobs), check_words("groups", groups)
        by_part = self._by_part(some)

        def begin(part: PartitionJobs) -> Coroutine[Any, Any, list[dict[str, JobOutcome]]]:
            own = by_part[part]
            return part.wait_many(own, names, timeout_s=timeout_s, fail_fast=fail_fast)

        return await self._in_order(some, by_part, begin)

    # -- outcomes and work ----------------------------------------------------------------------

    @overload
    def completions(self, of: str | None = None) -> JobOutcomeIterator: ...
    @overload
    def completions(
        self, of: str | None = None, *, group: str
    ) -> AsyncGenerator[JobOutcome, None]: ...
    def completions(
        self, of: str | None = None, *, group: str | None = None
    ) -> JobOutcomeIterator | AsyncGenerator[JobOutcome, None]:
        """See Jobs.completions. With the name of the topic ``of``: those of all its partitions.

        With ``group`` those that were pushed to the queue ``<partition queue>.done`` of any
        partition (``durable``).
        """
        if group is not None:
            if of not in (None, self.topic.name):
                wanted = f"no name, or that of the topic, {self.topic.name!r}"
                raise ConfigError(reason=f"of is {of!r}; expected {wanted}")
            return self._stored_outcomes(check_name(group))
        first = self.parts()[0]
        if of is None:
            channel = client_channel(self.client)
            return JobOutcomeIterator(self.bus, first.queue, channel, pattern=True)
        return first.completions(f"{of}/*" if of == self.topic.name else of)

    def worker(
        self, group: str, **options: Unpack[WorkerKeywords]
    ) -> Callable[[JobHandler], TopicWorker]:
        """Make a coroutine function a worker of a group on all partitions; see Jobs.worker.

        At most ``limit`` (8) handlers run at once in all partitions. Dead letters go to
        ``<topic>.dead``. Workers find new partitions by themselves. ``group_limit`` is refused.
        """
        options.setdefault("dead", f"{self.topic.name}.dead")
        checked = from_call(WorkerOptions, "worker", {"group": group, **options})
        if checked.group_limit is not None:
            why = "each partition would have its own; bound the handlers of each worker with limit"
            raise ConfigError(reason=f"group_limit counts for one queue: of a topic {why}")
        return lambda handler: TopicWorker(self, handler, checked)

    # -- inside ---------------------------------------------------------------------------------

    def _part_of(self, job: Job) -> PartitionJobs:
        check_instance("job", job, Job)
        if isinstance(job.jobs, PartitionJobs) and job.jobs in self.parts():
            return job.jobs
        wanted = f"a job that jobs.new() or jobs.get() of topic {self.topic.name!r} has made"
        raise ConfigError(reason=f"{job!r} is of {job.jobs!r}; expected {wanted}")

    def _by_part(self, some: Sequence[Job]) -> dict[PartitionJobs, list[Job]]:
        found: dict[PartitionJobs, list[Job]] = {}
        for job in some:
            found.setdefault(self._part_of(job), []).append(job)
        return found

    async def _in_order(
        self,
        some: Sequence[Job],
        by_part: dict[PartitionJobs, list[Job]],
        begin: Callable[[PartitionJobs], Coroutine[Any, Any, list[T]]],
    ) -> list[T]:
        """The results of all partitions, in the order of the jobs, or the first error."""
        tasks = {part: asyncio.ensure_future(begin(part)) for part in by_part}
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()  # a wait: messages that are put go on
        found = {
            job: outcome
            for part, own in by_part.items()
            for job, outcome in zip(own, tasks[part].result(), strict=True)
        }
        return [found[job] for job in some]

    async def _stored_outcomes(self, group: str) -> AsyncGenerator[JobOutcome, None]:
        """Outcomes of all partitions as they come. The next of a partition is asked for after
        it.
        """
        streams: list[AsyncGenerator[JobOutcome, None]] = []
        asked: dict[asyncio.Future[JobOutcome], AsyncGenerator[JobOutcome, None]] = {}
        try:
            while True:
                for part in self.parts()[len(streams) :]:
                    name = flows.outcome_queue(part.queue.name)
                    streams.append(read_stored_outcomes(self.bus, name, group))
                    asked[asyncio.ensure_future(anext(streams[-1]))] = streams[-1]
                done, _ = await asyncio.wait(
                    asked, timeout=GROWTH_POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    stream = asked.pop(task)
                    yield task.result()
                    asked[asyncio.ensure_future(anext(stream))] = stream
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            for stream in streams:
                async with aclosing(stream):
                    pass


class TopicWorker(BaseWorker):
    """A handler of the jobs of a topic, in a group of it; its methods are those of Worker."""

    def __init__(self, jobs: TopicJobs, handler: JobHandler, options: WorkerOptions) -> None:
        super().__init__(handler, options)
        self.jobs = jobs
        self.workers: dict[int, Worker] = {}
        """The worker of each partition that is worked on."""
        self._hint = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._paused = False
        self._lock, self._leaving = asyncio.Lock(), asyncio.Lock()

    def __repr__(self) -> str:
        return f"TopicWorker({self.jobs.topic.name!r}, {self.options.group!r})"

    async def __aenter__(self) -> Self:
        """Begin in all partitions that can be reached. Raises the errors of Worker."""
        if self._keeping is not None:
            remedy = "Make another worker for more of it, or raise its limit"
            raise StateError(event="begin", what=repr(self), state="at work already", remedy=remedy)
        await self.jobs.topic.attach()
        self.jobs.topic.on_growth.append(self._hint)
        self._paused = False
        self._over.clear()
        try:
            await self._begin(self.options)
            work = self._follow_growth()
            what = f"working on new partitions of {self.jobs.topic.name}"
            self._keeping = self.jobs.bus._spawn(work, what)
        except BaseException:
            await self._stop_workers()
            raise
        self.jobs.bus._adopt(self)
        self.jobs.at_work.add(self)
        return self

    async def stop(self) -> None:
        """See Worker.stop."""
        if self._is_handling:
            for worker in self.workers.values():
                worker.spare_caller()
            what = f"stopping group {self.options.group} of {self.jobs.topic.name}"
            call_outside_handler(lambda: self.jobs.bus._spawn(self.stop(), what))
            return
        async with self._leaving:  # the second caller waits for the first
            if self._keeping is None:
                return
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
            await self._stop_workers()
            self._keeping = None
            self.jobs.bus.release(self)
            self.jobs.at_work.discard(self)
            self._over.set()

    async def finish(self) -> None:
        """Stop, unless a handler calls it."""
        if not self._is_handling:
            await self.stop()

    @property
    def _is_handling(self) -> bool:
        """Return whether the caller is one of its handlers."""
        return any(worker._is_handling for worker in self.workers.values())

    async def pause(self, timeout_s: float | None = None) -> None:
        """See Worker.pause; all partitions pause at once."""
        self._paused = True
        await asyncio.gather(*(each.pause(timeout_s) for each in self.workers.values()))

    async def resume(self) -> None:
        """See Worker.resume."""
        self._paused = False
        for each in self.workers.values():
            await each.resume()

    @property
    def running(self) -> int:
        """Return the number of running handlers."""
        return sum(each.running for each in self.workers.values())

    # -- inside ---------------------------------------------------------------------------------

    async def _begin(self, options: WorkerOptions) -> None:
        """Work on the partitions that are known, and not worked on yet."""
        async with self._lock:
            missing = [
                (which, part)
                for which, part in enumerate(self.jobs.parts())
                if which not in self.workers and part.queue.reachable
            ]
            await asyncio.gather(*(self._begin_one(*each, options) for each in missing))

    async def _begin_one(self, which: int, part: PartitionJobs, options: WorkerOptions) -> None:
        worker = Worker(part, self.handler, options)
        worker.slots = self.slots
        try:
            await worker.__aenter__()
        except LinkLost as error:
            log.warning("%r works on partition %d later: %s", self, which, error)
            return
        self.workers[which] = worker
        if self._paused:
            await worker.pause()

    async def _follow_growth(self) -> None:
        later = replace(self.options, start="earliest")
        while True:
            await wait_at_most(RETRY_S, self._hint.wait)
            self._hint.clear()
            if len(self.workers) < self.jobs.topic.partitions:
                await self._begin(later)

    async def _stop_workers(self) -> None:
        if self._hint in self.jobs.topic.on_growth:
            self.jobs.topic.on_growth.remove(self._hint)
        await asyncio.gather(*(each.stop() for each in self.workers.values()))
        self.workers.clear()
