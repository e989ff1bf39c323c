"""A process that pushes ready-made batches by Lua, three under way:
``… -m tests.benchmarks.pusher URL MESSAGES BYTES``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from busmq_spark.queue.command_generators import script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import chunks
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse


def main(words: Sequence[str]) -> None:
    url, rows, size = words[0], int(words[1]), int(words[2])
    link, keys = SyncLink(parse(url)[0]), QueueKeys("bench")
    values = [b"x" * size] * 10_000
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(rows // len(values)):
        for _ in link.stream(
            (script("push", keys.appending, (keys.available, *chunk)) for chunk in chunks(values)),
            3,
        ):
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
