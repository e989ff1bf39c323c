"""Range replies taken apart: every reply gives what was put in, however it arrives and whatever the
values look like.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.redis_io.range_connection import RangeReplyParser

TRICKS = [
    b"",
    b"$",
    b"\r\n$",
    b"\r\n$3\r\nabc",
    b"x\r\n$1\r\n1\r\n$2\r\nab",
    b"\r\n",
    b"$5\r\nhello\r\n",
    b"a" * 9,
    b"b" * 10,
    b"c" * 99,
    b"d" * 100,
]


def reply_of(first: int, values: list[bytes]) -> bytes:
    parts = [b"*%d\r\n" % (2 * len(values))]
    for at, value in enumerate(values):
        name = b"%d" % (first + at)
        parts.append(b"$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(name), name, len(value), value))
    return b"".join(parts)


def scan(
    reply: bytes, values: int, cuts: list[int], rest: bytes = b""
) -> tuple[list[bytes], int, int]:
    """Feed a reply cut into pieces, followed by ``rest``."""
    body = reply.index(b"\r\n") + 2
    data = bytearray(reply + rest)
    scanner = RangeReplyParser(2 * values, body)
    for used in sorted({min(cut, len(data)) for cut in cuts if cut >= body} | {len(data)}):
        if (end := scanner.end(data, used)) is not None:
            found = scanner.pairs(data)
            assert end == len(reply)
            pieces = [
                bytes(data[s : s + n]) for s, n in zip(found.starts, found.lengths, strict=True)
            ]
            return pieces, found.first, found.last
    raise AssertionError("the scanner never saw the end of a complete reply")


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=60),
    st.integers(1, 2**53 - 100),
    st.lists(st.integers(0, 5000)),
)
def test_ordinary_values_come_out_as_they_went_in(
    values: list[bytes], first: int, cuts: list[int]
) -> None:
    found = scan(reply_of(first, values), len(values), cuts, rest=b"$4\r\nborn\r\n*2\r\n$1")
    assert found == (values, first, first + len(values) - 1)


@given(
    st.lists(st.sampled_from(TRICKS), min_size=1, max_size=12),
    st.integers(1, 2000),
    st.lists(st.integers(0, 500)),
)
def test_values_that_look_like_headers_are_never_taken_for_messages(
    values: list[bytes], first: int, cuts: list[int]
) -> None:
    found = scan(reply_of(first, values), len(values), cuts)
    assert found == (values, first, first + len(values) - 1)


@given(
    st.lists(st.one_of(st.sampled_from(TRICKS), st.binary(max_size=30)), min_size=1, max_size=8),
    st.binary(max_size=40),
)
def test_a_forged_pair_inside_a_value_is_not_believed(values: list[bytes], padding: bytes) -> None:
    forged = b"\r\n".join([padding, b"$1", b"9", b"$6", b"forged", b""])
    found = scan(reply_of(1, [*values, forged]), len(values) + 1, [])
    assert found[0] == [*values, forged]


def test_lengths_with_different_numbers_of_digits_share_a_reply() -> None:
    values = [b"x" * size for size in (0, 9, 10, 99, 100, 999, 1000, 10_000, 100_000)]
    assert scan(reply_of(7, values), len(values), [50, 120, 4000]) == (values, 7, 15)


def trick(size: int, at: int) -> bytes:
    """A value of this size that is full of what could be headers."""
    return (b"\r\n$%d\r\n" % at * (size // 4 + 1))[:size]


runs = st.lists(
    st.tuples(st.sampled_from([0, 5, 9, 10, 64, 2000]), st.integers(1, 60)), min_size=1, max_size=5
)


@given(
    runs,
    st.sampled_from([1, 7, 990, 9_960, 10**9 - 20]),
    st.booleans(),
    st.lists(st.integers(0, 30_000), max_size=6),
)
def test_runs_of_one_length_come_out_whole_wherever_the_length_or_the_digits_of_ids_change(
    lengths: list[tuple[int, int]], first: int, tricky: bool, cuts: list[int]
) -> None:
    sizes = [size for size, many in lengths for _ in range(many)]
    values = [trick(size, at) if tricky else b"x" * size for at, size in enumerate(sizes)]
    assert scan(reply_of(first, values), len(values), cuts, rest=b"$4\r\nborn\r\n") == (
        values,
        first,
        first + len(values) - 1,
    )


@given(
    st.lists(st.integers(0, 6000), min_size=1, max_size=60),
    st.booleans(),
    st.lists(st.integers(0, 90_000), max_size=6),
)
def test_values_of_many_lengths_come_out_whole_whether_large_or_small(
    sizes: list[int], tricky: bool, cuts: list[int]
) -> None:
    values = [trick(size, at) if tricky else b"x" * size for at, size in enumerate(sizes)]
    assert scan(reply_of(95, values), len(values), cuts) == (values, 95, 94 + len(values))


def test_a_length_that_differs_by_its_last_digit_ends_a_run() -> None:
    values = [b"x" * 101] * 500 + [b"x" * 102] + [b"x" * 101] * 500
    assert scan(reply_of(1, values), len(values), []) == (values, 1, len(values))


@pytest.mark.parametrize(
    "wrong", [b":7\r\n" * 20, b"$1\r\n1\r\n$-1\r\n" + b"x" * 80, b"$1\r\n1\r\n*2\r\n" + b"x" * 80]
)
def test_what_is_no_message_is_refused_with_what_was_found(wrong: bytes) -> None:
    good = reply_of(1, [b"ab", b"ab"])
    data = bytearray(good + wrong)
    scanner = RangeReplyParser(40, good.index(b"\r\n") + 2)
    with pytest.raises(ValueError, match="expected a message, found"):
        scanner.end(data, len(data))
