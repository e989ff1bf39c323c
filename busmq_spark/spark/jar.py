"""The jar of the Java module ``jvm-shim/``: what Spark lets only Java do. Everything else works
without it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from busmq_spark.errors import ToolMissing
from busmq_spark.spark.spark_conf_files import conf_file_has_word, spark_default

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAR_NAME = "busmq-spark-shim.jar"
PACKAGE_FOLDER = Path(__file__).parents[1]

CLASS_PATH_VARIABLE = "SPARK_DIST_CLASSPATH"
"""Spark's launcher appends what is in this variable to the class path, whatever the settings of a
session say of jars.
"""
VERSION_OPTION = "_busmqjarversion"
"""In what the jar hands over to the data source in Python: the version of the package that the jar
was made with.
"""
CHECKPOINT_MANAGER_VARIABLE = "BUSMQ_CHECKPOINT_MANAGER"
"""Names our checkpoint file manager, in processes that have the jar on their class path; see
``tune``.
"""


def find_jar() -> Path | None:
    """Return the jar of the source tree that this package is imported from, as Maven left it, else
    the jar of the wheel.
    """
    for path in (
        PACKAGE_FOLDER.parent / "jvm-shim" / "target" / JAR_NAME,
        PACKAGE_FOLDER / "jars" / JAR_NAME,
    ):
        if path.is_file():
            return path
    return None


def require_jar() -> Path:
    """The jar, for those who cannot do without it."""
    path = find_jar()
    if path is None:
        remedy = (
            "Build it in a source tree with a JDK 17 or newer and Maven: mvn -f jvm-shim package"
            " -DskipTests"
        )
        raise ToolMissing(
            tool=JAR_NAME, reason="this installation was made without it", remedy=remedy
        )
    return path


def starts_java(builder: SparkSession.Builder) -> bool:
    """Whether the builder's session is to start a Java of its own, which takes what the builder
    says of jars and of Java's options.
    """
    from pyspark import SparkContext

    remote = "spark.remote" in builder._options or "SPARK_REMOTE" in os.environ
    return SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ and not remote


def add_jar(builder: SparkSession.Builder, path: Path) -> None:
    """Have the driver and the executors of the session take the jar, beside the jars that the
    builder or spark-defaults.conf names.
    """
    named = builder._options.get("spark.jars") or spark_default("spark.jars") or ""
    jars = [each for each in named.split(",") if each]
    if str(path) not in jars:
        builder.config(
            "spark.jars", ",".join([*jars, str(path)])
        )  # executors on other machines get it from the driver


def put_jar_on_class_path() -> bool:
    """Have a Spark that this process starts later find the jar, and say so to it; False where that
    cannot be had.

    Both are set in the environment, so no Java process gets the name of a class that it cannot
    load: not a running Spark, nor a server of Spark Connect, nor an executor on another machine.
    """
    path = find_jar()
    # Spark's launcher reads this script first, and an assignment there is the last word.
    if path is None or conf_file_has_word("spark-env.sh", CLASS_PATH_VARIABLE):
        return False
    entries = [
        entry for entry in os.environ.get(CLASS_PATH_VARIABLE, "").split(os.pathsep) if entry
    ]
    if str(path) not in entries:
        os.environ[CLASS_PATH_VARIABLE] = os.pathsep.join([*entries, str(path)])
    os.environ[CHECKPOINT_MANAGER_VARIABLE] = "busmq.spark.LocalCheckpointFileManager"
    return True
