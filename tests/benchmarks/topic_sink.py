"""The sink into the partitions of a topic, chosen by the key of each row, against the same rows for
one queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from busmq_spark.groups.topic import partition_queues
from busmq_spark.queue import queue as q
from busmq_spark.queue.keys import QueueKeys
from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios, redis, session
from tests.jvm import module

ROWS, SIZE, TASKS, PARTITIONS, KEYS = 300_000, 100, 2, 10, 100_000
FORMATS = {"busmq": "engine in Python", "busmq-realtime": "engine in Java"}


def run(runs: int = RUNS) -> Iterator[Row]:
    from pyspark.sql import functions as F

    module.built()
    spark = session()
    rows = spark.range(0, ROWS, 1, TASKS).select(
        F.lit(b"x" * SIZE).alias("value"), (F.col("id") % KEYS).cast("string").alias("key")
    )
    with redis() as (server, link):

        def write_s(frame: Any, sink: str, queues: list[str], **where: str) -> float:
            start = time.perf_counter()
            frame.write.format(sink).options(**{"redis.url": server.url, **where}).mode(
                "append"
            ).save()
            seconds = time.perf_counter() - start
            assert sum(link.run(q.count(QueueKeys(queue))) for queue in queues) == ROWS, (
                "rows are missing"
            )
            for queue in queues:
                link.run(q.delete(QueueKeys(queue)))
            return seconds

        for sink, engine in FORMATS.items():
            found = alternating(
                runs,
                queue=lambda sink=sink: write_s(rows.drop("key"), sink, ["one"], queue="one"),  # type: ignore[misc]
                topic=lambda sink=sink: write_s(  # type: ignore[misc]
                    rows,
                    sink,
                    partition_queues("metrics", PARTITIONS),
                    topic="metrics",
                    partitions=str(PARTITIONS),
                ),
            )
            over = Spread.of(ratios(found["topic"], found["queue"]))
            rate = ROWS / Spread.of(found["topic"]).median
            what = (
                f"Write {ROWS:,} × {SIZE} B by {KEYS:,} keys into a topic of {PARTITIONS}, exactly"
                f" once, engine in {engine}: time against one queue"
            )
            yield Row(what, f"{over.text()}, {rate / 1e3:.0f} k msg/s", "≤ 1.5", over.median <= 1.5)
