"""Cutting messages into calls: order kept, none lost, no call too large."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import MessageRefused
from busmq_spark.queue import message
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES, MAX_VALUE_BYTES, chunks


class Sized(bytes):
    """A value that says it is large without being it."""

    size: int

    def __new__(cls, size: int) -> Sized:
        made = super().__new__(cls, b"x")
        made.size = size
        return made

    def __len__(self) -> int:
        return self.size


sizes = st.lists(
    st.one_of(st.integers(0, 200), st.integers(CHUNK_BYTES // 3, CHUNK_BYTES + 2)), max_size=60
)


@given(sizes, st.integers(0, 2500))
def test_chunks_keep_order_and_lose_nothing(large: list[int], small: int) -> None:
    values = [*(Sized(size) for size in large), *(Sized(i % 7) for i in range(small))]
    cut = list(chunks(values))
    assert [id(value) for chunk in cut for value in chunk] == [id(value) for value in values]
    assert all(len(chunk) for chunk in cut)


@given(sizes, st.integers(0, 2500))
def test_no_chunk_exceeds_its_bounds_but_for_a_single_large_message(
    large: list[int], small: int
) -> None:
    values = [*(Sized(i % 7) for i in range(small)), *(Sized(size) for size in large)]
    for chunk in chunks(values):
        assert len(chunk) <= CHUNK_MESSAGES
        assert len(chunk) == 1 or sum(map(len, chunk)) <= CHUNK_BYTES


@given(sizes)
def test_a_chunk_is_closed_only_when_the_next_message_does_not_fit(large: list[int]) -> None:
    cut = list(chunks([Sized(size) for size in large]))
    for chunk, following in itertools.pairwise(cut):
        assert (
            len(chunk) == CHUNK_MESSAGES or sum(map(len, chunk)) + len(following[0]) > CHUNK_BYTES
        )


def test_a_message_of_exactly_512_mb_is_not_refused() -> None:
    assert [len(chunk) for chunk in chunks([Sized(MAX_VALUE_BYTES)])] == [1]


def test_a_message_over_512_mb_is_refused_before_any_of_its_chunk_is_sent() -> None:
    run = chunks([Sized(10), Sized(10), Sized(MAX_VALUE_BYTES + 1)])
    with pytest.raises(MessageRefused, match="536870913 bytes"):
        next(run)


def test_chunks_before_a_refused_one_are_whole() -> None:
    run = chunks([*(Sized(1) for _ in range(CHUNK_MESSAGES)), Sized(message.MAX_VALUE_BYTES + 1)])
    assert len(next(run)) == CHUNK_MESSAGES
    with pytest.raises(MessageRefused):
        next(run)


def test_nothing_is_cut_into_no_chunks() -> None:
    assert list(chunks([])) == []
