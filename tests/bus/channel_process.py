"""A process with one reliable side of a channel, to be killed:
``python -m tests.bus.channel_process NAME HOW ACK_UP_TO SETTINGS``.

Prints ``id text`` of each message, and acks those up to an id.
"""

from __future__ import annotations

import asyncio
import json
import sys

from busmq_spark.bus.bus import Bus


async def main(name: str, how: str, last: str, settings: str) -> None:
    async with Bus(**json.loads(settings)) as bus:
        channel = bus.channel(name)
        await getattr(channel, how)(reliable=True)
        async for message in channel:
            if message.id <= int(last):
                await channel.ack(message.id)
            print(message.id, message.text, flush=True)


asyncio.run(main(*sys.argv[1:]))
