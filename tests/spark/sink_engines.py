"""The sink of either engine, task by task and commit by commit, without a query: a test decides what happens between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from busmq_spark import errors
from busmq_spark.options import WriteOptions, parse
from busmq_spark.spark.sink_schema import SinkColumns
from busmq_spark.spark.writer import Committer, TaskWriter
from busmq_spark.store.redis_store import open_store

SCHEMA = '{"type":"struct","fields":[{"name":"value","type":"binary","nullable":true,"metadata":{}}]}'


class SinkEngine(Protocol):
    """One write: each task stages its rows, then the driver commits what they staged."""

    def stage(self, rows: Sequence[bytes]) -> None: ...
    def commit(self) -> None: ...


class PythonSink:
    """The sink of ``format("busmq")``."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = parse(WriteOptions, options)
        self._outcomes: list[Any] = []

    def stage(self, rows: Sequence[bytes]) -> None:
        batch = pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], ["value"])
        self._outcomes.append(TaskWriter(self._options, SinkColumns("value", None, self._options.queue)).write(iter([batch])))

    def commit(self) -> None:
        store = open_store(self._options)
        try:
            Committer(self._options, store).commit("s", 0, [s for outcome in self._outcomes for s in outcome.staged], "q")
        finally:
            store.close()


class JavaSink:
    """The sink of ``format("busmq-realtime")``, as a batch write."""

    def __init__(self, spark: SparkSession, options: dict[str, str]) -> None:
        jvm: Any = spark._jvm
        self._gateway: Any = spark._sc._gateway
        given = jvm.java.util.HashMap()
        for name, value in options.items():
            given.put(name, value)
        self._jvm = jvm
        schema = jvm.org.apache.spark.sql.types.DataType.fromJson(SCHEMA)
        empty = jvm.java.util.Optional.empty()
        info = jvm.org.apache.spark.sql.connector.write.LogicalWriteInfoImpl(
            "", schema, jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(given), empty, empty
        )
        self._write = asked(lambda: jvm.busmq.spark.sink.SinkBuilder(info).build().toBatch())
        self._factory = asked(lambda: self._write.createBatchWriterFactory(jvm.org.apache.spark.sql.connector.write.PhysicalWriteInfoImpl(1)))
        self._messages: list[Any] = []

    def stage(self, rows: Sequence[bytes]) -> None:
        writer = self._factory.createWriter(len(self._messages), len(self._messages))
        try:
            for row in rows:
                cells = self._gateway.new_array(self._jvm.java.lang.Object, 1)
                cells[0] = row
                asked(lambda cells=cells: writer.write(self._jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(cells)))  # type: ignore[misc]
            self._messages.append(asked(writer.commit))
        finally:
            writer.close()

    def commit(self) -> None:
        messages = self._gateway.new_array(self._jvm.org.apache.spark.sql.connector.write.WriterCommitMessage, len(self._messages))
        for i, message in enumerate(self._messages):
            messages[i] = message
        asked(lambda: self._write.commit(messages))


def asked(call: Any) -> Any:
    """What Java answers; an error of ours as the Python error with its code."""
    try:
        return call()
    except IllegalArgumentException as error:
        failed = error
    [kind] = [cls for cls in vars(errors).values() if isinstance(cls, type) and vars(cls).get("code") == failed.getCondition()]
    raise kind(**(failed.getMessageParameters() or {}))
