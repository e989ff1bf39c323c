"""What the benchmarks share: a session, servers, filled queues, alternating runs, and the table
row.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue import queue as q
from busmq_spark.queue.command_generators import command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import chunks
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse

RUNS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what, the measured value with its spread, the target, and whether it
    was met.
    """

    what: str
    measured: str
    target: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of several runs."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2, unit: str = "") -> str:
        return f"{self.median:.{digits}f}{unit} ({self.least:.{digits}f}–{self.most:.{digits}f})"


def write(name: str, text: str) -> None:
    """Put what was measured between its marks in docs/performance-details.md."""
    page = Path(__file__).parents[2] / "docs" / "performance-details.md"
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = page.read_text("utf-8").partition(start)
    page.write_text(f"{before}{start}\n{text}\n{end}{rest.partition(end)[2]}", "utf-8")


def alternating(runs: int, **measures: Callable[[], float]) -> dict[str, list[float]]:
    """Run the measures in turn, ``runs`` times after one warm-up each; shared machines drift, so
    neighbours in time are compared.
    """
    found: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(runs + 1):
        for name, measure in measures.items():
            value = measure()
            if turn:
                found[name].append(value)
                print(f"    {name} {turn}/{runs}: {value:.4g}", file=sys.stderr, flush=True)
    return found


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Run by run, since both of a run saw the same machine."""
    return [a / b for a, b in zip(over, under, strict=True)]


@contextmanager
def redis() -> Iterator[tuple[EmbeddedRedis, SyncLink]]:
    """A server of our own, and a link to it."""
    with EmbeddedRedis() as server:
        link = SyncLink(parse(server.url)[0])
        yield server, link
        link.close()


def script_calls_and_us(link: SyncLink) -> tuple[int, float]:
    """Calls of scripts by digest since CONFIG RESETSTAT, and the microseconds of Redis' processor
    in all of them.
    """
    [line] = [
        line
        for line in link.execute(command("INFO", "commandstats")).decode().splitlines()
        if line.startswith("cmdstat_evalsha:")
    ]
    fields = dict(part.split("=") for part in line.partition(":")[2].split(","))
    return int(fields["calls"]), float(fields["usec"])


_FILLER = random.Random(7).randbytes(2**16).hex().encode()


def numbered(n: int, size: int) -> bytes:
    """The number, and text that looks random, the same in every run. Lua 5.1 looks at 32 bytes of a
    string to find it among those it has: values that differ in a few places only share a chain
    there, and every script becomes slow.
    """
    at = n * 7919 % (len(_FILLER) // 2)
    return (b"%010d" % n + _FILLER[at : at + size]).ljust(size, b"x")[:size]


def fill(
    link: SyncLink, queue: str, rows: int, size: int, value: Callable[[int, int], bytes] = numbered
) -> QueueKeys:
    """A fresh queue with ``rows`` messages of ``size`` bytes."""
    keys = QueueKeys(queue)
    link.run(q.delete(keys))
    link.run(q.attach(keys, "bench", ttl_s=86_400))
    values = [value(i, size) for i in range(min(rows, 10_000))]
    for at in range(0, rows, len(values) or 1):
        part = values[: rows - at]
        for _ in link.stream(
            (script("push", keys.peer_keys, (keys.available, *chunk)) for chunk in chunks(part)), 3
        ):
            pass
    return keys


def session(
    tuned: bool = True, realtime: bool = False, settings: Mapping[str, str] | None = None
) -> Any:
    """A local[2] session; stop it before asking for another kind."""
    from pyspark.sql import SparkSession

    import busmq_spark
    from busmq_spark.spark.java_runtime import ensure_java, ensure_python
    from busmq_spark.spark.tune import tune
    from tests.benchmarks.ceiling import Ceiling
    from tests.jvm import module

    os.environ.pop(
        "SPARK_CONF_DIR", None
    )  # ``make`` sets it to conf/, which is tuned: here the builder alone decides
    ensure_java()
    ensure_python()
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("busmq benchmarks")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    builder = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
    )
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config(
        "spark.datasource.busmq.engine", "python"
    )  # Java is measured by its own format
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    if realtime:
        module.built()
        builder = busmq_spark.realtime(builder)
    spark = (tune(builder) if tuned else builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Ceiling)
    return spark


def drain(frame: Any, sink: str = "noop", **options: str) -> list[Any]:
    """Run a streaming frame to its end into a sink with a fresh checkpoint; the progress of every
    batch with rows.
    """
    with tempfile.TemporaryDirectory() as folder:
        writer = (
            frame.writeStream.format(sink)
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
        )
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), value)
        query = writer.start()
        query.awaitTermination()
        if query.exception():
            raise query.exception()
        return [p for p in query.recentProgress if p["numInputRows"]]


def add_batch_s(progress: Sequence[Any]) -> float:
    """Seconds in the stages of the batches."""
    return sum(p["durationMs"]["addBatch"] for p in progress) / 1000
