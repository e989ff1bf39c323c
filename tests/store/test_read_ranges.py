"""Many ranges read at once: the same rows and the same errors as one range after the other, in far
fewer round trips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from busmq_spark.errors import BusError, QueueExpired
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.range_connection import RangeConnection
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.store import redis_range
from busmq_spark.store.protocol import ConsecutiveMessages, FullQueueWait, QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.conftest import Fresh
from tests.layouts import LAYOUTS, servers_of

pytestmark = pytest.mark.redis
HOUR = QueueCreateOptions(allowed=True, ttl_s=3600)
Row = tuple[str, int, bytes]
Fill = Callable[..., Range]


@pytest.fixture(params=LAYOUTS)
def store(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    made = open_store(RedisOptions(**servers_of(request.param, request.getfixturevalue)))
    yield made
    made.close()


@pytest.fixture
def fill(store: RedisStore, fresh: Fresh) -> Fill:
    """Makes a queue of these values; the range of all of them."""

    def make(values: Sequence[bytes]) -> Range:
        queue = fresh()
        born = store.attach([queue], HOUR)[queue].born
        store.appender().push(queue, values, FullQueueWait(0))
        return Range(queue, born, 1, len(values), store.locate([queue])[queue])

    return make


def spoil(store: RedisStore, part: Range, *words: Any) -> None:
    """One plain command on the server of the queue."""
    store._links[part.server].execute(command(*words))


def until_it_ends(pieces: Iterator[ConsecutiveMessages]) -> tuple[list[Row], str]:
    """The rows, and the error after them."""
    rows: list[Row] = []
    try:
        for piece in pieces:
            rows += [
                (piece.queue, piece.first + n, value)
                for n, value in enumerate(piece.values.to_pylist())
            ]
    except BusError as error:
        return rows, str(error)
    return rows, ""


def one_by_one(
    store: RedisStore, parts: Sequence[Range], strict: bool
) -> Iterator[ConsecutiveMessages]:
    for part in parts:
        yield from store.read(part, strict)


def trimmed(store: RedisStore, part: Range) -> None:
    spoil(store, part, "LTRIM", store.keys(part.queue).messages, 4, -1)


def holed(store: RedisStore, part: Range) -> None:
    messages = store.keys(part.queue).messages
    for index in (2, 3) if part.rows > 1 else ():
        spoil(store, part, "LSET", messages, index, "nothing")
    spoil(store, part, "LREM", messages, 0, "nothing")


def emptied(store: RedisStore, part: Range) -> None:
    spoil(store, part, "DEL", store.keys(part.queue).messages)


def closed(store: RedisStore, part: Range) -> None:
    keys = store.keys(part.queue)
    spoil(store, part, "DEL", keys.messages, keys.metadata, keys.msgid)


def created_again(store: RedisStore, part: Range) -> None:
    spoil(store, part, "HSET", store.keys(part.queue).metadata, "born", "another life")


def untouched(store: RedisStore, part: Range) -> None:
    pass


HARMS = [untouched, untouched, trimmed, holed, emptied, closed, created_again]
lengths = st.lists(
    st.sampled_from([0, 1, 100, 30_000, redis_range.SHORT_RANGE_BYTES + 1]), min_size=1, max_size=6
)
many = st.integers(redis_range.SHORT_RANGE_ROWS, redis_range.SHORT_RANGE_ROWS + 1).map(
    lambda rows: [1] * rows
)
queues = st.lists(
    st.tuples(st.one_of(lengths, lengths, many), st.sampled_from(HARMS)), min_size=1, max_size=8
)


@settings(max_examples=50)
@given(queues, st.booleans())
@example([([1, 1], untouched), ([1, 1, 1], closed), ([1], untouched)], False)
@example([([1, 1], untouched), ([1, 1, 1], created_again), ([1], untouched)], True)
@example(
    [
        ([1], untouched),
        ([0, redis_range.SHORT_RANGE_BYTES + 1, 1], untouched),
        ([1] * 251, untouched),
        ([2], untouched),
    ],
    True,
)
def test_the_rows_and_the_error_are_those_of_one_range_after_the_other(
    store: RedisStore, fill: Fill, wanted: list[tuple[list[int], Any]], strict: bool
) -> None:
    parts = []
    for sizes, harm in wanted:
        part = fill([b"%d" % n + b"x" * size for n, size in enumerate(sizes)])
        harm(store, part)
        parts.append(part)
    try:
        assert until_it_ends(store.read_many(parts, strict)) == until_it_ends(
            one_by_one(store, parts, strict)
        )
    finally:
        for part in parts:
            closed(store, part)


def test_rows_before_a_loss_are_read_and_the_loss_is_an_error(
    store: RedisStore, fill: Fill
) -> None:
    good, gone = fill([b"1", b"2"]), fill([b"1"])
    closed(store, gone)
    rows = store.read_many([good, gone], True)
    assert next(rows).values.to_pylist() == [b"1", b"2"]
    with pytest.raises(QueueExpired, match=gone.queue):
        list(rows)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes to Redis, a round trip each."""
    seen: list[str] = []
    execute, post = SyncLink.execute, RangeConnection.post

    def counted(link: SyncLink, step: Any) -> Any:
        seen.append("step")
        return execute(link, step)

    def posted(link: RangeConnection, *calls: Any) -> Any:
        seen.append("window")
        return post(link, *calls)

    monkeypatch.setattr(SyncLink, "execute", counted)
    monkeypatch.setattr(RangeConnection, "post", posted)
    return seen


@pytest.mark.parametrize("store", ["direct"], indirect=True)
def test_short_ranges_take_one_round_trip_for_dozens(
    store: RedisStore, fill: Fill, asked: list[str]
) -> None:
    parts = [fill([b"value"] * 10) for _ in range(3 * redis_range.MAX_SHORT_RANGES_PER_ROUND_TRIP)]
    asked.clear()
    assert sum(len(piece.values) for piece in store.read_many(parts, True)) == 10 * len(parts)
    assert asked == ["step"] * 3


@pytest.mark.parametrize("store", ["direct"], indirect=True)
def test_one_round_trip_brings_so_many_rows_and_not_more(
    store: RedisStore, fill: Fill, asked: list[str]
) -> None:
    parts = [fill([b"v"] * redis_range.SHORT_RANGE_ROWS) for _ in range(20)]
    asked.clear()
    assert (
        sum(len(piece.values) for piece in store.read_many(parts, True))
        == 20 * redis_range.SHORT_RANGE_ROWS
    )
    assert asked == ["step"] * (
        20 * redis_range.SHORT_RANGE_ROWS // redis_range.MAX_SHORT_ROWS_PER_ROUND_TRIP
    )
