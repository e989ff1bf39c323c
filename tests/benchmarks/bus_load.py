"""The same load as npm_load.js on our bus, one process:
``python -m tests.benchmarks.bus_load URL each|many MESSAGES_PER_QUEUE``.

``idle`` instead attaches 10 000 queues and says what they cost while nothing happens.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import psutil

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue

QUEUES, BATCH, IDLE_QUEUES = 100, 100, 10_000
MESSAGE = b"x" * 32


async def load(url: str, mode: str, count: int) -> dict[str, float]:
    """Pushed and consumed messages a second, at the same time."""
    async with Bus(url) as bus:
        queues = [bus.queue(f"ours{i}") for i in range(QUEUES)]
        await asyncio.gather(*(queue.attach() for queue in queues))
        began = time.perf_counter()
        consumers = [asyncio.create_task(consume(queue, mode, count)) for queue in queues]
        await asyncio.gather(*(push(queue, mode, count) for queue in queues))
        pushed = time.perf_counter() - began
        await asyncio.gather(*consumers)
        consumed = time.perf_counter() - began
        return {"push": QUEUES * count / pushed, "consume": QUEUES * count / consumed}


async def push(queue: Queue, mode: str, count: int) -> None:
    if mode == "each":
        for _ in range(count):
            await queue.push(MESSAGE)
    else:
        for _ in range(0, count, BATCH):
            await queue.push_many([MESSAGE] * BATCH)


async def consume(queue: Queue, mode: str, count: int) -> None:
    if mode == "each":
        async for _ in queue.consume(max=count):
            pass
    else:
        async for _ in queue.consume(max=count).batches():
            pass


async def idle(url: str, seconds: float) -> dict[str, float]:
    """Part of a core that keeps 10 000 queues of 30 s alive, and bytes of memory each."""
    process = psutil.Process()
    async with Bus(url) as bus:
        before = process.memory_info().rss
        queues = [bus.queue(f"idle{i}") for i in range(IDLE_QUEUES)]
        for i in range(0, IDLE_QUEUES, QUEUES):
            await asyncio.gather(*(queue.attach(ttl_s=30) for queue in queues[i : i + QUEUES]))
        bytes_each = (process.memory_info().rss - before) / IDLE_QUEUES
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)  # the span that is measured
        return {
            "core": (time.process_time() - cpu) / (time.perf_counter() - began),
            "bytes": bytes_each,
        }


if __name__ == "__main__":
    url, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print(json.dumps(asyncio.run(idle(url, count) if mode == "idle" else load(url, mode, count))))
