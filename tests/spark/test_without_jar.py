"""What only Java can do, in a Spark that does not have the jar on its class path: one error that
says which call or option adds it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import busmq_spark
from tests.spark.conftest import ROOT, Bus
from tests.spark.test_installed import clean

PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.memory", "512m").getOrCreate()
options = {"redis.url": "redis://127.0.0.1:1", "subscribe": "q"}
rows = spark.range(1).selectExpr("'x' AS value")
for use in (
    lambda: spark.read.format("busmq-realtime").options(**options).load(),
    lambda: spark.readStream.format("busmq-realtime").options(**options).load(),
    lambda: rows.write.format("busmq-realtime").mode("append").option("queue", "q").save(),
    lambda: spark.read.format("busmq").options(**options, engine="java").load(),
):
    try:
        use()
    except Exception as error:
        print("SAID", " ".join(str(error).split("\\n")))
"""  # noqa: E501


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_use_says_how_the_jar_is_added(spark: SparkSession, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=880,
        env=clean(str(ROOT)),
        cwd=tmp_path,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("SAID")]
    *realtime, engine = said
    assert len(realtime) == 3
    for line in realtime:
        assert "[BUSMQ_TOOL_MISSING] busmq-spark-shim.jar is missing" in line
        assert (
            "Call busmq_spark.realtime(SparkSession.builder) before the first session, or start"
            " Spark with --jars $(busmq jar)" in line
        )
        assert len(line) < 700
    assert (
        "[BUSMQ_ENGINE] engine=java is not possible: the jar that has it is not on the class path"
        in engine
    )
    assert "Traceback" not in done.stdout


@pytest.mark.spark
def test_the_source_in_java_is_taken_where_the_jar_is(
    spark: SparkSession, shim_jar: Path, bus: Bus, queue: str
) -> None:
    bus.push(queue, "x")
    session = spark.newSession()  # what is registered in a session stays there
    busmq_spark.register(session)
    # Untyped in pyspark
    cloudpickle.unregister_pickle_by_value(busmq_spark)  # type: ignore[no-untyped-call]
    rows = (
        session.read.format("busmq-realtime")
        .options(**{"redis.url": bus.url, "subscribe": queue})
        .load()
    )
    assert [bytes(row["value"]) for row in rows.collect()] == [b"x"]
