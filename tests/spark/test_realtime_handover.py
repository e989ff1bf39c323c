"""One checkpoint, two sources: a query goes on with either where the other was stopped, and with
real-time mode where it was a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from busmq_spark.spark.realtime import SESSION_SETTINGS, realtime
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus
from tests.spark.engine import Engine, Row
from tests.spark.jvm_engine import JvmEngine
from tests.support import wait_until

SETTINGS = {**SESSION_SETTINGS, "spark.sql.streaming.realTimeMode.minBatchDuration": "500ms"}
pushes = st.tuples(st.just("push"), st.integers(0, 1), st.integers(1, 9))
steps = st.tuples(st.just("step"), st.sampled_from(["", "", "planned", "read"]), st.booleans())


@examples(max_examples=15)
@given(events=st.lists(st.one_of(pushes, steps), max_size=16))
def test_after_any_crash_and_in_any_engine_every_message_is_delivered_once_and_in_order(
    events: list[tuple],  # type: ignore[type-arg]  # drawn by hypothesis
    spark: SparkSession,
    shim_jar: Path,
    bus: Bus,
    fresh: Fresh,
) -> None:
    queues = [fresh("a"), fresh("b")]
    options = {"redis.url": bus.url, "subscribe": ",".join(queues), "maxMessagesPerTrigger": "5"}
    query: Engine = Engine(options)
    pushed, delivered = dict.fromkeys(queues, 0), list[Row]()
    for kind, *details in [*events, *[("step", "", True)] * 40]:
        if kind == "push":
            queue = queues[details[0]]
            bus.fill(queue, details[1], first=pushed[queue] + 1)
            pushed[queue] += details[1]
            continue
        before = query.committed
        rows = query.step(details[0])
        delivered += rows or [] if query.committed > before else []
        if details[0] or details[1]:
            query = after(
                query,
                Engine(options) if isinstance(query, JvmEngine) else JvmEngine(spark, options),
            )
        if rows is None and not details[0] and len(delivered) == sum(pushed.values()):
            break
    query.kill()
    for queue in queues:
        assert [(id, value) for name, id, value in delivered if name == queue] == [
            (i, f"{queue}:{i}".encode()) for i in range(1, pushed[queue] + 1)
        ]


def after(stopped: Engine, new: Engine) -> Engine:
    """The new query, on the checkpoint of the one that is gone."""
    stopped.kill()
    new.planned, new.committed = stopped.planned, stopped.committed
    return new


class Handover:
    """Runs one checkpoint with this source or that; what is read goes to a queue."""

    def __init__(self, spark: SparkSession, bus: Bus, queue: str, checkpoint: Path) -> None:
        self._spark, self._bus, self.queue, self._checkpoint = spark, bus, queue, checkpoint
        self.out = f"{queue}-out"
        self._running: StreamingQuery | None = None

    def start(self, source: str, **trigger: Any) -> None:
        frame = (
            self._spark.readStream.format(source)
            .options(**{"redis.url": self._bus.url, "subscribe": self.queue})
            .load()
        )
        writer = (
            frame.select("value")
            .writeStream.format("busmq-realtime")
            .options(**{"redis.url": self._bus.url, "queue": self.out})
        )
        if "realTime" in trigger:
            writer = realtime(writer).option("delivery", "at-least-once")
        self._running = (
            writer.option("checkpointLocation", str(self._checkpoint)).trigger(**trigger).start()
        )

    def drain(self, source: str) -> None:
        """Everything that is there, to its end."""
        self.start(source, availableNow=True)
        assert self._running is not None
        assert self._running.awaitTermination(3 * int(PATIENCE_S))

    def live(self, rows: int) -> None:
        """In real-time mode until so many have arrived and the batch with the last of them has
        ended.
        """
        self.start("busmq-realtime", realTime="1 seconds")
        running = self._running
        assert running is not None

        def arrived() -> bool:
            if error := running.exception():
                raise error
            return len(self._bus.stored(self.out)) >= rows and self._bus.ids(self.queue) == []

        wait_until(arrived, 3 * PATIENCE_S, f"{rows} rows, all acknowledged")
        running.stop()

    def stop(self) -> None:
        if self._running:
            self._running.stop()


@pytest.fixture
def handover(
    spark: SparkSession, shim_jar: Path, bus: Bus, queue: str, tmp_path: Path
) -> Iterator[Handover]:
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    made = Handover(spark, bus, queue, tmp_path / "checkpoint")
    yield made
    made.stop()
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def test_one_checkpoint_is_continued_by_the_other_source_and_by_real_time_mode_and_back(
    bus: Bus, handover: Handover
) -> None:
    pushed = 0
    for run in ("busmq", "busmq-realtime", "live", "busmq", "live"):
        bus.fill(handover.queue, 5, first=pushed + 1)
        pushed += 5
        if run == "live":
            handover.live(pushed)
        else:
            handover.drain(run)
        # Real-time mode may repeat at its end, and only there: what came while its last task was
        # being ended.
        assert list(dict.fromkeys(bus.stored(handover.out))) == [
            f"{handover.queue}:{i}".encode() for i in range(1, pushed + 1)
        ]
