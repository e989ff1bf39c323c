"""Facts of a Spark for ``busmq doctor``: versions of driver and executors, the jar, settings, and
the checkpoint folder.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busmq_spark.spark import java_runtime
from busmq_spark.spark.tune import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_TASKS = 8
"""Tasks that look at the executors: those that Spark gives no task are not seen."""


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """Versions in one Python process; '' for a package that it does not have."""

    host: str
    python: str
    pyarrow: str
    package: str


@dataclass(frozen=True, slots=True)
class SparkFacts:
    """The facts of a session. A fact is None where a session of Spark Connect does not tell it.
    ``settings``: name → (value of ``tune``, value of the session).
    """

    error: str = ""
    version: str = ""
    driver: PythonFacts | None = None
    executors: Sequence[PythonFacts] = ()
    java: str | None = None
    jar: str | None = None
    """Version of the loaded jar; '' where none is loaded."""
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def read_python() -> PythonFacts:
    """Return the facts of this process."""
    return PythonFacts(platform.node(), platform.python_version(), *map(_version, _PACKAGES))


_PACKAGES = ("pyarrow", "busmq_spark")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def read_spark(start: Callable[[], SparkSession]) -> SparkFacts:
    """Return the facts of a session, which ``start`` starts or finds."""
    from pyspark.errors import PySparkException

    try:
        spark = start()
        executors = _read_executors(spark)
    except (PySparkException, OSError, RuntimeError) as error:
        return SparkFacts(error=str(error).splitlines()[0][:500] if str(error) else repr(error))
    java, jar = _read_java(spark)
    wanted = settings(spark.version)
    return SparkFacts(
        version=spark.version,
        driver=read_python(),
        executors=executors,
        java=java,
        jar=jar,
        settings={name: (value, spark.conf.get(name, "") or "") for name, value in wanted.items()},
    )


def start_session() -> SparkSession:
    """Start a session as a job of this machine does, with its settings and no others of ours."""
    from pyspark.sql import SparkSession

    if not os.environ.get("SPARK_REMOTE"):
        java_runtime.ensure_java()
        java_runtime.ensure_python()
    return SparkSession.builder.appName("busmq doctor").getOrCreate()


def _read_executors(spark: SparkSession) -> list[PythonFacts]:
    """An executor may lack the package: the function travels by value, and imports what it uses."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import platform
        from importlib import metadata

        import pyarrow as pa

        found = [platform.node(), platform.python_version()]
        for package in ("pyarrow", "busmq_spark"):
            try:
                found.append(metadata.version(package))
            except metadata.PackageNotFoundError:
                found.append("")
        for _ in batches:
            pass
        names = ("host", "python", "pyarrow", "package")
        yield pa.RecordBatch.from_arrays([pa.array([each]) for each in found], list(names))

    look.__module__ = "__main__"
    schema = "host string, python string, pyarrow string, package string"
    rows = (
        spark.range(EXECUTOR_TASKS, numPartitions=EXECUTOR_TASKS)
        .mapInArrow(look, schema)
        .distinct()
        .collect()
    )
    return sorted((PythonFacts(*row) for row in rows), key=lambda each: each.host)


def _read_java(spark: SparkSession) -> tuple[str | None, str | None]:
    """Return the version of Java, and of our jar; None and None with Spark Connect."""
    from py4j.protocol import Py4JError, Py4JJavaError

    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return None, None
    java = str(jvm.java.lang.System.getProperty("java.version"))
    try:
        return java, str(jvm.busmq.spark.SharedPythonConstants.version())
    except (TypeError, Py4JError, Py4JJavaError):  # no such class
        return java, ""


def check_checkpoint_folder(folder: str) -> str:
    """Return why a folder of this machine cannot hold a checkpoint, '' if it can: files are
    written, synchronized, renamed and removed in it.
    """
    path = Path(folder.removeprefix("file://").removeprefix("file:"))
    try:
        with tempfile.TemporaryDirectory(dir=path, prefix=".busmq-doctor-") as inside:
            source, target = Path(inside) / "a", Path(inside) / "b"
            with source.open("wb") as file:
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
            source.rename(target)
            handle = os.open(inside, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            if source.exists() or target.read_bytes() != b"x":
                return "a rename left both names, or lost the contents"
    except OSError as error:
        return f"{error.strerror or error} ({error.filename or folder})"
    return ""
