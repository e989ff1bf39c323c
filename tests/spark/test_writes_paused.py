"""A query in both engines while its Redis pauses writes: it goes on, and each row arrives once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busmq_spark import Bus
from busmq_spark.embedded import EmbeddedRedis
from tests.support import wait_until
from tests.support_writes import writes_paused

pytestmark = [pytest.mark.spark, pytest.mark.redis]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_query_goes_on_once_writes_are_accepted_again(
    spark: SparkSession, language: str, java_spark: object, delivery: str, tmp_path: Path
) -> None:
    with (
        EmbeddedRedis() as server,
        Bus.sync(server.url) as bus,
        bus.queue("in") as source,
        bus.queue("out") as out,
    ):
        where = {"redis.url": server.url, "engine": language}
        rows = (
            spark.readStream.format("busmq").options(**where, subscribe="in").load().select("value")
        )
        writer = rows.writeStream.format("busmq").options(**where, queue="out", delivery=delivery)
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            for text in ("before", "during", "after"):
                if text == "during":
                    source.push(text)
                    with writes_paused(server, "NOREPLICAS", count=5):
                        pass
                else:
                    source.push(text)
                wait_until(
                    lambda text=text: (
                        query.exception()
                        or [each.text for each in out.consume(max=out.count(), remove=False)][-1:]
                        == [text]
                    )
                )  # type: ignore[misc]
                assert query.exception() is None
            assert [each.text for each in out.consume(max=3, remove=False)] == [
                "before",
                "during",
                "after",
            ]
        finally:
            query.stop()
