"""The push of the exactly-once sink in real-time mode: a message is appended once, whatever is sent
again, late, or by a task that was given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import MessageRefused
from busmq_spark.queue.command_generators import script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.redis_io.sync_link import SyncLink
from tests.clocks import noted
from tests.contract.conftest import Born, Redis
from tests.contract.sinks import numbered, stored

Row = tuple[str, int, int]
"""Born, id and index of an origin."""
ROWS: list[Row] = [
    ("a", 1, 0),
    ("a", 2, 0),
    ("a", 2, 1),
    ("a", 5, 0),
    ("b", 1, 0),
    ("b", 2**53 - 2, 0),
    ("a", 6, 0),
]


def value(row: Row) -> bytes:
    return ":".join(map(str, row)).encode()


def push(link: SyncLink, keys: QueueKeys, rows: Sequence[Row], query: str = "query") -> list[int]:
    """As SinkStore.pushOnce: neighbours of one origin share a head."""
    words: list[Any] = [keys.available, query, MIN_RECORD_TTL_S]
    at = 0
    while at < len(rows):
        until = at + 1
        while until < len(rows) and rows[until][0] == rows[at][0]:
            until += 1
        words += [rows[at][0], until - at]
        for row in rows[at:until]:
            words += [row[1], row[2], value(row)]
        at = until
    found: list[int] = link.execute(
        script("push_once", (*keys.peer_keys, keys.sinks, keys.clock), words)
    )
    return found


def test_rows_are_appended_in_their_order_and_their_origins_noted(
    born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born()
    assert push(link, keys, ROWS) == [1, len(ROWS)]
    assert stored(link.execute, keys) == numbered([value(row) for row in ROWS])
    assert redis("HGET", keys.sinks, "query;a") == b"6:0"
    assert redis("HGET", keys.sinks, "query;b") == b"9007199254740990:0"
    assert 0 < redis("TTL", keys.metadata) <= redis("TTL", keys.sinks)
    assert [each.id for each in noted(redis, keys)] == [0, len(ROWS)]


def test_queries_and_lives_of_a_queue_do_not_know_of_each_other(born: Born, link: SyncLink) -> None:
    keys, _ = born()
    for query, origin in (("one", "a"), ("two", "a"), ("one", "b")):
        push(link, keys, [(origin, 1, 0)], query)
    assert [body for _, body in stored(link.execute, keys)] == [b"a:1:0", b"a:1:0", b"b:1:0"]


@given(sent=st.lists(st.tuples(st.integers(0, len(ROWS)), st.integers(0, len(ROWS))), max_size=8))
def test_whatever_is_sent_again_each_message_is_there_once_and_in_order(
    born: Born, link: SyncLink, sent: list[tuple[int, int]]
) -> None:
    """A task sends on from where it is, or all from the beginning; another one that was given up
    sends what it has sent, or was about to.
    """
    keys, _ = born()
    done = 0
    for back, count in sent:
        begin = max(0, done - back)  # of rows in the order of their queues nobody leaves one out
        rows = ROWS[begin : begin + count]
        assert push(link, keys, rows)[1] == len(rows)
        done = max(done, begin + len(rows))
        assert [body for _, body in stored(link.execute, keys)] == [
            value(row) for row in ROWS[:done]
        ]


@pytest.mark.parametrize("room", range(len(ROWS) + 1))
def test_a_queue_at_its_maxsize_takes_what_fits_and_repeats_need_no_room(
    born: Born, link: SyncLink, room: int
) -> None:
    keys, _ = born(maxsize=3 + room)
    push(link, keys, ROWS[:3])
    assert push(link, keys, ROWS)[1] == min(3 + room, len(ROWS))
    assert len(stored(link.execute, keys)) == min(3 + room, len(ROWS))
    assert push(link, keys, ROWS[:3])[1] == 3, "all of it is there already"


def test_a_queue_that_is_missing_or_out_of_ids_takes_nothing(
    born: Born, link: SyncLink, redis: Redis, fresh_keys: Any
) -> None:
    assert push(link, fresh_keys(), ROWS) == [0, -1]
    keys, _ = born()
    redis("SET", keys.msgid, 2**53 - 2)
    with pytest.raises(MessageRefused, match="used up its ids"):
        push(link, keys, ROWS)
    assert redis("EXISTS", keys.sinks) == 0
