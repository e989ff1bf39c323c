"""The sink of either engine, task by task and commit by commit, without a query: a test decides
what happens between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from busmq_spark.errors import BusError
from busmq_spark.option_parsing import parse
from busmq_spark.options import WriteOptions
from busmq_spark.spark.write.sink_columns import SinkColumns
from busmq_spark.spark.write.writers import BatchWriter
from tests.spark.jvm_engine import asked
from tests.support import PATIENCE_S

Row = bytes | tuple[str, bytes]
"""A value, or where no option names the queue: queue and value; with option ``topic`` key and
value.
"""


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns of a row."""
    return (
        StructType().add("key" if "topic" in options else "queue", "string").add("value", "binary")
    )


class SinkEngine(Protocol):
    """One write: each task stages its rows (or pushes them, at least once), then the driver commits
    what they staged.
    """

    def stage(self, rows: Sequence[Row]) -> None: ...
    def staging(self, rows: Sequence[Row]) -> AbstractContextManager[None]:
        """A task that has staged rows, and waits for more until the block ends."""
        ...

    def commit(self) -> None: ...


class PythonSink:
    """The sink of ``format("busmq")``, as a batch write."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = parse(WriteOptions, dict(options))
        self._names = schema_of(options).names
        self._write = BatchWriter(
            given, SinkColumns.of(schema_of(options), given.queue, given.topic), overwrite=False
        )
        self._messages: list[Any] = []

    def stage(self, rows: Sequence[Row]) -> None:
        self._messages.append(self._write.write(iter([_arrow(rows, self._names)])))

    @contextmanager
    def staging(self, rows: Sequence[Row]) -> Iterator[None]:
        half = len(rows) // 2
        reached, ended = Event(), Event()

        def batches() -> Iterator[Any]:
            yield _arrow(rows[:half], self._names)
            reached.set()
            assert ended.wait(PATIENCE_S)
            yield _arrow(rows[half:], self._names)

        with ThreadPoolExecutor() as pool:
            writing = pool.submit(self._write.write, batches())
            assert reached.wait(PATIENCE_S)
            try:
                yield
            finally:
                ended.set()
            self._messages.append(writing.result(PATIENCE_S))

    def commit(self) -> None:
        self._write.commit(self._messages)


class JavaSink:
    """The sink of ``format("busmq-realtime")``, as a batch write."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        jvm: Any = spark._jvm
        self._gateway: Any = spark._sc._gateway
        given = jvm.java.util.HashMap()
        for name, value in options.items():
            given.put(name, value)
        self._jvm = jvm
        schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema_of(options).json())
        empty = jvm.java.util.Optional.empty()
        info = jvm.org.apache.spark.sql.connector.write.LogicalWriteInfoImpl(
            "", schema, jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(given), empty, empty
        )
        self._write = asked(lambda: jvm.busmq.spark.sink.BusmqWriteBuilder(info).build().toBatch())
        self._factory = asked(
            lambda: self._write.createBatchWriterFactory(
                jvm.org.apache.spark.sql.connector.write.PhysicalWriteInfoImpl(1)
            )
        )
        self._messages: list[Any] = []

    def stage(self, rows: Sequence[Row]) -> None:
        with self.staging(rows):
            pass

    @contextmanager
    def staging(self, rows: Sequence[Row]) -> Iterator[None]:
        writer = self._factory.createWriter(len(self._messages), len(self._messages))
        try:
            for row in rows:
                queue, value = split(row)
                cells = self._gateway.new_array(self._jvm.java.lang.Object, 2)
                cells[0], cells[1] = (
                    self._jvm.org.apache.spark.unsafe.types.UTF8String.fromString(queue),
                    value,
                )
                asked(
                    lambda cells=cells: writer.write(
                        self._jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(
                            cells
                        )
                    )
                )  # type: ignore[misc]
            yield
            self._messages.append(asked(writer.commit))
        except BusError:
            writer.abort()  # as Spark does
            raise
        finally:
            writer.close()

    def commit(self) -> None:
        messages = self._gateway.new_array(
            self._jvm.org.apache.spark.sql.connector.write.WriterCommitMessage, len(self._messages)
        )
        for i, message in enumerate(self._messages):
            messages[i] = message
        asked(lambda: self._write.commit(messages))


def split(row: Row) -> tuple[str, bytes]:
    return row if isinstance(row, tuple) else ("", row)


def _arrow(rows: Sequence[Row], names: list[str]) -> Any:
    queues, values = zip(*map(split, rows), strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(queues, pa.string()), pa.array(values, pa.binary())], names
    )
