"""What an outbox forwards: a message of a sender is appended once, whatever is sent again, late, in
part, or to another life of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import QueueMissing
from busmq_spark.queue.message import CHUNK_MESSAGES
from busmq_spark.queue.queue import attach, delete, pop
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.writing.idempotent_push import SENDER_TTL_S, push_from
from tests.clocks import noted
from tests.contract.conftest import Born, Redis, Run
from tests.contract.sinks import numbered, stored

NUMBERS = (1, 2, 5, 6, 9, 2**40, 2**53 - 1)
"""Those between are for other queues."""


def values(numbers: Sequence[int], sender: str = "a") -> list[bytes]:
    return [f"{sender}{number}".encode() for number in numbers]


def test_messages_are_appended_in_their_order_and_their_sender_is_noted(
    born: Born, run: Run, link: Link, redis: Redis
) -> None:
    keys, _ = born()
    assert run(push_from(keys, "a", NUMBERS, values(NUMBERS))) == (len(NUMBERS), 0)
    assert stored(link.execute, keys) == numbered(values(NUMBERS))
    sequence, _, at = redis("HGET", keys.senders, "a").partition(b":")
    assert int(sequence) == NUMBERS[-1]
    assert abs(int(at) - int(redis("TIME")[0])) < 60
    assert 0 < redis("TTL", keys.metadata) <= 60 < redis("TTL", keys.senders) <= SENDER_TTL_S
    assert [each.id for each in noted(redis, keys)] == [0, len(NUMBERS)]


@given(
    sent=st.lists(st.tuples(st.integers(0, len(NUMBERS)), st.integers(0, len(NUMBERS))), max_size=8)
)
def test_whatever_is_sent_again_each_message_is_there_once_and_in_order(
    born: Born, link: Link, sent: list[tuple[int, int]]
) -> None:
    """A forwarder sends on from where it is, or again from before; a packet of a connection that
    was given up brings what was sent once.
    """
    keys, _ = born()
    done = 0
    for back, count in sent:
        begin = max(0, done - back)
        some = NUMBERS[begin : begin + count]
        assert link.run(push_from(keys, "a", some, values(some))) == (len(some), 0)
        done = max(done, begin + len(some))
        assert [body for _, body in stored(link.execute, keys)] == values(NUMBERS[:done])


def test_senders_do_not_know_of_each_other(born: Born, link: Link) -> None:
    keys, _ = born()
    for sender in ("a", "b", "a"):
        link.run(push_from(keys, sender, (1, 2), values((1, 2), sender)))
    assert [body for _, body in stored(link.execute, keys)] == [b"a1", b"a2", b"b1", b"b2"]


@pytest.mark.parametrize("room", range(len(NUMBERS) + 1))
def test_a_queue_at_its_maxsize_takes_what_fits_and_repeats_need_no_room(
    born: Born, link: Link, room: int
) -> None:
    keys, _ = born(maxsize=room + 1)
    link.run(push_from(keys, "b", (1,), values((1,), "b")))
    for _ in range(2):
        full = room < len(NUMBERS)
        assert link.run(push_from(keys, "a", NUMBERS, values(NUMBERS))) == (
            room,
            room + 1 if full else 0,
        )
        assert [body for _, body in stored(link.execute, keys)] == [b"b1", *values(NUMBERS[:room])]
    link.run(pop(keys, most=room + 1))
    link.run(push_from(keys, "a", NUMBERS, values(NUMBERS)))
    assert [body for _, body in stored(link.execute, keys)] == values(NUMBERS[room:])[: room + 1]


def test_a_queue_beyond_its_maxsize_takes_nothing(
    born: Born, run: Run, link: Link, redis: Redis
) -> None:
    """The maxsize was lowered."""
    keys, _ = born(maxsize=5)
    link.run(push_from(keys, "b", range(1, 6), values(range(1, 6), "b")))
    redis("HSET", keys.metadata, "maxsize", 2)
    for sender in ("a", "b"):
        assert run(push_from(keys, sender, NUMBERS, values(NUMBERS))) == (
            (0, 2) if sender == "a" else (3, 2)
        )
    assert stored(link.execute, keys) == numbered(values(range(1, 6), "b"))


def test_more_than_a_chunk_stops_where_the_queue_is_full(born: Born, run: Run, link: Link) -> None:
    keys, _ = born(maxsize=CHUNK_MESSAGES + 500)
    many = range(1, 3 * CHUNK_MESSAGES)
    assert run(push_from(keys, "a", many, values(many))) == (
        CHUNK_MESSAGES + 500,
        CHUNK_MESSAGES + 500,
    )
    assert stored(link.execute, keys) == numbered(values(many[: CHUNK_MESSAGES + 500]))


def test_a_message_that_was_appended_goes_into_no_other_life_of_the_queue(
    born: Born, run: Run, link: Link
) -> None:
    keys, _ = born()
    run(push_from(keys, "a", (1, 2), values((1, 2))))
    run(delete(keys))
    with pytest.raises(QueueMissing):
        run(push_from(keys, "a", (2, 3), values((2, 3))))
    run(attach(keys, new_token(), ttl_s=60))
    assert run(push_from(keys, "a", (2, 3), values((2, 3)))) == (2, 0)
    assert stored(link.execute, keys) == [(1, b"a3")]


def test_where_redis_was_rolled_back_what_is_sent_is_appended(
    born: Born, link: Link, redis: Redis
) -> None:
    """It remembers an older number than the outbox, or none: nothing that is sent may be taken for
    a repetition.
    """
    keys, _ = born()
    link.run(push_from(keys, "a", (1, 2, 3), values((1, 2, 3))))
    for before in ("1:5", None):
        redis("HSET", keys.senders, "a", before) if before else redis("DEL", keys.senders)
        assert link.run(push_from(keys, "a", (4,), values((4,)))) == (1, 0)
    assert [body for _, body in stored(link.execute, keys)] == values((1, 2, 3, 4, 4))


def test_a_sender_that_is_silent_for_long_is_forgotten_when_others_come(
    born: Born, link: Link, redis: Redis
) -> None:
    keys, _ = born()
    now = int(redis("TIME")[0])
    for n in range(40):
        redis(
            "HSET",
            keys.senders,
            f"old{n}",
            f"7:{now - SENDER_TTL_S - 60}",
            f"young{n}",
            f"7:{now - SENDER_TTL_S + 600}",
            f"untimed{n}",
            "7:0",
        )
    for n in range(200):
        link.run(push_from(keys, f"new{n}", (1,), [b"x"]))
    left = {name.decode().rstrip("0123456789") for name in redis("HKEYS", keys.senders)}
    assert left >= {"young", "untimed", "new"}
    assert sum(name.startswith(b"old") for name in redis("HKEYS", keys.senders)) < 10
    assert redis("HLEN", keys.senders) >= 280
