"""Fields of persisted objects: what is stored reads back as what it was, and a value that does not
fit raises an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.objects.persisted import PersistedTypeMismatch, from_text, hints_of, to_text

texts = st.text(st.characters(codec=None))  # half surrogate pairs too
plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


class Colour(Enum):
    RED = "red"
    DEEP = 1


@dataclass
class Point:
    x: int
    y: float = 0.0
    next: Point | None = None
    shared: ClassVar[set[int]] = set()


@dataclass
class Full:
    text: str = ""
    count: int = 0
    ratio: float = 0.0
    flag: bool = False
    either: int | str | None = None
    some: list[int] = field(default_factory=list)
    by_name: dict[str, float] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    many: tuple[bool, ...] = ()
    word: Literal["a", 1] = "a"
    colour: Colour = Colour.RED
    point: Point = field(default_factory=lambda: Point(1))
    anything: Any = None


points = st.deferred(
    lambda: st.builds(
        Point, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.none() | points
    )
)
fulls = st.builds(
    Full,
    *(
        texts,
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
        st.one_of(st.integers(), texts, st.none()),
    ),
    *(
        st.lists(st.integers()),
        st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False)),
        st.tuples(st.integers(), texts),
    ),
    *(
        st.lists(st.booleans()).map(tuple),
        st.sampled_from(["a", 1]),
        st.sampled_from(Colour),
        points,
        plain,
    ),
)


@given(plain)
def test_what_is_written_reads_back(value: Any) -> None:
    text = to_text(value)
    assert from_text(text) == value
    assert json.loads(text) == value
    text.decode()  # UTF-8, also for half a surrogate pair


@given(fulls)
def test_every_field_of_a_dataclass_reads_back_with_its_type(value: Full) -> None:
    for name, hint in hints_of(Full).items():
        given_value = getattr(value, name)
        back = from_text(to_text(given_value, hint), hint)
        assert (back, type(back)) == (given_value, type(given_value))


@given(st.binary(max_size=40))
def test_no_bytes_make_reading_fail_otherwise_than_as_a_misfit(text: bytes) -> None:
    for hint in (Any, *hints_of(Full).values()):
        try:
            from_text(text, hint)
        except PersistedTypeMismatch:
            continue


@given(plain)
def test_a_value_is_read_as_a_type_only_if_it_could_have_been_written_as_it(value: Any) -> None:
    for hint in hints_of(Full).values():
        try:
            read = from_text(to_text(value), hint)
        except PersistedTypeMismatch:
            continue
        to_text(read, hint)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("v1", b'"v1"'),
        (2, b"2"),
        (True, b"true"),
        (None, b"null"),
        ({"a": [1, 2]}, b'{"a":[1,2]}'),
        ("é😀", '"é😀"'.encode()),
        ("\ud800", b'"\\ud800"'),
    ],
)
def test_values_are_written_as_npm_writes_them(value: object, stored: bytes) -> None:
    assert to_text(value) == stored


@pytest.mark.parametrize(
    "text", [b"undefined", b"zz", b"", b"NaN", b"[1,", b"\xff", b"[" * 100_000, b"-Infinity"]
)
def test_what_is_no_json_is_a_misfit(text: bytes) -> None:
    with pytest.raises(PersistedTypeMismatch):
        from_text(text)


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"bytes", [b"x"]])
def test_what_json_cannot_express_is_refused(value: object) -> None:
    with pytest.raises(MessageRefused):
        to_text(value)


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        (b"1", float, 1.0),
        (b"1e+21", int, 10**21),
        (b"2.5", int | float, 2.5),
        (b"1", float | int, 1),
        (b'{"x":1,"odd":2}', Point, Point(1)),
    ],
)
def test_what_node_writes_reads_as_the_type_asked_for(text: bytes, hint: Any, value: Any) -> None:
    read = from_text(text, hint)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        *(
            (b"true", int),
            (b"1", bool),
            (b"1.5", int),
            (b"1", str),
            (b"null", str),
            (b'"blue"', Colour),
            (b"true", Colour),
            (b"true", Literal[1]),
        ),
        *(
            (b"[1]", tuple[int, int]),
            (b'["x"]', list[int]),
            (b'{"a":"x"}', dict[str, int]),
            (b"{}", Point),
            (b'{"x":"1"}', Point),
            (b"3", Point),
        ),
    ],
)
def test_another_type_is_a_misfit(text: bytes, hint: Any) -> None:
    with pytest.raises(PersistedTypeMismatch):
        from_text(text, hint)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, int),
        ("1", int),
        (1.0, int),
        ([1], tuple[int]),
        ((1,), list[int]),
        ("red", Colour),
        ({1: 2}, dict),
    ],
)
def test_a_value_of_another_type_is_not_written(value: object, hint: Any) -> None:
    with pytest.raises(MessageRefused):
        to_text(value, hint)


def test_a_type_that_json_cannot_express_is_refused_before_anything_is_stored() -> None:
    @dataclass
    class Odd:
        fine: int = 0
        odd: set[int] = field(default_factory=set)

    @dataclass
    class Keys:
        by_number: dict[int, str] = field(default_factory=dict)

    with pytest.raises(ConfigError, match="'odd' of Odd has the type set"):
        hints_of(Odd)
    with pytest.raises(ConfigError, match="by_number"):
        hints_of(Keys)
