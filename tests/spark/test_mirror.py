"""A query moves from a queue to its mirror with its checkpoint as it is, on either engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.reading.reader_operations import subscriptions
from busmq_spark.writing import mirror as flows
from tests.mirror.centres import Centre, centre, copied, looked, mirroring, url
from tests.support import PATIENCE_S

pytestmark = [pytest.mark.redis, pytest.mark.slow]
Pair = tuple[EmbeddedRedis, Centre, Centre]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        there, here = (stack.enter_context(EmbeddedRedis()) for _ in range(2))
        yield there, stack.enter_context(centre(there.url)), stack.enter_context(centre(here.url))


class Query:
    """Reads what there is, and notes it in files, each row once."""

    def __init__(self, spark: SparkSession, folder: Path, engine: str, **options: str) -> None:
        self._spark, self._folder, self._options = (
            spark,
            folder,
            {"subscribe": "orders", "engine": engine, "maxMessagesPerTrigger": "40", **options},
        )

    def run(self, place: Centre) -> None:
        rows = (
            self._spark.readStream.format("busmq")
            .options(**{"redis.url": url(place), **self._options})
            .load()
        )
        writer = (
            rows.selectExpr("id", "string(value) AS value")
            .writeStream.format("json")
            .option("path", str(self._folder / "out"))
        )
        query = (
            writer.option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(PATIENCE_S))

    @property
    def rows(self) -> list[tuple[int, str]]:
        lines = [
            line
            for file in (self._folder / "out").glob("*.json")
            for line in file.read_text().splitlines()
        ]
        return sorted((row["id"], row["value"]) for row in map(json.loads, lines))


@pytest.mark.parametrize("subscription", ["", "billing"])
def test_a_query_goes_on_at_the_promoted_mirror_with_exactly_the_next_message(
    spark: SparkSession,
    shim_jar: Path,
    language: str,
    subscription: str,
    pair: Pair,
    tmp_path: Path,
) -> None:
    server, far, near = pair
    query = Query(
        spark, tmp_path, language, **({"subscription": subscription} if subscription else {})
    )
    far.create("orders")
    far.push("orders", 100)
    with mirroring(server.url, near, "orders", groups=True) as runner:
        copied(runner, far, ["orders"])
        query.run(far)
        far.push("orders", 60)
        copied(runner, far, ["orders"])
        looked(runner)
        server.kill()
    assert near.run("orders", flows.promote(near.keys("orders")))[:2] == (True, 160)
    if subscription:
        [positions] = near.run("orders", subscriptions([near.keys("orders")]))
        assert positions[subscription] in range(60, 101), (
            "what it had acked when the mirror looked last"
        )
    near.push("orders", 10)
    query.run(near)
    assert query.rows == [(id, f"v{id}") for id in range(1, 171)], "none is missing or double"
    assert shim_jar.exists()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_nothing_is_written_to_a_mirror_before_it_is_promoted(
    spark: SparkSession, shim_jar: Path, language: str, delivery: str, pair: Pair
) -> None:
    server, far, near = pair
    far.create("orders")
    far.push("orders", 3)
    with mirroring(server.url, near, "orders") as runner:
        copied(runner, far, ["orders"])
    rows = spark.createDataFrame([("a",)], "value string").write.format("busmq").mode("append")
    write = rows.options(
        **{"redis.url": url(near), "queue": "orders", "engine": language, "delivery": delivery}
    )
    with pytest.raises(Exception, match=r"\[BUSMQ_QUEUE_IS_MIRROR\] queue 'orders' is a mirror"):
        write.save()
    assert near.stored("orders") == far.stored("orders")
    near.run("orders", flows.promote(near.keys("orders")))
    write.save()
    assert near.stored("orders")[3:] == [(4, b"a")]
    assert shim_jar.exists()


def test_a_query_that_had_read_beyond_the_copy_stops_and_the_ids_are_named(
    spark: SparkSession, shim_jar: Path, language: str, pair: Pair, tmp_path: Path
) -> None:
    server, far, near = pair
    query = Query(spark, tmp_path, language)
    far.create("orders")
    far.push("orders", 100)
    with mirroring(server.url, near, "orders") as runner:
        copied(runner, far, ["orders"])
    far.push("orders", 20)
    query.run(far)
    near.run("orders", flows.promote(near.keys("orders")))
    with pytest.raises(
        Exception, match=r"BUSMQ_REDIS_ROLLED_BACK.*a last id of at least 120, found last id 100"
    ):
        query.run(near)
    near.push("orders", 40, word="new")
    with pytest.raises(Exception, match=r"BUSMQ_(IDS_REISSUED|CHECKPOINT_OLDER)"):
        query.run(near)
    assert len(query.rows) == 120
    assert shim_jar.exists()
