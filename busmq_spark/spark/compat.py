"""Differences between the supported Spark versions, and a habit of their Python workers. 4.0 and
4.1 have no admission control for Python sources, 4.0 no Arrow stream writer."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyspark.sql.datasource as api

ROWS_PER_RECORD_BATCH = 10_000

if TYPE_CHECKING:

    class AvailableNow:
        """Stands for Spark's mixin."""

    StreamWriterBase = api.DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
    except ImportError:  # Spark before 4.2: Trigger.AvailableNow is one batch with everything

        class AvailableNow:
            """Stands for Spark's mixin where Spark has none."""

    StreamWriterBase = getattr(api, "DataSourceStreamArrowWriter", api.DataSourceStreamWriter)

HANDS_OVER_ARROW = hasattr(api, "DataSourceStreamArrowWriter")
"""Whether a stream writer gets Arrow batches; Spark 4.0 hands over rows."""


def read_limit(messages: int | None, size_bytes: int | None, least: int | None) -> Any:
    """Spark's read limit object for the limits, or for none. It has none for two at once; the
    reader obeys its options anyway.
    """
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
    )

    if messages:
        return ReadMaxRows(messages)
    if size_bytes:
        return ReadMaxBytes(size_bytes)
    return ReadMinRows(least) if least else ReadAllAvailable()


def is_unlimited(limit: object) -> bool:
    """Whether Spark asks for everything (Trigger.Once, or no cap)."""
    return type(limit).__name__ == "ReadAllAvailable"


def record_batches(
    found: Iterator[Any], to_record_batch: Callable[[Sequence[Any]], Any]
) -> Iterator[Any]:
    """Return the record batches of a task of a stream writer. The rows of Spark 4.0, which come one
    by one, are gathered for one Arrow batch each.
    """
    if HANDS_OVER_ARROW:
        return found
    slices = iter(lambda: list(islice(found, ROWS_PER_RECORD_BATCH)), [])
    return map(to_record_batch, slices)


_modules_frozen = 0


def freeze_imports() -> None:
    """Take what is imported out of the garbage collector's sight; again only where more is imported
    by now.

    pyspark's worker runs a full collection after every task; with our imports frozen it costs 1 ms
    instead of 20.
    """
    global _modules_frozen
    if len(sys.modules) > _modules_frozen:
        _modules_frozen = len(sys.modules)
        gc.collect()
        gc.freeze()
