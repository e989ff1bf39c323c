"""What was read at the origin goes into the command as Redis takes it, whatever the ids and values
are.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.mirror.copy_planning import EncodedMessages
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES, MAX_ID
from busmq_spark.redis_io.resp_codec import pack_words

VALUES = st.lists(
    st.binary(max_size=40) | st.sampled_from([b"", b"\r\n", b"$3\r\nabc\r\n", b"*1\r\n"]),
    min_size=1,
    max_size=20,
)
FIRST = st.integers(1, MAX_ID - 20) | st.sampled_from([1, 9, 98, 995, 99_990])


def words_of(first: int, values: list[bytes]) -> bytes:
    """As redis-py would send them."""
    words = tuple(word for id, value in enumerate(values, first) for word in (id, value))
    return pack_words(words).partition(b"\r\n")[2]


def sent(rows: EncodedMessages) -> bytes:
    return b"".join(bytes(words) for _, _, words in rows.chunks())


@given(FIRST, VALUES, st.sampled_from([pa.binary(), pa.large_binary()]))
def test_rows_are_the_words_of_a_command(
    first: int, values: list[bytes], kind: pa.DataType
) -> None:
    rows = EncodedMessages.of(first, pa.array(values, kind))
    assert (len(rows), rows.last, sent(rows)) == (
        len(values),
        first + len(values) - 1,
        words_of(first, values),
    )
    assert [rows.value(first + n) for n in range(len(values))] == values


@given(FIRST, VALUES, st.integers(-2, 25))
def test_those_behind_an_id_are_the_same_rows(first: int, values: list[bytes], more: int) -> None:
    rows = EncodedMessages.of(first, pa.array(values, pa.binary())).rows_after(first + more)
    left = values[max(0, more + 1) :]
    assert (len(rows), sent(rows)) == (
        len(left),
        words_of(first + len(values) - len(left), left) if left else b"",
    )
    assert not left or rows.value(rows.first) == left[0]


def test_a_slice_of_an_array_gives_its_own_rows_only() -> None:
    assert sent(
        EncodedMessages.of(5, pa.array([b"a", b"b", b"c"], pa.binary()).slice(1, 1))
    ) == words_of(5, [b"b"])


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([b"x"] * (2 * CHUNK_MESSAGES + 1), [CHUNK_MESSAGES, CHUNK_MESSAGES, 1]),
        ([b"x" * (CHUNK_BYTES // 2 - 100)] * 5, [2, 2, 1]),
        ([b"x", b"y" * (3 * CHUNK_BYTES), b"z"], [1, 1, 1]),
    ],
    ids=["messages", "bytes", "one that is larger alone"],
)
def test_chunks_are_bounded_by_messages_and_bytes(values: list[bytes], counts: list[int]) -> None:
    rows = EncodedMessages.of(8, pa.array(values, pa.binary()))
    found = list(rows.chunks())
    assert [count for _, count, _ in found] == counts
    assert [last for last, _, _ in found] == [7 + sum(counts[: n + 1]) for n in range(len(counts))]
    assert sent(rows) == words_of(8, values)
