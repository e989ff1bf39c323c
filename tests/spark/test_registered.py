"""``busmq_spark.register``: the package travels with each query, by value, also to workers that
have a package of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

import busmq_spark
from busmq_spark.spark.data_source import BusmqDataSource
from tests.spark.centres import SECRET, DataCentre
from tests.spark.conftest import Bus, MakeBus

pytestmark = pytest.mark.redis


@pytest.fixture
def registered(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own, since what is registered in one stays there."""
    session = spark.newSession()
    busmq_spark.register(session)
    yield session
    # Untyped in pyspark
    cloudpickle.unregister_pickle_by_value(busmq_spark)  # type: ignore[no-untyped-call]


def test_nothing_of_the_environment_travels(
    registered: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_ANOTHER_PROGRAM", "it-must-not-leave-the-driver")
    # Untyped in pyspark
    pickled = cloudpickle.dumps(BusmqDataSource)  # type: ignore[no-untyped-call]
    assert b"it-must-not-leave-the-driver" not in pickled


def test_an_error_is_one_line(registered: SparkSession, bus: Bus) -> None:
    with pytest.raises(AnalysisException, match=r"\[BUSMQ_CONFIG\] unknown option") as failed:
        registered.read.format("busmq").options(**{"redis.url": bus.url, "subscrib": "q"}).load()
    assert "Traceback" not in str(failed.value)


def test_links_are_read_and_their_errors_named(
    registered: SparkSession,
    data_centres: dict[str, DataCentre],
    bus_of: MakeBus,
    queue: str,
    tmp_path: Path,
) -> None:
    bus_of(data_centres["eu"].redis).push(queue, "1", "2")
    options = {"federation.url": f"eu={data_centres['eu'].url}", "subscribe": queue}
    rows = (
        registered.read.format("busmq")
        .options(**options, **{"federation.secret": SECRET})
        .load()
        .collect()
    )
    assert [(row["source"], bytes(row["value"])) for row in rows] == [("eu", b"1"), ("eu", b"2")]
    stream = (
        registered.readStream.format("busmq")
        .options(**options, **{"federation.secret": "not-the-secret-at-all"})
        .load()
    )
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(
        StreamingQueryException, match=r"\[BUSMQ_FEDERATION_REFUSED\].*link 'eu'"
    ) as failed:
        query.awaitTermination()
    assert "Traceback" not in str(failed.value)
