"""What ``realtime`` says to a session and a query, and where it cannot help."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import busmq_spark
from busmq_spark.errors import ConfigError, ToolMissing
from busmq_spark.spark import java_runtime
from busmq_spark.spark import realtime as helper
from tests.spark.conftest import Bus
from tests.support import PATIENCE_S, wait_until


@pytest.fixture
def a_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    path = tmp_path / java_runtime.JAR_NAME
    path.touch()
    monkeypatch.setattr(java_runtime, "find_jar", lambda: path)
    monkeypatch.setattr("pyspark.SparkContext._jvm", None)
    for name in (java_runtime.CLASS_PATH_VARIABLE, java_runtime.CHECKPOINT_MANAGER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return str(path)


def test_a_builder_gets_the_jar_and_says_aloud_which_check_is_off(
    a_jar: str, caplog: pytest.LogCaptureFixture
) -> None:
    builder = SparkSession.Builder()
    with caplog.at_level(logging.WARNING, "busmq_spark"):
        assert busmq_spark.realtime(builder) is builder
    assert builder._options["spark.jars"] == a_jar
    assert builder._options.items() >= helper.SESSION_SETTINGS.items()
    assert "allowlistCheck=false" in caplog.text


def test_what_the_user_set_stays(a_jar: str) -> None:
    check = "spark.sql.streaming.realTimeMode.allowlistCheck"
    builder = SparkSession.Builder().config("spark.jars", "mine.jar").config(check, "true")
    busmq_spark.realtime(busmq_spark.realtime(builder))
    assert (builder._options["spark.jars"], builder._options[check]) == (
        f"mine.jar,{a_jar}",
        "true",
    )


def test_a_java_that_is_still_to_start_gets_a_heap_in_which_a_batch_is_nothing_huge(
    a_jar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    mine = SparkSession.Builder().config("spark.driver.defaultJavaOptions", "-Xss2m")
    assert (
        busmq_spark.realtime(mine)._options.items()
        >= {
            **helper.JAVA_SETTINGS,
            "spark.driver.defaultJavaOptions": "-Xss2m",
        }.items()
    )


def test_a_java_that_was_started_or_configured_elsewhere_keeps_its_options(
    a_jar: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as running:
        running.setattr("pyspark.SparkContext._gateway", object())
        assert (
            not busmq_spark.realtime(SparkSession.Builder())._options.keys()
            & helper.JAVA_SETTINGS.keys()
        )
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    with monkeypatch.context() as submitted:
        submitted.setenv("PYSPARK_GATEWAY_PORT", "1")
        assert (
            not busmq_spark.realtime(SparkSession.Builder())._options.keys()
            & helper.JAVA_SETTINGS.keys()
        )
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.defaultJavaOptions  -Dours=1\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert helper.JAVA_SETTINGS.keys() - busmq_spark.realtime(
        SparkSession.Builder()
    )._options.keys() == {"spark.executor.defaultJavaOptions"}


def test_without_the_jar_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_runtime, "find_jar", lambda: None)
    with pytest.raises(ToolMissing, match="mvn -f jvm-shim package"):
        busmq_spark.realtime(SparkSession.Builder())


def test_a_running_spark_without_the_jar_is_refused(
    spark: SparkSession, shim_jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busmq_spark.realtime(SparkSession.Builder())  # this one has it
    monkeypatch.setattr(helper, "REALTIME_SOURCE", "busmq.spark.NotInThisJar")
    with pytest.raises(ConfigError, match="call realtime before the first session"):
        busmq_spark.realtime(SparkSession.Builder())


def test_a_session_has_no_batches() -> None:
    with pytest.raises(ConfigError, match="is for the writer of a query"):
        # The mistake itself
        busmq_spark.realtime(SparkSession.Builder(), "60 seconds")  # type: ignore[call-overload]


def test_spark_4_0_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "version", lambda package: "4.0.5")
    with pytest.raises(ConfigError, match=r"came with Spark 4\.1"):
        busmq_spark.realtime(SparkSession.Builder())


@pytest.mark.parametrize(
    ("release", "extra"), [("4.1.1", {}), ("4.2.0", {}), ("4.3.0", helper.QUERY_OPTIONS)]
)
def test_logs_are_written_later_only_where_spark_takes_that_in_real_time_mode(
    monkeypatch: pytest.MonkeyPatch, release: str, extra: dict[str, str]
) -> None:
    class Writer:
        def outputMode(self, mode: str) -> Writer:
            self.mode = mode
            return self

        def options(self, **options: str) -> Writer:
            self.given = options
            return self

    monkeypatch.setattr(helper, "version", lambda package: release)
    writer: Any = Writer()
    assert busmq_spark.realtime(writer) is writer
    assert (writer.mode, writer.given) == ("update", extra)


def by_trigger(writer: Any) -> Any:
    return busmq_spark.realtime(writer).trigger(realTime="1 hour")


def by_helper(writer: Any) -> Any:
    return busmq_spark.realtime(writer, "1 hour")


def by_helper_in_pyspark_4_1(writer: Any) -> Any:
    """Its writers have no ``trigger(realTime=…)``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(writer), "trigger", lambda self, *, processingTime: self)
        return busmq_spark.realtime(writer, "1 hour")


@pytest.mark.parametrize("asked", [by_trigger, by_helper, by_helper_in_pyspark_4_1])
def test_session_and_query_of_the_helper_run_in_real_time(
    spark: SparkSession,
    shim_jar: Path,
    bus: Bus,
    queue: str,
    tmp_path: Path,
    asked: Callable[[Any], Any],
) -> None:
    """From queue to queue while the batch, an hour long, has only begun."""
    session = spark.newSession()
    for name, value in helper.SESSION_SETTINGS.items():
        session.conf.set(name, value)
    bus.attach(queue)
    source: dict[str, Any] = {"redis.url": bus.url, "subscribe": queue}
    rows = (
        session.readStream.format("busmq-realtime")
        .options(**source)
        .load()
        .selectExpr("base64(value) AS value")
    )
    sink = {"redis.url": bus.url, "queue": f"{queue}-out", "checkpointLocation": str(tmp_path)}
    query = asked(rows.writeStream.format("busmq-realtime").options(**sink)).start()
    try:
        bus.push(queue, "one", "two")
        wait_until(
            lambda: query.exception() or bus.stored(f"{queue}-out") == [b"b25l", b"dHdv"],
            PATIENCE_S,
        )
        assert query.exception() is None
    finally:
        query.stop()
