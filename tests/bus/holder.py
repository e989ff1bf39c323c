"""A consumer to be killed: ``python -m tests.bus.holder <url> <queue>`` takes messages reliably,
prints their ids and acks nothing.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from busmq_spark.bus.bus import Bus


async def main(url: str, name: str) -> None:
    async with Bus(url) as bus, bus.queue(name) as queue:
        async for message in queue.consume(reliable=True):
            print(message.id, flush=True)


def leave() -> None:
    """Start one in a process of its own, print its number, and end with our input."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bus.holder", *sys.argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    print(child.pid, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
