"""Cost stays flat: a backlog a hundred times as long, its middle and its end; many queues in one query or batch; memory on the way."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil

from busmq_spark.core import queue as q
from busmq_spark.core import reader_operations as core_state
from busmq_spark.core.command_generators import command
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.position import Position
from tests.benchmarks.harness import RUNS, Row, Spread, add_batch_s, alternating, drain, fill, ratios, redis, script_calls_and_us, session

SMALL, LARGE, SIZE = 100_000, 10_000_000, 100
BATCHES = 5
"""Batches of SMALL messages in one run, whose median counts: a stage of 60 ms alone says more of the machine than of us."""
PLANS = 20
"""Batches planned in one run, the first one included."""
MOST_RSS_MB, MOST_REPLY_MB = 300, 8
PLACES = {"start": 0, "middle": LARGE // 2, "end": LARGE - SMALL}


def run(runs: int = RUNS) -> Iterator[Row]:
    spark = session()
    with redis() as (server, link):
        fill(link, "small", SMALL, SIZE)
        fill(link, "large", LARGE, SIZE)

        def part(queue: str, after: int) -> Any:
            where = {"redis.url": server.url, "subscribe": queue, "ack": "none", "startingOffsets": json.dumps({queue: after})}
            frame = spark.readStream.format("busmq").options(**where, maxMessagesPerTrigger=str(SMALL), minPartitions="2").load()
            return lambda: Spread.of([first_batch_s(frame) for _ in range(BATCHES)]).median

        measures = {"small": part("small", 0), **{place: part("large", after) for place, after in PLACES.items()}}
        found = alternating(runs, **measures)
        for place in PLACES:
            over = Spread.of(ratios(found[place], found["small"]))
            what = f"Time per message at the {place} of a backlog of {LARGE:,}, against one of {SMALL:,}"
            yield Row(what, over.text(), "≤ 1.1", over.median <= 1.1)
        yield from memory(spark, server)


def first_batch_s(frame: Any) -> float:
    """Seconds in the stage of the first batch with rows."""
    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).trigger(processingTime="1 hour").start()
        try:
            while not (rows := [p for p in query.recentProgress if p["numInputRows"]]):
                if query.exception():
                    raise query.exception()
                query.awaitTermination(0.05)
            return add_batch_s(rows[:1])
        finally:
            query.stop()


def memory(spark: Any, server: Any) -> Iterator[Row]:
    """Drain the large queue for good, in capped batches, and watch the Python workers."""
    frame = spark.readStream.format("busmq").options(**{"redis.url": server.url, "subscribe": "large", "minPartitions": "2"})
    watch = Watch(server)
    progress = drain(frame.option("maxMessagesPerTrigger", "1000000").load())
    most_mb, reply_mb = watch.stop()
    rows = sum(p["numInputRows"] for p in progress)
    what = f"Most resident memory of a Python worker while {rows:,} × {SIZE} B are drained"
    yield Row(what, f"{most_mb:.0f} MB", f"< {MOST_RSS_MB} MB", most_mb < MOST_RSS_MB)
    what = "Largest reply Redis had to buffer for one client meanwhile"
    yield Row(what, f"{reply_mb:.1f} MB", f"≤ {MOST_REPLY_MB} MB", reply_mb <= MOST_REPLY_MB)


class Watch:
    """Samples the resident memory of all Python workers below this process, and Redis' output buffers."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._stopped = threading.Event()
        self._rss = self._reply = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> tuple[float, float]:
        self._stopped.set()
        self._thread.join()
        return self._rss / 1e6, self._reply / 1e6

    def _run(self) -> None:
        me = psutil.Process()
        while not self._stopped.wait(0.05):
            for process in me.children(recursive=True):
                try:
                    if "python" in process.name() and "pyspark" in " ".join(process.cmdline()):
                        self._rss = max(self._rss, process.memory_info().rss)
                except psutil.Error:
                    continue
            for line in str(self._server.command("CLIENT", "LIST")).splitlines():
                fields = dict(item.partition("=")[::2] for item in line.split())
                self._reply = max(self._reply, int(fields.get("omem", 0)))


def queues(runs: int = RUNS) -> Iterator[Row]:
    """Planning and reading a batch from many queues, every one of which has new messages."""
    spark = session()
    with redis() as (server, link):
        counts = {"few": (10, 10), "many": (1000, 10), "long": (10, 1000)}
        for name, (count, rows) in counts.items():
            for i in range(count):
                keys = QueueKeys(f"{name}{i}")
                link.run(q.attach(keys, "bench", ttl_s=86_400))
                link.run(q.push_many(keys, [b"x" * SIZE] * rows * PLANS))

        def batch_s(name: str, part: Callable[[Any], float]) -> float:
            count, rows = counts[name]
            frame = spark.readStream.format("busmq").options(
                **{"redis.url": server.url, "subscribePattern": f"{name}\\d+", "ack": "none", "maxMessagesPerTrigger": str(count * rows)}
            )
            return Spread.of([part(p) for p in drain(frame.load())[1:]]).median  # the first one attaches

        found = alternating(runs, few=lambda: batch_s("few", planning_s), many=lambda: batch_s("many", planning_s))
        over = Spread.of(ratios(found["many"], found["few"]))
        shown = f"{over.text()}; {1000 * Spread.of(found['few']).median:.0f} and {1000 * Spread.of(found['many']).median:.0f} ms"
        yield Row("Planning a batch from 1,000 queues, against 10", shown, "< 2", over.median < 2)
        spent = Spread.of([check_ms(link, plan) for plan in range(PLANS)])
        yield Row("Redis' own time in the check of 1,000 queues that is part of it", f"{spent.text(0)} ms", "", None)
        found = alternating(runs, few=lambda: batch_s("long", reading_s), many=lambda: batch_s("many", reading_s))
        yield Row("Reading 10,000 messages from 1,000 queues, against 10", Spread.of(ratios(found["many"], found["few"])).text(), "", None)


def check_ms(link: Any, plan: int) -> float:
    """Milliseconds of Redis' processor for what planning asks of all of ``many``: whether what follows is there, at the positions of such a batch."""
    every = [QueueKeys(f"many{i}") for i in range(1000)]
    at = 10 * plan + 1
    states = link.run(core_state.states([(keys, at) for keys in every]))
    positions = [(keys, Position(state.born, at, state.mark), at + 9) for keys, state in zip(every, states, strict=True)]
    link.run(core_state.intact(positions[:1]))  # now Redis knows the script
    link.execute(command("CONFIG", "RESETSTAT"))
    assert None not in link.run(core_state.intact(positions))
    return script_calls_and_us(link)[1] / 1000


def writing(runs: int = RUNS) -> Iterator[Row]:
    """A batch to many queues, each of which gets some rows of every record batch, against the same rows for one queue."""
    from pyspark.sql import functions as F

    spark = session()
    with redis() as (server, link):

        def write_s(queues: int, delivery: str) -> float:
            names = F.concat(F.lit("out"), F.col("id") % queues)
            frame = spark.range(0, SMALL, 1, 2).select(F.lit(b"x" * SIZE).alias("value"), names.alias("queue"))
            start = time.perf_counter()
            frame.write.format("busmq").options(**{"redis.url": server.url, "delivery": delivery}).mode("append").save()
            spent = time.perf_counter() - start
            assert sum(link.run(q.count(QueueKeys(f"out{i}"))) for i in range(queues)) == SMALL, "rows are missing"
            link.execute(command("FLUSHALL"))
            return spent

        for delivery in ("exactly-once", "at-least-once"):
            found = alternating(runs, one=partial(write_s, 1, delivery), many=partial(write_s, 1000, delivery))
            over = Spread.of(ratios(found["many"], found["one"]))
            yield Row(f"Writing {SMALL:,} rows to 1,000 queues, {delivery}, against one queue", over.text(), "≤ 2", over.median <= 2)


def planning_s(progress: Any) -> float:
    """Everything of a trigger but the stage itself and the commit log."""
    spent = progress["durationMs"]
    return float(sum(spent.get(part, 0) for part in ("latestOffset", "getBatch", "queryPlanning", "walCommit"))) / 1000


def reading_s(progress: Any) -> float:
    """The stage."""
    return add_batch_s([progress])
