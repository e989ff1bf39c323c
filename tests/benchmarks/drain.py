"""Draining a backlog into the noop sink, against a Python source that yields the same Arrow batches
ready-made.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.harness import (
    RUNS,
    Row,
    Spread,
    add_batch_s,
    alternating,
    drain,
    fill,
    ratios,
    redis,
    session,
)

SIZES = {32: 1_000_000, 100: 1_000_000, 1024: 300_000, 10_240: 50_000}
LEAST = 0.7


def run(sizes: dict[int, int] = SIZES, runs: int = RUNS) -> Iterator[Row]:
    spark = session()
    with redis() as (server, link):
        for size, rows in sizes.items():
            fill(link, "bench", rows, size)
            source = spark.readStream.format("busmq").options(
                **{
                    "redis.url": server.url,
                    "subscribe": "bench",
                    "ack": "none",
                    "minPartitions": "2",
                }
            )
            ceiling = spark.readStream.format("busmq_ceiling").options(
                size=str(size), rows=str(rows), tasks="2"
            )
            found = alternating(
                runs,
                ceiling=lambda ceiling=ceiling: add_batch_s(drain(ceiling.load())),
                busmq=lambda source=source: add_batch_s(drain(source.load())),
            )
            share = Spread.of(ratios(found["ceiling"], found["busmq"]))
            rate = rows / Spread.of(found["busmq"]).median
            yield Row(
                f"Drain {rows:,} × {size} B into noop, two tasks: rate against the ceiling",
                f"{share.text()}, {rate / 1e6:.2f} M msg/s",
                f"≥ {LEAST}",
                share.median >= LEAST,
            )
