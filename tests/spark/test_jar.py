"""The shared session has the Java module."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession


def test_the_session_has_the_jar_on_its_class_path(spark: SparkSession, shim_jar: Path) -> None:
    jvm = spark._jvm
    assert jvm is not None
    loaded = (
        jvm.java.lang.Thread.currentThread()
        .getContextClassLoader()
        .loadClass("busmq.spark.BusException")
    )
    assert str(shim_jar) in loaded.getProtectionDomain().getCodeSource().getLocation().toString()
