"""Which patterns take which keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.core import event_routing
from busmq_spark.core.event_patterns import check_key, check_pattern, destinations, matches
from busmq_spark.errors import ConfigError

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
def test_a_star_is_one_word_and_a_hash_is_the_rest(pattern: str, key: str, *, expected: bool) -> None:
    assert check_pattern(pattern) == pattern
    assert matches(pattern, check_key(key)) is expected


@pytest.mark.parametrize("pattern", ["", ".", "a.", "a..b", "a.#.b", "#.a", "a*", "a.b#", "**", "a b", "a\nb", "x" * 256, "\ud800", None, 7, ["a"]])
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
def test_each_queue_is_named_once_however_many_patterns_it_has(table: list[tuple[str, str]], asked: list[str]) -> None:
    assert destinations(table, asked) == sorted({queue for pattern, queue in table if pattern in asked})


@given(st.lists(st.tuples(keys | keys.map(lambda key: f"{key}.#"), st.sampled_from(["q1", "q2", "q3"]))), st.lists(st.lists(keys, min_size=1)))
def test_what_is_remembered_of_a_table_is_what_it_says(table: list[tuple[str, str]], asked: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_routing, "MAX_CACHED_KEYS", 2)
        subscribers = event_routing.EventRoutingTable(b"v", table)
        assert [subscribers.queues_for(each) for each in asked] == [destinations(table, each) for each in asked]
