"""Reading an id range from a list that others trim, push to and tear holes into while replies are
under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.queue.command_generators import RedisCall, run_sync
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.range_reader import (
    DEEP_WINDOW_MESSAGES,
    FIRST_REPLY_ROWS,
    MAX_COUNTED_ROWS,
    MAX_REPLY_BYTES,
    MAX_REPLY_ROWS,
    ROWS_NOT_WORTH_COUNTING,
    ROWS_OF_UNKNOWN_SIZE,
    TARGET_REPLY_BYTES,
    RangeCursor,
    ReplyRowBounds,
    ValueSizeStats,
    read_range_start,
)

KEYS = QueueKeys("q")
VALUE_BYTES = (
    200_000  # so large that windows shrink to about 15 rows: short ranges then need many of them
)


@dataclass
class SimulatedList:
    """The ids in the list; between two commands the next change happens."""

    ids: list[int]
    changes: Iterator[tuple[str, int]]
    given: int = field(init=False)
    trimmed: int = 0

    def __post_init__(self) -> None:
        self.given = self.ids[-1]

    def lrange(self, call: RedisCall) -> list[int]:
        start, rows = asked(call)
        reply = self.ids[start : start + rows]
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


def asked(call: RedisCall | None) -> tuple[int, int]:
    """Where a window begins, and of how many messages it is at most."""
    assert call is not None
    if call.script:
        key, start, rows, room, _ = call.words
        assert (call.script.name, key, room) == ("window", KEYS.messages, TARGET_REPLY_BYTES)
        assert isinstance(start, int)
        assert isinstance(rows, int)
        return start, rows
    name, key, start, stop = call.words
    assert (name, key) == ("LRANGE", KEYS.messages)
    assert isinstance(start, int)
    assert isinstance(stop, int)
    assert start % 2 == 0
    assert stop % 2 == 1
    return start // 2, (stop - start + 1) // 2


def read(stored: SimulatedList, first: int, last: int) -> tuple[list[int], bool]:
    """As the source reads: window by window; after a miss, or a last reply cut short, a new cursor
    starts at the head.
    """
    taken: list[int] = []
    for _ in range(200):
        need = first + len(taken)
        oldest = stored.head()
        if need > last or oldest == 0 or oldest > need:
            break
        cursor = RangeCursor(KEYS, need, last, oldest)
        while True:
            if (call := cursor.ask()) is None:
                return taken, True
            ids = stored.lrange(call)
            piece = cursor.take(
                ids[0] if ids else 0, ids[-1] if ids else 0, len(ids), VALUE_BYTES * len(ids)
            )
            if piece is None:
                break
            taken += ids[piece.start : piece.stop]
    return taken, False


def changes(*kinds: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(1, 60)), max_size=40)


@given(
    st.integers(1, 50),
    st.integers(1, 300),
    changes("trim", "push", "hole", "restore", "nothing"),
    st.data(),
)
def test_what_a_cursor_takes_is_in_order_and_without_gaps_whatever_happens(
    oldest: int, size: int, happens: list[tuple[str, int]], data: st.DataObject
) -> None:
    stored = SimulatedList(list(range(oldest, oldest + size)), iter(happens))
    first = data.draw(st.integers(oldest, oldest + size - 1))
    last = data.draw(st.integers(first, oldest + size - 1))
    taken, _ = read(stored, first, last)
    assert taken == list(range(first, first + len(taken)))
    assert len(taken) <= last - first + 1


@given(
    st.integers(1, 300),
    st.integers(100, 300),
    st.lists(
        st.tuples(st.sampled_from(["trim", "push", "nothing"]), st.integers(1, 20)), max_size=15
    ),
)
def test_a_range_is_read_to_its_end_while_only_older_messages_are_dropped(
    older: int, size: int, happens: list[tuple[str, int]]
) -> None:
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
def test_a_range_ends_early_only_when_its_next_message_is_gone(
    size: int, happens: list[tuple[str, int]]
) -> None:
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
    assert cursor.take(3, 11, 9, 90) == ReplyRowBounds(2, 7)
    assert cursor.done


def test_windows_cover_the_range_once_and_then_there_is_nothing_to_ask() -> None:
    cursor, need = RangeCursor(KEYS, 11, 11 + 2 * FIRST_REPLY_ROWS, 1), 11
    while not cursor.done:
        start, rows = asked(cursor.ask())
        assert start == need - 1
        assert cursor.take(need, need + rows - 1, rows, rows) == ReplyRowBounds(0, rows)
        need += rows
    assert need == 12 + 2 * FIRST_REPLY_ROWS
    assert cursor.ask() is None


@given(st.lists(st.integers(0, 50_000_000), min_size=1, max_size=20))
def test_a_window_aims_at_the_bytes_of_a_reply_and_grows_fourfold_at_most(
    value_sizes: list[int],
) -> None:
    cursor = RangeCursor(KEYS, 1, 10**9, 1)
    need, rows_before = 1, FIRST_REPLY_ROWS
    for value_size in value_sizes:
        _, rows = asked(cursor.ask())
        assert 1 <= rows <= min(4 * rows_before, MAX_REPLY_ROWS)
        cursor.take(need, need + rows - 1, rows, rows * value_size)
        need, rows_before = need + rows, rows
        _, next_rows = asked(cursor.ask())
        assert next_rows == 1 or next_rows * value_size <= TARGET_REPLY_BYTES
        cursor.take(need, need + next_rows - 1, next_rows, next_rows * value_size)
        need, rows_before = need + next_rows, next_rows


def test_the_first_window_follows_the_length_of_values_there() -> None:
    for value_bytes, rows in (
        (0, FIRST_REPLY_ROWS),
        (10, FIRST_REPLY_ROWS),
        (TARGET_REPLY_BYTES // 7, 7),
        (10 * TARGET_REPLY_BYTES, 1),
    ):
        assert asked(RangeCursor(KEYS, 1, 10**6, 1, value_bytes).ask()) == (0, rows)


@pytest.mark.parametrize(
    ("before", "rows"),
    [(DEEP_WINDOW_MESSAGES - 1, FIRST_REPLY_ROWS), (DEEP_WINDOW_MESSAGES, 4 * FIRST_REPLY_ROWS)],
)
def test_a_range_far_from_the_head_starts_with_a_larger_window(before: int, rows: int) -> None:
    cursor = RangeCursor(KEYS, 7 + before, 10**9, 7, sizes=ValueSizeStats(1, 10**10, 100))
    assert asked(cursor.ask()) == (before, rows)


def window(sizes: ValueSizeStats, first: int = 1, rows: int = MAX_REPLY_ROWS) -> tuple[bool, int]:
    """Whether a LRANGE asks for the window from ``first`` on, when values were so short that
    ``rows`` fit; and for how many it asks.
    """
    cursor = RangeCursor(KEYS, first, 10**9, 1, sizes=sizes)
    cursor._rows = rows
    call = cursor.ask()
    assert call is not None
    return call.script is None, asked(call)[1]


def test_what_is_noted_of_values_says_how_many_come_in_one_reply() -> None:
    assert window(ValueSizeStats(1, 10**6, 100)) == (True, MAX_REPLY_ROWS)
    assert window(ValueSizeStats(1, 10**6, 5000)) == (True, MAX_REPLY_BYTES // 5000)
    assert window(ValueSizeStats(1, 10**6, 100, 40, 2**20), first=41) == (True, MAX_REPLY_ROWS)
    assert window(ValueSizeStats(1, 10**6, 100, 40, 2**20), first=40) == (
        False,
        MAX_COUNTED_ROWS,
    )  # one of 1 MB is ahead
    assert window(ValueSizeStats(1, 10**6, 100, 40, 60_000), first=40) == (
        True,
        MAX_REPLY_BYTES // 60_000,
    )
    assert window(ValueSizeStats(1, 10**6, 100, 10**6, 2**20), rows=4) == (True, 4)
    assert window(ValueSizeStats(1, 10**6, 0, 10**6, 2**40), rows=1) == (True, 1)


def test_where_nothing_is_noted_more_than_a_few_come_by_a_script_that_counts_their_bytes() -> None:
    assert (
        window(ValueSizeStats())
        == window(ValueSizeStats(50, 10**6, 100), first=49)
        == window(ValueSizeStats(1, 50, 100), first=51)
        == (False, MAX_COUNTED_ROWS)
    )
    assert window(ValueSizeStats(), rows=ROWS_OF_UNKNOWN_SIZE) == (True, ROWS_OF_UNKNOWN_SIZE)
    assert window(ValueSizeStats(1, 2000, 100), first=1001) == (True, 1000)
    assert window(ValueSizeStats(1, 2000, 100), first=2000) == (False, MAX_COUNTED_ROWS)
    assert window(ValueSizeStats(), rows=ROWS_NOT_WORTH_COUNTING - 1) == (
        False,
        ROWS_NOT_WORTH_COUNTING - 1,
    )


@pytest.mark.parametrize(
    "noted", [b"", b"1:2", b"1:2:3:4:", b"1:2:3:4:5:6", b"1:2:x:4:5", b"1:2:-3:4:5"]
)
def test_a_note_of_sizes_that_no_writer_of_ours_made_says_nothing(noted: bytes) -> None:
    assert ValueSizeStats.parse(noted) == ValueSizeStats()
    assert ValueSizeStats.parse(b"1:2:3:4:5") == ValueSizeStats(1, 2, 3, 4, 5)


def test_after_a_reply_of_fewer_messages_the_next_window_begins_behind_them() -> None:
    cursor = RangeCursor(KEYS, 1, 10**6, 1)
    assert asked(cursor.ask()) == (0, FIRST_REPLY_ROWS)
    assert cursor.take(1, 7, 7, 7 * 2**20) == ReplyRowBounds(0, 7)
    assert asked(cursor.ask()) == (7, 4)


def test_the_head_of_a_queue_without_a_name_or_messages_is_empty() -> None:
    assert run_sync(read_range_start(KEYS, 1), lambda step: [b"", b"", 0, b""]) == (
        "",
        0,
        0,
        ValueSizeStats(),
    )
    assert run_sync(
        read_range_start(KEYS, 1), lambda step: [b"b1", b"12", 100, b"9:20:100:0:0"]
    ) == ("b1", 12, 100, ValueSizeStats(9, 20, 100))
