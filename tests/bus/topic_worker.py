"""A member of a group of a topic, to be killed:
``python -m tests.bus.topic_worker <place> <topic> <group> [<machine>]``; place: see killable.py.

Prints a JSON line ``[partition, [[id, text] …], at]`` before it handles a batch, and
``[partition, id]`` when everything up to that id is acked. ``at`` is the monotonic time of the
machine. With a name of its own for its machine only the end of its lease tells that it died.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from busmq_spark.bus.bus import Bus
from busmq_spark.redis_io import lease_token


async def main(place: str, topic: str, group: str) -> None:
    async with Bus(**json.loads(place)) as bus, bus.topic(topic).group(group) as member:
        async for batch in member.batches(most=20, linger_s=0.02):
            print(
                json.dumps(
                    [batch.partition, [[each.id, each.text] for each in batch], time.monotonic()]
                ),
                flush=True,
            )
            await asyncio.sleep(0.002)
            await member.ack(batch)
            print(json.dumps([batch.partition, batch[-1].id]), flush=True)


if __name__ == "__main__":
    if sys.argv[4:]:
        lease_token.this_machine = lambda: sys.argv[4]
    asyncio.run(main(*sys.argv[1:4]))
