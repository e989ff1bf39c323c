"""Two columns of one name are refused by that name, before anything is connected. Both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import busmq_spark
from busmq_spark.errors import ConfigError
from tests.spark.lines import Lines
from tests.spark.test_changed_batch import JAVA, PYTHON

pytestmark = [pytest.mark.usefixtures("shim_jar")]
NOWHERE = {"redis.url": "redis://127.0.0.1:1"}
REFUSED = r"\[BUSMQ_CONFIG\] columns '{}' and '{}' have one name"


@pytest.fixture(params=[PYTHON, JAVA])
def via(request: pytest.FixtureRequest) -> str:
    return str(request.param)


ROWS: list[tuple[tuple[str, ...], dict[str, str], str, str]] = [
    (("'a' AS value", "'b' AS value"), {"queue": "q"}, "value", "value"),
    (("'a' AS value", "'b' AS VALUE"), {"queue": "q"}, "value", "VALUE"),
    (("'a' AS value", "'b' AS queue", "'c' AS Queue"), {}, "queue", "Queue"),
    (("'a' AS value", "'b' AS queue", "'c' AS queue"), {"queue": "q"}, "queue", "queue"),
    (("'a' AS value", "'b' AS topic", "'c' AS topic"), {}, "topic", "topic"),
    (("'a' AS value", "'b' AS key", "'c' AS KEY"), {"topic": "t"}, "key", "KEY"),
    (
        ("'a' AS value", "1 AS partition", "2 AS partition"),
        {"topic": "t"},
        "partition",
        "partition",
    ),
    (("'a' AS value", "1L AS id", "2L AS id"), {"queue": "q"}, "id", "id"),
    (("'a' AS value", "'b' AS x", "'c' AS X"), {"queue": "q"}, "x", "X"),
]


@pytest.mark.parametrize(("columns", "options", "first", "second"), ROWS)
def test_a_batch_write_names_the_columns(
    spark: SparkSession,
    via: str,
    columns: tuple[str, ...],
    options: dict[str, str],
    first: str,
    second: str,
) -> None:
    writer = spark.range(1).selectExpr(*columns).write.format(via).mode("append")
    with pytest.raises(Exception, match=REFUSED.format(first, second)):
        writer.options(**NOWHERE, **options).save()


@pytest.mark.parametrize("second", ["value", "VALUE"])
def test_a_stream_names_the_columns(lines: Lines, via: str, second: str) -> None:
    lines.add(1)
    with pytest.raises(Exception, match=REFUSED.format("value", second)):
        lines.drain(via, {**NOWHERE, "queue": "q"}, "value", f"'b' AS {second}")


@pytest.mark.parametrize("second", ["job", "FIELDS", "outcome"])
def test_outcomes_of_jobs_name_the_columns(spark: SparkSession, second: str) -> None:
    first = second.lower()
    columns = {"job": "'j'", "outcome": "'ok'", "fields": "map('a', binary('b'))"}
    rows = spark.range(1).selectExpr(
        *(f"{text} AS {name}" for name, text in columns.items()), f"{columns[first]} AS {second}"
    )
    with pytest.raises(Exception, match=REFUSED.format(first, second)):
        rows.write.format(PYTHON).mode("append").options(**NOWHERE, queue="q", settle="g").save()


def test_a_schema_of_the_source_names_the_columns(spark: SparkSession, via: str) -> None:
    reader = (
        spark.read.format(via)
        .options(**NOWHERE, subscribe="q")
        .schema("value string, id long, value binary")
    )
    with pytest.raises(Exception, match=REFUSED.format("value", "value")):
        reader.load().collect()


HELPERS: list[tuple[Callable[[DataFrame], Any], str, str, str]] = [
    (
        lambda rows: busmq_spark.json_columns(rows, "a int, A int"),
        "queue string, id long, value binary",
        "a",
        "A",
    ),
    (
        lambda rows: busmq_spark.json_columns(rows, "queue string"),
        "queue string, id long, value binary",
        "queue",
        "queue",
    ),
    (
        lambda rows: busmq_spark.json_columns(rows, "a int, ID int", on_error="dead-letter"),
        "queue string, id long, value binary",
        "id",
        "ID",
    ),
    (
        lambda rows: busmq_spark.json_columns(rows, "a int"),
        "queue string, id long, value binary, value string",
        "value",
        "value",
    ),
    (busmq_spark.events, "id long, value binary, VALUE string", "value", "VALUE"),
    (busmq_spark.events, "id long, value binary, message_id long", "message_id", "message_id"),
    (
        lambda rows: busmq_spark.to_events(rows, source="s", type="t"),
        "id string, data string, Data string",
        "data",
        "Data",
    ),
    (
        lambda rows: busmq_spark.dead_letters(rows, "true", "x"),
        "queue string, id long, value binary, Value string",
        "value",
        "Value",
    ),
]


@pytest.mark.parametrize(("helper", "columns", "first", "second"), HELPERS)
def test_a_helper_names_the_columns(
    spark: SparkSession, helper: Callable[[DataFrame], Any], columns: str, first: str, second: str
) -> None:
    with pytest.raises(
        ConfigError, match=REFUSED.format(first, second).replace(r"\[BUSMQ_CONFIG\] ", "")
    ):
        helper(spark.createDataFrame([], columns))


def test_fields_that_differ_in_case_are_two_where_the_session_says_so(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        rows = spark.createDataFrame(
            [("q", 1, b'{"a": 1, "A": 2}')], "queue string, id long, value binary"
        )
        assert [
            row.asDict() for row in busmq_spark.json_columns(rows, "a int, A int").collect()
        ] == [{"queue": "q", "id": 1, "a": 1, "A": 2}]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
