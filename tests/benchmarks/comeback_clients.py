"""Many clients in one process: ``python -m tests.benchmarks.comeback_clients URL SECRET COUNT CA``;
CA may be empty.

Each is a bus with a web socket and a queue that is attached. A line each time all of them are
there: the CPU seconds that this process has spent.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import BusError

AT_ONCE = 25


async def run(url: str, secret: str, count: int, ca: str) -> None:
    """Until it is killed."""
    settings: dict[str, Any] = {
        "federate_secret": secret,
        "federate_sockets": 1,
        "federate_tls_ca": ca or None,
    }
    async with AsyncExitStack() as stack:
        queues: list[Any] = []
        left = 0
        changed = asyncio.Event()

        def back() -> None:
            nonlocal left
            left -= 1
            changed.set()

        while len(queues) < count:  # a few at a time: the crowd that is measured comes later
            buses = [
                await stack.enter_async_context(Bus(federate=url, **settings))
                for _ in range(min(AT_ONCE, count - len(queues)))
            ]
            few = [
                bus.federate(bus.queue(f"comeback-{os.getpid()}-{len(queues) + place}"))
                for place, bus in enumerate(buses)
            ]
            await asyncio.gather(*(attached(queue) for queue in few))
            queues += few
        for queue in queues:
            queue.on("reconnected", back)
        while True:
            print(time.process_time(), flush=True)
            left += count
            while left:
                changed.clear()
                await changed.wait()


async def attached(queue: Any) -> None:
    """However long it takes."""
    while True:
        try:
            await queue.attach()
        except BusError:
            continue
        return


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
