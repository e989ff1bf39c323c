"""What rows a sink takes, and how they become values per queue. No Spark session, no server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.spark import compat
from busmq_spark.spark.write import sink_columns
from busmq_spark.spark.write.sink_columns import SinkColumns, as_binary_array

S, B, L = StringType(), BinaryType(), LongType()


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


@pytest.mark.parametrize("kind", [S, B])
@pytest.mark.parametrize("name", ["value", "VALUE"])
def test_a_value_is_text_or_bytes_in_whatever_case_its_column_is_written(
    kind: DataType, name: str
) -> None:
    assert SinkColumns.of(schema(**{name: kind}), "q") == SinkColumns(name, None, "q")


def test_the_queue_comes_from_its_column() -> None:
    assert SinkColumns.of(schema(queue=S, value=S), None) == SinkColumns("value", "queue", None)


def test_the_option_wins_over_the_column_as_the_topic_of_kafka_does() -> None:
    assert SinkColumns.of(schema(queue=S, value=S), "q") == SinkColumns("value", None, "q")


def test_rows_of_the_source_can_be_written_as_they_are() -> None:
    assert SinkColumns.of(
        schema(queue=S, id=L, value=B, source=S, index=IntegerType()), None
    ) == SinkColumns("value", "queue", None)


@pytest.mark.parametrize(
    ("found", "queue", "reason"),
    [
        (schema(queue=S), "q", "column 'value' is missing; the rows have: queue"),
        (schema(), "q", "column 'value' is missing; the rows have: no columns"),
        (
            schema(value=IntegerType()),
            "q",
            r"column 'value' is int; expected string or binary; use to_json\(struct\(...\)\)",
        ),
        (
            schema(value=ArrayType(B)),
            "q",
            "column 'value' is array<binary>; expected string or binary",
        ),
        (schema(value=S, queue=B), None, "column 'queue' is binary; expected string$"),
        (schema(value=S, id=S), "q", "column 'id' is string; expected bigint"),
        (schema(value=S, index=L), "q", "column 'index' is bigint; expected int"),
        (
            schema(value=S, key=S),
            "q",
            (
                "column 'key' chooses a partition of a topic, and these rows go to queues; leave it"
                " out, or name a topic"
            ),
        ),
        (
            schema(value=S, key=L, topic=S),
            None,
            "column 'key' is bigint; expected string or binary",
        ),
        (schema(value=S, partition=L, topic=S), None, "column 'partition' is bigint; expected int"),
        (schema(value=S, topic=B), None, "column 'topic' is binary; expected string"),
        (
            schema(value=S, queue=S, partition=IntegerType()),
            None,
            "column 'partition' chooses a partition of a topic, and these rows go to queues",
        ),
        (
            schema(value=S, queue=S, topic=S),
            None,
            "columns 'queue' and 'topic' both say where a row goes",
        ),
        (
            schema(value=S, price=L),
            "q",
            (
                r"column 'price' has no place; the sink takes value .* and queue .*, or for topics"
                r" topic .*partition .*key"
            ),
        ),
        (
            schema(value=S),
            None,
            "no queue is named: set option 'queue', or give the rows a column queue",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_the_name_of_their_column(
    found: StructType, queue: str | None, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        SinkColumns.of(found, queue)


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_batch_is_split_by_queue_each_in_the_order_of_its_rows() -> None:
    rows = batch(queue=["b", "a", "b", "b", "a"], value=["1", "2", "3", "4", "5"])
    assert dict(SinkColumns("value", "queue", None).values_of_batch_by_queue(rows)) == {
        "b": [b"1", b"3", b"4"],
        "a": [b"2", b"5"],
    }


def test_a_batch_for_many_queues_is_walked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of its queues: 10,000 rows for 10,000 queues took 8 s."""
    passes: list[str] = []

    def counted(values: Any) -> list[bytes]:
        passes.append("values become bytes")
        return as_binary_array(values)

    monkeypatch.setattr(sink_columns, "as_binary_array", counted)
    queues = [f"q{i * 7 % 500}" for i in range(2000)]
    split = list(
        SinkColumns("value", "queue", None).values_of_batch_by_queue(
            batch(queue=queues, value=[str(i) for i in range(2000)])
        )
    )
    assert [queue for queue, _ in split] == list(dict.fromkeys(queues))
    assert all(
        [int(value) for value in values] == [i for i in range(2000) if queues[i] == queue]
        for queue, values in split
    )
    assert len(passes) == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_values_of_every_arrow_type_become_bytes(kind: Any) -> None:
    values = ["ä", ""] if kind in (pa.string(), pa.large_string()) else [b"\x00\xff", b""]
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["value"])
    assert list(SinkColumns("value", None, "q").values_of_batch_by_queue(rows)) == [
        ("q", ["ä".encode(), b""] if kind in (pa.string(), pa.large_string()) else values)
    ]


def test_a_batch_without_rows_writes_nothing_and_needs_no_queue() -> None:
    assert (
        list(
            SinkColumns("value", "queue", None).values_of_batch_by_queue(batch(queue=[], value=[]))
        )
        == []
    )


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        (batch(queue=["a", "a"], value=["1", None]), "value"),
        (batch(queue=["a", None], value=["1", "2"]), "queue"),
    ],
)
def test_a_null_is_refused_with_its_column_and_how_many(rows: Any, column: str) -> None:
    with pytest.raises(MessageRefused, match=f"column '{column}' is NULL in 1 of 2 rows"):
        list(SinkColumns("value", "queue", None).values_of_batch_by_queue(rows))


def test_an_empty_queue_name_is_refused() -> None:
    with pytest.raises(MessageRefused, match="column 'queue' is empty in some rows"):
        list(
            SinkColumns("value", "queue", None).values_of_batch_by_queue(
                batch(queue=["a", ""], value=["1", "2"])
            )
        )


def test_a_null_in_one_queue_stores_nothing_of_another() -> None:
    split = SinkColumns("value", "queue", None).values_of_batch_by_queue(
        batch(queue=["a", "b"], value=["1", None])
    )
    with pytest.raises(MessageRefused):
        next(split)


def test_rows_of_spark_4_0_become_a_batch() -> None:
    rows = [{"value": "1", "queue": "a", "id": 1}, {"value": None, "queue": "b", "id": 2}]
    assert SinkColumns("value", "queue", None).to_record_batch(rows).to_pydict() == {
        "value": ["1", None],
        "queue": ["a", "b"],
    }


def test_rows_of_spark_4_0_are_gathered_for_record_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "HANDS_OVER_ARROW", False)
    monkeypatch.setattr(compat, "ROWS_PER_RECORD_BATCH", 2)
    assert list(compat.record_batches(iter("abc"), "".join)) == ["ab", "c"]
