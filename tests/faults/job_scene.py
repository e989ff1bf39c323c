"""Jobs that a query settles, those who wait for them, and what must be true in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from busmq_spark.bus.bus import Bus as Program
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.groups.job import JobOutcome
from tests.faults.proxy import Command
from tests.faults.scene import Bus, Pipeline
from tests.support import PATIENCE_S

GROUP = "enrich"
MOST = 10
"""Jobs of one task."""


def settles(command: Command) -> bool:
    """Whether it writes an outcome."""
    return command.name == "job_outcome" and command.args[6] != b""


class JobPipeline(Pipeline):
    """Jobs of the queue ``in``, settled by a query."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        super().__init__(
            bus,
            folder,
            sink=None,
            change="settled",
            jobFields="n",
            subscription=GROUP,
            maxMessagesPerPartition=str(MOST),
        )
        self.sink_options = {"settle": GROUP}


class SentJobs:
    """Numbered jobs, each waited for by the program that sent it, which also counts the outcomes
    that are published.
    """

    def __init__(self, jobs: Jobs, published: AsyncIterator[JobOutcome]) -> None:
        self._jobs = jobs
        self._sent: list[Job] = []
        self._waits: list[asyncio.Task[dict[str, JobOutcome]]] = []
        self._found: list[JobOutcome] = []
        self.published: Counter[str] = Counter()
        self._counting = asyncio.ensure_future(self._count(published))

    def send(self, many: int) -> None:
        """As tasks of the loop."""
        for _ in range(many):
            job = self._jobs.new()
            job["n"] = len(self._sent)
            self._sent.append(job)
            self._waits.append(
                asyncio.create_task(
                    self._jobs.send(job, wait=[GROUP], timeout_s=PATIENCE_S, fail_fast=False)
                )
            )

    async def settled(self) -> int:
        """How many have an outcome now."""
        return sum(map(len, await self._each(Job.outcomes)))

    async def check(self) -> None:
        """Every waiter gets the outcome of its job, and the fields are of the run that has written
        it; who has read them forgets them.
        """
        done = await asyncio.gather(*self._waits)
        fields = await asyncio.gather(
            *(job.load("by", forget=("by",)) for job in self._sent[len(self._found) :])
        )
        for n, found in enumerate(fields, len(self._found)):
            outcome, by = done[n][GROUP], found["by"].decode()
            assert by.partition("|run ")[0] == str(n)
            assert (outcome.job, outcome.ok, outcome.error) == (
                self._sent[n].id,
                n % 3 != 0,
                "" if n % 3 else by,
            )
            self._found.append(outcome)

    async def check_once(self) -> None:
        """Since they were checked nothing has come: no second outcome, no field that was
        forgotten.
        """
        self.send(1)
        await self.check()
        async with asyncio.timeout(PATIENCE_S):
            # What was published before has come before
            while not self.published[self._sent[-1].id]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert self.published == dict.fromkeys((job.id for job in self._sent), 1)
        assert [found[GROUP] for found in await self._each(Job.outcomes)] == self._found
        assert [await job.load("by") for job in self._sent] == [{"by": None}] * len(self._sent)

    async def _each(self, ask: Any) -> list[Any]:
        return await asyncio.gather(*map(ask, self._sent))

    async def _count(self, published: AsyncIterator[JobOutcome]) -> None:
        async for outcome in published:
            self.published[outcome.job] += 1

    async def end(self) -> None:
        for task in (*self._waits, self._counting):
            task.cancel()
        await asyncio.gather(*self._waits, self._counting, return_exceptions=True)


@asynccontextmanager
async def sending(url: str) -> AsyncIterator[SentJobs]:
    """Jobs for a queue whose query begins later."""
    async with Program(url) as program, program.jobs("in") as jobs:
        await jobs.queue.subscribe(GROUP)
        async with jobs.completions("in") as published:
            sent = SentJobs(jobs, published)
            try:
                yield sent
            finally:
                await sent.end()
