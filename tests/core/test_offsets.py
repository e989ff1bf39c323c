"""The offset in the checkpoint: bytes that outlive every process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError
from busmq_spark.queue.keys import qualified_name
from busmq_spark.queue.message import Position
from busmq_spark.reading.offsets import (
    INITIAL_OFFSET,
    OffsetCodec,
    decode,
    encode,
    last_id_before_batch,
    links_of,
)

VECTORS = json.loads((Path(__file__).parents[1] / "golden" / "offset-v1.json").read_text("utf-8"))
GOLDEN, LINKED = VECTORS["vectors"], VECTORS["linked"]

ids = st.integers(0, 2**53 - 1)
positions = st.builds(Position, st.text(), ids, st.text(), st.none() | ids, ids)


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["says"])
def test_an_offset_kept_for_ever_is_still_read(vector: dict[str, Any]) -> None:
    assert decode(json.loads(vector["text"])) == {
        queue: Position(*fields) for queue, fields in vector["queues"].items()
    }


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["says"])
def test_an_offset_is_still_written_like_this_byte_for_byte(vector: dict[str, Any]) -> None:
    text = vector["text"]
    assert (
        json.dumps(
            INITIAL_OFFSET
            if json.loads(text) == INITIAL_OFFSET
            else encode({queue: Position(*f) for queue, f in vector["queues"].items()})
        )
        == text
    )


@pytest.mark.parametrize("vector", LINKED, ids=lambda vector: vector["says"])
def test_an_offset_with_links_is_read_and_written_byte_for_byte(vector: dict[str, Any]) -> None:
    sources = {"": vector["queues"], **vector["sources"]}
    found = {
        qualified_name(source, queue): Position(*fields)
        for source, queues in sources.items()
        for queue, fields in queues.items()
    }
    assert decode(json.loads(vector["text"])) == found
    assert links_of(json.loads(vector["text"])) == set(vector["sources"])
    assert json.dumps(encode(found, set(vector["sources"]))) == vector["text"]


@given(st.dictionaries(st.text(), positions))
def test_what_is_written_is_read_back(offset: dict[str, Position]) -> None:
    assert decode(json.loads(json.dumps(encode(offset)))) == offset


@given(
    st.lists(
        st.tuples(st.booleans(), st.dictionaries(st.sampled_from("abc"), positions)), max_size=8
    )
)
def test_a_memory_of_offsets_says_what_reading_them_anew_says(
    steps: list[tuple[bool, dict[str, Position]]],
) -> None:
    memory = OffsetCodec()
    for written, found in steps:
        offset = memory.encode(found) if written else json.loads(json.dumps(encode(found)))
        assert offset == encode(found)
        for text in (
            json.dumps(offset),
            json.dumps(encode({**found, "d": at(1)})),
            json.dumps(INITIAL_OFFSET),
        ):
            assert memory.decode(json.loads(text)) == decode(json.loads(text))


@given(st.dictionaries(st.text(), positions, max_size=5))
def test_the_same_positions_have_the_same_text_in_whatever_order_they_came(
    offset: dict[str, Position],
) -> None:
    assert json.dumps(encode(offset)) == json.dumps(encode(dict(reversed(offset.items()))))


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"v": 1, "offsets": {}},
        {"v": 1, "queues": []},
        {"v": 1, "queues": {}, "sources": []},
        {"v": 1, "queues": {}, "sources": {"eu": {}}},
        {"v": 1, "queues": {"q": {}}},
        {"v": 1, "queues": {"q": {"born": "b", "last": "x", "mark": ""}}},
        {"v": 1, "queues": {"q": 41}},
        *(
            {"v": 1, "queues": {"q": {"born": "b", "mark": "", "last": last}}}
            for last in (float("inf"), 1e308, 1.5, -1, 2**53, True, None)
        ),
        *(
            {"v": 1, "queues": {"q": {"born": "b", "mark": "", "last": 1, **more}}}
            for more in ({"from": -1}, {"from": 0.5}, {"lost": -1})
        ),
        {"orders": {"0": 41}},
        41,
        None,
        "latest",
    ],
    ids=str,
)
def test_an_offset_of_another_source_is_refused_with_what_was_found(garbage: Any) -> None:
    with pytest.raises(ConfigError, match=r"does not hold busmq offsets .* use a new checkpoint"):
        decode(garbage)


def test_an_offset_of_a_later_version_says_which_and_what_to_do() -> None:
    with pytest.raises(
        ConfigError, match="offsets of version 2, this package reads version 1; update it"
    ):
        decode({"v": 2, "queues": {}})


def at(last: int, start: int | None = None, *, born: str = "b", lost: int = 0) -> Position:
    return Position(born, last, "", start, lost)


@pytest.mark.parametrize(
    ("start", "end", "done"),
    [
        (at(5), at(9), 5),
        (at(5), at(5), 5),
        (None, at(9, 3), 3),
        (at(5, 0), at(5, 0), 5),
        (at(5, 0), at(9), 5),
        (at(5), at(9, 7, lost=2), 7),
        (at(500), at(3, 0, lost=1), 0),
        (at(5, born="old"), at(3, 0, born="new", lost=1), 0),
        (at(5), at(9, 0), 5),
        (at(5), at(9, 9), 5),
        (at(500), at(3, 0), 0),
    ],
    ids=[
        "a batch begins where the one before ended",
        "no batch",
        "a queue that enters begins after its from",
        "a queue that entered and stands still is not read again",
        "the batch after the one that entered",
        "after a removal, at the oldest stored",
        "after a rollback, at the oldest stored",
        "after a new life, at its oldest stored",
        "planned before the start was known, earliest: nothing twice",
        "planned before the start was known, latest: nothing lost",
        "planned before the start was known, on a Redis that went back: at the oldest stored",
    ],
)
def test_where_a_batch_begins(start: Position | None, end: Position, done: int) -> None:
    assert last_id_before_batch(start, end) == done


@pytest.mark.parametrize("start", [None, at(5, born="old")])
def test_a_batch_into_a_life_that_never_entered_is_refused(start: Position | None) -> None:
    with pytest.raises(ConfigError, match="use a new checkpoint"):
        last_id_before_batch(start, at(9))
