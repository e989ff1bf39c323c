"""What several files of tests of jobs need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.groups import dead_letter
from busmq_spark.groups.dead_letter import DeadLetter
from tests.bus.tools import UNTIL_S, redis

LONG_S = 3600.0


async def concat(job: Job) -> None:
    """The worker of the example."""
    said = await job.load("inbound", forget=("inbound",))
    job["outbound"] = said["inbound"] + " world!"
    await job.save()


class Held:
    """A handler that says when it has begun, and ends when it is told."""

    def __init__(self) -> None:
        self.begun: list[Job] = []
        self.ended: list[str] = []
        self.go = asyncio.Event()
        self.most = self.now = 0

    def __call__(self) -> Callable[[Job], Awaitable[None]]:
        async def handler(job: Job) -> None:
            self.begun.append(job)
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.go.wait()
                self.ended.append(job.id)
            finally:
                self.now -= 1

        return handler


async def nothing(job: Job) -> None:
    """A handler."""


async def letters(jobs: Jobs) -> list[DeadLetter]:
    """The dead letters of the queue."""
    async with Queue(jobs.bus, f"{jobs.queue.name}.dead") as dead:
        return [
            dead_letter.decode_letter(message.value)
            async for message in dead.consume(remove=False, max=await dead.count())
        ]


async def keys_of(queue: Queue, job: Job) -> list[str]:
    """What of a job is in Redis, but for its outcomes."""
    found: list[bytes] = await redis(queue, "KEYS", f"*{job.in_redis.base}*")
    return sorted(key.decode() for key in found if key.decode() != job.in_redis.outcomes)


async def soon(work: Awaitable[object]) -> object:
    return await asyncio.wait_for(work, UNTIL_S)


async def until_none(left: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(UNTIL_S):
        while await left():  # noqa: ASYNC110  # what is in Redis publishes no change
            await asyncio.sleep(0.01)


async def held_ends(jobs: Jobs, group: str) -> None:
    await asyncio.wait_for(jobs.queue.group(group, shared=True).wait_idle(), UNTIL_S)
