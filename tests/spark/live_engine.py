"""What Spark does with the Java source in real-time mode, without Spark: batches that have a
beginning only, and end when their time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.spark.engine import SCHEMA
from tests.spark.jvm_engine import JvmReader, asked, decoded, row_of

INITIAL: dict[str, Any] = {"v": 1}


class LiveEngine:
    """One query in real-time mode. ``log`` are the ends of its batches."""

    def __init__(
        self, spark: SparkSession, options: Mapping[str, Any], schema: StructType = SCHEMA
    ) -> None:
        self._schema = schema
        self.options = {name: str(value) for name, value in options.items()}
        self.log: list[dict[str, Any]] = []
        self._spark = spark
        self._readers: list[Any] = []
        self.reader = self._new_reader()

    def _new_reader(self) -> JvmReader:
        made = JvmReader(self._spark, self.options, self._schema)
        made._stream.prepareForRealTimeMode()
        return made

    def begin(self) -> LiveEngine:
        """Begin a batch: its readers run now."""
        start = self.log[-1] if self.log else INITIAL
        stream = self.reader._stream
        asked(lambda: stream.latestOffset(self.reader.offset(start), stream.getDefaultReadLimit()))
        if self.log:
            self.reader.commit(self.log[-1])
        factory = stream.createReaderFactory()
        parts = asked(lambda: list(stream.planInputPartitions(self.reader.offset(start))))
        self._readers = [factory.createReader(part) for part in parts]
        return self

    @property
    def readers(self) -> int:
        """How many readers the batch has."""
        return len(self._readers)

    def rows(
        self, count: int, patience_ms: int = 300_000, of: Callable[[Any], Any] = row_of
    ) -> list[Any]:
        """So many rows of a batch, from whichever reader has some; fewer when that takes too
        long.
        """
        found: list[Any] = []
        share_ms = patience_ms if len(self._readers) == 1 else 20
        for _ in range(max(1, patience_ms // share_ms)):
            for reader in self._readers:
                while len(found) < count and asked(
                    lambda reader=reader: reader.nextWithTimeout(share_ms).hasRecord()
                ):  # type: ignore[misc]
                    found.append(of(reader.get()))
            if len(found) >= count:
                break
        return found

    def end(self) -> dict[str, Any]:
        """End the batch: its end offset is in the log. Readers that ``rows`` never asked count as
        such.
        """
        offsets = [reader.getOffset() for reader in self._readers]
        assert self._spark._sc._gateway is not None
        array = self._spark._sc._gateway.new_array(
            self.reader._jvm.org.apache.spark.sql.connector.read.streaming.PartitionOffset,
            len(offsets),
        )
        for i, offset in enumerate(offsets):
            array[i] = offset
        self.kill_readers()
        self.log.append(asked(lambda: decoded(self.reader._stream.mergeOffsets(array).json())))
        return self.log[-1]

    def kill_readers(self) -> None:
        """The tasks are gone, and the driver has not read their positions."""
        for reader in self._readers:
            reader.close()
        self._readers = []

    def restart(self, **options: str) -> None:
        """A new driver on the same checkpoint; a batch under way is forgotten."""
        self.kill_readers()
        self.reader.stop()
        self.options.update(options)
        self.reader = self._new_reader()

    def positions(self) -> dict[str, int]:
        """The last id that is done, per queue."""
        return {queue: entry["last"] for queue, entry in self.log[-1]["queues"].items()}

    def stop(self) -> None:
        self.kill_readers()
        self.reader.stop()
