"""A worker of all partitions of a topic: one handler, one limit, and a worker for each partition.

Rule 1. Partitions do not wait for each other: one whose server is away is worked on when it is
        back.
Rule 2. A partition that comes later is worked on from its oldest job.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from busmq_spark.bus.handle import Handle
from busmq_spark.bus.jobs.fair_slots import FairSlots
from busmq_spark.bus.jobs.worker import JobHandler, Worker
from busmq_spark.bus.wait_at_most import wait_at_most
from busmq_spark.errors import LinkLost, StateError

if TYPE_CHECKING:
    from busmq_spark.bus.jobs.job_consumer_group import WorkerOptions
    from busmq_spark.bus.topics.topic_jobs import PartitionJobs, TopicJobs

RETRY_S = 1.0
"""Seconds between two tries of a server that was away."""
log = logging.getLogger("busmq_spark")


class TopicWorker(Handle):
    """A handler of the jobs of a topic, in a group of it; its methods are those of Worker."""

    def __init__(self, jobs: TopicJobs, handler: JobHandler, options: WorkerOptions) -> None:
        Worker.check_handler(handler, options)
        self.jobs, self.handler, self.options = jobs, handler, options
        self.slots = FairSlots(options.limit)
        """Shared by all partitions; bus.workers(…) may put others here before it begins."""
        self.workers: dict[int, Worker] = {}
        """The worker of each partition that is worked on."""
        self._hint = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._paused = False
        self._lock = asyncio.Lock()

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
            self._keeping = self.jobs.bus.spawn(work, what)
        except BaseException:
            await self._stop_workers()
            raise
        self.jobs.bus.adopt(self)
        self.jobs.at_work.add(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """See Worker.run."""
        async with self:
            await self.wait_stopped()

    async def wait_stopped(self) -> None:
        """Returns when it has stopped."""
        await self._over.wait()

    async def stop(self) -> None:
        """See Worker.stop."""
        if self._keeping is None:
            return
        if any(worker.is_handling for worker in self.workers.values()):
            what = f"stopping group {self.options.group} of {self.jobs.topic.name}"
            self.jobs.bus.spawn(self.stop(), what)
            return
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        self._keeping = None
        await self._stop_workers()
        self.jobs.bus.release(self)
        self.jobs.at_work.discard(self)
        self._over.set()

    detach = stop

    async def pause(self, timeout_s: float | None = None) -> None:
        """See Worker.pause; all partitions pause at once."""
        self._paused = True
        await asyncio.gather(*(each.pause(timeout_s) for each in self.workers.values()))

    async def resume(self) -> None:
        """See Worker.resume."""
        self._paused = False
        for each in self.workers.values():
            await each.resume()

    async def drain(self, timeout_s: float | None = None) -> None:
        """See Worker.drain."""
        await self.pause(timeout_s)
        await self.stop()

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
        workers, self.workers = list(self.workers.values()), {}
        await asyncio.gather(*(each.stop() for each in workers))
