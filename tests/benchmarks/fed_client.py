"""Our client, measured from a process of its own: python -m tests.benchmarks.fed_client URL SECRET
burst|each|consume QUEUE COUNT.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from busmq_spark.bus.bus import Bus

MESSAGE = "x" * 32


async def burst(queue: Any, count: int) -> None:
    await asyncio.gather(*(queue.push(MESSAGE) for _ in range(count)))


async def each(queue: Any, count: int) -> None:
    for _ in range(count):
        await queue.push(MESSAGE)


async def many(queue: Any, count: int) -> None:
    await queue.push_many([MESSAGE] * count)


async def consume(queue: Any, count: int) -> None:
    async for _ in queue.consume(max=count, prefetch=1000):
        pass


async def main(url: str, secret: str, mode: str, name: str, count: int) -> None:
    async with (
        Bus(federate=url, federate_secret=secret, federate_secret_in_url=True) as bus,
        bus.federate(bus.queue(name)) as queue,
    ):
        began = time.perf_counter()
        await {"burst": burst, "each": each, "many": many, "consume": consume}[mode](queue, count)
        print(json.dumps(count / (time.perf_counter() - began)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))  # type: ignore[call-arg]
