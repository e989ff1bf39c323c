"""What an idle query costs Redis."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

from busmq_spark.queue import queue as q
from busmq_spark.queue.keys import QueueKeys
from tests.benchmarks.harness import Row, redis, session
from tests.spark.monitor import Monitor

QUEUES, SECONDS, MOST = 300, 10.0, 25


def run(seconds: float = SECONDS) -> Iterator[Row]:
    spark = session()
    with redis() as (server, link), tempfile.TemporaryDirectory() as folder:
        for i in range(QUEUES):
            link.run(q.attach(QueueKeys(f"idle{i}"), "bench", ttl_s=86_400))
        frame = (
            spark.readStream.format("busmq")
            .options(**{"redis.url": server.url, "subscribePattern": "idle.*"})
            .load()
        )
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        while not query.lastProgress:
            query.awaitTermination(0.1)
        with Monitor(server) as monitor:
            time.sleep(seconds)  # the span that is measured: the cost of an idle query
        rate = len(monitor.commands) / seconds
        query.stop()
        yield Row(
            f"Commands an idle query with {QUEUES} queues sends",
            f"{rate:.1f} a second",
            f"≤ {MOST}",
            rate <= MOST,
        )
