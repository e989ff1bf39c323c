"""A client outside Spark: pushes at a steady rate into one queue, takes from another, prints how
long each message was under way.

python -m tests.benchmarks.load URL FROM TO RATE SECONDS SIZE
"""

from __future__ import annotations

import json
import sys
import threading
import time

from busmq_spark.queue import queue as q
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse


def push(url: str, queue: str, rate: int, seconds: float, size: int) -> None:
    link, keys = SyncLink(parse(url)[0]), QueueKeys(queue)
    start = time.monotonic()
    for i in range(int(rate * seconds)):
        if (pause := start + i / rate - time.monotonic()) > 0:
            time.sleep(pause)  # the rate that is asked for
        link.run(q.push(keys, b"%020d" % time.monotonic_ns() + b"x" * (size - 20)))


def main() -> None:
    url, source, target, rate, seconds, size = (
        sys.argv[1],
        sys.argv[2],
        sys.argv[3],
        int(sys.argv[4]),
        float(sys.argv[5]),
        int(sys.argv[6]),
    )
    link, keys = SyncLink(parse(url)[0]), QueueKeys(target)
    pusher = threading.Thread(target=push, args=(url, source, rate, seconds, size), daemon=True)
    pusher.start()
    found: list[float] = []
    deadline = time.monotonic() + seconds + 60
    while len(found) < int(rate * seconds) and time.monotonic() < deadline:
        messages = link.run(q.pop(keys, most=1000))
        now = time.monotonic_ns()
        found += [(now - int(message.value[:20])) / 1e6 for message in messages]
        if not messages:
            time.sleep(
                0.0005
            )  # the resolution of what is measured; without it the poll takes a core from Spark
    found.sort()
    at = {
        name: round(found[min(len(found) - 1, int(len(found) * share))], 1)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    print(json.dumps({"messages": len(found), **at, "max": round(found[-1], 1)}))


if __name__ == "__main__":
    main()
