"""Spark settings that make small batches fast. ``conf/spark-defaults.conf`` has the same ones, for
a whole installation.

Measured on two cores, one partition, 1000 messages a second, push to pop: together they halve the
median latency of a Python source and sink and more (about 190 ms to 105 ms). Other settings that
are often named for this (adaptive execution, polling delay, code generation) stayed within the
noise and are left alone.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from busmq_spark.spark import java_runtime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CHECKPOINT_MANAGER_SETTING = "spark.sql.streaming.checkpointFileManagerClass"
ENGINE_SETTING = "spark.datasource.busmq.engine"
WORKER_PATH = Path(__file__).with_name("worker_path")
"""In PYTHONPATH, it has Spark's Python workers import pyspark from where it is installed; see
sitecustomize.py there.
"""


def settings(spark_version: str) -> dict[str, str]:
    """The settings for one version of Spark, e.g. ``4.3.0``."""
    major, minor = (int(part) for part in spark_version.split(".")[:2])
    # Spark 4.1 moved the class into a package of its own; a wrong name fails every query at its
    # start.
    package = "org.apache.spark.sql.execution.streaming" + (
        ".checkpointing" if (major, minor) >= (4, 1) else ""
    )
    return {
        # The default goes through Hadoop's FileContext, which without Hadoop's native library
        # starts about 16 small processes a batch to read links and set permissions: 70 ms a batch
        # for offset and commit log, 16 ms this way. Both write a temporary file and rename it. A
        # store that needs a class of its own (some object stores do) names it on the builder.
        CHECKPOINT_MANAGER_SETTING: f"{package}.FileSystemBasedCheckpointFileManager",
        # Spark and its Python workers talk over Unix sockets instead of TCP: 40 ms less for each
        # Python stage of a batch, the same bulk throughput. Spark 4.0 does not know it and ignores
        # it. Only read when Spark starts, not by a session that already runs.
        "spark.python.unix.domain.socket.enabled": "true",
    }


def settings_with_jar(spark_version: str) -> dict[str, str]:
    """The settings for a Java that this process starts later. Where the jar is at hand, Java has it
    on its class path (``java_runtime.put_jar_on_class_path``), and checkpoints on a local or
    mounted disk are kept by a manager of its own.
    """
    wanted = settings(spark_version)
    # Our manager is made for Spark 4.1 and later.
    if (
        java_runtime.find_jar()
        and ".checkpointing." in wanted[CHECKPOINT_MANAGER_SETTING]
        and java_runtime.put_jar_on_class_path()
    ):
        # Hadoop puts the variable in where the checkpoint is opened: in a Java that was started
        # without the jar the other class stands.
        variable, otherwise = (
            java_runtime.CHECKPOINT_MANAGER_VARIABLE,
            wanted[CHECKPOINT_MANAGER_SETTING],
        )
        wanted[CHECKPOINT_MANAGER_SETTING] = f"${{env.{variable}:-{otherwise}}}"
    return wanted


def use_compiled_pyspark_in_workers() -> None:
    """Have the Python workers of a Spark that this process starts later import the compiled pyspark
    and not the one in pyspark.zip.

    Set in the environment: workers on other machines, and those of a Spark that runs already (also
    below ``spark-submit``), start as ever.
    """
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(WORKER_PATH) not in entries:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(WORKER_PATH), *entries])


def tune(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the settings to a session builder and return it; earlier settings stay, and later ones
    win.

    Python workers on this machine start in about half of the CPU time
    (``use_compiled_pyspark_in_workers``). If the jar of the Java module is at hand (``busmq jar``),
    the session gets it: ``format("busmq")`` is then Java for queries that Java can serve
    (``engine``), and checkpoints on a local or mounted disk are kept by a manager of its own.
    Raises ToolMissing where the builder says ``spark.datasource.busmq.engine=java`` and no jar
    is at hand. The builder wins over ``spark-submit --conf`` and ``spark-defaults.conf``, as always
    in Spark.

        spark = tune(SparkSession.builder.appName("orders")).getOrCreate()
    """
    use_compiled_pyspark_in_workers()
    chosen = builder._options
    wanted = settings_with_jar(version("pyspark"))
    # Nothing but the jar reads that setting: without it Python would serve the queries of the
    # session in silence.
    path = (
        java_runtime.require_jar()
        if chosen.get(ENGINE_SETTING) == "java" and "spark.jars" not in chosen
        else java_runtime.find_jar()
    )
    if (
        path
        and java_runtime.starts_java(builder)
        and ".checkpointing." in wanted[CHECKPOINT_MANAGER_SETTING]
    ):
        java_runtime.add_jar(builder, path)
    for name, value in wanted.items():
        if name not in chosen:
            builder.config(name, value)
    return builder
