"""What the clock of an origin proves about copied ids, and what it does not."""

from __future__ import annotations

import pytest

from busmq_spark.mirror.copy_planning import ClockExcerpt, Witness

COPIED = Witness(20_500, 100)


@pytest.mark.parametrize(
    ("pairs", "proof"),
    [
        ([(10_000, 50), (30_000, 150)], True),
        ([(10_000, 50)], True),
        ([(10_000, 50), (20_100, 70), (30_000, 150)], True),
        ([(10_000, 50), (20_500, 100), (30_000, 150)], False),
        ([(10_000, 50), (20_900, 120)], False),
        ([(30_000, 150)], False),
        ([(25_000, 110), (30_000, 150)], False),
        ([], False),
        ([(20_900, 90), (30_000, 150)], False),
    ],
    ids=[
        "later times only",
        "none after the rollback yet",
        "fewer ids in that second",
        "the pair itself",
        "overwritten within its second",
        "dropped up to a later one",
        "dropped, and begun again",
        "none",
        "a clock that stood still",
    ],
)
def test_other_times_prove_another_history_unless_they_may_have_been_dropped(
    pairs: list[tuple[int, int]], proof: bool
) -> None:
    clock = ClockExcerpt("b", [Witness(*pair) for pair in pairs])
    assert (clock.contradiction(COPIED) is not None) == proof
    assert clock.contradiction(Witness()) is None


def test_a_witness_is_kept_as_text_and_any_other_text_is_none() -> None:
    assert Witness.parse(str(COPIED)) == COPIED
    for text in ("", ":", "x:1", "1:", "1"):
        assert not Witness.parse(text).id
