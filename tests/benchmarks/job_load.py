"""Jobs, and requests of a service, that one process sends, works on and waits for: ``… -m tests.benchmarks.job_load URL job|request|flight COUNT``.

``job`` and ``request``: the median in milliseconds, one at a time. ``flight``: jobs a second, 1,000 in flight.
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
from busmq_spark.bus.job import Job

IN_FLIGHT, WARM, TIMEOUT_S = 1000, 100, 60


async def nothing(job: Job) -> None:
    """The handler."""


async def load(url: str, how: str, count: int) -> float:
    name = f"bench-{how}-{os.getpid()}"
    async with Bus(url) as bus, Bus(url) as other:
        if how == "request":
            async with other.service(name) as provider, bus.service(name) as requester:
                return await requested(provider, requester, count)
        async with bus.jobs(name) as jobs, other.jobs(name).worker("g", limit=IN_FLIGHT)(nothing):

            async def one() -> Any:
                return await jobs.send(jobs.new(), wait=["g"], timeout_s=TIMEOUT_S)

            return await median_ms(one, count) if how == "job" else await rate(one, count)


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


async def rate(one: Callable[[], Awaitable[Any]], count: int) -> float:
    left = count

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one()

    await asyncio.gather(*(one() for _ in range(WARM)))
    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps({"value": asyncio.run(load(sys.argv[1], sys.argv[2], int(sys.argv[3])))}))
