"""Reading an id range from a list that others trim, push to and tear holes into while replies are under way."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.core.flow import Call, run_sync
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.ranges import DEEP, FIRST_ROWS, MOST_ROWS, TARGET_BYTES, RangeCursor, Slice, probe

KEYS = QueueKeys("q")
DEPTH = 3
VALUE_BYTES = 200_000  # so large that windows shrink to about 15 rows: short ranges then need many of them


@dataclass
class SimulatedList:
    """The ids in the list; between two commands the next change happens."""

    ids: list[int]
    changes: Iterator[tuple[str, int]]
    given: int = field(init=False)
    trimmed: int = 0

    def __post_init__(self) -> None:
        self.given = self.ids[-1]

    def lrange(self, call: Call) -> list[int]:
        name, key, start, stop = call.words
        assert (name, key) == ("LRANGE", KEYS.messages)
        assert isinstance(start, int)
        assert isinstance(stop, int)
        assert start % 2 == 0
        assert stop % 2 == 1
        reply = self.ids[start // 2 : stop // 2 + 1]
        self.change()
        return reply

    def head(self) -> int:
        found = self.ids[0] if self.ids else 0
        self.change()
        return found

    def change(self) -> None:
        what, size = next(self.changes, ("nothing", 0))
        if what == "trim":
            self.trimmed = max(self.trimmed, *self.ids[:size], 0)
            del self.ids[:size]
        elif what == "push":
            self.ids += range(self.given + 1, self.given + 1 + size)
            self.given += size
        elif what == "hole" and self.ids:
            del self.ids[size % len(self.ids)]
        elif what == "restore" and self.ids:
            self.ids[:0] = range(max(1, self.ids[0] - size), self.ids[0])


def read(stored: SimulatedList, first: int, last: int) -> tuple[list[int], bool]:
    """As the source reads: a cursor with several windows under way; after a miss, or a last reply cut short, a new cursor starts at the head."""
    taken: list[int] = []
    for _ in range(200):
        need = first + len(taken)
        oldest = stored.head()
        if need > last or oldest == 0 or oldest > need:
            break
        cursor = RangeCursor(KEYS, need, last, oldest)
        replies: deque[list[int]] = deque()
        while True:
            while len(replies) < DEPTH and (call := cursor.ask()) is not None:
                replies.append(stored.lrange(call))
            if not replies:
                if cursor.done:
                    return taken, True
                break  # the head moved back under the last window, which was cut short for it
            ids = replies.popleft()
            piece = cursor.take(ids[0] if ids else 0, ids[-1] if ids else 0, len(ids), VALUE_BYTES * len(ids))
            if piece is None:
                break
            taken += ids[piece.start : piece.stop]
    return taken, False


def changes(*kinds: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(1, 60)), max_size=40)


@given(st.integers(1, 50), st.integers(1, 300), changes("trim", "push", "hole", "restore", "nothing"), st.data())
def test_what_a_cursor_takes_is_in_order_and_without_gaps_whatever_happens(
    oldest: int, size: int, happens: list[tuple[str, int]], data: st.DataObject
) -> None:
    stored = SimulatedList(list(range(oldest, oldest + size)), iter(happens))
    first = data.draw(st.integers(oldest, oldest + size - 1))
    last = data.draw(st.integers(first, oldest + size - 1))
    taken, _ = read(stored, first, last)
    assert taken == list(range(first, first + len(taken)))
    assert len(taken) <= last - first + 1


@given(st.integers(1, 300), st.integers(100, 300), st.lists(st.tuples(st.sampled_from(["trim", "push", "nothing"]), st.integers(1, 20)), max_size=15))
def test_a_range_is_read_to_its_end_while_only_older_messages_are_dropped(older: int, size: int, happens: list[tuple[str, int]]) -> None:
    first = 1 + older
    budget = iter(happens)

    def only_older() -> Iterator[tuple[str, int]]:
        for what, many in budget:
            safe = min(many, max(0, first - stored.ids[0]))
            yield (what, safe) if what == "trim" else (what, many)

    stored = SimulatedList(list(range(1, first + size)), iter(()))
    stored.changes = only_older()
    assert read(stored, first, first + size - 1) == (list(range(first, first + size)), True)


@given(st.integers(1, 200), changes("trim", "nothing"))
def test_a_range_ends_early_only_when_its_next_message_is_gone(size: int, happens: list[tuple[str, int]]) -> None:
    stored = SimulatedList(list(range(1, 1 + size)), iter(happens))
    taken, whole = read(stored, 1, size)
    assert whole == (len(taken) == size)
    assert whole or stored.trimmed > len(taken)


def test_a_reply_with_a_hole_is_not_taken() -> None:
    cursor = RangeCursor(KEYS, 5, 9, 1)
    cursor.ask()
    assert cursor.take(5, 9, 4, 40) is None
    assert not cursor.done


def test_an_empty_reply_is_not_taken() -> None:
    assert RangeCursor(KEYS, 5, 9, 1).take(0, 0, 0, 0) is None


def test_the_overlap_of_a_reply_that_starts_earlier_is_used() -> None:
    cursor = RangeCursor(KEYS, 5, 9, 4)
    cursor.ask()
    assert cursor.take(3, 11, 9, 90) == Slice(2, 7)
    assert cursor.done


def test_windows_cover_the_range_once_and_then_there_is_nothing_to_ask() -> None:
    cursor = RangeCursor(KEYS, 11, 11 + 2 * FIRST_ROWS, 1)
    windows = []
    while (call := cursor.ask()) is not None:
        windows.append(call.words[2:])
    assert windows[0][0] == 2 * 10
    assert all(left[1] == int(right[0]) - 1 for left, right in itertools.pairwise(windows))
    assert windows[-1][1] == 2 * (10 + 2 * FIRST_ROWS) + 1


@given(st.lists(st.integers(0, 50_000_000), min_size=1, max_size=20))
def test_a_window_aims_at_the_bytes_of_a_reply_and_grows_fourfold_at_most(value_sizes: list[int]) -> None:
    cursor = RangeCursor(KEYS, 1, 10**9, 1)
    need, rows_before = 1, FIRST_ROWS
    for value_size in value_sizes:
        call = cursor.ask()
        assert call is not None
        rows = (int(call.words[3]) - int(call.words[2]) + 1) // 2
        assert 1 <= rows <= min(4 * rows_before, MOST_ROWS)
        cursor.take(need, need + rows - 1, rows, rows * value_size)
        need, rows_before = need + rows, rows
        following = RangeCursor.ask(cursor)
        assert following is not None
        next_rows = (int(following.words[3]) - int(following.words[2]) + 1) // 2
        assert next_rows == 1 or next_rows * value_size <= TARGET_BYTES
        cursor.take(need, need + next_rows - 1, next_rows, next_rows * value_size)
        need, rows_before = need + next_rows, next_rows


def test_the_first_window_follows_the_length_of_values_there() -> None:
    for value_bytes, rows in ((0, FIRST_ROWS), (10, FIRST_ROWS), (TARGET_BYTES // 7, 7), (10 * TARGET_BYTES, 1)):
        call = RangeCursor(KEYS, 1, 10**6, 1, value_bytes).ask()
        assert call is not None
        assert call.words[3] == 2 * rows - 1


@pytest.mark.parametrize(("before", "rows"), [(DEEP - 1, FIRST_ROWS), (DEEP, 4 * FIRST_ROWS)])
def test_a_range_far_from_the_head_starts_with_a_larger_window(before: int, rows: int) -> None:
    call = RangeCursor(KEYS, 7 + before, 10**9, 7).ask()
    assert call is not None
    assert call.words[2:] == (2 * before, 2 * (before + rows) - 1)


def test_the_head_of_a_queue_without_a_name_or_messages_is_empty() -> None:
    assert run_sync(probe(KEYS, 1), lambda step: [b"", b"", 0]) == ("", 0, 0)
    assert run_sync(probe(KEYS, 1), lambda step: [b"b1", b"12", 100]) == ("b1", 12, 100)
