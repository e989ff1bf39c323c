"""Range replies taken apart: every reply gives what was put in, however it arrives and whatever the values look like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.core.pairs import PairScanner

TRICKS = [b"", b"$", b"\r\n$", b"\r\n$3\r\nabc", b"x\r\n$1\r\n1\r\n$2\r\nab", b"\r\n", b"$5\r\nhello\r\n", b"a" * 9, b"b" * 10, b"c" * 99, b"d" * 100]


def reply_of(first: int, values: list[bytes]) -> bytes:
    parts = [b"*%d\r\n" % (2 * len(values))]
    for at, value in enumerate(values):
        name = b"%d" % (first + at)
        parts.append(b"$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(name), name, len(value), value))
    return b"".join(parts)


def scan(reply: bytes, values: int, cuts: list[int], rest: bytes = b"") -> tuple[list[bytes], int, int] | None:
    """Feed a reply cut into pieces, followed by ``rest``; None when the scanner asks for the slow way."""
    body = reply.index(b"\r\n") + 2
    data = bytearray(reply + rest)
    scanner = PairScanner(2 * values, body)
    for used in sorted({min(cut, len(data)) for cut in cuts if cut >= body} | {len(data)}):
        if (end := scanner.end(data, used)) is not None:
            found = scanner.pairs(data)
            assert end == len(reply)
            pieces = [bytes(data[s : s + n]) for s, n in zip(found.starts, found.lengths, strict=True)]
            return pieces, found.first, found.last
        if scanner.confused:
            return None
    raise AssertionError("the scanner never saw the end of a complete reply")


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=60), st.integers(1, 2**53 - 100), st.lists(st.integers(0, 5000)))
def test_ordinary_values_come_out_as_they_went_in(values: list[bytes], first: int, cuts: list[int]) -> None:
    found = scan(reply_of(first, values), len(values), cuts, rest=b"$4\r\nborn\r\n*2\r\n$1")
    assert found is None or found == (values, first, first + len(values) - 1)
    if not any(b"\r\n$" in b"\r\n" + value for value in values):
        assert found is not None


@given(st.lists(st.sampled_from(TRICKS), min_size=1, max_size=12), st.integers(1, 2000), st.lists(st.integers(0, 500)))
def test_values_that_look_like_headers_are_never_taken_for_messages(values: list[bytes], first: int, cuts: list[int]) -> None:
    found = scan(reply_of(first, values), len(values), cuts)
    assert found is None or found == (values, first, first + len(values) - 1)


@given(st.lists(st.one_of(st.sampled_from(TRICKS), st.binary(max_size=30)), min_size=1, max_size=8), st.binary(max_size=40))
def test_a_forged_pair_inside_a_value_is_not_believed(values: list[bytes], padding: bytes) -> None:
    forged = b"\r\n".join([padding, b"$1", b"9", b"$6", b"forged", b""])
    found = scan(reply_of(1, [*values, forged]), len(values) + 1, [])
    assert found is None or found[0] == [*values, forged]


def test_lengths_with_different_numbers_of_digits_share_a_reply() -> None:
    values = [b"x" * size for size in (0, 9, 10, 99, 100, 999, 1000, 10_000, 100_000)]
    assert scan(reply_of(7, values), len(values), [50, 120, 4000]) == (values, 7, 15)
