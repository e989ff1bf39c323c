"""Jobs, and requests of a service, that one process sends, works on and waits for:
``… -m tests.benchmarks.job_load URL HOW COUNT``.

``job`` and ``request``: the median in milliseconds, one at a time. ``flight``: jobs a second, 1,000
in flight, each sent by a task of its own; ``many``: the same, 100 in a call. ``empty``: what no
program on asyncio does without, a task for a handler and a future for who waits, a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.queue.command_generators import Flow, command

IN_FLIGHT, TOGETHER, WARM, TIMEOUT_S = 1000, 100, 100, 60


async def nothing(job: Job) -> None:
    """The handler."""


async def load(url: str, how: str, count: int) -> dict[str, float]:
    """``value``, and for rates the µs of a job that this process and Redis were at work."""
    name = f"bench-{how}-{os.getpid()}"
    async with Bus(url) as bus, Bus(url) as other:
        if how == "request":
            async with other.service(name) as provider, bus.service(name) as requester:
                return {"value": await requested(provider, requester, count)}
        async with bus.jobs(name) as jobs, other.jobs(name).worker("g", limit=IN_FLIGHT)(nothing):

            async def one() -> Any:
                return await jobs.send(jobs.new(), wait=["g"], timeout_s=TIMEOUT_S)

            async def many() -> Any:
                return await jobs.send_many(
                    [jobs.new() for _ in range(TOGETHER)], wait=["g"], timeout_s=TIMEOUT_S
                )

            if how == "job":
                return {"value": await median_ms(one, count)}
            if how == "empty":
                return await rate(empty, 1, count, jobs)
            return await (
                rate(one, 1, count, jobs) if how == "flight" else rate(many, TOGETHER, count, jobs)
            )


async def empty() -> None:
    """A handler's task that ends a wait."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()

    async def handle() -> None:
        waiting.set_result(None)

    loop.create_task(handle())  # noqa: RUF006  # it ends before the wait does
    await waiting


async def requested(provider: Any, requester: Any, count: int) -> float:
    """As long as a request takes."""
    await provider.serve(lambda request: None)
    await requester.connect()
    return await median_ms(lambda: requester.request("x"), count)


async def median_ms(one: Callable[[], Awaitable[Any]], count: int) -> float:
    took = []
    for turn in range(WARM + count):
        began = time.perf_counter()
        await one()
        if turn >= WARM:
            took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took)


async def rate(
    one: Callable[[], Awaitable[Any]], each: int, count: int, jobs: Jobs
) -> dict[str, float]:
    """``one`` does ``each`` of them."""
    left = count

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= each
            await one()

    await asyncio.gather(*(one() for _ in range(max(1, WARM // each))))
    redis_s, process_s, began = await busy_s(jobs), time.process_time(), time.perf_counter()
    await asyncio.gather(*(some() for _ in range(IN_FLIGHT // each)))
    took_s, process_s = time.perf_counter() - began, time.process_time() - process_s
    return {
        "value": count / took_s,
        "process_us": 1e6 * process_s / count,
        "redis_us": 1e6 * (await busy_s(jobs) - redis_s) / count,
    }


async def busy_s(jobs: Jobs) -> float:
    """Seconds that Redis has been at work."""

    def ask() -> Flow[bytes]:
        return (yield command("INFO", "cpu"))

    lines = dict(
        line.split(":") for line in (await jobs.queue.run(ask())).decode().split() if ":" in line
    )
    return float(lines["used_cpu_user"]) + float(lines["used_cpu_sys"])


if __name__ == "__main__":
    print(json.dumps(asyncio.run(load(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
