"""Streams whose rows are the lines of files: a test decides what a batch holds, and what its
checkpoint has forgotten.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support import PATIENCE_S


class Lines:
    """A stream whose rows are the lines of files, and one checkpoint: each drain writes the rows
    that are new.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self._spark = spark
        self._files = folder / "in"
        self._files.mkdir()
        self._made: list[StreamingQuery] = []

    def add(self, *values: Any) -> None:
        """One more file."""
        (self._files / f"{len(list(self._files.iterdir())):04}").write_text(
            "".join(f"{value}\n" for value in values)
        )

    def frame(self, *columns: str, per_batch: int = 1000) -> DataFrame:
        frame = self._spark.readStream.option("maxFilesPerTrigger", per_batch).text(
            str(self._files)
        )
        return frame.selectExpr(*columns) if columns else frame

    def start(
        self,
        sink: str,
        frame: DataFrame,
        options: dict[str, Any],
        checkpoint: str = "",
        trigger: dict[str, Any] | None = None,
    ) -> StreamingQuery:
        where = str(self.checkpoint) + checkpoint
        writer = (
            frame.writeStream.format(sink).options(**options).option("checkpointLocation", where)
        )
        self._made.append(writer.trigger(**(trigger or {"availableNow": True})).start())
        return self._made[-1]

    def drain(
        self,
        sink: str,
        options: dict[str, Any],
        *columns: str,
        checkpoint: str = "",
        per_batch: int = 1000,
    ) -> None:
        """Write everything that is new, to its end; an error of the query is raised."""
        assert self.start(
            sink, self.frame(*columns, per_batch=per_batch), options, checkpoint
        ).awaitTermination(int(PATIENCE_S))

    def stop(self) -> None:
        for query in self._made:
            query.stop()

    def forget_commit(self) -> None:
        """As after a driver that died when its last batch was in Redis and not yet in the commit
        log.
        """
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)

    def forget_batch(self) -> None:
        """As after a machine that lost power, or a checkpoint that was restored: the last batch is
        not in its logs.
        """
        self.forget_commit()
        offsets = self.checkpoint / "offsets"
        last = max(int(file.name) for file in offsets.iterdir() if file.name.isdigit())
        for file in (offsets / str(last), offsets / f".{last}.crc"):
            file.unlink(missing_ok=True)

    def reorder(self) -> None:
        """The last file has its lines the other way round."""
        last = max(self._files.iterdir())
        last.write_text("".join(reversed(last.read_text().splitlines(keepends=True))))

    @property
    def query_id(self) -> str:
        """Of the query with the checkpoint."""
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])
