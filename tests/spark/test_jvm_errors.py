"""An error of the Java module as a user of PySpark meets it: one line with its code and what to do,
and no Java stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from tests.conftest import Fresh
from tests.spark.conftest import Bus
from tests.spark.test_catalog import named

pytestmark = [pytest.mark.usefixtures("shim_jar")]
Read = Callable[[dict[str, str]], Any]


@pytest.fixture(params=["catalog", "format"])
def read(request: pytest.FixtureRequest, spark: SparkSession, fresh: Fresh, queue: str) -> Read:
    """Reads the queue of the test with these options, in either way."""

    def from_catalog(options: dict[str, str]) -> Any:
        with named(spark, fresh("bus"), options) as catalog:
            return spark.sql(f"SELECT * FROM {catalog}.`{queue}`").collect()

    def from_format(options: dict[str, str]) -> Any:
        return (
            spark.read.format("busmq-realtime").options(**options, subscribe=queue).load().collect()
        )

    return from_catalog if request.param == "catalog" else from_format


def refused(code: str, what: Callable[[], Any]) -> str:
    """The one line with this condition."""
    with pytest.raises(IllegalArgumentException) as caught:
        what()
    assert caught.value.getCondition() == code
    line = str(caught.value)
    assert line.startswith(f"[{code}] ")
    assert "\n" not in line
    return line


def test_an_unreachable_server(read: Read) -> None:
    line = refused("BUSMQ_LINK_LOST", lambda: read({"redis.url": "redis://127.0.0.1:1"}))
    assert "Check that the server runs and that this address is reachable from here" in line


def test_a_password_is_wrong(read: Read, bus: Bus) -> None:
    line = refused(
        "BUSMQ_UNAUTHORIZED",
        lambda: read(
            {"redis.url": bus.url, "redis.username": "nobody", "redis.password": "hunter2"}
        ),
    )
    assert "Check the user and password" in line
    assert "hunter2" not in line


def test_a_queue_does_not_exist(spark: SparkSession, bus: Bus, queue: str) -> None:
    """A catalog has no such table then, says Spark itself."""
    frame = (
        spark.read.format("busmq-realtime")
        .options(**{"redis.url": bus.url}, subscribe=queue)
        .load()
    )
    assert f"'{queue}'" in refused("BUSMQ_QUEUE_MISSING", frame.collect)


def test_a_row_is_refused_in_a_task(spark: SparkSession, bus: Bus, queue: str) -> None:
    rows = spark.sql("SELECT CAST(NULL AS STRING) AS value FROM range(1)")
    writer = (
        rows.write.format("busmq-realtime")
        .options(**{"redis.url": bus.url}, queue=queue)
        .mode("append")
    )
    assert "use coalesce()" in refused("BUSMQ_MESSAGE_REFUSED", writer.save)
