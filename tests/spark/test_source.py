"""The streaming source in a real Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from busmq_spark.queue.keys import QueueKeys
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus, Query, Stream
from tests.support import wait_until


@pytest.fixture
def read(bus: Bus, queue: str) -> dict[str, Any]:
    return {"redis.url": bus.url, "subscribe": queue}


# Columns


def test_the_columns_are_queue_id_and_value(spark: SparkSession, read: dict[str, Any]) -> None:
    frame = spark.readStream.format("busmq").options(**read).load()
    assert frame.schema.simpleString() == "struct<queue:string,id:bigint,value:binary>"
    assert frame.isStreaming


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        ("id long", {"id": 1}),
        ("value string, queue string", {"value": "ä", "queue": ...}),
        ("value string not null, id long not null", {"value": "ä", "id": 1}),
    ],
)
def test_a_schema_of_the_user_may_leave_out_reorder_and_turn_values_into_text(
    bus: Bus, drain: Stream, read: dict[str, Any], queue: str, schema: str, row: dict[str, Any]
) -> None:
    bus.push(queue, "ä")
    [found] = drain(read, schema=schema).rows
    assert found.asDict() == {name: queue if value is ... else value for name, value in row.items()}
    assert list(found.asDict()) == list(row)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            "body binary",
            "column 'body' does not exist; the source has: queue string, id long, value binary",
        ),
        ("id int, value binary", "column 'id' is int; expected bigint"),
        ("value struct<a:int>", "column 'value' is struct<a:int>; expected binary or string"),
    ],
)
def test_a_schema_that_does_not_fit_is_an_error_before_anything_is_read(
    stream: Stream, read: dict[str, Any], schema: str, reason: str
) -> None:
    with pytest.raises((AnalysisException, StreamingQueryException)) as failed:
        stream(read, schema=schema).wait_for(lambda: False)
    assert "[BUSMQ_CONFIG]" in str(failed.value)
    assert reason in str(failed.value)


def test_a_value_that_is_not_text_says_so_when_text_is_asked_for(
    bus: Bus, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.push(queue, "fine", b"\xff\xfe")
    with pytest.raises(
        StreamingQueryException,
        match=f"queue '{queue}': a message in ids 1..2 is not UTF-8 text .* Read value as binary",
    ):
        drain(read, schema="value string")
    assert bus.ids(queue) == [1, 2]


# Order, batches, triggers


@pytest.mark.parametrize(
    ("caps", "sizes"),
    [
        ({}, [1000]),
        pytest.param({"maxMessagesPerTrigger": 600}, [600, 400], marks=pytest.mark.needs("limits")),
    ],
    ids=["", "capped"],
)
def test_rows_of_every_queue_come_in_the_order_of_their_ids_also_when_split_over_tasks(
    bus: Bus, drain: Stream, fresh: Fresh, caps: dict[str, int], sizes: list[int]
) -> None:
    queues = [fresh("o") for _ in range(5)]
    for queue in queues:
        bus.fill(queue, 200)
    found = drain({"redis.url": bus.url, "subscribe": ",".join(queues), "minPartitions": 8, **caps})
    assert found.sizes == sizes
    for queue in queues:
        assert [(r["id"], bytes(r["value"])) for r in found.rows if r["queue"] == queue] == [
            (i, f"{queue}:{i}".encode()) for i in range(1, 201)
        ]


@pytest.mark.needs("limits")
@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"maxMessagesPerTrigger": 4}, [4, 4, 2]),
        ({"maxOffsetsPerTrigger": 4}, [4, 4, 2]),
        ({"maxBytesPerTrigger": 35}, [3, 3, 3, 1]),
        ({"minMessagesPerTrigger": 100}, [10]),
        ({}, [10]),
    ],
    ids=str,
)
def test_available_now_reads_what_is_there_in_batches_within_the_caps(
    bus: Bus,
    drain: Stream,
    read: dict[str, Any],
    queue: str,
    options: dict[str, Any],
    sizes: list[int],
) -> None:
    bus.push(queue, *["0123456789"] * 10)
    assert drain({**read, **options}).sizes == sizes
    assert bus.ids(queue) == []  # the last batch is acknowledged too before the query ends


@pytest.mark.filterwarnings("ignore:.*[Tt]rigger.*:")
def test_trigger_once_reads_everything_in_one_batch(
    bus: Bus, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.fill(queue, 10)
    assert drain({**read, "maxMessagesPerTrigger": 4}, trigger={"once": True}).sizes == [10]


@pytest.mark.parametrize(
    "options",
    [{"engine": "python"}, pytest.param({"engine": "java"}, marks=pytest.mark.jvm)],
    ids=["python", "java"],
)
def test_a_stream_waits_for_so_many_messages(
    bus: Bus, stream: Stream, read: dict[str, Any], queue: str, options: dict[str, str]
) -> None:
    bus.fill(queue, 1)
    query = stream({**read, **options, "minMessagesPerTrigger": 3})
    query.wait_rows(1)
    for id in (2, 3, 4):
        bus.fill(queue, 1, first=id)
    query.wait_rows(4)
    assert query.sizes == [1, 3]


def test_a_processing_time_trigger_reads_batch_after_batch(
    bus: Bus, stream: Stream, read: dict[str, Any], queue: str
) -> None:
    query = stream(
        {**read, "maxMessagesPerTrigger": 4}, trigger={"processingTime": "100 milliseconds"}
    )
    query.wait_for(
        lambda: query.batches
    )  # before Spark 4.2 the caps of Python hold from the second batch on
    bus.fill(queue, 6)
    query.wait_rows(6)
    bus.fill(queue, 1, first=7)
    query.wait_rows(7)
    assert query.sizes == [4, 2, 1]


def test_max_messages_per_partition_makes_more_tasks(
    spark: SparkSession, bus: Bus, read: dict[str, Any], queue: str
) -> None:
    bus.fill(queue, 10)
    frame = spark.read.format("busmq").options(**read, maxMessagesPerPartition=3).load()
    assert frame.rdd.getNumPartitions() == 4
    assert [r["id"] for r in frame.collect()] == list(range(1, 11))


def test_a_push_is_seen_though_the_query_would_not_look_for_minutes(
    bus: Bus, stream: Stream, read: dict[str, Any], queue: str
) -> None:
    query = stream({**read, "idlePollMs": 600_000})
    query.wait_for(lambda: query.batches and bus("PUBSUB", "NUMSUB", QueueKeys(queue).available)[1])
    bus.push(queue, "hello")
    query.wait_rows(1)


def test_an_offset_to_start_from_is_the_last_one_that_is_done(
    bus: Bus, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.fill(queue, 5)
    assert [
        r["id"]
        for r in drain(
            {**read, "startingOffsets": json.dumps({queue: 3}), "discardBacklog": "true"}
        ).rows
    ] == [4, 5]


# Ack, restart, other readers


class Watching(Query):
    """Looks at the queue while a batch runs, as long as its commit log entry cannot be there."""

    bus: Bus
    queue: str

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def take(self, frame: Any, batch: int) -> None:
        self.seen.append(
            self.bus.ids(self.queue)
            # Before the rows show: then the test's own thread uses the link, which is for one at a
            # time
        )
        super().take(frame, batch)

    @property
    def seen_with_rows(self) -> list[list[int]]:
        """What was in the queue during each batch that had rows."""
        return [
            ids for ids, (_, rows) in zip(self.seen, self.batches, strict=False) if rows
        ]  # seen first


def test_nothing_is_acknowledged_before_its_batch_is_in_the_commit_log_and_an_idle_tail_is(
    spark: SparkSession, bus: Bus, read: dict[str, Any], queue: str, tmp_path: Any
) -> None:
    found = Watching()
    found.bus, found.queue = bus, queue
    frame = spark.readStream.format("busmq").options(**read, maxMessagesPerTrigger=2).load()
    found.query = (
        frame.writeStream.foreachBatch(found.take)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        found.wait_for(
            lambda: found.batches
        )  # before Spark 4.2 the caps of Python hold from the second batch on
        bus.fill(queue, 6)
        found.wait_rows(6)
        found.wait_for(lambda: bus.ids(queue) == [])  # idle: no further batch comes
        # An idle query may run one batch without rows; on a busy machine it comes before this line.
        assert found.sizes[:3] == [2, 2, 2]
        assert found.seen_with_rows[:3] == [[1, 2, 3, 4, 5, 6], [3, 4, 5, 6], [5, 6]]
        assert not any(found.sizes[3:])
    finally:
        found.query.stop()


@pytest.mark.parametrize("source", ["busmq", "busmq-realtime"])
def test_with_async_progress_tracking_nothing_is_acknowledged_that_is_not_in_the_logs(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    bus: Bus,
    read: dict[str, Any],
    source: str,
    tmp_path: Any,
) -> None:
    if source == "busmq-realtime":
        request.getfixturevalue("shim_jar")
    found = Watching()
    found.bus, found.queue = bus, read["subscribe"]
    late = {
        "asyncProgressTrackingEnabled": "true",
        "asyncProgressTrackingCheckpointIntervalMs": "86400000",
    }
    late["_asyncProgressTrackingOverrideSinkSupportCheck"] = "true"
    frame = spark.readStream.format(source).options(**read, maxMessagesPerTrigger=2).load()
    found.query = (
        frame.writeStream.foreachBatch(found.take)
        .options(**late)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        found.wait_for(
            lambda: found.batches
        )  # before Spark 4.2 the caps of Python hold from the second batch on
        bus.fill(read["subscribe"], 20)
        found.wait_rows(20)
        assert found.seen_with_rows == [list(range(1, 21))] * 10
    finally:
        found.query.stop()


def test_with_ack_none_nothing_is_removed_and_a_restart_goes_on(
    bus: Bus, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.fill(queue, 3)
    assert len(drain({**read, "ack": "none"}).rows) == 3
    bus.fill(queue, 2, first=4)
    assert [r["id"] for r in drain({**read, "ack": "none"}).rows] == [4, 5]
    assert bus.ids(queue) == [1, 2, 3, 4, 5]


def test_a_query_that_was_stopped_starts_again_at_once_and_goes_on(
    bus: Bus, stream: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.fill(queue, 3)
    first = stream(read)
    first.wait_for(lambda: bus.ids(queue) == [])  # acknowledged, so in the commit log
    first.query.stop()
    bus.fill(queue, 3, first=4)
    second = stream(read)
    second.wait_rows(3)
    assert [r["id"] for r in second.rows] == [4, 5, 6]


def test_a_second_query_on_a_queue_is_refused_and_the_first_goes_on(
    bus: Bus, stream: Stream, read: dict[str, Any], queue: str
) -> None:
    first = stream(read)
    first.wait_for(lambda: first.batches)
    with pytest.raises(
        StreamingQueryException,
        match=rf"\[BUSMQ_QUEUE_BUSY\] queue '{queue}' is read by another query",
    ):
        stream(read, checkpoint="other").wait_for(lambda: False)
    bus.fill(queue, 1)
    first.wait_rows(1)


@pytest.mark.needs("limits")
def test_two_subscriptions_share_a_queue(
    bus: Bus, stream: Stream, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.fill(queue, 3)
    assert len(drain({**read, "subscription": "a"}, checkpoint="a").rows) == 3
    b = stream({**read, "subscription": "b"}, checkpoint="b")
    b.wait_for(lambda: b.batches)
    bus.fill(queue, 2, first=4)
    b.wait_rows(2)
    assert bus.ids(queue) == [4, 5]
    assert [r["id"] for r in drain({**read, "subscription": "a"}, checkpoint="a").rows] == [4, 5]
    wait_until(lambda: bus.ids(queue) == [], PATIENCE_S)


def test_queues_that_match_a_pattern_are_found_while_the_query_runs(
    bus: Bus, stream: Stream, fresh: Fresh
) -> None:
    base = fresh("orders")
    query = stream({"redis.url": bus.url, "subscribePattern": f"{base}-.*"})
    query.wait_for(lambda: query.batches)
    bus.fill(f"{base}-1", 2)
    query.wait_rows(2)
    bus.fill(f"{base}-2", 2)
    query.wait_rows(4)
    assert [r["queue"] for r in query.rows] == [f"{base}-1"] * 2 + [f"{base}-2"] * 2


@pytest.mark.needs("limits")
def test_messages_that_went_while_the_query_was_down_stop_it_with_the_cause(
    bus: Bus, drain: Stream, read: dict[str, Any], queue: str
) -> None:
    bus.fill(queue, 3)
    drain(read)
    bus.fill(queue, 2, first=4)
    bus("LTRIM", QueueKeys(queue).messages, 2, -1)
    with pytest.raises(
        StreamingQueryException,
        match=r"\[BUSMQ_QUEUE_FLUSHED\] .*expected ids from 4 on, found oldest stored id 5",
    ):
        drain(read)
    assert bus.ids(queue) == [5]
    assert [r["id"] for r in drain({**read, "failOnDataLoss": "false"}).rows] == [5]


# Progress


@pytest.mark.needs("report")
def test_progress_has_the_lag_of_each_queue(
    bus: Bus, stream: Stream, read: dict[str, Any], queue: str
) -> None:
    query = stream({**read, "maxMessagesPerTrigger": 4})
    query.wait_for(lambda: query.batches)
    bus.fill(queue, 10)
    query.wait_rows(10)
    query.wait_for(lambda: len([p for p in query.query.recentProgress if p.numInputRows]) == 3)
    sources = [
        json.loads(p.json)["sources"][0] for p in query.query.recentProgress if p.numInputRows
    ]
    lags = [
        s["latestOffset"]["queues"][queue]["last"] - s["endOffset"]["queues"][queue]["last"]
        for s in sources
    ]
    assert lags == [s["latestOffset"]["lag"] for s in sources] == [6, 2, 0]
    assert sources[-1]["latestOffset"]["lag_s"] == 0
