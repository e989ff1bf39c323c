"""Our federation server in a process of its own:
``python -m tests.benchmarks.fed_serve REDIS_URL SECRET``; the same words as fed_server.js.
"""

from __future__ import annotations

import asyncio
import sys

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.serve.server import FederationServer


async def serve(redis: str, secret: str) -> None:
    """Until the standard input ends."""
    async with Bus(redis) as bus, FederationServer(bus, Keyring.single(secret)) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
