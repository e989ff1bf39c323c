"""The column ``timestamp``: what the clock of a queue says of each message, in both engines;
streams, batch reads, and real time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    DataType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Range
from busmq_spark.queue.scripts import load
from busmq_spark.reading.times_of_ids import NewestIdAtTime, TimesOfIds
from busmq_spark.spark.read.tasks import ArrowBatchEncoder, TimestampColumn
from busmq_spark.spark.schema import check_source_schema
from busmq_spark.store.protocol import ConsecutiveMessages
from tests.clocks import HOUR, SECOND, noted, npm_push, pass_by, store
from tests.faults.proxy import Proxy
from tests.spark.conftest import PATIENCE_S, Bus, MakeBus
from tests.spark.engine import SCHEMA, Engine
from tests.spark.links import LINKED, Centre
from tests.spark.live_engine import LiveEngine
from tests.support import wait_until

TIMED = StructType([*SCHEMA.fields]).add("timestamp", TimestampType())
Seconds = dict[int, int | None]


@pytest.fixture
def hours(bus: Bus, queue: str) -> QueueKeys:
    """A queue with the messages 1..3 of three hours ago, 4..6 of two and 7..9 of one."""
    keys = QueueKeys(queue)
    for first in (1, 4, 7):
        bus.fill(queue, 3, first=first)
        pass_by(bus, keys, HOUR)
    return keys


def expected(bus: Bus, keys: QueueKeys, ids: range) -> Seconds:
    """The second of each id, by what is stored of the clock."""
    known = noted(bus, keys)
    found = {id: next((at for at, each in enumerate(known) if each.id >= id), 0) for id in ids}
    return {id: known[at].ms // SECOND if at else None for id, at in found.items()}


@pytest.fixture
def snapshot(
    spark: SparkSession, java_spark: SparkSession | None, bus: Bus
) -> Callable[..., Seconds]:
    """Id and second of each row of a batch read, by the source in the language of the test."""

    def load(queue: str, schema: str = "", **options: Any) -> Seconds:
        reader = spark.read.format("busmq").options(
            **{
                "redis.url": bus.url,
                "subscribe": queue,
                "engine": "java" if java_spark else "python",
                **options,
            }
        )
        frame = (reader.schema(schema) if schema else reader).load()
        return {
            row["id"]: row["s"]
            for row in frame.selectExpr("id", "cast(timestamp AS long) AS s").collect()
        }

    return load


def test_a_batch_read_has_the_second_of_each_message(
    snapshot: Callable[..., Seconds], bus: Bus, hours: QueueKeys
) -> None:
    wanted = expected(bus, hours, range(1, 10))
    assert len({*wanted.values()}) == 3
    assert None not in wanted.values()
    assert snapshot(hours.name, includeTimestamp="true") == wanted
    assert snapshot(hours.name, "timestamp timestamp, id long") == wanted, (
        "a schema may ask for it, in any place"
    )
    assert snapshot(hours.name, includeTimestamp="true", maxMessagesPerPartition=2) == wanted
    assert snapshot(hours.name, includeTimestamp="true", startingOffsets="-90m") == {
        id: wanted[id] for id in (7, 8, 9)
    }


def test_the_times_of_many_queues_come_in_one_round_trip_before_the_rows(
    snapshot: Callable[..., Seconds], bus_of: MakeBus, queue: str
) -> None:
    with EmbeddedRedis() as server, Proxy(server.port) as proxy, ThreadPoolExecutor() as pool:
        bus, names = bus_of(server), list[str]()
        for name in ("short", "times"):
            bus("SCRIPT", "LOAD", load(name).text)
        many = [f"{queue}{i}" for i in range(50)]
        for each in many:
            bus.fill(each, 1)
        gate = proxy.hold(lambda command: command.name == "times", reply=True)
        proxy.seen.append(lambda command: names.append(command.name))
        options = {
            "redis.url": proxy.url,
            "subscribe": ",".join(many),
            "includeTimestamp": "true",
            "minPartitions": "1",
        }
        reading = pool.submit(lambda: snapshot(queue, **options))
        held = gate.wait()
        wait_until(lambda: names.count("times") == 50, PATIENCE_S)
        assert names.count("short") == 0
        gate.open()
        held.release()
        assert reading.result(PATIENCE_S).keys() == {1}
        assert (names.count("times"), names.count("short")) == (50, 50)


def test_what_is_not_known_is_null(snapshot: Callable[..., Seconds], bus: Bus, queue: str) -> None:
    """Before the first time that is known, for one. What a batch read finds, it notes."""
    keys = QueueKeys(queue)
    bus.attach(queue)
    npm_push(bus, keys, 2)
    assert snapshot(queue, includeTimestamp="true") == {1: None, 2: None}
    pass_by(bus, keys, 10 * SECOND)
    npm_push(bus, keys, 2)
    found = snapshot(queue, includeTimestamp="true")
    assert (found[1], found[2]) == (None, None)
    assert found[3] == found[4] == noted(bus, keys)[-1].ms // SECOND


def test_a_stream_has_it_too_also_for_messages_of_peers(
    spark: SparkSession, java_spark: SparkSession | None, bus: Bus, hours: QueueKeys, tmp_path: Path
) -> None:
    rows: list[Any] = []
    options = {
        "redis.url": bus.url,
        "subscribe": hours.name,
        "ack": "none",
        "includeTimestamp": "true",
        "engine": "java" if java_spark else "python",
    }
    frame = spark.readStream.format("busmq").options(**options).load()
    assert (
        frame.schema.simpleString()
        == "struct<queue:string,id:bigint,value:binary,timestamp:timestamp>"
    )
    npm_push(bus, hours, 2)
    seconds = frame.selectExpr("id", "cast(timestamp AS long) AS s")
    writer = seconds.writeStream.foreachBatch(lambda found, _: rows.extend(found.collect())).option(
        "checkpointLocation", str(tmp_path / "c")
    )
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(int(2 * PATIENCE_S))
    wanted = expected(bus, hours, range(1, 12))
    assert None not in wanted.values()
    assert {row["id"]: row["s"] for row in rows} == wanted


def test_without_the_option_there_is_no_such_column(
    spark: SparkSession, java_spark: SparkSession | None, bus: Bus, hours: QueueKeys
) -> None:
    options = {
        "redis.url": bus.url,
        "subscribe": hours.name,
        "engine": "java" if java_spark else "python",
    }
    assert spark.read.format("busmq").options(**options).load().columns == ["queue", "id", "value"]


def test_more_times_than_fit_a_question_are_all_found(
    snapshot: Callable[..., Seconds], bus: Bus, queue: str
) -> None:
    keys = QueueKeys(queue)
    rows = 5000
    bus.push(queue, *["v"] * rows)
    now = noted(bus, keys)[-1].ms
    store(bus, keys, [NewestIdAtTime(now - SECOND * (rows - id), id) for id in range(rows + 1)])
    found = snapshot(queue, includeTimestamp="true")
    assert found == {id: (now - SECOND * (rows - id)) // SECOND for id in range(1, rows + 1)}


def test_a_user_without_the_right_to_note_reads_what_is_known(
    snapshot: Callable[..., Seconds], bus: Bus, hours: QueueKeys
) -> None:
    bus(
        "ACL",
        "SETUSER",
        "looker",
        "on",
        ">pw",
        "~*",
        "&*",
        "+@read",
        "+@connection",
        "+eval",
        "+evalsha",
        "+script",
        "+time",
        "+info",
        "-@write",
    )
    npm_push(bus, hours)
    url = bus.url.replace("redis://", "redis://looker:pw@")
    found = snapshot(hours.name, includeTimestamp="true", **{"redis.url": url})
    assert found == {**expected(bus, hours, range(1, 10)), 10: None}


# In Python


@pytest.mark.parametrize("wrong", [StringType(), LongType(), TimestampNTZType()])
def test_the_column_is_a_timestamp(wrong: DataType) -> None:
    with pytest.raises(
        ConfigError, match=f"column 'timestamp' is {wrong.simpleString()}; expected timestamp"
    ):
        check_source_schema(StructType().add("timestamp", wrong))


def test_times_of_another_life_of_the_queue_are_of_other_messages() -> None:
    class Stores:
        def times(self, ids: dict[str, tuple[int, int]]) -> dict[str, TimesOfIds]:
            return {queue: TimesOfIds("new", ((1000, 0), (2500, 9))) for queue in ids}

    def column(born: str) -> list[object]:
        # Asked for nothing else
        times = TimestampColumn.fetch(Stores(), [Range("q", born, 1, 2, 0)])  # type: ignore[arg-type]
        [batch] = ArrowBatchEncoder(StructType().add("timestamp", TimestampType()), times).batches(
            [ConsecutiveMessages("q", 1, pa.array([b"", b""], pa.binary()))]
        )
        return [value and value.timestamp() for value in batch.column(0).to_pylist()]

    assert column("new") == [2.0, 2.0]
    assert column("old") == [None, None]


@pytest.mark.only("python", reason="only the Python source reads over links of federation")
@pytest.mark.parametrize("rows", [2, 30_000], ids=["fetched with the planning", "read by tasks"])
def test_over_links_it_is_the_time_at_the_other_side(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str, rows: int
) -> None:
    for hours_ago, bus in enumerate(buses.values()):
        bus.push(queue, *["v"] * rows)
        pass_by(bus, QueueKeys(queue), hours_ago * HOUR)
        npm_push(bus, QueueKeys(queue))
    query = linked(queue, schema=TIMED_LINKED, ack="none")
    found = {
        (source, id): at and int(at.timestamp())
        for batch in query.drain()
        for _, id, _, source, at in batch
    }
    for source, bus in buses.items():
        wanted = expected(bus, QueueKeys(queue), range(1, rows + 2))
        assert None not in wanted.values(), "what is planned is noted"
        assert {
            id: second for (place, id), second in found.items() if place == (source or "local")
        } == wanted


TIMED_LINKED = StructType([*LINKED.fields]).add("timestamp", TimestampType())


@pytest.mark.only("python", reason="only the Python source reads over links of federation")
def test_over_links_messages_of_peers_have_the_time_at_which_they_were_planned(
    linked: Callable[..., Engine], buses: dict[str, Bus], queue: str
) -> None:
    for bus in buses.values():
        bus.fill(queue, 1)
    query = linked(queue, schema=TIMED_LINKED, ack="none", idlePollMs="1")
    query.drain()
    rows: list[Any] = []
    for count in (3, 6):
        for bus in buses.values():
            npm_push(bus, QueueKeys(queue))
        wait_until(
            lambda count=count: rows.extend(query.step() or []) or len(rows) == count, PATIENCE_S
        )  # type: ignore[misc]
    assert None not in [row[-1] for row in rows]


@pytest.mark.only("python", reason="only the Python source reads over links of federation")
def test_a_link_that_goes_away_behind_the_planning_is_not_needed_for_the_times_either(
    linked: Callable[..., Engine], centres: dict[str, Centre], buses: dict[str, Bus], queue: str
) -> None:
    for bus in buses.values():
        bus.fill(queue, 2)
    query = linked(queue, schema=TIMED_LINKED, ack="none")
    query.step("planned")
    centres["eu"].down = True
    rows = query.step()
    assert rows
    assert sorted((source, id) for _, id, _, source, _ in rows) == [
        (source, id) for source in ("eu", "local", "us") for id in (1, 2)
    ]  # type: ignore[misc]
    assert None not in [row[-1] for row in rows]
    centres["eu"].down = False


@pytest.mark.needs("start")
@pytest.mark.only("python", reason="only the Python source reads over links of federation")
@pytest.mark.parametrize("calls", range(2, 14))
def test_a_link_that_goes_away_at_any_call_leaves_no_time_out(
    linked: Callable[..., Engine],
    centres: dict[str, Centre],
    buses: dict[str, Bus],
    queue: str,
    calls: int,
) -> None:
    for bus in buses.values():
        bus.fill(queue, 2)
    query = linked(queue, schema=TIMED_LINKED, ack="none")
    centres["eu"].calls_until_down = calls
    rows: list[Any] = []

    def done() -> bool:
        rows.extend(query.step() or [])
        centres["eu"].down = False
        return len(rows) >= 6

    wait_until(done, PATIENCE_S)
    assert sorted((source, id) for _, id, _, source, _ in rows) == [
        (source, id) for source in ("eu", "local", "us") for id in (1, 2)
    ]
    assert None not in [row[-1] for row in rows]


def test_the_option_without_the_column_is_refused(
    bus: Bus, hours: QueueKeys, engine: Callable[..., Engine]
) -> None:
    with pytest.raises(
        ConfigError,
        match="includeTimestamp=true asks for a column timestamp, which the schema does not have",
    ):
        engine({"redis.url": bus.url, "subscribe": hours.name, "includeTimestamp": "true"})


# Real time


def live_row(row: Any) -> tuple[int, int | None]:
    return row.getLong(1), None if row.isNullAt(3) else row.getLong(3)


@pytest.fixture
def live(spark: SparkSession, shim_jar: Path, bus: Bus) -> Iterator[Callable[..., LiveEngine]]:
    assert shim_jar.exists()
    made: list[LiveEngine] = []

    def begin(queue: str, schema: StructType) -> LiveEngine:
        made.append(
            LiveEngine(spark, {"redis.url": bus.url, "subscribe": queue, "ack": "none"}, schema)
        )
        return made[-1].begin()

    yield begin
    for query in made:
        query.stop()


def test_in_real_time_messages_have_their_second_whoever_pushed_them(
    live: Callable[..., LiveEngine], bus: Bus, hours: QueueKeys
) -> None:
    query = live(hours.name, TIMED)
    assert query.rows(9, of=live_row) == [
        (id, s and s * 1_000_000) for id, s in expected(bus, hours, range(1, 10)).items()
    ]
    for id in range(10, 13):
        npm_push(bus, hours)
        [found] = query.rows(1, of=live_row)
        [(_, second)] = expected(bus, hours, range(id, id + 1)).items()
        assert found[0] == id
        assert second is not None
        assert found[1] is not None
        assert 0 <= second - found[1] // 1_000_000 <= 1, "noted again within the second"
    bus.push(hours.name, "x" * 5000, "y")
    assert all(second for _, second in query.rows(2, of=live_row))
    bus.push(hours.name, "z")
    assert all(second for _, second in query.rows(1, of=live_row))


def test_in_real_time_too_more_times_than_fit_a_question_are_found(
    live: Callable[..., LiveEngine], bus: Bus, queue: str
) -> None:
    keys = QueueKeys(queue)
    rows = 5000
    bus.push(queue, *["v"] * rows)
    now = noted(bus, keys)[-1].ms
    store(bus, keys, [NewestIdAtTime(now - SECOND * (rows - id), id) for id in range(rows + 1)])
    found = live(queue, TIMED).rows(rows, of=live_row)
    assert found == [
        (id, (now - SECOND * (rows - id)) // SECOND * 1_000_000) for id in range(1, rows + 1)
    ]


def test_in_real_time_messages_of_peers_are_noted_while_the_batch_lasts(
    live: Callable[..., LiveEngine], bus: Bus, queue: str
) -> None:
    keys = QueueKeys(queue)
    bus.attach(queue)
    query = live(queue, SCHEMA)
    for newest in (2, 4):
        npm_push(bus, keys, 2)
        assert len(query.rows(2)) == 2
        wait_until(
            lambda newest=newest: (
                query.rows(1, 20) == []
                and noted(bus, keys)[-1:]
                and noted(bus, keys)[-1].id == newest
            ),
            PATIENCE_S,
        )  # type: ignore[misc]


def test_in_real_time_a_redis_that_is_full_notes_nothing_and_is_read_on(
    spark: SparkSession, shim_jar: Path, bus_of: MakeBus
) -> None:
    assert shim_jar.exists()
    with EmbeddedRedis() as server:
        bus, keys = bus_of(server), QueueKeys("q")
        bus.fill("q", 1)
        query = LiveEngine(
            spark, {"redis.url": bus.url, "subscribe": "q", "ack": "none"}, TIMED
        ).begin()
        [(_, second)] = query.rows(1, of=live_row)
        assert second is not None
        npm_push(bus, keys, 2)
        bus("CONFIG", "SET", "maxmemory", 1)
        assert query.rows(2, of=live_row) == [(2, None), (3, None)]
        bus("CONFIG", "SET", "maxmemory", 0)
        query.stop()
