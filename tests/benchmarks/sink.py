"""The sink against the same number of plain Python processes that push ready-made batches by Lua,
without Spark.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from busmq_spark.queue import queue as q
from busmq_spark.queue.keys import QueueKeys
from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios, redis, session

ROWS, SIZE, TASKS = 1_000_000, 100, 2
LEAST = {"at-least-once": 0.6, "exactly-once": 0.4}


def plain_s(url: str) -> float:
    """Seconds in which TASKS processes push ROWS messages, their start-up not counted."""
    command = [sys.executable, "-m", "tests.benchmarks.pusher", url, str(ROWS // TASKS), str(SIZE)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(TASKS)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    start = time.perf_counter()
    for worker in workers:
        worker.communicate("go\n")
    return time.perf_counter() - start


def spark_s(frame: Any, url: str, delivery: str) -> float:
    start = time.perf_counter()
    frame.write.format("busmq").options(
        **{"redis.url": url, "queue": "bench", "delivery": delivery}
    ).mode("append").save()
    return time.perf_counter() - start


def run(runs: int = RUNS) -> Iterator[Row]:
    from pyspark.sql import functions as F

    spark = session()
    with redis() as (server, link):
        keys = QueueKeys("bench")
        frame = spark.range(0, ROWS, 1, TASKS).select(F.lit(b"x" * SIZE).alias("value"))

        def emptied(seconds: float) -> float:
            assert link.run(q.count(keys)) == ROWS, "rows are missing"
            link.run(q.delete(keys))
            link.run(q.attach(keys, "bench", ttl_s=86_400))
            return seconds

        link.run(q.attach(keys, "bench", ttl_s=86_400))
        found = alternating(
            runs,
            plain=lambda: emptied(plain_s(server.url)),
            at_least_once=lambda: emptied(spark_s(frame, server.url, "at-least-once")),
            exactly_once=lambda: emptied(spark_s(frame, server.url, "exactly-once")),
        )
        for delivery, least in LEAST.items():
            seconds = found[delivery.replace("-", "_")]
            share = Spread.of(ratios(found["plain"], seconds))
            rate = ROWS / Spread.of(seconds).median
            yield Row(
                f"Write {ROWS:,} × {SIZE} B, {TASKS} tasks, {delivery}: rate against {TASKS} plain"
                " Python pushers",
                f"{share.text()}, {rate / 1e3:.0f} k msg/s",
                f"≥ {least}",
                share.median >= least,
            )
