"""The jar of the Java module ``jvm-shim/``: what Spark lets only Java do. Everything else works without it."""

from __future__ import annotations

from pathlib import Path

from busmq_spark.errors import LocalToolMissing

NAME = "busmq-spark-shim.jar"
PACKAGE = Path(__file__).parents[1]


def find_jar() -> Path | None:
    """As Maven left it in the source tree that this package is imported from, else as the wheel brought it."""
    for path in (PACKAGE.parent / "jvm-shim" / "target" / NAME, PACKAGE / "jars" / NAME):
        if path.is_file():
            return path
    return None


def the_jar() -> Path:
    """The jar, for those who cannot do without it."""
    path = find_jar()
    if path is None:
        remedy = "Build it in a source tree with a JDK 17 or newer and Maven: mvn -f jvm-shim package -DskipTests"
        raise LocalToolMissing(tool=NAME, reason="this installation was made without it", remedy=remedy)
    return path
