"""The stand-in for the data source where its packages are missing, so that the error names them,
and the Python.

Spark asks the Python of its workers which data sources there are. If ours could not be imported
there, Spark would drop every Python data source of that environment and say only
DATA_SOURCE_NOT_FOUND.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from pyspark.sql.datasource import DataSource

from busmq_spark.errors import ToolMissing
from busmq_spark.spark.tracebacks import strip_traceback

REQUIRED_PACKAGES = ("hiredis", "numpy", "pyarrow", "redis")


def check_packages() -> None:
    """Raises ModuleNotFoundError for a package that is not installed. No package is imported: few
    of Spark's processes need all.
    """
    for name in REQUIRED_PACKAGES:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def make_failing_source(error: Exception) -> type[DataSource]:
    """A data source that fails, with a remedy, when it is used. A class of its own, so that Spark
    carries the reason along with it.
    """
    package = getattr(error, "name", None) or "a package that busmq_spark needs"
    reason = f"{sys.executable}, which runs Spark's Python workers, cannot import it ({error})"

    class Unready(DataSource):
        """Only says what is missing."""

        @classmethod
        def name(cls) -> str:
            return "busmq"

        def __init__(self, options: dict[str, str]) -> None:
            remedy = (
                "Install busmq_spark with its dependencies there, or set PYSPARK_PYTHON to a Python"
                " that has them"
            )
            raise strip_traceback(
                ToolMissing(tool=f"Python package {package}", reason=reason, remedy=remedy)
            )

    return Unready


class MissingJarSource(DataSource):
    """``format("busmq-realtime")`` where the jar is not on the class path: an error that says how
    to add it. With the jar Spark takes Java's.
    """

    @classmethod
    def name(cls) -> str:
        return "busmq-realtime"

    def __init__(self, options: dict[str, str]) -> None:
        reason = (
            'format("busmq-realtime") is the source and sink in Java, and the jar that has it is'
            " not on the class path of this Spark"
        )
        remedy = (
            "Call busmq_spark.realtime(SparkSession.builder) before the first session, or start"
            " Spark with --jars $(busmq jar)"
        )
        raise strip_traceback(
            ToolMissing(
                tool="busmq-spark-shim.jar",
                reason=reason,
                remedy=f'{remedy}. format("busmq") needs no jar',
            )
        )
