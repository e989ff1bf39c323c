"""Pushes to one queue as fast as Redis takes it, until killed:
``python -m tests.benchmarks.saturate URL QUEUE``. The queue is kept short.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from busmq_spark.queue import queue as q
from busmq_spark.queue.command_generators import RedisCall, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse


def main(url: str, name: str) -> None:
    link, keys = SyncLink(parse(url)[0]), QueueKeys(name)
    link.run(q.attach(keys, "bench", ttl_s=60))

    def calls() -> Iterator[RedisCall]:
        while True:
            for _ in range(200):
                yield script("push", keys.peer_keys, (keys.available, *[b"x" * 32] * 20))
            yield command("DEL", keys.messages)

    for _ in link.stream(calls(), 8):
        pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
