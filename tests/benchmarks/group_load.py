"""Messages a second that one process reads and settles in batches of 100:
``… -m tests.benchmarks.group_load URL plain|ordered|shared MESSAGES``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from busmq_spark.bus.bus import Bus

BATCH = 100
VALUE = b"x" * 100


async def load(url: str, how: str, count: int) -> float:
    async with Bus(url) as bus, bus.queue(f"bench-{how}-{os.getpid()}") as queue:
        await queue.push_many([VALUE] * count)
        began, left = time.perf_counter(), count
        if how == "plain":
            async for taken in queue.consume(reliable=True, prefetch=BATCH, max=count).batches():
                await queue.ack(taken[-1].id)
        elif how == "ordered":
            async with queue.group("g") as ordered:
                async for batch in ordered.batches(BATCH):
                    await ordered.ack(batch)
                    if (left := left - len(batch)) == 0:
                        break
        else:
            async with queue.group("g", shared=True) as shared:
                async for deliveries in shared.batches(BATCH):
                    await shared.ack(deliveries)
                    if (left := left - len(deliveries)) == 0:
                        break
        rate = count / (time.perf_counter() - began)
        await queue.delete()
        return rate


if __name__ == "__main__":
    print(json.dumps({"rate": asyncio.run(load(sys.argv[1], sys.argv[2], int(sys.argv[3])))}))
