"""The sink of the Java module in real-time mode: rows arrive while their batch runs; at least once,
in order, without a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from busmq_spark import realtime_foreach
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.groups.topic import partition_of
from busmq_spark.queue.keys import QueueKeys
from tests.clocks import noted, npm_push
from tests.conftest import Fresh
from tests.faults.proxy import Command, Proxy
from tests.spark.conftest import Bus, MakeBus
from tests.spark.java_log import java_log
from tests.spark.topic_tools import make_topic, partitions_of
from tests.support import PATIENCE_S, wait_until

LONG, SHORT = "1 hour", "2 seconds"
SINK_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck"
LEAST = "spark.sql.streaming.realTimeMode.minBatchDuration"

pytestmark = [pytest.mark.usefixtures("shim_jar")]


class Live:
    """Queries in real-time mode from the queue ``source``. Its values say their place in the
    order.
    """

    def __init__(self, spark: SparkSession, bus: Bus, source: str, folder: Path) -> None:
        self._spark = spark
        self._bus = bus
        self.source = source
        self._checkpoint = str(folder / "checkpoint")
        self.fed = 0
        self.rows: Callable[[DataFrame], DataFrame] = lambda source: source.select("value")
        """The pipeline between source and sink."""
        self.source_options: dict[str, str] = {}
        self.query: StreamingQuery | None = None
        bus.attach(source)

    def feed(self, rows: int) -> None:
        self._bus.push(self.source, *(str(i) for i in range(self.fed, self.fed + rows)))
        self.fed += rows

    def start(self, sink: dict[str, str], batch: str = LONG, *, tasks: int = 0) -> None:
        """Into the table ``busmq-realtime``; ``tasks``: rows are distributed anew over so many
        before.
        """
        self.query = (
            self._writer(batch, tasks)
            .format("busmq-realtime")
            .options(asyncProgressTrackingEnabled="false", **sink)
            .outputMode("update")
            .start()
        )

    def start_foreach(self, sink: dict[str, str], batch: str = LONG) -> None:
        """Through the ForeachWriter."""
        self.query = realtime_foreach(self._writer(batch), sink).start()

    def _writer(self, batch: str, tasks: int = 0) -> Any:
        options = {"redis.url": self._bus.url, "subscribe": self.source, **self.source_options}
        rows = self.rows(self._spark.readStream.format("busmq-realtime").options(**options).load())
        return (
            (rows.repartition(tasks) if tasks else rows)
            .writeStream.option("checkpointLocation", self._checkpoint)
            .trigger(realTime=batch)
        )

    def wait_for(self, true: Callable[[], object], what: str) -> None:
        """An error of the query comes up at once."""

        def settled() -> object:
            if self.query is not None and (error := self.query.exception()):
                raise error
            return true()

        wait_until(settled, PATIENCE_S, what)

    def wait_rows(self, queue: str, count: int) -> None:
        self.wait_for(
            lambda: len(self._bus.stored(queue)) >= count, f"{count} rows are in the sink"
        )

    def wait_whole(self, bus: Bus, queue: str) -> list[int]:
        """Until everything fed has arrived; each message's first arrival is in its place. The
        result is what arrived, repeats too.
        """
        self.wait_for(
            lambda: str(self.fed - 1).encode() in bus.stored(queue)[-1:],
            "the last message is in the sink",
        )
        found = [int(value) for value in bus.stored(queue)]
        assert list(dict.fromkeys(found)) == list(range(self.fed))
        return found

    @property
    def batches(self) -> int:
        """How many have ended."""
        return len(self.query.recentProgress) if self.query is not None else 0

    def stop(self) -> None:
        """Returns when its tasks have ended, too: Spark waits for none, and a reader hands on what
        comes until then.
        """
        if self.query is not None:
            self.query.stop()
            self.query = None
            status = self._spark._jsc.sc().statusTracker()  # type: ignore[union-attr]  # py4j
            wait_until(
                lambda: not sum(each.numRunningTasks() for each in status.getExecutorInfos()),
                what="its tasks have ended",
            )


@pytest.fixture
def live(spark: SparkSession, bus: Bus, fresh: Fresh, tmp_path: Path) -> Iterator[Live]:
    made = Live(spark, bus, fresh("in"), tmp_path)
    yield made
    made.stop()


@pytest.fixture
def any_sink(spark: SparkSession) -> Iterator[None]:
    """The engine's list of sinks for real-time mode is fixed; with the check off it takes
    others.
    """
    spark.conf.set(SINK_CHECK, "false")
    yield
    spark.conf.unset(SINK_CHECK)


@pytest.fixture
def short_batches(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(LEAST, "100")
    yield
    spark.conf.unset(LEAST)


@pytest.mark.usefixtures("any_sink")
def test_rows_arrive_while_their_batch_runs_and_come_again_from_its_start_after_a_stop(
    bus: Bus, live: Live, queue: str
) -> None:
    sink = {"redis.url": bus.url, "queue": queue}
    live.start(sink)
    for rows in (1, 3000, 1, 50):
        live.feed(rows)
        assert len(live.wait_whole(bus, queue)) == len(set(bus.stored(queue)))
    live.stop()
    live.feed(10)
    live.start(sink)
    found = live.wait_whole(bus, queue)
    assert found == [
        *range(3052),
        *range(3062),
    ], "nothing was in the checkpoint yet: all of it comes once more"


@pytest.mark.usefixtures("any_sink")
def test_a_query_that_is_stopped_leaves_no_error_of_its_tasks_in_the_log(
    spark: SparkSession, bus: Bus, live: Live, queue: str
) -> None:
    with java_log(spark, "") as log:
        live.start({"redis.url": bus.url, "queue": queue})
        live.feed(1)
        live.wait_whole(bus, queue)
        live.stop()
        wait_until(
            lambda: "TaskKilled" in log.text, PATIENCE_S, "the driver says that the task has ended"
        )
        assert "Exception" not in log.text
        assert (
            "Aborting" not in log.text
        )  # of the driver Spark says that it "is aborting" the write of the batch


@pytest.mark.usefixtures("any_sink")
def test_rows_have_the_second_in_which_they_came_whoever_pushed_them(
    live: Live, bus: Bus, queue: str
) -> None:
    live.source_options["includeTimestamp"] = "true"
    live.rows = lambda source: source.selectExpr("cast(cast(timestamp AS long) AS string) AS value")
    live.start({"redis.url": bus.url, "queue": queue})
    live.feed(2)
    live.wait_rows(queue, 2)
    npm_push(bus, QueueKeys(live.source), 2)
    live.wait_rows(queue, 4)  # of a NULL the sink would say so
    first, *_, last = [each.ms // 1000 for each in noted(bus, QueueKeys(live.source))]
    assert all(first <= int(second) <= last for second in bus.stored(queue))


@pytest.mark.usefixtures("any_sink", "short_batches")
def test_batch_after_batch_nothing_is_lost_repeated_or_out_of_order(
    bus: Bus, live: Live, queue: str
) -> None:
    live.start({"redis.url": bus.url, "queue": queue}, SHORT)
    rounds = 0
    while rounds < 20 or live.batches < 3:
        live.feed(37)
        live.wait_whole(bus, queue)
        rounds += 1
    assert live.wait_whole(bus, queue) == list(range(37 * rounds))
    assert live.query is not None
    measured = [batch.sources[0].metrics for batch in live.query.recentProgress]
    assert measured[0].keys() == {"lag", "lag_s", "queues"}, "no batch before"
    assert min(int(metrics["gap_ms"]) for metrics in measured if "gap_ms" in metrics) >= 0


@pytest.mark.usefixtures("any_sink")
def test_redis_dies_with_a_call_under_way_and_what_is_in_doubt_comes_again_in_order(
    live: Live, bus_of: MakeBus
) -> None:
    with EmbeddedRedis(aof=True) as server, Proxy(server.port) as proxy:
        bus = bus_of(server)
        live.start({"redis.url": proxy.url, "queue": "out"})
        live.feed(10)
        live.wait_whole(bus, "out")
        for reply in (False, True):
            gate = proxy.hold(pushes, reply=reply)
            live.feed(1)
            held = gate.wait()
            live.feed(500)  # gathers meanwhile
            server.kill()
            held.drop()
            gate.open()
            server.restart()
            found = live.wait_whole(bus, "out")
            assert len(found) - len(set(found)) == reply, (
                "only what had been stored without an answer is there twice"
            )


def pushes(command: Command) -> bool:
    return command.name == "push"


@pytest.mark.usefixtures("any_sink")
def test_a_queue_that_vanishes_while_rows_flow_is_made_anew(
    bus: Bus, live: Live, queue: str
) -> None:
    live.start({"redis.url": bus.url, "queue": queue, "ttl": "90s"})
    live.feed(2)
    live.wait_whole(bus, queue)
    bus.close_queue(queue)
    live.feed(1)
    live.wait_for(lambda: bus.stored(queue) == [b"2"], "the next row is in a new queue")


def test_what_one_server_took_comes_once_however_often_another_refuses(
    spark: SparkSession, bus_of: MakeBus
) -> None:
    """Nor does what was refused wait for one more row."""
    with EmbeddedRedis() as first, EmbeddedRedis() as second, Proxy(first.port) as proxy:
        taking, refusing = bus_of(first), bus_of(second)
        taking.attach("a")
        refusing.attach("b")  # where they are
        rows = spark.sql(
            "SELECT * FROM VALUES ('b', X'30'), ('a', X'31'), ('a', X'32'), ('b', X'33') AS (queue,"
            " value)"
        )._jdf.collectAsList()
        # Py4j
        sink = spark._jvm.busmq.spark.BusmqForeachWriter({"redis.url": f"{proxy.url},{second.url}"})  # type: ignore[union-attr]
        sink.open(0, 0)
        sink.process(rows[0])
        wait_until(lambda: refusing.stored("b") == [b"0"], PATIENCE_S)
        gate = proxy.hold(pushes)
        sink.process(rows[1])
        held = gate.wait()
        sink.process(rows[2])
        sink.process(rows[3])  # both are in the next call
        refusing("ACL", "SETUSER", "default", "-eval", "-evalsha")
        gate.open()
        held.release()
        wait_until(
            lambda: sum(int(each[1]) for each in refusing("ACL", "LOG")) > 2,
            PATIENCE_S,
            "it has refused again and again",
        )
        refusing("ACL", "SETUSER", "default", "+@all")
        wait_until(lambda: refusing.stored("b") == [b"0", b"3"], PATIENCE_S)
        wait_until(lambda: takes(sink, rows[0]), PATIENCE_S, "the sink knows that it was stored")
        assert taking.stored("a") == [b"1", b"2"]
        sink.close(None)
        assert refusing.stored("b") == [b"0", b"3", b"0"]


def takes(sink: Any, row: Any) -> bool:
    """Whether the sink takes one more row: not while it knows of one that was refused."""
    try:
        sink.process(row)
        return True
    except PySparkException as error:
        if "BUSMQ_UNAUTHORIZED" not in str(error):
            raise
        return False


def test_a_foreach_writer_needs_no_setting_of_the_engine(
    spark: SparkSession, bus: Bus, live: Live, queue: str
) -> None:
    assert spark.conf.get(SINK_CHECK) == "true"
    live.start_foreach({"redis.url": bus.url, "queue": queue})
    for rows in (1, 3000, 1):
        live.feed(rows)
        live.wait_whole(bus, queue)
    live.stop()
    with pytest.raises(
        Exception, match=r"\[BUSMQ_CONFIG\] delivery=exactly-once is not possible with foreach"
    ):
        live.start_foreach({"redis.url": bus.url, "queue": queue, "Delivery": "exactly-once"})


@pytest.mark.usefixtures("short_batches")
def test_a_foreach_writer_has_stored_every_row_when_its_batch_ends(
    bus: Bus, live: Live, queue: str
) -> None:
    live.start_foreach({"redis.url": bus.url, "queue": queue}, SHORT)
    live.feed(2000)
    live.wait_for(lambda: live.batches, "a batch has ended")
    live.feed(20)
    live.wait_whole(bus, queue)
    live.stop()
    live.start_foreach({"redis.url": bus.url, "queue": queue}, SHORT)
    live.feed(1)
    live.wait_whole(bus, queue)


@pytest.mark.parametrize("way", ["table", "foreach"])
def test_rows_reach_the_partition_of_their_key(
    bus: Bus, live: Live, any_sink: None, queue: str, way: str
) -> None:
    topic = make_topic(bus, queue, 4)
    live.rows = lambda source: source.selectExpr(
        "value", "cast(cast(cast(value AS string) AS int) % 10 AS string) AS key"
    )
    sink = {"redis.url": bus.url, "topic": topic, "delivery": "at-least-once"}
    (live.start if way == "table" else live.start_foreach)(sink)
    live.feed(50)
    live.wait_for(
        lambda: sum(map(len, partitions_of(bus, topic))) == 50, "the rows are in the topic"
    )
    assert partitions_of(bus, topic) == [
        [b"%d" % n for n in range(50) if partition_of(str(n % 10), 4) == p] for p in range(4)
    ]
