"""A holder of a shared group to be killed:
``python -m tests.bus.group_worker <place> <queue> <group> <tries>``; place: see killable.py.

Prints a JSON list of id and try of each batch before it settles it, and ``{"acked": …}`` with those
whose ack was not refused. Messages that end in ``poison`` are tried again and again; the others are
acked. At the first two tries of one that ends in ``hang`` the process is stopped, with its batch in
hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from busmq_spark.bus.bus import Bus

HANGS = 2
POISON, HANG = b"poison", b"hang"


async def main(place: str, name: str, group: str, tries: int) -> None:
    async with (
        Bus(**json.loads(place)) as bus,
        bus.queue(name) as queue,
        queue.group(group, shared=True, lease_s=1, tries=tries) as holder,
    ):
        async for batch in holder.batches(most=20):
            print(json.dumps([[each.id, each.tries] for each in batch]), flush=True)
            if any(each.value.endswith(HANG) and each.tries <= HANGS for each in batch):
                os.kill(os.getpid(), signal.SIGSTOP)
            await holder.retry(
                [each for each in batch if each.value.endswith(POISON)], error="poison"
            )
            good = [each for each in batch if not each.value.endswith(POISON)]
            refused = await holder.ack(good)
            print(
                json.dumps(
                    {"acked": [[each.id, each.tries] for each in good if each not in refused]}
                ),
                flush=True,
            )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
