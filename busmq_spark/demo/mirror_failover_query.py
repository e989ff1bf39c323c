"""The Spark half of ``busmq demo mirror``: a query that moves from a queue to its mirror with its
checkpoint, and what it has seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from busmq_spark.demo.local_spark import LocalSpark


@dataclass(frozen=True, slots=True)
class MirrorFailoverRowCounts:
    """The rows of the query."""

    rows: int
    different: int
    least: int
    most: int
    wrong: int
    """Rows whose order is not the one that has their id."""


class MirrorFailoverDemoQuery:
    """Notes each order in files, while the block runs."""

    def __init__(self, spark: LocalSpark, redis: str, queue: str, folder: Path) -> None:
        self._spark, self._redis, self._queue, self._folder = spark, redis, queue, folder
        self._query: Any = None

    def __enter__(self) -> Self:
        rows = (
            self._spark.session.readStream.format("busmq")
            .options(**{"redis.url": self._redis, "subscribe": self._queue})
            .load()
        )
        orders = rows.select(
            "id", F.get_json_object(F.col("value").cast("string"), "$.n").cast("long").alias("n")
        )
        writer = orders.writeStream.format("json").option("path", str(self._folder / "orders"))
        self._query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:  # else Spark as a whole is ended
            self._query.stop()

    def last_arrived(self) -> int:
        """The last id that is in the files. Raises SparkFailed when the query has ended."""
        if (error := self._query.exception()) is not None:
            raise self._spark.failure_error("the streaming query failed", error)
        progress = self._query.lastProgress
        end = (progress and json.loads(progress.json)["sources"][0]["endOffset"]) or {}
        return int(end.get("queues", {}).get(self._queue, {}).get("last", 0))


def read_result(spark: LocalSpark, folder: Path) -> MirrorFailoverRowCounts:
    """Return all that the query has noted."""
    rows = spark.session.read.schema("id long, n long").json(str(folder / "orders"))
    try:
        [found] = rows.select(
            F.count("*"),
            F.countDistinct("id"),
            F.min("id"),
            F.max("id"),
            F.count_if(F.col("id") != F.col("n")),
        ).collect()
    except PySparkException as error:
        raise spark.failure_error("the result could not be read back", error) from None
    return MirrorFailoverRowCounts(*found)
