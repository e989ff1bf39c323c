"""The Spark half of ``busmq demo realtime``: one query, in real-time mode or with Spark's ordinary
trigger.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from busmq_spark.demo.local_spark import LocalSpark
from busmq_spark.spark.realtime import realtime

ORDER_SCHEMA = "n long, at long, total double"
BATCH_INTERVAL = "5 seconds"


def realtime_settings() -> dict[str, str]:
    """Spark settings of real-time mode. Raises ToolMissing where its jar is missing."""
    return dict(realtime(SparkSession.Builder())._options)


class RealtimeDemoQuery:
    """Orders of one queue into another, with the tax on top, while the block runs."""

    def __init__(self, spark: LocalSpark, url: str, queue: str, checkpoint: Path) -> None:
        self._spark, self._where, self._checkpoint = spark, {"redis.url": url}, checkpoint
        self.source, self.target = f"{queue}-orders", f"{queue}-taxed"
        self._query: Any = None

    def start(self, *, ordinary: bool = False) -> Self:
        """For a ``with`` block. ``ordinary``: the same query with Spark's ordinary trigger."""
        orders = (
            self._spark.session.readStream.format("busmq-realtime")
            .options(**self._where, subscribe=self.source)
            .load()
        )
        order = F.from_json(F.col("value").cast("string"), ORDER_SCHEMA)
        taxed = F.to_json(
            F.struct("order.n", "order.at", F.expr("round(order.total * 1.19, 2) gross"))
        ).alias("value")
        rows = orders.select(order.alias("order")).select(taxed)
        sink = rows.writeStream.format("busmq-realtime").options(**self._where, queue=self.target)
        writer = sink.option("checkpointLocation", str(self._checkpoint))
        if not ordinary:
            writer = realtime(writer, BATCH_INTERVAL)
        self._query = writer.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:  # else Spark as a whole is ended
            self._query.stop()

    def raise_if_failed(self) -> None:
        """Raises SparkFailed when the query has ended."""
        if (error := self._query.exception()) is not None:
            raise self._spark.failure_error("the streaming query failed", error)

    def is_warm(self) -> bool:
        """Whether a batch with rows is done. Raises as :meth:`raise_if_failed`."""
        self.raise_if_failed()
        return any(progress["numInputRows"] for progress in self._query.recentProgress)
