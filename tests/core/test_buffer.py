"""What waits for a slow listener stays within its bounds, whatever comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.bus.waiting import DropOldestBuffer

steps = st.lists(st.one_of(st.binary(max_size=8), st.none()), max_size=60)


@given(steps, st.integers(1, 5), st.integers(1, 20))
def test_it_keeps_the_newest_in_order_within_both_bounds(
    steps: list[bytes | None], most: int, most_bytes: int
) -> None:
    buffer, model, dropped = DropOldestBuffer(most, most_bytes), list[bytes](), 0
    for value in steps:
        if value is not None:
            model.append(value)
            out = 0
            while len(model) > 1 and (len(model) > most or sum(map(len, model)) > most_bytes):
                del model[0]
                out += 1
            dropped += out
            assert buffer.put(value) == out
        elif model:
            assert buffer.take() == model.pop(0)
        assert len(buffer) == len(model)
        assert buffer.dropped == dropped
    assert [buffer.take() for _ in model] == model


def test_one_large_value_fits_when_it_is_alone() -> None:
    buffer = DropOldestBuffer(3, 10)
    assert buffer.put(b"small") == 0
    assert buffer.put(b"x" * 100) == 1
    assert buffer.take() == b"x" * 100


def test_what_is_forgotten_does_not_count_as_dropped() -> None:
    buffer = DropOldestBuffer(2, 10)
    buffer.put(b"a")
    buffer.clear()
    assert (len(buffer), buffer.dropped) == (0, 0)
    assert buffer.put(b"x" * 10) == 0
