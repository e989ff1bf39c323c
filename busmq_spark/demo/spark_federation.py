"""The Spark half of ``busmq demo federation``: one query over several data centres into a queue
here, and the proof that nothing is missing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F

from busmq_spark.demo.local_spark import LocalSpark

ARRIVED_SCHEMA = "source string, n long"


@dataclass(frozen=True, slots=True)
class FederationDemoQuerySettings:
    """From a queue in every data centre into one queue of a Redis here."""

    links: dict[str, str]
    secrets: dict[str, str] = field(repr=False)
    queue: str
    redis: str
    checkpoint: Path

    @property
    def source_options(self) -> dict[str, str]:
        """The options of the source."""
        named = ",".join(f"{link}={url}" for link, url in self.links.items())
        return {
            "federation.url": named,
            **{f"federation.{link}.secret": secret for link, secret in self.secrets.items()},
            "subscribe": self.queue,
        }

    @property
    def sink_options(self) -> dict[str, str]:
        """The options of the sink, and of reading it back."""
        return {"redis.url": self.redis}


@dataclass(frozen=True, slots=True)
class DemoArrivalCounts:
    """The arrivals of one data centre's messages 1, 2, 3 …"""

    rows: int
    different: int
    misplaced: int

    @property
    def twice(self) -> int:
        """Rows that had been there before."""
        return self.rows - self.different


class FederationDemoQuery:
    """The query, while the block runs."""

    def __init__(self, spark: LocalSpark, route: FederationDemoQuerySettings) -> None:
        self._spark, self._route = spark, route
        self._query: Any = None

    def __enter__(self) -> Self:
        rows = (
            self._spark.session.readStream.format("busmq")
            .options(**self._route.source_options)
            .load()
        )
        values = rows.select(
            F.to_json(
                F.struct(
                    "source",
                    F.get_json_object(F.col("value").cast("string"), "$.n").cast("long").alias("n"),
                )
            ).alias("value")
        )
        sink = values.writeStream.format("busmq").options(
            **self._route.sink_options, queue=self._route.queue
        )
        self._query = sink.option("checkpointLocation", str(self._route.checkpoint)).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:  # else Spark as a whole is ended
            self._query.stop()

    def keep_log(self) -> None:
        """Keep the log, like LocalSpark.keep_log."""
        self._spark.keep_log()

    def last_arrived(self) -> dict[str, int]:
        """The last message of each data centre that is in the sink. Raises SparkFailed when the
        query has ended.
        """
        if (error := self._query.exception()) is not None:
            raise self._spark.failure_error("the streaming query failed", error)
        progress = self._query.lastProgress
        sources = ((progress and json.loads(progress.json)["sources"][0]["endOffset"]) or {}).get(
            "sources", {}
        )
        return {
            link: sources.get(link, {}).get("queues", {}).get(self._route.queue, {}).get("last", 0)
            for link in self._route.links
        }


def count_arrivals(
    spark: LocalSpark, route: FederationDemoQuerySettings
) -> dict[str, DemoArrivalCounts]:
    """Return the contents of the sink, by data centre."""
    stored = (
        spark.session.read.format("busmq")
        .options(**route.sink_options, subscribe=route.queue)
        .load()
    )
    rows = stored.select(
        "id", F.from_json(F.col("value").cast("string"), ARRIVED_SCHEMA).alias("row")
    ).select("id", "row.*")
    placed = rows.withColumn(
        "place", F.row_number().over(Window.partitionBy("source").orderBy("id"))
    )
    misplaced = F.count_if(F.col("n") != F.col("place"))
    totals = placed.groupBy("source").agg(
        F.count("*").alias("rows"), F.countDistinct("n"), misplaced
    )
    try:
        return {row[0]: DemoArrivalCounts(*row[1:]) for row in totals.collect()}
    except PySparkException as error:
        raise spark.failure_error("the result could not be read back", error) from None
