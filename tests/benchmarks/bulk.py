"""Draining and staging through a federation server over ``busmq.bulk.v1``, against the same with
Redis itself, on loopback: what the detour costs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Range
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.benchmarks.drain import SIZES
from tests.benchmarks.federation import SECRET, our_server, serving
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

LEAST = 0.5
STAGED = 200_000
HOUR = QueueCreateOptions(allowed=True, ttl_s=3600)
Store = RedisStore | FederationBulkStore


def run(sizes: dict[int, int] = SIZES, runs: int = RUNS) -> Iterator[Row]:
    spark = session()
    with redis() as (server, link), serving(our_server(server.url)) as url:
        direct, federated = (
            open_store(RedisOptions(url=server.url)),
            FederationBulkStore(FederationAddress(url, SECRET)),
        )
        for size, rows in sizes.items():
            fill(link, "bench", rows, size)
            whole = Range("bench", direct.attach(["bench"], HOUR)["bench"].born, 1, rows)
            found = alternating(
                runs,
                direct=lambda whole=whole: read_s(direct, whole),
                federated=lambda whole=whole: read_s(federated, whole),
            )
            yield compared(f"Read {rows:,} × {size} B", rows, found)
            where = {
                "direct": {"redis.url": server.url},
                "federated": {"federation.url": url, "federation.secret": SECRET},
            }
            frames = {
                name: (
                    spark.readStream.format("busmq").options(
                        **options, subscribe="bench", ack="none", minPartitions="2"
                    )
                )
                for name, options in where.items()
            }
            spent = alternating(
                runs,
                **{
                    name: lambda frame=frame: add_batch_s(drain(frame.load()))
                    for name, frame in frames.items()
                },
            )
            yield compared(f"Drain {rows:,} × {size} B into noop, two tasks", rows, spent)
        found = alternating(
            runs, direct=lambda: stage_s(direct), federated=lambda: stage_s(federated)
        )
        yield compared(f"Stage and commit {STAGED:,} × 100 B, exactly once", STAGED, found)
        direct.close()
        federated.close()


def compared(what: str, rows: int, found: dict[str, list[float]]) -> Row:
    """The federated rate against the direct one, run by run."""
    share = Spread.of(ratios(found["direct"], found["federated"]))
    rates = {name: rows / Spread.of(spent).median / 1e6 for name, spent in found.items()}
    shown = (
        f"{share.text()}; {rates['federated']:.2f} M msg/s, direct {rates['direct']:.2f} M msg/s"
    )
    return Row(
        f"{what}: over federation, against Redis itself", shown, f"≥ {LEAST}", share.median >= LEAST
    )


def read_s(store: Store, whole: Range) -> float:
    """Seconds to read a range into Arrow."""
    began = time.perf_counter()
    rows = sum(len(piece.values) for piece in store.read(whole, True))
    assert rows == whole.rows
    return time.perf_counter() - began


def stage_s(store: Store) -> float:
    """Seconds from the first row to a committed batch."""
    values = [f"{i:010d}".encode().ljust(100, b"x") for i in range(10_000)]
    store.attach(["sink"], HOUR)
    store.truncate(["sink"])
    sink = secrets.token_hex(8)
    began = time.perf_counter()
    appender, key = store.appender(), store.keys("sink").stage(f"batch:0:0:{secrets.token_hex(8)}")
    for _ in range(STAGED // len(values)):
        appender.stage("sink", key, values)
    staged = appender.finish()
    store.record(sink, 0, staged)
    assert store.commit("sink", sink, 0, staged) is None
    return time.perf_counter() - began
