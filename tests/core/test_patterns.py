"""Which patterns take which keys."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError
from busmq_spark.routing import event_routing
from busmq_spark.routing.event_patterns import (
    check_key,
    check_pattern,
    covers,
    destinations,
    matches,
    overlaps,
    owners_of,
)

words = st.sampled_from(["a", "b", "user", "signup", "é"])
keys = st.lists(words, min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.*.c", "a.b.c", True),
        ("*.b", "a.b", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.#", "a", True),
        ("a.#", "a.b", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("a.*.#", "a", False),
        ("a.*.#", "a.b", True),
        ("#", "a", True),
        ("#", "a.b.c", True),
    ],
)
def test_a_star_is_one_word_and_a_hash_is_the_rest(
    pattern: str, key: str, *, expected: bool
) -> None:
    assert check_pattern(pattern) == pattern
    assert matches(pattern, check_key(key)) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".",
        "a.",
        "a..b",
        "a.#.b",
        "#.a",
        "a*",
        "a.b#",
        "**",
        "a b",
        "a\nb",
        "x" * 256,
        "\ud800",
        None,
        7,
        ["a"],
    ],
)
def test_what_is_no_pattern_is_refused(pattern: object) -> None:
    with pytest.raises(ConfigError, match="the pattern is "):
        check_pattern(pattern)


@pytest.mark.parametrize("key", ["", "a.*", "#", "a.#", ".a", "a..b", "a b", "x" * 256, None, b"a"])
def test_what_is_no_key_is_refused(key: object) -> None:
    with pytest.raises(ConfigError, match="the key of an event is "):
        check_key(key)


@given(keys, st.data())
def test_a_pattern_made_of_a_key_takes_it(key: str, data: st.DataObject) -> None:
    parts = key.split(".")
    pattern = [data.draw(st.sampled_from([word, "*"])) for word in parts]
    assert matches(".".join(pattern), key)
    cut = data.draw(st.integers(0, len(parts)))
    assert matches(".".join([*pattern[:cut], "#"]), key)
    assert not matches(".".join([*pattern, "*"]), key)


@given(st.lists(st.tuples(keys, st.sampled_from(["q1", "q2", "q3"]))), st.lists(keys, min_size=1))
def test_each_queue_is_named_once_however_many_patterns_it_has(
    table: list[tuple[str, str]], asked: list[str]
) -> None:
    assert destinations(table, asked) == sorted(
        {queue for pattern, queue in table if pattern in asked}
    )


@given(
    st.lists(
        st.tuples(keys | keys.map(lambda key: f"{key}.#"), st.sampled_from(["q1", "q2", "q3"]))
    ),
    st.lists(st.lists(keys, min_size=1)),
)
def test_what_is_remembered_of_a_table_is_what_it_says(
    table: list[tuple[str, str]], asked: list[list[str]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_routing, "MAX_CACHED_KEYS", 2)
        subscribers = event_routing.EventRoutingTable(b"v", table)
        assert [subscribers.queues_for(each) for each in asked] == [
            destinations(table, each) for each in asked
        ]


# -- which pattern covers which --------------------------------------------------------------------

letters = st.sampled_from(["a", "b", "c"])
some_keys = st.lists(letters, min_size=1, max_size=5).map(".".join)
some_patterns = st.builds(
    lambda words, rest: ".".join([*words, "#"] if rest else words),
    st.lists(letters | st.just("*"), min_size=1, max_size=4),
    st.booleans(),
) | st.just("#")


def keys_of_pattern(pattern: str) -> set[str]:
    """Keys of at most six words that a pattern matches, of the words a, b, c and one that is in
    none.
    """
    words = ["*.#" if pattern == "#" else pattern][0].split(".")
    fixed, rest = (words[:-1], True) if words[-1] == "#" else (words, False)
    found = {""}
    for word in fixed:
        found = {
            f"{head}.{each}".lstrip(".")
            for head in found
            for each in (["a", "b", "c", "other"] if word == "*" else [word])
        }
    longer = (
        {f"{key}{more}" for key in found for more in ("", ".other", ".a", ".other.other")}
        if rest
        else found
    )
    return {check_key(key) for key in longer}


@given(some_patterns, some_patterns)
def test_a_pattern_covers_another_if_it_matches_each_of_its_keys(granted: str, wanted: str) -> None:
    assert covers(granted, wanted) == all(matches(granted, key) for key in keys_of_pattern(wanted))


@given(some_patterns, some_patterns)
def test_patterns_overlap_if_some_key_is_matched_by_both(one: str, other: str) -> None:
    both = keys_of_pattern(one) | keys_of_pattern(other)
    assert (
        overlaps(one, other)
        == overlaps(other, one)
        == any(matches(one, key) and matches(other, key) for key in both)
    )


@given(some_patterns, some_patterns, some_keys)
def test_what_is_covered_is_matched_and_what_is_apart_never_meets(
    granted: str, wanted: str, key: str
) -> None:
    if covers(granted, wanted) and matches(wanted, key):
        assert matches(granted, key)
    if matches(granted, key) and matches(wanted, key):
        assert overlaps(granted, wanted)


@pytest.mark.parametrize(
    ("granted", "wanted", "expected"),
    [
        ("payment.*", "payment.*", True),
        ("payment.*", "payment.done", True),
        ("payment.*", "payment.#", False),
        ("payment.*", "payment", False),
        ("payment.*", "*.done", False),
        ("payment.*", "payment.a.b", False),
        ("payment.#", "payment", True),
        ("payment.#", "payment.*.#", True),
        ("payment.#", "payments", False),
        ("*.#", "#", True),
        ("#", "*.*", True),
        ("*", "#", False),
        ("a.*.#", "a.#", False),
        ("a.done", "a.*", False),
    ],
)
def test_covering(granted: str, wanted: str, *, expected: bool) -> None:
    assert covers(granted, wanted) is expected


# -- rows of a table -------------------------------------------------------------------------------

rows = st.tuples(
    some_patterns,
    st.sampled_from(["q1", "q2"]),
    st.sampled_from(["", "1", "@peer=v", "1 @peer=v @other~1=w"]),
)


@given(st.lists(rows), st.lists(some_keys, min_size=1, max_size=3))
def test_a_table_that_changes_row_by_row_says_what_its_rows_say(
    changes: list[tuple[str, str, str]], asked: list[str]
) -> None:
    table, plain = event_routing.EventRoutingTable(b"v", ()), dict[tuple[str, str], str]()
    for pattern, queue, value in changes:
        table.change_row(pattern, queue, value)
        plain.pop((pattern, queue), None)
        if value:
            plain[pattern, queue] = value
        found = table.owners_by_queue(asked)
        matched = [
            (row[1], value)
            for row, value in plain.items()
            if any(matches(row[0], key) for key in asked)
        ]
        assert found == {
            queue: frozenset().union(*(owners_of(v) for q, v in matched if q == queue))
            for queue in sorted({q for q, _ in matched})
        }
        assert table.queues_for(asked) == destinations(plain, asked)
    assert table.pairs == sorted(plain)


def test_a_look_up_visits_no_row_of_other_words() -> None:
    table = event_routing.EventRoutingTable(
        b"v", [(f"{'z' * 200}.{n}", "far") for n in range(20_000)] + [("k.*", "near")]
    )
    visited = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal visited
        visited += event == "call"

    sys.setprofile(count)
    try:
        assert table.queues_for(["k.7"]) == ["near"]
    finally:
        sys.setprofile(None)
    assert visited < 50
