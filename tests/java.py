"""How the Javas that tests start become quick: settings, and an archive of Spark's classes, read
and checked once for all (class data sharing).

With the archive a Spark starts in half the time. python -m tests.java: the Spark whose classes are
archived.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from busmq_spark.errors import ToolMissing
from busmq_spark.spark.java_runtime import ensure_java
from busmq_spark.spark.tune import use_compiled_pyspark_in_workers

QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a Java that lives for a minute: no second compiler, no threads that collect beside the
work.
"""
LOG_SETTINGS = Path(__file__).parents[1] / "conf" / "log4j2.properties"
VARIABLE = "BUSMQ_TESTS_JAVA_ARCHIVE"
"""Names the archive to the processes that tests start."""


def prepare() -> None:
    """What every Spark of the tests starts with, also in a process of its own."""
    use_compiled_pyspark_in_workers()
    # A folder of settings on the class path would keep the archive from being used; the web page
    # with its jobs costs seconds.
    os.environ.pop("SPARK_CONF_DIR", None)
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"{QUICK_JAVA} -Dspark.ui.enabled=false -Dlog4j2.configurationFile={LOG_SETTINGS}"
    )


def share_classes(folder: Path) -> None:
    """Make the archive for this Spark and this Java, unless ``folder`` has it, and name it to all
    processes from now on.

    A Java that cannot make one makes none, and its Sparks start as ever.
    """
    try:
        home = ensure_java()
    except ToolMissing:
        return  # the tests that need it say so
    release = subprocess.run(
        [f"{home}/bin/java", "-version"], capture_output=True, text=True, check=False
    ).stderr
    known = f"{home} {release} {pyspark.__file__} {pyspark.__version__}"
    file = folder / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # against the other process of pytest-xdist
        if not file.exists():
            part = file.with_suffix(".part")
            options = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
            subprocess.run(
                [sys.executable, "-m", __name__],
                env={**os.environ, "SPARK_SUBMIT_OPTS": options},
                capture_output=True,
                check=False,
            )
            if part.exists():
                part.rename(file)
    if file.exists():
        os.environ[VARIABLE] = str(file)
        os.environ["SPARK_SUBMIT_OPTS"] += f" {archive()}"


def archive() -> str:
    """The JVM options that select the archive. A JVM whose class path begins otherwise ignores it
    silently.
    """
    file = os.environ.get(VARIABLE)
    return f"-XX:SharedArchiveFile={file} -Xlog:disable -Xlog:all=error:stderr" if file else ""


def main() -> None:
    """A little of what Sparks do in the tests, and an orderly end: only then Java writes the
    archive.
    """
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    rows = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 10)
        .load()
        .selectExpr("base64(cast(value AS string)) AS value")
    )
    with tempfile.TemporaryDirectory() as folder:
        rows.writeStream.format("noop").option("checkpointLocation", folder).trigger(
            availableNow=True
        ).start().awaitTermination(60)
    spark.range(10).selectExpr("cast(id AS string) AS id").groupBy("id").count().collect()
    spark.stop()


if __name__ == "__main__":
    main()
