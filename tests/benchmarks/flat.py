"""Cost stays flat: a backlog a hundred times as long, its middle and its end; many queues in one
query or batch; memory on the way.
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import hiredis
import psutil

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue import queue as q
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Position
from busmq_spark.reading import offsets
from busmq_spark.reading import reader_operations as core_state
from busmq_spark.redis_io.resp_codec import calls_of, pack
from busmq_spark.redis_io.sync_link import SyncLink
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

SMALL, LARGE, SIZE = 100_000, 10_000_000, 100
BATCHES = 5
"""Batches of SMALL messages in one run, whose median counts: a stage of 60 ms alone says more of
the machine than of us.
"""
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
            where = {
                "redis.url": server.url,
                "subscribe": queue,
                "ack": "none",
                "startingOffsets": json.dumps({queue: after}),
            }
            frame = (
                spark.readStream.format("busmq")
                .options(**where, maxMessagesPerTrigger=str(SMALL), minPartitions="2")
                .load()
            )
            return lambda: Spread.of([first_batch_s(frame) for _ in range(BATCHES)]).median

        measures = {
            "small": part("small", 0),
            **{place: part("large", after) for place, after in PLACES.items()},
        }
        found = alternating(runs, **measures)
        for place in PLACES:
            over = Spread.of(ratios(found[place], found["small"]))
            what = (
                f"Time per message at the {place} of a backlog of {LARGE:,}, against one of"
                f" {SMALL:,}"
            )
            yield Row(what, over.text(), "≤ 1.1", over.median <= 1.1)
        yield from memory(spark, server)


def first_batch_s(frame: Any) -> float:
    """Seconds in the stage of the first batch with rows."""
    with tempfile.TemporaryDirectory() as folder:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", folder)
            .trigger(processingTime="1 hour")
            .start()
        )
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
    frame = spark.readStream.format("busmq").options(
        **{"redis.url": server.url, "subscribe": "large", "minPartitions": "2"}
    )
    watch = Watch(server)
    progress = drain(frame.option("maxMessagesPerTrigger", "1000000").load())
    most_mb, reply_mb = watch.stop()
    rows = sum(p["numInputRows"] for p in progress)
    what = f"Most resident memory of a Python worker while {rows:,} × {SIZE} B are drained"
    yield Row(what, f"{most_mb:.0f} MB", f"< {MOST_RSS_MB} MB", most_mb < MOST_RSS_MB)
    what = "Largest reply Redis had to buffer for one client meanwhile"
    yield Row(what, f"{reply_mb:.1f} MB", f"≤ {MOST_REPLY_MB} MB", reply_mb <= MOST_REPLY_MB)


class Watch:
    """Samples the resident memory of all Python workers below this process, and Redis' output
    buffers.
    """

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
    """Planning and reading a batch from many queues, every one of which has new messages, in both
    engines; and the least that planning can take.
    """
    spark = session(realtime=True)
    with redis() as (server, link):
        counts = {"few": (10, 10), "many": (1000, 10), "long": (10, 1000)}
        for name, (count, rows) in counts.items():
            for i in range(count):
                keys = QueueKeys(f"{name}{i}")
                link.run(q.attach(keys, "bench", ttl_s=86_400))
                link.run(q.push_many(keys, [b"x" * SIZE] * rows * PLANS))

        def batch_s(form: str, name: str, part: Callable[[Any], float]) -> float:
            count, rows = counts[name]
            frame = spark.readStream.format(form).options(
                **{
                    "redis.url": server.url,
                    "subscribePattern": f"{name}\\d+",
                    "ack": "none",
                    "maxMessagesPerTrigger": str(count * rows),
                }
            )
            return Spread.of(
                [part(p) for p in drain(frame.load())[1:]]
            ).median  # the first one attaches

        for engine, form in {"Python": "busmq", "Java": "busmq-realtime"}.items():
            parts = {
                "few": partial(batch_s, form, "few", planning_s),
                "many": partial(batch_s, form, "many", planning_s),
            }
            found = alternating(runs, **parts, floor=partial(least_s, server, link))
            yield against_few(
                f"Planning a batch from 1,000 queues, {engine}, against 10",
                found["few"],
                found["many"],
                "< 2",
            )
            least = [few + more for few, more in zip(found["few"], found["floor"], strict=True)]
            what = (
                "The least: that of 10, a plain socket that asks Redis for the same of 1,000, and"
                " the JSON of their offsets"
            )
            yield against_few(what, found["few"], least, "")
            parts = {
                "long": partial(batch_s, form, "long", reading_s),
                "many": partial(batch_s, form, "many", reading_s),
            }
            found = alternating(runs, **parts)
            yield against_few(
                f"Reading 10,000 messages from 1,000 queues, {engine}, against 10",
                found["long"],
                found["many"],
                "",
            )
    spark.stop()


def against_few(what: str, few: Sequence[float], many: Sequence[float], target: str) -> Row:
    """A row with the ratio of many to few, and with the times of both."""
    over = Spread.of(ratios(many, few))
    shown = (
        f"{over.text()}; {1000 * Spread.of(few).median:.0f} and"
        f" {1000 * Spread.of(many).median:.0f} ms"
    )
    return Row(what, shown, target, over.median < float(target.strip("< ")) if target else None)


def least_s(server: EmbeddedRedis, link: SyncLink) -> float:
    """Seconds, the median of PLANS, in which Redis answers what a planning asks of all of ``many``,
    where nobody looks at the answers, and the offset before the batch is read from JSON and the one
    behind it written.
    """
    every = [QueueKeys(f"many{i}") for i in range(1000)]
    states = link.run(core_state.states([(keys, 1) for keys in every]))
    spent = []
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        for plan in range(PLANS):
            at = 10 * plan + 1
            marks = link.run(core_state.marks([(keys, at) for keys in every]))
            positions = [
                Position(state.born, at, mark) for state, mark in zip(states, marks, strict=True)
            ]
            offset = offsets.encode(
                {keys.name: position for keys, position in zip(every, positions, strict=True)}
            )
            text = json.dumps(offset)
            calls = calls_of(
                next(
                    core_state.intact(
                        [
                            (keys, position, at + 9)
                            for keys, position in zip(every, positions, strict=True)
                        ]
                    )
                )
            )
            sent = pack(calls, whole=True)
            start = time.perf_counter()
            json.loads(text)
            plain.sendall(sent)
            replies = hiredis.Reader()
            for _ in calls:
                while (reply := replies.gets()) is False:
                    replies.feed(plain.recv(65_536))
                assert None not in reply, "a queue is not as it was planned"
            json.dumps(offset)
            spent.append(time.perf_counter() - start)
    return Spread.of(spent).median


def writing(runs: int = RUNS) -> Iterator[Row]:
    """A batch to many queues, each of which gets some rows of every record batch, against the same
    rows for one queue.
    """
    from pyspark.sql import functions as F

    spark = session()
    with redis() as (server, link):

        def write_s(queues: int, delivery: str) -> float:
            names = F.concat(F.lit("out"), F.col("id") % queues)
            frame = spark.range(0, SMALL, 1, 2).select(
                F.lit(b"x" * SIZE).alias("value"), names.alias("queue")
            )
            start = time.perf_counter()
            frame.write.format("busmq").options(
                **{"redis.url": server.url, "delivery": delivery}
            ).mode("append").save()
            spent = time.perf_counter() - start
            assert sum(link.run(q.count(QueueKeys(f"out{i}"))) for i in range(queues)) == SMALL, (
                "rows are missing"
            )
            link.execute(command("FLUSHALL"))
            return spent

        for delivery in ("exactly-once", "at-least-once"):
            found = alternating(
                runs, one=partial(write_s, 1, delivery), many=partial(write_s, 1000, delivery)
            )
            over = Spread.of(ratios(found["many"], found["one"]))
            yield Row(
                f"Writing {SMALL:,} rows to 1,000 queues, {delivery}, against one queue",
                over.text(),
                "≤ 2",
                over.median <= 2,
            )


def planning_s(progress: Any) -> float:
    """Everything of a trigger but the stage itself and the commit log."""
    spent = progress["durationMs"]
    return (
        float(
            sum(
                spent.get(part, 0)
                for part in ("latestOffset", "getBatch", "queryPlanning", "walCommit")
            )
        )
        / 1000
    )


def reading_s(progress: Any) -> float:
    """The stage."""
    return add_batch_s([progress])
