"""Two data centres and Redis itself in Spark's own hands: streams, batches, secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from busmq_spark.groups.topic import partition_of
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions
from tests.conftest import Fresh
from tests.spark.centres import READER, SECRET, DataCentre
from tests.spark.conftest import Bus, MakeBus, Query, Sink, Stream
from tests.spark.topic_tools import grow, make_topic, partitions_of

pytestmark = pytest.mark.redis
SOURCES = ("local", "eu", "us")


@pytest.fixture
def buses(data_centres: dict[str, DataCentre], bus: Bus, bus_of: MakeBus) -> dict[str, Bus]:
    return {"local": bus, **{name: bus_of(centre.redis) for name, centre in data_centres.items()}}


@pytest.fixture
def everywhere(data_centres: dict[str, DataCentre], bus: Bus, queue: str) -> dict[str, str]:
    """Options that read one queue of all three."""
    return {**links(data_centres), "redis.url": bus.url, "subscribe": queue}


def links(data_centres: dict[str, DataCentre], secret: str = SECRET) -> dict[str, str]:
    return {
        "federation.url": ",".join(f"{name}={centre.url}" for name, centre in data_centres.items()),
        "federation.secret": secret,
    }


def ids(query: Query, source: str) -> list[int]:
    return [row["id"] for row in query.rows if row["source"] == source]


def fill(buses: dict[str, Bus], queue: str, first: int, last: int) -> None:
    for bus in buses.values():
        bus.fill(queue, last - first + 1, first=first)


def test_topics_of_all_of_them_are_read_and_grow_apart(
    stream: Stream, everywhere: dict[str, str], buses: dict[str, Bus], queue: str
) -> None:
    for name, partitions in (("local", 1), ("eu", 3)):
        make_topic(buses[name], queue, partitions, "a")
    make_topic(buses["eu"], f"{queue}x", 1, "another's")
    del everywhere["subscribe"]
    query = stream({**everywhere, "topic": queue, "includeTopic": "true"})
    query.wait_rows(4)
    grow(buses["us"], make_topic(buses["us"], queue, 1), 2)
    buses["us"].push(f"{queue}/1", "1a")
    query.wait_rows(5)
    assert {
        (row["source"], row["topic"], row["partition"], bytes(row["value"])) for row in query.rows
    } == {
        ("local", queue, 0, b"0a"),
        *(("eu", queue, partition, b"%da" % partition) for partition in range(3)),
        ("us", queue, 1, b"1a"),
    }


def test_a_topic_is_written_through_a_link(
    spark: SparkSession, data_centres: dict[str, DataCentre], buses: dict[str, Bus], queue: str
) -> None:
    rows = spark.createDataFrame(
        [(f"{n % 7}", str(n)) for n in range(50)], "key string, value string"
    ).coalesce(1)
    writer = rows.write.format("busmq").options(
        **{**links({"eu": data_centres["eu"]}), "topic": queue, "partitions": "3"}
    )
    with pytest.raises(
        PySparkException, match=rf"\[BUSMQ_TOPIC_MISSING\] topic '{queue}' does not exist"
    ):
        writer.mode("append").save()
    make_topic(buses["eu"], queue, 3)
    writer.mode("append").save()
    places = [[b"%d" % n for n in range(50) if partition_of(str(n % 7), 3) == p] for p in range(3)]
    assert partitions_of(buses["eu"], queue) == places
    writer.mode("overwrite").option("truncate", "true").save()
    assert partitions_of(buses["eu"], queue) == places


def test_a_data_centre_that_goes_down_and_comes_back_stops_its_own_queue_only_and_loses_nothing(
    stream: Stream,
    everywhere: dict[str, str],
    buses: dict[str, Bus],
    data_centres: dict[str, DataCentre],
    queue: str,
) -> None:
    fill(buses, queue, 1, 100)
    query = stream(everywhere)
    query.wait_rows(300)
    data_centres["us"].kill()
    try:
        fill(buses, queue, 101, 200)
        query.wait_for(lambda: len(ids(query, "local")) == len(ids(query, "eu")) == 200)
        assert ids(query, "us") == list(range(1, 101))
        query.wait_for(
            lambda: (
                query.query.lastProgress
                and '"away":true'
                in query.query.lastProgress["sources"][0]["latestOffset"].replace(" ", "")
            )
        )
    finally:
        data_centres["us"].start()
    query.wait_rows(600)
    assert {source: ids(query, source) for source in SOURCES} == {
        source: list(range(1, 201)) for source in SOURCES
    }
    assert {(row["queue"], bytes(row["value"])) for row in query.rows} == {
        (queue, f"{queue}:{i}".encode()) for i in range(1, 201)
    }
    query.wait_for(lambda: all(bus.ids(queue) == [] for bus in buses.values()), "all acked")


def everything_said(query: Query, frame: DataFrame) -> list[str]:
    """Plans and progress, in every form Spark has of them."""
    plans = [frame._jdf.queryExecution().toString(), query.query._jsq.explainInternal(True)]
    return [*plans, *(progress.json for progress in query.query.recentProgress)]


def test_a_query_goes_on_while_a_data_centre_is_down_and_no_plan_or_checkpoint_has_secrets(
    spark: SparkSession,
    stream: Stream,
    everywhere: dict[str, str],
    buses: dict[str, Bus],
    data_centres: dict[str, DataCentre],
    tmp_path: Path,
) -> None:
    queue = everywhere["subscribe"]
    fill(buses, queue, 1, 50)
    first = stream(everywhere)
    first.wait_for(lambda: all(bus.ids(queue) == [] for bus in buses.values()))
    first.query.stop()
    data_centres["eu"].kill()
    try:
        fill(buses, queue, 51, 80)
        second = stream(everywhere)
        second.wait_for(lambda: len(ids(second, "local")) == len(ids(second, "us")) == 30)
        assert ids(second, "eu") == []
    finally:
        data_centres["eu"].start()
    second.wait_rows(90)
    said = [
        *everything_said(second, spark.read.format("busmq").options(**everywhere).load()),
        repr(parse(ReadOptions, everywhere)),
    ]
    said += [file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    assert any(queue in text for text in said)
    assert not [text for text in said if SECRET in text]
    assert {source: ids(second, source) for source in SOURCES} == {
        source: list(range(51, 81)) for source in SOURCES
    }


def test_a_stream_from_one_data_centre_into_another(
    spark: SparkSession,
    sink: Sink,
    data_centres: dict[str, DataCentre],
    buses: dict[str, Bus],
    fresh: Fresh,
) -> None:
    source, target = fresh("in"), fresh("out")
    buses["eu"].fill(source, 500)
    eu, us = (
        {"federation.url": data_centres[name].url, "federation.secret": SECRET}
        for name in ("eu", "us")
    )
    frame = spark.readStream.format("busmq").options(**eu, subscribe=source).load()
    assert frame.columns == ["queue", "id", "value", "source"]
    sink(frame, {**us, "queue": target})
    assert buses["us"].stored(target) == [f"{source}:{i}".encode() for i in range(1, 501)]
    assert buses["us"].ids(source) == []


def test_batches_are_read_and_written(
    spark: SparkSession,
    everywhere: dict[str, str],
    data_centres: dict[str, DataCentre],
    buses: dict[str, Bus],
    queue: str,
) -> None:
    fill(buses, queue, 1, 20)
    frame = spark.read.format("busmq").options(**everywhere).load()
    found = sorted((row["source"], row["id"]) for row in frame.collect())
    assert found == [(source, id) for source in sorted(SOURCES) for id in range(1, 21)]
    us = {"federation.url": f"us={data_centres['us'].url}", "federation.us.secret": SECRET}
    frame.where("source = 'eu'").orderBy("id").coalesce(1).write.format("busmq").options(
        **us, queue=f"{queue}-copy"
    ).mode("append").save()
    assert buses["us"].stored(f"{queue}-copy") == [f"{queue}:{i}".encode() for i in range(1, 21)]
    assert buses["eu"].ids(queue) == list(range(1, 21))


def read(spark: SparkSession, where: dict[str, str], queue: str) -> None:
    spark.read.format("busmq").options(**where, subscribe=queue).load().collect()


def write(spark: SparkSession, where: dict[str, str], queue: str) -> None:
    spark.sql("SELECT 'x' AS value").write.format("busmq").options(**where, queue=queue).mode(
        "append"
    ).save()


@pytest.mark.parametrize(
    ("secret", "queue", "do"),
    [
        ("not-the-secret-at-all", "public", read),
        (READER, "public", write),
        (READER, "private", read),
    ],
)
def test_what_a_secret_may_not_do_is_refused_without_the_secret_in_the_error(
    spark: SparkSession,
    everywhere: dict[str, str],
    buses: dict[str, Bus],
    secret: str,
    queue: str,
    do: Callable[..., None],
) -> None:
    buses["eu"].push(queue, "kept")
    where = {
        "federation.url": everywhere["federation.url"].partition(",")[0],
        "federation.secret": secret,
    }
    with pytest.raises(
        PySparkException, match=r"\[BUSMQ_FEDERATION_REFUSED\] the federation server at .* refused"
    ) as failed:
        do(spark, where, queue)
    assert secret not in str(failed.value)
    assert set(buses["eu"].stored(queue)) == {b"kept"}


def test_a_stream_with_a_wrong_secret_fails_at_once_and_names_the_link(
    stream: Stream, data_centres: dict[str, DataCentre], queue: str
) -> None:
    with pytest.raises(
        StreamingQueryException, match=r"\[BUSMQ_FEDERATION_REFUSED\].*link 'eu'"
    ) as failed:
        stream({**links(data_centres, "not-the-secret-at-all"), "subscribe": queue}).wait_for(
            lambda: False
        )
    assert "not-the-secret-at-all" not in str(failed.value)
