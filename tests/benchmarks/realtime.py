"""Push to arrival in real-time mode, beside the Python source and sink and beside the floor: the
same client without Spark in between.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import busmq_spark
from busmq_spark.queue import queue as q
from busmq_spark.queue.keys import QueueKeys
from notebooks.latency_clients import (
    PERCENTILE_POINTS,
    Workload,
    percentiles,
    workload_clients,
)
from tests.benchmarks.harness import (
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
from tests.benchmarks.latency import apart as python_apart
from tests.spark.monitor import Monitor

SIZE, WARM_S, FLOOR_S = 100, 20.0, 10.0
RUNS, SECONDS = 3, 60.0
BACKLOG = 1_000_000
Found = dict[str, dict[str, dict[str, float]]]
"""Of each way, through Spark and without it: milliseconds at some points."""
IDLE_S, IDLE_CORE, IDLE_COMMANDS = 30.0, 0.02, 25


@dataclass(frozen=True, slots=True)
class Way:
    """One pipeline: how it is run, and what it may take."""

    what: str
    rate: int
    batch: str = ""
    """Duration of a real-time batch; else Python source and sink."""
    most: tuple[tuple[str, float], ...] = ()

    @property
    def target(self) -> str:
        return (
            ", ".join(f"{point} ≤ {ms:g}" for point, ms in self.most) + " ms" if self.most else ""
        )


WAYS = {
    "early5": Way(
        f"real-time mode, 5 s batches, from {WARM_S:g} s to {WARM_S + SECONDS:g} s after the start"
        " of the query",
        1000,
        "5 seconds",
    ),
    "rt5": Way("real-time mode, 5 s batches", 1000, "5 seconds", (("p50", 1), ("p99", 10))),
    "rt60": Way("real-time mode, 60 s batches", 1000, "60 seconds", (("p99", 3),)),
    "many5": Way("real-time mode, 5 s batches", 20_000, "5 seconds", (("p99", 10),)),
    "many60": Way("real-time mode, 60 s batches", 20_000, "60 seconds", (("p99", 3),)),
    "plain": Way("Python source and sink, as Spark comes", 1000),
    "tuned": Way("Python source and sink, tuned", 1000),
}
# Java compiles what runs once a batch only after dozens of batches, so those of 60 s are measured
# in a Java that has seen many of 5 s.
SETTINGS = {
    "live": ("early5", "rt5", "many5", "rt60", "many60"),
    "plain": ("plain",),
    "tuned": ("tuned",),
}


def run(runs: int = RUNS, seconds: float = SECONDS) -> Iterator[Row]:
    found: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in WAYS}
    for turn in range(runs):
        for setting in SETTINGS:
            for name, measured in apart(setting, seconds).items():
                found[name].append(measured)
                print(f"    {name} {turn + 1}/{runs}: {measured}", file=sys.stderr, flush=True)
    for name, way in WAYS.items():
        yield row(way, found[name])
    yield throughput()
    yield idle()


def row(way: Way, found: Sequence[dict[str, dict[str, float]]]) -> Row:
    """The percentiles of all runs, and whether their medians keep to what is wanted."""
    spread = {
        kind: {point: Spread.of([run[kind][point] for run in found]) for point in PERCENTILE_POINTS}
        for kind in ("pipeline", "floor")
    }
    digits = 1 if way.batch else 0
    shown = ", ".join(
        f"{point} {spread['pipeline'][point].text(digits)}"
        for point in ("p50", "p95", "p99", "max")
    )
    floor = ", ".join(f"{point} {spread['floor'][point].median:.1f}" for point in ("p50", "p99"))
    met = (
        all(spread["pipeline"][point].median <= ms for point, ms in way.most) if way.most else None
    )
    what = (
        f"Push to arrival, {way.rate:,} msg/s of {SIZE} B, queue → `base64(value)` → queue,"
        f" {way.what}"
    )
    return Row(what, f"{shown} ms; without Spark {floor}", way.target, met)


def apart(setting: str, seconds: float) -> Found:
    """The ways of a setting in a process of their own, since Java keeps what was set when it
    started.
    """
    return python_apart(setting, seconds, "tests.benchmarks.realtime")


def once(setting: str, seconds: float) -> Found:
    """A session; for ways with the same trigger a query, and some traffic to warm it up; for each
    way the traffic that counts.
    """
    spark = session(setting != "plain", realtime=setting == "live")
    found: Found = {}
    for _, names in groupby(SETTINGS[setting], lambda name: WAYS[name].batch):
        found |= with_one_query(spark, list(names), seconds)
    spark.stop()
    return found


def with_one_query(spark: Any, names: Sequence[str], seconds: float) -> Found:
    """What ways measure that differ in their rate only."""
    with redis() as (server, link), tempfile.TemporaryDirectory() as folder:
        for queue in ("in", "out", "floor"):
            link.run(q.attach(QueueKeys(queue), "bench", ttl_s=86_400))
        query = pipeline(spark, WAYS[names[0]], server.url, folder)
        timed(server.url, Workload("in", "out", WAYS[names[0]].rate, WARM_S, SIZE))
        found = {}
        for name in names:
            rate = WAYS[name].rate
            counts = timed(server.url, Workload("in", "out", rate, seconds, SIZE))
            found[name] = {
                "pipeline": counts,
                "floor": timed(server.url, Workload("floor", "floor", rate, FLOOR_S, SIZE)),
            }
        query.stop()
    return found


def pipeline(spark: Any, way: Way, url: str, folder: str) -> Any:
    """The query, started."""
    name = "busmq-realtime" if way.batch else "busmq"
    where = {"redis.url": url}
    frame = (
        spark.readStream.format(name)
        .options(**where, subscribe="in")
        .load()
        .selectExpr("base64(value) AS value")
    )
    writer = frame.writeStream.format(name).options(**where, queue="out", checkpointLocation=folder)
    return (busmq_spark.realtime(writer, way.batch) if way.batch else writer).start()


def timed(url: str, load: Workload) -> dict[str, float]:
    """Milliseconds from push to arrival at some points, the most as the last."""
    with workload_clients(url, load) as said:
        found = list(said)[-1]
    took = found.pop("took_us")
    assert found == {"arrived": load.count, "twice": 0, "misplaced": 0}, found
    return percentiles(took)


def throughput() -> Row:
    """A backlog into noop, through both sources in turn."""
    spark = session(realtime=True)
    with redis() as (server, link):
        fill(link, "bench", BACKLOG, SIZE)
        where = {"redis.url": server.url, "subscribe": "bench", "ack": "none", "minPartitions": "2"}
        python, java = (
            spark.readStream.format(name).options(**where).load()
            for name in ("busmq", "busmq-realtime")
        )
        found = alternating(
            RUNS, python=lambda: add_batch_s(drain(python)), java=lambda: add_batch_s(drain(java))
        )
    share = Spread.of(ratios(found["python"], found["java"]))
    rate = BACKLOG / Spread.of(found["java"]).median
    what = (
        f"Drain {BACKLOG:,} × {SIZE} B into noop, two tasks: rate of the source in Java against the"
        " one in Python"
    )
    spark.stop()
    return Row(what, f"{share.text()}, {rate / 1e6:.2f} M msg/s", "≥ 1", share.median >= 1)


def idle(seconds: float = IDLE_S) -> Row:
    """A real-time query without anything to do: the Java process and Redis commands."""
    import psutil

    spark = session(realtime=True)
    with redis() as (server, link), tempfile.TemporaryDirectory() as folder:
        for queue in ("in", "out"):
            link.run(q.attach(QueueKeys(queue), "bench", ttl_s=86_400))
        query = pipeline(spark, WAYS["rt60"], server.url, folder)
        timed(server.url, Workload("in", "out", 1000, WARM_S, SIZE))
        java = psutil.Process(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
        with Monitor(server) as monitor:
            before = java.cpu_times()
            time.sleep(seconds)  # the span that is measured: the cost of an idle query
            after = java.cpu_times()
        core = (after.user + after.system - before.user - before.system) / seconds
        query.stop()
    spark.stop()
    rate = len(monitor.commands) / seconds
    met = core < IDLE_CORE and rate <= IDLE_COMMANDS
    what = "An idle real-time query: Java's part of a core; Redis commands a second"
    return Row(what, f"{core:.3f}; {rate:.1f}", f"< {IDLE_CORE}; ≤ {IDLE_COMMANDS}", met)


if __name__ == "__main__":
    print(json.dumps(once(sys.argv[1], float(sys.argv[2]))))
