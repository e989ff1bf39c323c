"""The Spark half of ``busmq demo``: a quiet local Spark that leaves no files, a streaming query
over flights, and its result read back.

The query is what a user would write; everything around it is for a good show on one machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from busmq_spark.errors import BusError
from busmq_spark.spark.java_runtime import ensure_java, ensure_python
from busmq_spark.spark.tune import settings_with_jar, use_compiled_pyspark_in_workers

DELAY_INPUT_SCHEMA = "carrier string, hour int, dep_delay long, arr_delay long"
DELAY_SCHEMA = (
    "carrier string, hour int, flights long, departed long, dep_minutes long, arrived long,"
    " arr_minutes long"
)
BATCH_ROWS = 60_000
"""Messages of one micro-batch: enough to be fast, few enough to see it move."""
POLL_S = 0.1
STOP_TIMEOUT_S = 8.0


class SparkFailed(BusError):
    """Spark did not start, or the query failed."""

    code = "BUSMQ_SPARK_FAILED"
    template = "{what}: {reason}. {remedy}"


@dataclass(frozen=True, slots=True)
class DemoQueryProgress:
    """The progress of a query. ``warm_*`` leave the first batch out, in which Spark starts its
    Python workers and compiles its code.

    ``engine`` is ``java``, or ``python`` where the jar of the Java module is not at hand; empty
    before the first batch.
    """

    engine: str
    batches: int
    rows_in: int
    rows_out: int
    warm_rows_in: int
    warm_rows_out: int
    warm_seconds: float


class LocalSpark:
    """A Spark of our own for a ``with`` block. Its output goes to a file in ``folder``; its end is
    certain, also after Ctrl-C.

    After a failure the file is kept as ``log``.

    The JVM gets a session of its own: a Ctrl-C in the terminal reaches this process only, which
    then decides what to end in which order.
    """

    def __init__(
        self, folder: Path, log: Path, cores: int = 2, settings: Mapping[str, str] | None = None
    ) -> None:
        """``settings``: more of them."""
        self._said, self._log = folder / "spark.log", log
        self._settings = {
            **settings_with_jar(_version()),
            "spark.app.name": "busmq demo",
            "spark.master": f"local[{cores}]",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            # For a JVM that lives half a minute: measured, a quarter less time for the whole query.
            # A long one needs Java's defaults.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": str(cores),
            "spark.sql.session.timeZone": "UTC",
            **(settings or {}),
        }
        self._gateway: Any = None
        self.session: SparkSession

    def __enter__(self) -> Self:
        ensure_java()
        ensure_python()
        use_compiled_pyspark_in_workers()
        conf = SparkConf(loadDefaults=False).setAll(list(self._settings.items()))
        with self._said.open("ab") as log:
            try:
                with delay_signals():  # until launch_gateway returns the process to end is unknown
                    popen = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
                    # Untyped in PySpark
                    self._gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
                interrupt = signal.getsignal(signal.SIGINT)
                context = SparkContext(gateway=self._gateway, conf=conf)
                signal.signal(
                    signal.SIGINT, interrupt
                )  # PySpark puts one of its own there, which asks a JVM that may be gone
                self.session = SparkSession(context)
            except PySparkException as error:
                self._stop(graceful=False)
                said = [
                    line
                    for line in self._said.read_text("utf-8", "replace").splitlines()
                    if line.strip()
                ]
                raise self.failure_error(
                    f"Spark did not start (its last words: {said[-1] if said else 'none'})", error
                ) from None
            except BaseException:
                self._stop(graceful=False)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(graceful=error is None)

    def failure_error(self, what: str, error: Exception) -> SparkFailed:
        """The one line that matters of an exception of Spark; a BusError that came up through Spark
        keeps its text.
        """
        self.keep_log()
        found = re.findall(
            r"\[BUSMQ_\w+\] .*|^[\w.]*(?:Error|Exception): .*", str(error), re.MULTILINE
        )
        reason = next(
            (line for line in found if line.startswith("[")),
            found[-1] if found else str(error).strip().partition("\n")[0],
        )
        return SparkFailed(
            what=what, reason=reason.rstrip(". "), remedy=f"What Spark said is in {self._log}"
        )

    def keep_log(self) -> None:
        """Keep the log of Spark beyond the block."""
        shutil.copy(self._said, self._log)

    def _stop(self, *, graceful: bool) -> None:
        if self._gateway is None:
            return
        # A second Ctrl-C now would leave a running JVM; the wait is bounded.
        before = {
            number: signal.signal(number, signal.SIG_IGN)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        jvm: subprocess.Popen[bytes] = self._gateway.proc
        try:
            if graceful:
                self.session.stop()
                self._gateway.shutdown()
            else:
                jvm.terminate()  # not stop(): a call may be half-way through its socket
            assert jvm.stdin is not None
            jvm.stdin.close()
            try:
                jvm.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                jvm.kill()
                jvm.wait()
        finally:
            SparkContext._gateway = SparkContext._jvm = None
            for number, handler in before.items():
                signal.signal(number, handler)


def delays_per_hour(flights: DataFrame) -> DataFrame:
    """Delays of departures and arrivals per carrier and hour of the day, as one JSON message
    each.
    """
    parsed = flights.select(
        F.from_json(F.col("value").cast("string"), DELAY_INPUT_SCHEMA).alias("flight")
    ).select("flight.*")
    totals = parsed.groupBy("carrier", "hour").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.sum("dep_delay").alias("dep_minutes"),
        F.count("arr_delay").alias("arrived"),
        F.sum("arr_delay").alias("arr_minutes"),
    )
    return totals.select(F.to_json(F.struct("*")).alias("value"))


@dataclass(frozen=True, slots=True)
class FlightsDemoQuerySettings:
    """The queues and folders of the query. ``keep``: the flights stay in their queue."""

    url: str
    source: str
    target: str
    sink: str
    checkpoint: Path
    keep: bool


def run_query(
    spark: LocalSpark, job: FlightsDemoQuerySettings, seen: Callable[[DemoQueryProgress], None]
) -> DemoQueryProgress:
    """Stream everything that is in the source, and write the running totals of every batch to the
    target. ``seen`` gets the progress.
    """
    flights = (
        spark.session.readStream.format("busmq")
        .option("redis.url", job.url)
        .option("subscribe", job.source)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", BATCH_ROWS)
        .option(
            "ack", "none" if job.keep else "commit"
        )  # kept queues are to be read again; else flights leave when their batch is committed
        .load()
    )
    query = (
        delays_per_hour(flights)
        .writeStream.format("busmq")
        .option("redis.url", job.url)
        .option("queue", job.target)
        .option("sinkId", job.sink)
        .option("checkpointLocation", str(job.checkpoint))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    try:
        # Floats are taken, the stub says int
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
            seen(_parse_progress(query.recentProgress))
    except PySparkException as error:
        raise spark.failure_error("the streaming query failed", error) from None
    return _parse_progress(query.recentProgress)


def _parse_progress(events: Any) -> DemoQueryProgress:
    batches = list({event["batchId"]: event for event in events if event["numInputRows"]}.values())
    read = [event["numInputRows"] for event in batches]
    written = [max(0, event["sink"]["numOutputRows"]) for event in batches]
    took = [event["durationMs"].get("triggerExecution", 0) for event in batches]
    reads = [source["description"] for event in batches for source in event["sources"]]
    engine = ("java" if "engine=java" in reads[0] else "python") if reads else ""
    return DemoQueryProgress(
        engine,
        len(batches),
        sum(read),
        sum(written),
        sum(read[1:]),
        sum(written[1:]),
        sum(took[1:]) / 1000,
    )


def read_totals(
    spark: LocalSpark, job: FlightsDemoQuerySettings
) -> tuple[list[dict[str, Any]], int]:
    """The final totals, and the number of messages they were found in. Each batch wrote all of
    them: of a carrier and hour the newest id holds.
    """
    stored = (
        spark.session.read.format("busmq")
        .option("redis.url", job.url)
        .option("subscribe", job.target)
        .load()
    )
    try:
        versions = stored.select(
            "id", F.from_json(F.col("value").cast("string"), DELAY_SCHEMA).alias("total")
        )
        newest = versions.groupBy("total.carrier", "total.hour").agg(
            F.max_by("total", "id").alias("total"), F.count("*").alias("versions")
        )
        rows = newest.orderBy("carrier", "hour").collect()
    except PySparkException as error:
        raise spark.failure_error("the result could not be read back", error) from None
    return [row["total"].asDict() for row in rows], sum(row["versions"] for row in rows)


@contextmanager
def delay_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is over, and then take effect."""
    waiting: list[int] = []

    def later(number: int, _frame: FrameType | None) -> None:
        waiting.append(number)

    before = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            os.kill(os.getpid(), waiting[0])


def _version() -> str:
    import pyspark

    return str(pyspark.__version__)
