"""The checks of Spark: in the session of the tests, and each rule in the state that it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busmq_spark.doctor.spark import check_checkpoint, check_spark
from busmq_spark.spark.facts import (
    PythonFacts,
    SparkFacts,
    check_checkpoint_folder,
    read_python,
    read_spark,
)

HERE = PythonFacts("here", "3.11.2", "22.0.0", "0.1.0")
FINE = SparkFacts(
    version="4.3.0", driver=HERE, executors=[HERE], java="17.0.1", jar="0.1.0", settings={}
)


def levels(facts: SparkFacts) -> dict[str, str]:
    return {each.code.removeprefix("spark-"): each.level for each in check_spark(facts)}


@pytest.mark.spark
def test_a_session_is_examined(spark: SparkSession) -> None:
    facts = read_spark(lambda: spark)
    assert facts.error == ""
    assert facts.driver == read_python()
    assert {each.python for each in facts.executors} == {read_python().python}
    found = levels(facts)
    fine = {name: found[name] for name in ("session", "python", "pyarrow", "package", "java")}
    assert set(fine.values()) == {"ok"}
    assert found["settings"] == "ok"


def test_each_difference_is_found() -> None:
    assert set(levels(FINE).values()) == {"ok"}
    red = {
        "python": replace(FINE, executors=[replace(HERE, python="3.12.1")]),
        "pyarrow": replace(FINE, executors=[HERE, replace(HERE, pyarrow="21.0.0")]),
        "package": replace(FINE, executors=[replace(HERE, package="")]),
        "jar": replace(FINE, jar="0.0.9"),
        "java": replace(FINE, java="11.0.2"),
    }
    for code, facts in red.items():
        assert levels(facts) == dict.fromkeys(levels(FINE), "ok") | {code: "failure"}
    assert levels(replace(FINE, jar=""))["jar"] == "warning"
    assert levels(replace(FINE, settings={"a": ("x", "y")}))["settings"] == "warning"
    assert levels(replace(FINE, settings={"a": ("x", "x")}))["settings"] == "ok"
    assert levels(replace(FINE, java=None, jar=None))["java"] == "unknown"
    assert levels(replace(FINE, driver=replace(HERE, python="3.10.1"), executors=[]))["python"] == (
        "failure"
    )


def test_a_spark_that_does_not_start_is_a_row() -> None:
    def start() -> SparkSession:
        raise RuntimeError("Java gateway process exited\nat line 2")

    facts = read_spark(start)
    found = check_spark(facts)
    assert [each.level for each in found] == ["failure"] + ["unknown"] * 6
    assert found[0].found == "Java gateway process exited"


def test_a_checkpoint_folder_is_tried(tmp_path: Path) -> None:
    assert check_checkpoint(str(tmp_path), check_checkpoint_folder(str(tmp_path))).level == "ok"
    assert list(tmp_path.iterdir()) == []
    assert check_checkpoint_folder(f"file://{tmp_path}") == ""
    none = str(tmp_path / "none")
    missing = check_checkpoint(none, check_checkpoint_folder(none))
    assert (missing.level, "No such file" in missing.found) == ("failure", True)
    assert check_checkpoint_folder("/proc") != ""
    assert check_checkpoint("s3a://bucket/x", "").level == "unknown"
