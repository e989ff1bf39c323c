"""What a user of the Python source and sink reads when something fails: the line with the code
first, and no traceback of ours.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from busmq_spark.queue.keys import QueueKeys
from tests.spark.conftest import Bus, Sink, Stream
from tests.support import PATIENCE_S

WRONG = {"maxMessagePerTrigger": "5"}


def lines_before(error: pytest.ExceptionInfo[BaseException], code: str) -> int:
    """Lines before the one with the code; the text has no traceback."""
    text = str(error.value)
    assert f"[{code}]" in text
    assert "Traceback" not in text
    assert "another exception" not in text
    assert 'File "' not in text
    return text.partition(f"[{code}]")[0].count("\n")


@pytest.fixture
def options(bus: Bus, queue: str) -> dict[str, str]:
    bus.push(queue, "1", "2")
    return {"redis.url": bus.url, "subscribe": queue, "ack": "none"}


@pytest.fixture
def one_row(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("x",)], "value string").coalesce(1)


@pytest.mark.parametrize("way", ["read", "readStream"])
@pytest.mark.parametrize("wrong", [WRONG, {"redis.url": "http://h"}, {"startingOffsets": "{"}])
def test_a_bad_option_is_said_by_load(
    spark: SparkSession, options: dict[str, str], way: str, wrong: dict[str, str]
) -> None:
    with pytest.raises(AnalysisException) as failed:
        getattr(spark, way).format("busmq").options(**{**options, **wrong}).load()
    assert lines_before(failed, "BUSMQ_CONFIG") == 0


def test_a_bad_option_of_a_stream_with_a_schema_of_the_user_is_said_at_its_start(
    stream: Stream, options: dict[str, str]
) -> None:
    with pytest.raises(StreamingQueryException) as failed:
        stream({**options, **WRONG}, schema="value string").wait_for(lambda: False)
    assert lines_before(failed, "BUSMQ_CONFIG") == 0


def test_a_schema_that_does_not_fit_is_said_at_the_start(
    stream: Stream, options: dict[str, str]
) -> None:
    with pytest.raises(StreamingQueryException) as failed:
        stream(options, schema="body string").wait_for(lambda: False)
    assert lines_before(failed, "BUSMQ_CONFIG") == 0


def test_an_error_of_planning_is_one_line(
    stream: Stream, spark: SparkSession, options: dict[str, str]
) -> None:
    missing = {**options, "subscribe": "not-there", "createQueue": "false"}
    with pytest.raises(StreamingQueryException) as failed:
        stream(missing).wait_for(lambda: False)
    assert lines_before(failed, "BUSMQ_QUEUE_MISSING") == 0
    with pytest.raises(AnalysisException) as at_once:
        spark.read.format("busmq").options(**missing).load().collect()
    assert lines_before(at_once, "BUSMQ_QUEUE_MISSING") == 0


def test_an_error_of_a_task_is_one_line(
    spark: SparkSession, bus: Bus, options: dict[str, str], tmp_path: Path
) -> None:
    bus("LSET", QueueKeys(options["subscribe"]).messages, 1, b"\xff")  # no text
    rows = spark.readStream.format("busmq").options(**options).schema("value string").load()
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(int(2 * PATIENCE_S))
    assert lines_before(failed, "BUSMQ_CONFIG") == 0
    with pytest.raises(Exception, match="BUSMQ_CONFIG") as at_once:
        spark.read.format("busmq").options(**options).schema("value string").load().collect()
    assert lines_before(at_once, "BUSMQ_CONFIG") <= 1


@pytest.mark.parametrize(
    ("wrong", "code"),
    [({"queu": "x"}, "BUSMQ_CONFIG"), ({"createQueue": "false"}, "BUSMQ_QUEUE_MISSING")],
    ids=["option", "task"],
)
def test_an_error_of_the_sink_is_one_line(
    spark: SparkSession,
    sink: Sink,
    options: dict[str, str],
    one_row: DataFrame,
    wrong: dict[str, str],
    code: str,
) -> None:
    given = {"redis.url": options["redis.url"], "queue": "not-there", **wrong}
    with pytest.raises(Exception, match=code) as at_once:
        one_row.write.format("busmq").mode("append").options(**given).save()
    assert lines_before(at_once, code) <= 1
    with pytest.raises(StreamingQueryException) as failed:
        sink(spark.readStream.format("busmq").options(**options).load().select("value"), given)
    assert lines_before(failed, code) == 0


def test_an_error_of_commit_is_one_line(
    bus: Bus, spark: SparkSession, sink: Sink, queue: str, options: dict[str, str]
) -> None:
    given = {"redis.url": bus.url, "queue": f"{queue}-out", "sinkId": queue}
    source = spark.readStream.format("busmq").options(**options).load().select("value")
    sink(source, given)
    with pytest.raises(StreamingQueryException) as failed:
        sink(source.selectExpr("CAST('other' AS STRING) AS value"), given, checkpoint="new")
    assert lines_before(failed, "BUSMQ_STALE_BATCH") == 0


def test_an_error_of_another_after_ours_keeps_its_traceback(
    spark: SparkSession, options: dict[str, str]
) -> None:
    """The process in which the traceback of ours was hidden is gone then."""
    rows = spark.read.format("busmq").options(**{**options, "subscribe": "not-there"}).load()
    with pytest.raises(AnalysisException):
        rows.collect()
    with pytest.raises(Exception, match="ZeroDivisionError") as failed:
        spark.range(1).select(udf(lambda _: 1 // 0)("id")).collect()
    assert "Traceback" in str(failed.value)
