"""One way of the comparison in a process of its own, since a session keeps how it was started: a
request a line on stdin, an answer on stdout.

python -m tests.benchmarks.peers_spark WAY LIVE WHERE JAR,JAR…
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.harness import add_batch_s, drain, session

# The two engines of busmq_spark: format and options.
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "python": ("busmq", {}),
    "java": ("busmq-realtime", {}),
}
TASKS = "2"
REMEMBERED_BATCHES = 20_000
"""Those of two minutes, for their times while the traffic lasts."""
# Larger fetches and batches; what Kafka sends at once in the latency rows does not wait for them.
TUNED_SOURCE = {
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
TUNED_SINK = {
    "kafka.batch.size": str(256 << 10),
    "kafka.buffer.memory": str(64 << 20),
    "kafka.send.buffer.bytes": str(1 << 20),
}
# JSON with digits that differ, for Lua's hashes of long strings look at every fourth byte only.
VALUE = """concat(substr(concat('{"n":', value, ',"at":', xxhash64(value), ',"of":"', repeat(md5(cast(value AS STRING)), %d)), 1, %d), '"}')"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Way:
    """How one connector is asked for what all of them do."""

    name: str
    where: str
    """The Redis URL, or Kafka's server."""

    @property
    def ours(self) -> bool:
        return self.name in ENGINES

    @property
    def format(self) -> str:
        return ENGINES[self.name][0] if self.ours else "kafka"

    def source(
        self, name: str, keep: bool = False, most: int = 0, live: bool = False
    ) -> dict[str, str]:
        """Options to read a queue or topic from its start; ``keep``: nothing leaves it; ``most`` a
        batch; ``live``: by one task.
        """
        limit = {"maxOffsetsPerTrigger": str(most)} if most else {}
        if self.ours:
            tasks = {} if live else {"minPartitions": TASKS}
            return {
                "redis.url": self.where,
                "subscribe": name,
                **({"ack": "none"} if keep else {}),
                **tasks,
                **limit,
                **ENGINES[self.name][1],
            }
        tuned = TUNED_SOURCE if self.name == "tuned" else {}
        return {
            "kafka.bootstrap.servers": self.where,
            "subscribe": name,
            "startingOffsets": "earliest",
            **limit,
            **tuned,
        }

    def sink(self, name: str, delivery: str = "") -> dict[str, str]:
        """Options to write one; our deliveries, or every replica's acknowledgement."""
        if self.ours:
            return {
                "redis.url": self.where,
                "queue": name,
                **({"delivery": delivery} if delivery else {}),
                **ENGINES[self.name][1],
            }
        return {
            "kafka.bootstrap.servers": self.where,
            "topic": name,
            "kafka.acks": "all",
            **(TUNED_SINK if self.name == "tuned" else {}),
        }


@dataclass(slots=True)
class Runner:
    """A session, and what it is asked to measure. Each request is a method."""

    way: Way
    spark: Any
    _live: list[Any] = field(default_factory=list)

    def rows(self, options: dict[str, str]) -> Any:
        return (
            self.spark.readStream.format(self.way.format).options(**options).load().select("value")
        )

    def drain(self, source: str, rows: int) -> dict[str, float]:
        """A whole query over a backlog, and its batches alone."""
        frame = self.rows(self.way.source(source, keep=True))
        with timed() as took:
            progress = drain(frame)
        return {"whole": took[0], "batch": add_batch_s(checked(progress, rows))}

    def sink(self, target: str, rows: int, size: int, delivery: str) -> dict[str, float]:
        """A batch of so many rows that Spark makes, into the sink and into none, and what the sink
        adds.
        """
        made = (
            self.spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=str(rows), numPartitions=TASKS)
            .load()
        )
        frame = made.selectExpr(VALUE % (size // 32 + 1, size - 2) + " AS value")
        none = add_batch_s(checked(drain(frame), rows))
        some = add_batch_s(
            checked(drain(frame, self.way.format, **self.way.sink(target, delivery)), rows)
        )
        return {"added": some - none}

    def copy(
        self, source: str, target: str, rows: int, most: int, delivery: str
    ) -> dict[str, float]:
        """A whole query from one queue into another."""
        frame = self.rows(self.way.source(source, most=most))
        with timed() as took:
            checked(drain(frame, self.way.format, **self.way.sink(target, delivery)), rows)
        return {"whole": took[0]}

    def begin(self, source: str, target: str, batch: str, delivery: str) -> dict[str, float]:
        """A query that goes on: by micro-batches without pause, or real-time ones of such a
        duration.
        """
        import busmq_spark

        # Gone with the session, since Spark still writes there while the query stops.
        folder = tempfile.mkdtemp(prefix="busmq-peers-")
        frame = self.rows(self.way.source(source, live=True))
        writer = frame.writeStream.format(self.way.format).options(
            **self.way.sink(target, delivery), checkpointLocation=folder
        )
        if not batch:
            writer = writer.trigger(processingTime="0 seconds")
        elif self.way.name == "kafka":
            writer = writer.outputMode("update").trigger(realTime=batch)
        else:
            writer = busmq_spark.realtime(writer, batch)
        self._live.append(writer.start())
        return {}

    def end(self) -> dict[str, float]:
        """Stop what ``begin`` or ``begin_own`` began. The time of its micro-batches, in ms."""
        query = self._live.pop()
        error, took = query.exception(), trigger_ms(query)
        query.stop()
        if error:
            raise error
        return {
            "trigger": statistics.median(took[len(took) // 2 :] or [0])
        }  # the first half warms Java up

    def begin_own(self, rows: int) -> dict[str, float]:
        """Micro-batches without pause that nothing stores and whose rows Spark makes; for the
        Python engine, a Python source and sink in memory.
        """
        stream, in_python = self.spark.readStream, self.way.name == "python"
        if in_python:
            frame = (
                stream.format("busmq_ceiling")
                .options(rows=str(rows), size="100", tasks="1", endless="true")
                .load()
                .select("value")
            )
        else:
            frame = (
                stream.format("rate-micro-batch")
                .options(rowsPerBatch=str(rows), numPartitions="1")
                .load()
                .selectExpr("string(value)")
            )
        writer = frame.writeStream.format("busmq_ceiling" if in_python else "noop")
        folder = tempfile.mkdtemp(prefix="busmq-peers-")
        self._live.append(
            writer.option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
        )
        return {}


def trigger_ms(query: Any) -> list[float]:
    """Of the newest batches with rows, as many as Spark remembers: how long each took as a whole,
    logs included, in ms.
    """
    return [
        each["durationMs"]["triggerExecution"]
        for each in query.recentProgress
        if each["numInputRows"]
    ]


@contextmanager
def timed() -> Iterator[list[float]]:
    """The seconds that a block took, as the one item of a list."""
    took: list[float] = []
    began = time.perf_counter()
    yield took
    took.append(time.perf_counter() - began)


def checked(progress: list[Any], rows: int) -> list[Any]:
    """The progress, if it is about so many rows."""
    found = sum(each["numInputRows"] for each in progress)
    assert found == rows, f"{found} rows instead of {rows}"
    return progress


def main(name: str, live: str, where: str, jars: str = "") -> None:
    settings = {"spark.sql.streaming.numRecentProgressUpdates": str(REMEMBERED_BATCHES)} | (
        {"spark.jars": jars} if jars else {}
    )
    # The Java engine comes with the settings of real-time mode, Kafka's connector as it comes with
    # none.
    spark = session(name != "kafka", name == "java" or (bool(live) and name == "tuned"), settings)
    runner = Runner(Way(name, where), spark)
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(runner, request.pop("do"))(**request)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
