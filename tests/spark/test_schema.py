"""Rows of queues as record batches: in order, whole, of a good size, and exactly of the schema that
was asked for.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from busmq_spark.errors import ConfigError
from busmq_spark.queue.keys import qualified_name, split_name
from busmq_spark.spark.read.tasks import (
    BATCH_ROWS,
    SHARED_BATCH_BYTES,
    SHORT_PIECE_ROWS,
    ArrowBatchEncoder,
)
from busmq_spark.store.protocol import ConsecutiveMessages

BINARY = StructType().add("queue", "string").add("id", "long").add("value", "binary")
TEXT = (
    StructType()
    .add("value", "string")
    .add("source", "string")
    .add("id", "long")
    .add("queue", "string")
)

names = st.sampled_from(["a", "b", "ü", qualified_name("east", "a")])
counts = st.one_of(
    st.integers(0, 20),
    st.sampled_from(
        [
            SHORT_PIECE_ROWS - 1,
            SHORT_PIECE_ROWS,
            SHORT_PIECE_ROWS + 1,
            BATCH_ROWS,
            BATCH_ROWS + 1,
            2 * BATCH_ROWS + 7,
        ]
    ),
)
pieces = st.lists(
    st.tuples(names, st.integers(1, 2**53), counts, st.sampled_from([0, 1, 100])), max_size=30
)


def piece(queue: str, first: int, rows: int, size: int) -> ConsecutiveMessages:
    return ConsecutiveMessages(
        queue, first, pa.array([b"%d" % n + b"x" * size for n in range(rows)], pa.binary())
    )


def batches(schema: StructType, *found: ConsecutiveMessages) -> list[Any]:
    return list(ArrowBatchEncoder(schema).batches(found))


@given(pieces)
@example([("a", 1, SHORT_PIECE_ROWS, 0)] * 12)
@example([("a", 1, 5, 1), ("b", 1, BATCH_ROWS, 1), ("a", 6, 5, 1)])
def test_every_row_comes_once_and_in_order_in_batches_of_a_good_size(
    wanted: list[tuple[str, int, int, int]],
) -> None:
    found = batches(BINARY, *(piece(*each) for each in wanted))
    rows = [tuple(row.values()) for batch in found for row in batch.to_pylist()]
    assert rows == [
        (split_name(queue)[1], first + n, b"%d" % n + b"x" * size)
        for queue, first, count, size in wanted
        for n in range(count)
    ]
    assert all(batch.num_rows <= BATCH_ROWS for batch in found)


def test_a_thousand_short_pieces_make_one_batch() -> None:
    [batch] = batches(BINARY, *(piece(f"q{n}", 7, 3, 10) for n in range(1000)))
    assert batch.num_rows == 3000
    assert [row["queue"] for row in batch.slice(0, 6).to_pylist()] == ["q0"] * 3 + ["q1"] * 3


def test_short_pieces_share_a_batch_of_no_more_than_a_megabyte() -> None:
    sizes = [
        batch.num_rows
        for batch in batches(
            BINARY, *(piece("q", 1 + n, 1, SHARED_BATCH_BYTES // 3) for n in range(7))
        )
    ]
    assert sizes == [2, 2, 2, 1]


def test_a_value_larger_than_that_has_its_own() -> None:
    sizes = [
        batch.num_rows
        for batch in batches(
            BINARY, piece("q", 1, 2, 5), piece("q", 3, 1, SHARED_BATCH_BYTES), piece("q", 4, 2, 5)
        )
    ]
    assert sizes == [2, 1, 2]


def test_columns_come_in_the_order_and_the_types_of_the_schema() -> None:
    [batch] = batches(
        TEXT, piece(qualified_name("east", "orders"), 4, 1, 0), piece("orders", 9, 1, 0)
    )
    assert batch.schema.names == ["value", "source", "id", "queue"]
    assert batch.to_pylist() == [
        {"value": "0", "source": "east", "id": 4, "queue": "orders"},
        {"value": "0", "source": "local", "id": 9, "queue": "orders"},
    ]


def test_bytes_that_are_no_text_name_their_queue_and_ids() -> None:
    with pytest.raises(
        ConfigError,
        match=r"queue 'b': a message in ids 9\.\.10 is not UTF-8 text .* Read value as binary",
    ):
        batches(
            TEXT,
            piece("a", 1, 3, 1),
            ConsecutiveMessages("b", 9, pa.array([b"good", b"\xff"], pa.binary())),
        )
