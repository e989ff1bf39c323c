"""The same engine around the Java source of ``busmq-realtime``: what is demanded of one source is
demanded of both, by the same tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from busmq_spark import errors
from tests.spark.engine import SCHEMA, Engine, Row


class JvmReader:
    """A Java stream as a Python reader; its errors are those of the Python source."""

    def __init__(
        self, spark: SparkSession, options: Mapping[str, str], schema: StructType, folder: str = ""
    ) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        tail = self._jvm.java.lang.Class.forName(
            "busmq.spark.source.BusmqMicroBatchStream"
        ).getDeclaredField("emptyBatchAfterNs")
        tail.setAccessible(True)
        tail.setLong(None, 0)  # idle at once, as in engine.py
        pause = self._jvm.java.lang.Class.forName(
            "busmq.spark.source.QueueDiscoveryThread"
        ).getDeclaredField("betweenWalksMs")
        pause.setAccessible(True)
        pause.setLong(None, 20)
        given = self._jvm.java.util.HashMap()
        for name, value in {
            "idlePollMs": "1",
            **options,
        }.items():  # else a push may come before its notice and the next poll
            given.put(name, value)
        columns = self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
        text = self._jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(given)
        self._stream = asked(
            lambda: self._jvm.busmq.spark.source.BusmqScan(columns, text).toMicroBatchStream(folder)
        )

    def initialOffset(self) -> dict[str, Any]:
        return decoded(self._stream.initialOffset().json())

    def getDefaultReadLimit(self) -> Any:
        return self._stream.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        self._stream.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        everything = type(limit).__name__ == "ReadAllAvailable"
        wanted = (
            self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()
            if everything
            else limit
        )
        return asked(lambda: decoded(self._stream.latestOffset(self.offset(start), wanted).json()))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        found = self._stream.reportLatestOffset()
        return found and decoded(found.json())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return asked(
            lambda: list(self._stream.planInputPartitions(self.offset(start), self.offset(end)))
        )

    def commit(self, end: dict[str, Any]) -> None:
        asked(lambda: self._stream.commit(self.offset(end)))

    def stop(self) -> None:
        self._stream.stop()

    def rows(self, part: Any) -> Iterator[Row]:
        """What a task reads."""
        reader = self._stream.createReaderFactory().createReader(part)
        try:
            while asked(reader.next):
                yield row_of(reader.get())
        finally:
            reader.close()

    def offset(self, offset: dict[str, Any]) -> Any:
        """An offset as it comes back from the checkpoint."""
        return self._stream.deserializeOffset(json.dumps(offset))


class JvmEngine(Engine):
    """An engine with the Java source. A new reader follows one that was stopped, which gives its
    leases up.
    """

    always_before_42 = False
    reader: Any

    def __init__(self, spark: SparkSession, options: Mapping[str, Any], folder: str = "") -> None:
        self._spark = spark
        super().__init__(dict(options), folder=folder)

    def _new_reader(self) -> Any:
        return JvmReader(self._spark, self.options, SCHEMA, self._folder)

    def kill(self) -> None:
        """The driver is gone, and its leases with it."""
        self.reader.stop()
        self.reader = self._new_reader()

    def silence(self, ask: Callable[..., Any], queue: str) -> None:
        """Java's listener serves the whole process, which knows that it is its own."""

    def rows_of(self, part: Any) -> Iterator[Row]:
        return self.reader.rows(part)  # type: ignore[no-any-return]  # a JvmReader

    def _read(self, parts: Any) -> list[list[Row]]:
        return [list(self.reader.rows(part)) for part in parts]


def row_of(row: Any) -> Row:
    """Queue, id and value of a row with all columns."""
    return row.getUTF8String(0).toString(), row.getLong(1), bytes(row.getBinary(2))


def decoded(text: str) -> dict[str, Any]:
    """An offset, which must be written as Python writes it."""
    found: dict[str, Any] = json.loads(text)
    assert json.dumps(found) == text
    return found


def asked(call: Any) -> Any:
    """What Java answers; an error of ours as the Python error with its code."""
    try:
        return call()
    except IllegalArgumentException as error:
        failed = error
    [kind] = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and vars(cls).get("code") == failed.getCondition()
    ]
    found = kind(**(failed.getMessageParameters() or {}))
    assert str(found) == str(failed)
    raise found
