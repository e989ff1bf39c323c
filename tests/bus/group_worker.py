"""A holder of a shared group to be killed: ``python -m tests.bus.group_worker <url> <queue> <group> <tries>``.

Prints a JSON list of id and try of each batch before it settles it. Messages ``poison`` are tried again and again; the others are acked.
"""

from __future__ import annotations

import asyncio
import json
import sys

from busmq_spark.bus.bus import Bus


async def main(url: str, name: str, group: str, tries: int) -> None:
    async with Bus(url) as bus, bus.queue(name) as queue, queue.group(group, shared=True, lease_s=1, tries=tries) as holder:
        async for batch in holder.batches(most=20):
            print(json.dumps([[each.id, each.tries] for each in batch]), flush=True)
            await holder.retry([each for each in batch if each.value == b"poison"], error="poison")
            await holder.ack([each for each in batch if each.value != b"poison"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
