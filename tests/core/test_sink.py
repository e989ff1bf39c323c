"""The manifest of a batch: bytes that outlive a process, and the chunk borders they carry."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.queue.message import MAX_ID
from busmq_spark.writing.sink import (
    StagedList,
    decode_manifest,
    differences,
    digest,
    encode_chunks,
    encode_manifest,
    make_span,
    next_segment,
    split_span,
    targets,
    total_digest,
)

GOLDEN = Path(__file__).parents[1] / "golden"
BATCH = (
    StagedList("orders", 0, "bus:queue:orders:stage:7.0.1", ((1000, 3), (17, 1))),
    StagedList("héllo 😀", 2, "bus:queue:héllo 😀:stage:7.1.0", ((1, 1),)),
    StagedList("orders", 0, "bus:queue:orders:stage:7.1.0", ()),
)
NOW = tuple(
    replace(part, digest=digest)
    for part, digest in zip(BATCH, (9007199254740991, 0, 17), strict=True)
)
sizes = st.lists(st.integers(1, 1000), max_size=30)
staged = st.builds(
    StagedList,
    st.text(min_size=1),
    st.integers(0, 9),
    st.text(min_size=1),
    sizes.map(encode_chunks),
    st.none() | st.integers(0, MAX_ID),
)


def test_a_manifest_is_written_as_in_the_golden_file() -> None:
    assert encode_manifest(NOW) + "\n" == (GOLDEN / "sink-manifest-v2.json").read_text("utf-8")


def test_a_manifest_of_version_1_is_read_for_ever() -> None:
    assert decode_manifest((GOLDEN / "sink-manifest-v1.json").read_bytes()) == BATCH


@given(st.lists(staged, max_size=5))
def test_a_manifest_comes_back_as_it_was(lists: list[StagedList]) -> None:
    assert decode_manifest(encode_manifest(lists)) == tuple(lists)


@given(sizes)
def test_runs_say_the_same_sizes_in_fewer_words(given_sizes: list[int]) -> None:
    runs = encode_chunks(given_sizes)
    assert [size for size, times in runs for _ in range(times)] == given_sizes
    assert all(left[0] != right[0] for left, right in pairwise(runs))


def test_a_million_rows_are_two_runs() -> None:
    assert encode_chunks([1000] * 1000 + [7]) == ((1000, 1000), (7, 1))


@given(sizes, st.data())
def test_a_move_never_crosses_a_chunk_border(given_sizes: list[int], data: st.DataObject) -> None:
    part = StagedList("q", 0, "k", encode_chunks(given_sizes))
    moved = data.draw(st.integers(0, part.rows))
    border = next((end for end in accumulate(given_sizes) if end > moved), moved)
    assert part.chunk_at(moved) == border - moved


@given(sizes, st.data())
def test_moves_from_anywhere_reach_the_end_of_the_list(
    given_sizes: list[int], data: st.DataObject
) -> None:
    part = StagedList("q", 0, "k", encode_chunks(given_sizes))
    moved = data.draw(st.integers(0, part.rows))
    for _ in range(len(given_sizes) + 1):
        moved += part.chunk_at(moved)
    assert moved == part.rows == sum(given_sizes)


rows = st.lists(st.binary(max_size=5), min_size=1, max_size=20)


def lists(queue: str, *parts: list[bytes]) -> list[StagedList]:
    return [
        StagedList(queue, 0, f"k{i}", ((len(part), 1),), digest(part))
        for i, part in enumerate(parts)
        if part
    ]


@given(rows, st.data())
def test_rows_are_the_same_in_whatever_order_and_parts_they_come(
    values: list[bytes], data: st.DataObject
) -> None:
    other, cut = data.draw(st.permutations(values)), data.draw(st.integers(0, len(values)))
    assert digest(values) == total_digest((digest(other[:cut]), digest(other[cut:]))) <= MAX_ID
    assert differences(("", lists("q", values)), ("", lists("q", other[:cut], other[cut:]))) == {}


@given(rows, rows)
def test_other_rows_are_another_batch(one: list[bytes], other: list[bytes]) -> None:
    same = sorted(one) == sorted(other)
    found = differences(("", lists("q", one)), ("a:b", lists("q", other)))
    assert (found == {}) == same
    assert found.get("by", "rows") == "rows"


def test_rows_for_another_queue_are_another_batch_and_an_error_names_some_of_the_queues() -> None:
    assert (
        differences(("", lists("q", [b"1"])), ("", lists("r", [b"1"])))["expected"]
        == "1 rows for 'r'"
    )
    many = [part for i in range(7) for part in lists(f"q{i}", [b"1"])]
    found = differences(("", []), ("", many))
    assert (found["found"], found["expected"].endswith("1 rows for 'q4' and 2 more queues")) == (
        "no rows",
        True,
    )


def test_where_the_offsets_are_known_they_decide() -> None:
    one, other = lists("q", [b"1"]), lists("q", [b"2", b"3"])
    assert differences(("abc:x", one), ("abc:", other)) == {}
    found = differences(("abc:x", one), ("abd:y", one))
    assert (found["by"], found["found"], found["expected"]) == ("offsets", "up to x", "up to y")
    assert "onChangedBatch" not in found["remedy"]


def test_of_a_manifest_without_digests_the_counts_decide() -> None:
    old = [replace(part, digest=None) for part in lists("q", [b"1", b"2"])]
    assert differences(("", old), ("", lists("q", [b"3", b"4"]))) == {}
    assert differences(("", old), ("", lists("q", [b"3"])))["by"] == "rows"


def test_a_segment_has_a_key_of_its_own_that_is_one_of_the_same_attempt() -> None:
    assert (
        next_segment("bus:queue:q:stage:batch:0:3:" + "0" * 16, "f" * 16)
        == "bus:queue:q:stage:batch:0:3:" + "f" * 16
    )


def test_a_digest_is_that_of_the_java_sink() -> None:
    assert digest([b"", b"a", "héllo".encode()]) == 6559055993


def test_a_span_names_the_checkpoint_and_one_of_an_older_version_does_not() -> None:
    end = '{"logOffset":0}\n{"a":"b:c"}'
    assert split_span(make_span("abc", end, "place")) == ("abc", end, "place")
    assert split_span(f"abc:{end}") == ("abc", end, "")
    assert split_span("") == ("", "", "")
    older, newer = (f"abc:{end}", BATCH), (make_span("abc", end, "place"), BATCH)
    assert differences(older, newer) == differences(newer, older) == {}


def test_targets_are_queues_or_topics_that_get_rows() -> None:
    parts = [
        StagedList(queue, 0, "k", ((rows, 1),))
        for queue, rows in (("t/1", 1), ("t/0", 2), ("q", 1), ("t", 0))
    ]
    assert targets(parts) == ["t/1", "t/0", "q"]
    assert targets(parts, topics=True) == ["t", "q"]
