"""Python imports this at its start where PYTHONPATH names this folder: in the Python workers of a
Spark that was started after ``busmq_spark.tune``.

Spark puts its pyspark.zip first in the path of its workers. The zip has no bytecode, so each worker
compiles pyspark anew: 0.7 s of CPU time, of the 1.6 that one with our source takes to start. If the
zip is part of a pyspark that is installed in a folder of the path, the same files are there,
compiled.
"""

from __future__ import annotations  # other programs, of older Pythons, may inherit PYTHONPATH

import os
import sys


def without_archives(path: list[str]) -> list[str]:
    """``path`` less the archives of each pyspark that is installed in one of its folders:
    pyspark.zip, that of py4j, and Spark's jar.
    """
    installed = tuple(f"{folder}{os.sep}pyspark{os.sep}" for folder in path if folder)
    return [
        entry
        for entry in path
        if not (entry.endswith((".zip", ".jar")) and entry.startswith(installed))
    ]


def import_next_sitecustomize() -> None:
    """Import the sitecustomize that this one is in front of, if there is any: a system's, a
    debugger's, that of a coverage tool.
    """
    this = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this


if __name__ == "sitecustomize":
    folder = __file__.rpartition(os.sep)[0]  # pathlib would cost more than the rest of this
    sys.path[:] = [entry for entry in without_archives(sys.path) if entry != folder]
    import_next_sitecustomize()
