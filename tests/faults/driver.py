"""A Spark driver to be killed: ``python -m tests.faults.driver <master> [live]``. Orders come as
JSON lines on stdin, answers leave on stdout.

    {"do": "start", "checkpoint": ..., "source": {options}, "sink": {options}, "change": name,
    "mark": ..., "into": format, "of": format, ...} {"do": "live", "checkpoint": ..., "source":
    {options}, "sink": {options}, "duration": ...} {"do": "stop"}        {"do": "status"}
    {"do": "set", "name": ..., "value": ...}        {"do": "figures"}        {"do": "threads"}

What is killed is the product in a Spark like anybody's, but for one time that no test waits for:
see ``Quick`` and ``_quicken_java``.
"""

from __future__ import annotations

import gc
import json
import re
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from busmq_spark import events, json_columns, to_events
from busmq_spark.spark.data_source import BusmqDataSource
from busmq_spark.spark.java_runtime import ensure_java, ensure_python
from busmq_spark.spark.read import planning
from busmq_spark.spark.realtime import realtime
from busmq_spark.spark.tune import tune
from tests import java
from tests.java import QUICK_JAVA


def plain(rows: Any, mark: bytes) -> Any:
    """Only the value, into the one queue of the sink."""
    return rows.select("value")


def routed(rows: Any, mark: bytes) -> Any:
    """Every source queue into a queue of its own."""
    return rows.selectExpr("concat('out-', queue) AS queue", "value")


def never_the_same(rows: Any, mark: bytes) -> Any:
    """Another computation each time: rows in random order, spread over tasks at random, marked with
    the run that computed them.
    """

    def shuffled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            order = pa.array([secrets.randbelow(1 << 30) for _ in range(batch.num_rows)])
            mixed = batch.take(pc.sort_indices(order))
            values = [value + b"|" + mark for value in mixed.column("value").to_pylist()]
            yield pa.RecordBatch.from_arrays(
                [mixed.column("queue"), pa.array(values, pa.binary())], names=["queue", "value"]
            )

    spread = rows.selectExpr("concat('out-', queue) AS queue", "value").repartition(2)
    return spread.mapInArrow(shuffled, "queue string, value binary")


def keyed(rows: Any, mark: bytes) -> Any:
    """For a topic: one of 17 keys each."""
    return rows.selectExpr(
        "value", "cast(cast(cast(value AS string) AS int) % 17 AS string) AS key"
    )


def parted(rows: Any, mark: bytes) -> Any:
    """What is JSON into the queue ``out``, the rest as dead letters."""
    good, dead = json_columns(rows, "n int", on_error="dead-letter")
    return good.selectExpr("'out' AS queue", "id", "to_json(struct(n)) AS value").unionByName(dead)


def settled(rows: Any, mark: bytes) -> Any:
    """Outcomes of jobs: every third has failed. Its error, and a field of each, say the number of
    the job and the run that computed them.
    """
    by = f"concat(cast(fields['n'] AS string), '|{mark.decode()}')"
    failed = "cast(cast(fields['n'] AS string) AS int) % 3 = 0"
    return rows.selectExpr(
        "queue", "id", "value", f"if({failed}, {by}, NULL) AS error", f"map('by', {by}) AS fields"
    )


def seen(rows: Any, mark: bytes) -> Any:
    """Events of type ``order`` as events of type ``seen``."""
    from pyspark.sql.functions import lit

    return to_events(events(rows).where("type = 'order'").withColumn("type", lit("seen")))


CHANGES: dict[str, Callable[[Any, bytes], Any]] = {
    "plain": plain,
    "routed": routed,
    "keyed": keyed,
    "never_the_same": never_the_same,
    "parted": parted,
    "settled": settled,
    "seen": seen,
}


class Quick(BusmqDataSource):
    """The Python source, but a query that has nothing to read plans its batch without rows at once:
    what waits for the acks waits no 5 s.
    """

    @classmethod
    def name(cls) -> str:
        return "busmq-quick"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        planning.IDLE_BEFORE_EMPTY_BATCH_S = 0.0  # in the process where Spark plans
        return super().streamReader(schema)


QUICK_JAVA_SOURCE = "busmq-realtime-quick"
"""The same of the Java source: a name that ``start`` alone knows."""


class Driver:
    """One session, and one query at a time, unless another is started beside it."""

    def __init__(self, master: str, *, live: bool) -> None:
        ensure_java()
        ensure_python()
        from pyspark.sql import SparkSession

        builder = tune(SparkSession.builder.master(master).appName("faults"))
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "600m",
            "spark.datasource.busmq.engine": "python",  # a test of Java names its format
            # A driver has them from SPARK_SUBMIT_OPTS
            "spark.executor.extraJavaOptions": f"{QUICK_JAVA} {java.archive()}",
            "spark.sql.shuffle.partitions": "2",
            # A JVM that lives for seconds need not compile well; nor need Spark compile queries.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        }.items():
            builder.config(name, value)
        if live:
            builder = realtime(
                builder.config("spark.sql.streaming.realTimeMode.minBatchDuration", "500ms")
            )
        self._spark = builder.getOrCreate()
        self._queries: list[Any] = []
        if live:
            return
        self._spark.dataSource.register(Quick)
        self._spark.readStream.format("busmq").options(
            **{"redis.url": "redis://127.0.0.1:1", "subscribe": "q"}
        ).load()  # looks the source up

    def start(
        self,
        checkpoint: str,
        source: dict[str, str],
        sink: dict[str, str],
        change: str,
        *,
        mark: str,
        into: str = "busmq",
        of: str = Quick.name(),
        beside: bool = False,
    ) -> None:
        """``beside``: the query that runs goes on, and is looked after as well."""
        if of == QUICK_JAVA_SOURCE:
            self._quicken_java()
            of = "busmq-realtime"
        rows = CHANGES[change](
            self._spark.readStream.format(of).options(**source).load(), mark.encode()
        )
        query = (
            rows.writeStream.format(into)
            .options(**sink)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        self._queries = [*self._queries, query] if beside else [query]

    def _quicken_java(self) -> None:
        """What ``Quick`` does, for the Java source."""
        tail = self._spark._jvm.java.lang.Class.forName(
            "busmq.spark.source.BusmqMicroBatchStream"
        ).getDeclaredField("emptyBatchAfterNs")  # type: ignore[union-attr]
        tail.setAccessible(True)
        tail.setLong(None, 0)

    def live(
        self, checkpoint: str, source: dict[str, str], sink: dict[str, str], duration: str
    ) -> None:
        """The same in real-time mode; at least once unless ``sink`` says otherwise."""
        rows = self._spark.readStream.format("busmq-realtime").options(**source).load()
        writer = rows.writeStream.format("busmq-realtime").options(
            **{"delivery": "at-least-once", **sink}
        )
        self._queries = [
            realtime(writer.option("checkpointLocation", checkpoint), duration).start()
        ]

    def stop(self) -> None:
        if self._queries:
            for query in self._queries:
                query.stop()
            self._queries = []
            # Stop waits for none, and a reader of real-time mode hands on what comes until it has
            # ended
            while self._tasks():
                time.sleep(0.05)

    def _tasks(self) -> int:
        return sum(
            executor.numRunningTasks()
            for executor in self._spark._jsc.sc().statusTracker().getExecutorInfos()
        )

    def set(self, name: str, value: str | None) -> None:
        """A setting of the session; None: as it was at its start."""
        if value is None:
            value = self._spark.sparkContext.getConf().get(name)
        if value is None:
            self._spark.conf.unset(name)
        else:
            self._spark.conf.set(name, value)

    def figures(self) -> dict[str, float]:
        """What must not grow from query to query."""
        gc.collect()
        java: Any = self._spark._jvm
        java.System.gc()
        machine = java.Runtime.getRuntime()
        heap = (machine.totalMemory() - machine.freeMemory()) / 2**20
        lasting = sum(
            count for name, count in self.threads() if not name.startswith("block-manager-")
        )  # Spark ends those when they are idle
        return {
            "MB of heap": heap,
            "threads": lasting,
            "threads of Python": threading.active_count(),
        }

    def threads(self) -> list[tuple[str, int]]:
        """Names of Java threads, their numbers left out, and how many have one; the most frequent
        first.
        """
        java: Any = self._spark._jvm
        names = [
            re.sub(r"[0-9a-f-]{36}|\d+", "*", thread.getName())
            for thread in java.Thread.getAllStackTraces().keySet().toArray()
        ]
        return Counter(names).most_common()

    def status(self) -> dict[str, Any]:
        """Whether every query runs, and what ended one."""
        failed = [str(error) for query in self._queries if (error := query.exception())]
        return {
            "active": bool(self._queries) and all(query.isActive for query in self._queries),
            "error": "".join(failed[:1]),
        }


def main() -> None:
    driver = Driver(sys.argv[1], live="live" in sys.argv[2:])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(driver, order.pop("do"))(**order)), flush=True)


if __name__ == "__main__":
    main()
