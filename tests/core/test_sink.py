"""The manifest of a batch: bytes that outlive a process, and the chunk borders they carry."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.core.sink import Staged, decode_manifest, encode_manifest, encode_runs

GOLDEN = Path(__file__).parents[1] / "golden" / "sink-manifest-v1.json"
BATCH = (
    Staged("orders", 0, "bus:queue:orders:stage:7.0.1", ((1000, 3), (17, 1))),
    Staged("héllo 😀", 2, "bus:queue:héllo 😀:stage:7.1.0", ((1, 1),)),
    Staged("orders", 0, "bus:queue:orders:stage:7.1.0", ()),
)
sizes = st.lists(st.integers(1, 1000), max_size=30)
staged = st.builds(Staged, st.text(min_size=1), st.integers(0, 9), st.text(min_size=1), sizes.map(encode_runs))


def test_a_manifest_is_written_as_in_the_golden_file() -> None:
    assert encode_manifest(BATCH) + "\n" == GOLDEN.read_text("utf-8")


def test_a_manifest_of_version_1_is_read_for_ever() -> None:
    assert decode_manifest(GOLDEN.read_bytes()) == BATCH


@given(st.lists(staged, max_size=5))
def test_a_manifest_comes_back_as_it_was(lists: list[Staged]) -> None:
    assert decode_manifest(encode_manifest(lists)) == tuple(lists)


@given(sizes)
def test_runs_say_the_same_sizes_in_fewer_words(given_sizes: list[int]) -> None:
    runs = encode_runs(given_sizes)
    assert [size for size, times in runs for _ in range(times)] == given_sizes
    assert all(left[0] != right[0] for left, right in pairwise(runs))


def test_a_million_rows_are_two_runs() -> None:
    assert encode_runs([1000] * 1000 + [7]) == ((1000, 1000), (7, 1))


@given(sizes, st.data())
def test_a_move_never_crosses_a_chunk_border(given_sizes: list[int], data: st.DataObject) -> None:
    part = Staged("q", 0, "k", encode_runs(given_sizes))
    moved = data.draw(st.integers(0, part.rows))
    border = next((end for end in accumulate(given_sizes) if end > moved), moved)
    assert part.chunk_at(moved) == border - moved


@given(sizes, st.data())
def test_moves_from_anywhere_reach_the_end_of_the_list(given_sizes: list[int], data: st.DataObject) -> None:
    part = Staged("q", 0, "k", encode_runs(given_sizes))
    moved = data.draw(st.integers(0, part.rows))
    for _ in range(len(given_sizes) + 1):
        moved += part.chunk_at(moved)
    assert moved == part.rows == sum(given_sizes)
