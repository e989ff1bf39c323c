"""The Spark settings of ``tune``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest
from pyspark.sql import SparkSession

from busmq_spark import tune
from busmq_spark.spark.tune import settings

ROOT = Path(__file__).parents[2]
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def builder() -> SparkSession.Builder:
    return SparkSession.Builder()


def test_every_setting_is_on_the_builder() -> None:
    tuned = builder()
    assert tune(tuned) is tuned
    assert tuned._options == settings(version("pyspark"))


def test_what_the_user_set_before_or_sets_after_wins() -> None:
    tuned = tune(builder().config(MANAGER, "mine")).config("spark.python.unix.domain.socket.enabled", "false")
    assert tuned._options == {MANAGER: "mine", "spark.python.unix.domain.socket.enabled": "false"}


def test_the_configuration_file_says_the_same() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    assert dict(line.split() for line in lines if line and not line.startswith("#")) == settings("4.3.0")


def test_the_class_exists_in_the_installed_spark() -> None:
    """A wrong name fails every query only when it starts."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_2.13-*.jar")
    assert settings(version("pyspark"))[MANAGER].replace(".", "/") + ".class" in ZipFile(jar).namelist()


@pytest.mark.parametrize(("spark", "package"), [("4.0.5", "streaming"), ("4.1.0", "checkpointing"), ("5.0.0.dev0", "checkpointing")])
def test_the_class_moved_with_spark_4_1(spark: str, package: str) -> None:
    assert settings(spark)[MANAGER].split(".")[-2] == package
