"""What readers know and say about queues: their state, leases, keep-alive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import MAX_ID, Position
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.reading import reader_operations
from busmq_spark.reading.loss import loss_between
from busmq_spark.redis_io.sync_link import SyncLink
from tests.conftest import FreshKeys
from tests.contract.conftest import Born, Redis, Run
from tests.support import Life


def one_state(run: Run, keys: QueueKeys, wanted: int = -1) -> reader_operations.QueueState:
    return run(reader_operations.states([(keys, wanted)]))[0]


# State


def test_the_state_of_a_queue_that_does_not_exist_is_nothing(
    run: Run, fresh_keys: FreshKeys
) -> None:
    found = one_state(run, fresh_keys())
    assert not found.exists
    assert (found.last_id, found.oldest, found.newest, found.count, found.floor) == (0, 0, 0, 0, 0)


def test_the_state_of_a_queue_with_messages(run: Run, born: Born) -> None:
    keys, there = born(ttl_s=60, maxsize=50)
    run(queue.push_many(keys, [b"a", b"b", b"c", b"d"]))
    run(queue.pop(keys))
    found = one_state(run, keys)
    assert found.exists
    assert (found.ttl_s, found.born, found.maxsize) == (60, there.born, 50)
    assert (found.last_id, found.oldest, found.newest, found.count, found.floor) == (4, 2, 4, 3, 1)


def test_an_emptied_queue_is_read_on_from_the_last_id_given(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"a", b"b"]))
    run(queue.flush(keys))
    found = one_state(run, keys)
    assert (found.last_id, found.oldest, found.newest, found.count, found.floor) == (2, 0, 0, 0, 2)


def test_state_counts_ids_exactly_up_to_2_to_the_53(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born()
    redis("SET", keys.msgid, MAX_ID - 2)
    run(queue.push_many(keys, [b"a", b"b"]))
    found = one_state(run, keys)
    assert (found.oldest, found.newest, found.last_id) == (MAX_ID - 1, MAX_ID, MAX_ID)


def test_many_queues_are_answered_in_the_order_asked(
    run: Run, born: Born, fresh_keys: FreshKeys
) -> None:
    some = [born()[0] if i % 2 else fresh_keys() for i in range(7)]
    for n, keys in enumerate(some):
        if n % 2:
            run(queue.push_many(keys, [b"x"] * n))
    assert [
        found.newest for found in run(reader_operations.states([(keys, -1) for keys in some]))
    ] == [0, 1, 0, 3, 0, 5, 0]


def test_counters_are_the_raw_ids_given(run: Run, born: Born, fresh_keys: FreshKeys) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"a", b"b"]))
    assert run(reader_operations.counters([keys, fresh_keys()])) == [b"2", None]


def test_a_mark_distinguishes_messages_of_the_same_id(run: Run, born: Born) -> None:
    marks = set()
    for value in (
        b"a",
        b"b",
        b"x" * 2000 + b"a",
        b"x" * 2000 + b"b",
        b"a" + b"x" * 2000,
        b"",
        b"x" * 2000,
        b"x" * 2001,
    ):
        keys, _ = born()
        run(queue.push_many(keys, [b"first", value, b"last"]))
        marks.add(one_state(run, keys, 2).mark)
    assert len(marks) == 8


def test_a_mark_is_the_same_wherever_the_message_stands(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"a", b"b", b"c"]))
    middle = one_state(run, keys, 2).mark
    run(queue.pop(keys))
    assert one_state(run, keys, 2).mark == middle
    assert one_state(run, keys, 3).mark == one_state(run, keys).newest_mark != middle


@pytest.mark.parametrize("wanted", [0, 1, 5, 99])
def test_a_message_that_is_not_stored_has_no_mark(run: Run, born: Born, wanted: int) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"a"] * 4))
    run(queue.pop(keys))
    assert one_state(run, keys, wanted).mark == ""


def test_state_survives_metadata_that_is_no_number(
    run: Run, redis: Redis, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    redis("HSET", keys.metadata, "ttl", "soon", "maxsize", "many")
    assert not one_state(run, keys).exists


@settings(max_examples=60)
@given(st.sets(st.integers(1, 40), min_size=1), st.integers(0, 41))
def test_in_a_list_with_holes_a_mark_is_that_of_the_id_or_none(
    link: SyncLink, fresh_keys: FreshKeys, ids: set[int], wanted: int
) -> None:
    keys, alone = fresh_keys(), fresh_keys()
    link.execute([command("RPUSH", keys.messages, id, b"v%d" % id) for id in sorted(ids)])
    link.execute(command("RPUSH", alone.messages, wanted, b"v%d" % wanted))
    expected = one_state(link.run, alone, wanted).newest_mark if wanted in ids else ""
    assert one_state(link.run, keys, wanted).mark == expected
    assert link.run(reader_operations.marks([(keys, wanted)])) == [expected]


# Whether all is there that a reader goes on with


def one_intact(
    run: Run, keys: QueueKeys, at: Position, upto: int = MAX_ID
) -> tuple[int, str] | None:
    return run(reader_operations.intact([(keys, at, upto)]))[0]


def test_a_queue_is_intact_with_the_last_id_and_the_fingerprint_of_the_one_asked_for(
    run: Run, born: Born
) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"a", b"b", b"c", b"d"]))
    for last in range(5):
        at = Position(there.born, last, one_state(run, keys, last).mark)
        for upto in range(last + 1, 7):
            assert one_intact(run, keys, at, upto) == (
                4,
                one_state(run, keys, min(upto, 4)).mark if last < 4 else "",
            )


def test_an_acknowledged_message_is_not_compared(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"a", b"b"]))
    run(queue.pop(keys))
    assert one_intact(run, keys, Position(there.born, 1, "another")) == (
        2,
        one_state(run, keys, 2).mark,
    )
    run(queue.pop(keys))
    assert one_intact(run, keys, Position(there.born, 2, "another")) == (2, "")
    assert one_intact(run, keys, Position(there.born, 1, "another")) is None


def test_deep_in_a_list_it_is_the_same(run: Run, born: Born) -> None:
    keys, there = born()
    for _ in range(3):
        run(queue.push_many(keys, [b"%d" % i for i in range(1000)]))
    for last, upto in ((1, 2999), (998, 1003), (1400, 1600), (2500, 2800), (2999, 3000)):
        at = Position(there.born, last, one_state(run, keys, last).mark)
        assert one_intact(run, keys, at, upto) == (3000, one_state(run, keys, upto).mark)
        assert one_intact(run, keys, at._replace(mark="another"), upto) is None


def test_a_queue_without_metadata_or_with_another_life_or_counter_is_not_intact(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"a"]))
    at = Position(there.born, 0)
    assert one_intact(run, keys, at)
    assert one_intact(run, keys, at._replace(born="another")) is None
    redis("SET", keys.msgid, "many")
    assert one_intact(run, keys, at) is None
    redis("SET", keys.msgid, 1)
    redis("HDEL", keys.metadata, "ttl")
    assert one_intact(run, keys, at) is None
    redis("DEL", keys.metadata)
    assert one_intact(run, keys, at) is None


@settings(max_examples=200)
@given(
    st.sets(st.integers(1, 12)),
    st.tuples(st.integers(0, 14), st.integers(0, 12), st.integers(1, 13)),
    st.sampled_from(["", "right", "wrong"]),
)
def test_what_is_called_intact_has_lost_nothing(
    link: SyncLink, fresh_keys: FreshKeys, ids: set[int], numbers: tuple[int, int, int], mark: str
) -> None:
    given_id, last, more = numbers
    keys = fresh_keys()
    link.execute(
        [
            command("HSET", keys.metadata, "ttl", 60, "born", "b"),
            command("SET", keys.msgid, given_id),
        ]
    )
    link.execute([command("RPUSH", keys.messages, id, b"v%d" % id) for id in sorted(ids)])
    at = Position(
        "b",
        last,
        {"": "", "right": reader_operations.fingerprint(b"v%d" % last), "wrong": "another"}[mark],
    )
    found, now = one_intact(link.run, keys, at, last + more), one_state(link.run, keys, last)
    if found is not None:
        upto = min(last + more, given_id)
        assert loss_between(at, now) is None
        assert found == (
            given_id,
            link.run(reader_operations.marks([(keys, upto)]))[0] if upto > last else "",
        )
        assert found[1] or upto == last
    elif not ids or ids == set(
        range(min(ids), given_id + 1)
    ):  # in a list without holes that is told only of what is lost
        assert loss_between(at, now) is not None


# Leases and keep-alive


def test_only_one_holds_a_lease_until_it_ends(run: Run, born: Born, redis: Redis) -> None:
    (one, _), (two, _) = born(), born()
    life = Life(redis, 60)
    assert run(reader_operations.lease([one], "s", "me", 60_000, [""])) == ["me"]
    assert run(reader_operations.lease([one, two], "s", "you", 60_000, ["", ""])) == ["me", "you"]
    assert life.given_to(one.lease("s"))
    redis("DEL", one.lease("s"))  # what its end leaves
    assert run(reader_operations.lease([one], "s", "you", 60_000, [""])) == ["you"]


def test_the_holder_may_take_its_lease_again_and_other_subscriptions_are_free(
    run: Run, born: Born
) -> None:
    keys, _ = born()
    assert run(reader_operations.lease([keys], "s", "me", 60_000, [""])) == ["me"]
    assert run(reader_operations.lease([keys], "s", "me", 60_000, [""])) == ["me"]
    assert run(reader_operations.lease([keys], "t", "you", 60_000, [""])) == ["you"]


def test_a_lease_is_taken_from_a_holder_known_to_be_dead_and_from_no_other(
    run: Run, born: Born
) -> None:
    keys, _ = born()
    run(reader_operations.lease([keys], "s", "dead", 60_000, [""]))
    assert run(reader_operations.lease([keys], "s", "me", 60_000, ["somebody else"])) == ["dead"]
    assert run(reader_operations.lease([keys], "s", "me", 60_000, ["dead"])) == ["me"]


def test_keeping_alive_renews_every_key_by_the_stored_ttl_and_ours_for_longer(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, there = born(ttl_s=50)
    run(queue.push_many(keys, [b"x"] * 2))
    run(queue.pop(keys, reliable=True, ttl_s=50))
    redis("HSET", keys.acks, "s", 0, ":born", there.born)
    redis("HSET", keys.sinks, "s", "1:done")
    for key in keys.all:
        redis("EXPIRE", key, 40)
    short, long = Life(redis, 50), Life(redis, MIN_RECORD_TTL_S)
    assert run(reader_operations.keep_alive([keys])) == [1]
    assert short.given_to(*keys.peer_keys)
    assert long.given_to(keys.acks, keys.sinks)
    assert redis("EXISTS", keys.lease("")) == 0


def test_keeping_alive_distinguishes_missing_and_taken_from_living(
    run: Run, born: Born, fresh_keys: FreshKeys, redis: Redis
) -> None:
    (mine, _), (taken, _), (free, _), missing = born(), born(), born(), fresh_keys()
    run(reader_operations.lease([mine, taken], "s", "me", 60_000, ["", ""]))
    redis("SET", taken.lease("s"), "you")
    life = Life(redis, 90)
    assert run(reader_operations.keep_alive([mine, missing, taken, free], "s", "me", 90_000)) == [
        1,
        0,
        -1,
        1,
    ]
    assert life.given_to(mine.lease("s"))
    assert redis("GET", free.lease("s")) == b"me"  # it had ended while no other reader requested it
    assert redis("EXISTS", *missing.all, missing.lease("s")) == 0


def test_keeping_alive_does_not_create_a_lost_queue(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born()
    redis("DEL", *keys.peer_keys)
    assert run(reader_operations.keep_alive([keys])) == [0]
    assert not run(queue.exists(keys))
