"""Facts and habits of the processes Spark runs us in."""

from __future__ import annotations

import gc
import sys

_modules_frozen = 0


def freeze_imports() -> None:
    """Take what is imported out of the garbage collector's sight; again only where more is imported
    by now.

    pyspark's worker runs a full collection after every task; with our imports frozen it costs 1 ms
    instead of 20 (measured, spark-facts E).
    """
    global _modules_frozen
    if len(sys.modules) > _modules_frozen:
        _modules_frozen = len(sys.modules)
        gc.collect()
        gc.freeze()
