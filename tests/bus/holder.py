"""A consumer to be killed: ``python -m tests.bus.holder <url> <queue>`` takes messages reliably, prints their ids and acks nothing."""

from __future__ import annotations

import asyncio
import sys

from busmq_spark.bus.bus import Bus


async def main(url: str, name: str) -> None:
    async with Bus(url) as bus, bus.queue(name) as queue:
        async for message in queue.consume(reliable=True):
            print(message.id, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
