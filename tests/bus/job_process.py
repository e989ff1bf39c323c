"""Processes to be killed: ``python -m tests.bus.job_process <place> work|wait <queue> …``; place:
see killable.py.

``work``: a worker of group g that prints id and try of each job when it begins; the handler never
returns while the field ``hold`` is there. ``wait``: sends a job, prints its id, and waits for group
g.
"""

from __future__ import annotations

import asyncio
import json
import sys

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.worker import WorkerKeywords

FOREVER_S = 3600


async def handler(job: Job) -> None:
    print(json.dumps([job.id, job.tries]), flush=True)
    if (await job.load("hold"))["hold"]:
        await asyncio.sleep(FOREVER_S)
    count = (await job.load("count"))["count"] or 0
    job["count"] = count + 1
    await job.save()


async def work(
    place: str, name: str, tries: str, limit: str, group_limit: str = "0", lease_s: str = "1"
) -> None:
    options: WorkerKeywords = {"start": "earliest", "lease_s": int(lease_s), "deadline_s": None}
    async with Bus(**json.loads(place)) as bus:
        await (
            bus.jobs(name)
            .worker(
                "g", tries=int(tries), limit=int(limit), group_limit=int(group_limit), **options
            )(handler)
            .run()
        )


async def wait(place: str, name: str) -> None:
    async with Bus(**json.loads(place)) as bus, bus.jobs(name) as jobs:
        job = jobs.new()
        print(json.dumps(job.id), flush=True)
        await jobs.send(job, wait=["g"], timeout_s=FOREVER_S)


if __name__ == "__main__":
    asyncio.run({"work": work, "wait": wait}[sys.argv[2]](sys.argv[1], *sys.argv[3:]))
