"""Our errors as Spark shows them, and the stand-ins that raise them at first use.

Spark shows the whole traceback that a worker writes, and after some calls an error of its own. The
message of a BusError says what was found and what to do. Any other error is a defect and keeps its
traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from importlib.util import find_spec
from types import FunctionType
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from busmq_spark.errors import BusError, ToolMissing

C = TypeVar("C", bound=type[Any])


def without_traceback(cls: C) -> C:
    """Class decorator for what Spark calls: in a worker of Spark the public methods raise a
    BusError without its traceback.
    """
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(cls, name, _without_traceback(method))
    return cls


def _without_traceback(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            found = method(*args, **named)
        except BusError as error:
            strip_traceback(error)
            raise
        return _iterate_without_traceback(found) if isinstance(found, Iterator) else found

    return call


def _iterate_without_traceback(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except BusError as error:
        strip_traceback(error)
        raise


def strip_traceback(error: BusError) -> BusError:
    """The error without its traceback. Only where the process is a worker of Spark: in any other
    the caller may need the traceback.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or not spec.name.startswith("pyspark."):
        return error
    os.environ["SPARK_HIDE_TRACEBACK"] = (
        "1"  # Spark looks for it when it writes the error, and then ends the process
    )
    error.__cause__, error.__suppress_context__ = None, True
    return error.with_traceback(None)


@without_traceback
class FailingReader(DataSourceStreamReader):
    """A reader that raises at the first call: when Spark creates a reader it hides an error with
    one of its own.
    """

    def __init__(self, error: BusError) -> None:
        self._error = error

    def _raise_error(self, *_: Any, **__: Any) -> Any:
        """Whatever is asked."""
        raise self._error

    initialOffset = getDefaultReadLimit = latestOffset = partitions = read = _raise_error


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
