"""What readers know and say about queues: state, acked positions, subscriptions, leases, keep-alive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark.core import queue, state
from busmq_spark.core.flow import command
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.message import MAX_ID
from busmq_spark.core.queue import ACK_MOST, LONG_TTL_S
from busmq_spark.core.state import Ack, AckResult
from busmq_spark.topology.link import SyncLink
from tests.conftest import Fresh, FreshKeys
from tests.contract.conftest import Born, Redis, Run

OK = AckResult("ok", "0")


def one_state(run: Run, keys: QueueKeys, wanted: int = -1) -> state.QueueState:
    return run(state.states([(keys, wanted)]))[0]


def stored_ids(run: Run, keys: QueueKeys) -> list[int]:
    return [message.id for message in run(queue.index(keys, 0, 100_000))]


def ack(run: Run, keys: QueueKeys, id: int, born: str, *, subscription: str = "", mark: str = "") -> AckResult:
    return run(state.ack_to([Ack(keys, id, born, mark)], subscription))[0]


# State


def test_the_state_of_a_queue_that_does_not_exist_is_nothing(run: Run, fresh_keys: FreshKeys) -> None:
    found = one_state(run, fresh_keys())
    assert not found.exists
    assert (found.given, found.oldest, found.newest, found.count, found.floor) == (0, 0, 0, 0, 0)


def test_the_state_of_a_queue_with_messages(run: Run, born: Born) -> None:
    keys, there = born(ttl_s=60, maxsize=50)
    run(queue.push_many(keys, [b"a", b"b", b"c", b"d"]))
    run(queue.pop(keys))
    found = one_state(run, keys)
    assert found.exists
    assert (found.ttl_s, found.born, found.maxsize) == (60, there.born, 50)
    assert (found.given, found.oldest, found.newest, found.count, found.floor) == (4, 2, 4, 3, 1)


def test_an_emptied_queue_is_read_on_from_the_last_id_given(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"a", b"b"]))
    run(queue.flush(keys))
    found = one_state(run, keys)
    assert (found.given, found.oldest, found.newest, found.count, found.floor) == (2, 0, 0, 0, 2)


def test_state_counts_ids_exactly_up_to_2_to_the_53(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born()
    redis("SET", keys.msgid, MAX_ID - 2)
    run(queue.push_many(keys, [b"a", b"b"]))
    found = one_state(run, keys)
    assert (found.oldest, found.newest, found.given) == (MAX_ID - 1, MAX_ID, MAX_ID)


def test_many_queues_are_answered_in_the_order_asked(run: Run, born: Born, fresh_keys: FreshKeys) -> None:
    some = [born()[0] if i % 2 else fresh_keys() for i in range(7)]
    for n, keys in enumerate(some):
        if n % 2:
            run(queue.push_many(keys, [b"x"] * n))
    assert [found.newest for found in run(state.states([(keys, -1) for keys in some]))] == [0, 1, 0, 3, 0, 5, 0]


def test_counters_are_the_raw_ids_given(run: Run, born: Born, fresh_keys: FreshKeys) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"a", b"b"]))
    assert run(state.counters([keys, fresh_keys()])) == [b"2", None]


def test_a_mark_tells_messages_of_the_same_id_apart(run: Run, born: Born) -> None:
    marks = set()
    for value in (b"a", b"b", b"x" * 2000 + b"a", b"x" * 2000 + b"b", b"a" + b"x" * 2000, b"", b"x" * 2000, b"x" * 2001):
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
    run(queue.ack(keys, 0, ttl_s=60))
    assert one_state(run, keys, 3).mark == one_state(run, keys).newest_mark != middle


@pytest.mark.parametrize("wanted", [0, 1, 5, 99])
def test_a_message_that_is_not_stored_has_no_mark(run: Run, born: Born, wanted: int) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"a"] * 4))
    run(queue.pop(keys))
    assert one_state(run, keys, wanted).mark == ""


def test_state_survives_metadata_that_is_no_number(run: Run, redis: Redis, fresh_keys: FreshKeys) -> None:
    keys = fresh_keys()
    redis("HSET", keys.metadata, "ttl", "soon", "maxsize", "many")
    assert not one_state(run, keys).exists


# Acks


def test_an_ack_drops_everything_up_to_its_id(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 5))
    assert ack(run, keys, 3, there.born) == AckResult("ok", "3")
    assert stored_ids(run, keys) == [4, 5]
    assert ack(run, keys, 5, there.born) == AckResult("ok", "2")
    assert stored_ids(run, keys) == []


def test_an_older_ack_changes_nothing(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 5))
    ack(run, keys, 3, there.born, subscription="s")
    assert ack(run, keys, 1, there.born, subscription="s") == OK
    assert stored_ids(run, keys) == [4, 5]
    assert run(state.subscriptions([keys])) == [{"s": 3}]


def test_acking_zero_is_allowed_and_drops_nothing(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 2))
    assert ack(run, keys, 0, there.born) == OK
    assert stored_ids(run, keys) == [1, 2]


def test_a_message_leaves_only_when_every_subscription_has_acked_it(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 9))
    for name in ("one", "two", "three"):
        assert run(state.subscribe([keys], name, ["earliest"])) == [0]
    ack(run, keys, 7, there.born, subscription="one")
    ack(run, keys, 5, there.born, subscription="two")
    assert stored_ids(run, keys) == list(range(1, 10))
    ack(run, keys, 2, there.born, subscription="three")
    assert stored_ids(run, keys) == list(range(3, 10))
    ack(run, keys, 9, there.born, subscription="three")
    assert stored_ids(run, keys) == [6, 7, 8, 9]


def test_a_reader_without_a_subscription_waits_for_those_that_have_one(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 5))
    run(state.subscribe([keys], "slow", [2]))
    ack(run, keys, 5, there.born)
    assert stored_ids(run, keys) == [3, 4, 5]


def test_a_forgotten_subscription_holds_nothing_back(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 5))
    run(state.subscribe([keys], "gone", ["earliest"]))
    run(state.subscribe([keys], "here", ["earliest"]))
    assert run(state.unsubscribe(keys, "gone"))
    assert not run(state.unsubscribe(keys, "gone"))
    ack(run, keys, 4, there.born, subscription="here")
    assert stored_ids(run, keys) == [5]


def test_an_ack_of_an_earlier_incarnation_drops_nothing(run: Run, born: Born, redis: Redis) -> None:
    keys, before = born()
    run(queue.push_many(keys, [b"x"] * 5))
    redis("DEL", *keys.shared)
    run(queue.attach(keys, "second-life", ttl_s=60))
    run(queue.push_many(keys, [b"y"] * 5))
    assert ack(run, keys, 5, before.born, subscription="s") == AckResult("recreated", "second-life")
    assert stored_ids(run, keys) == [1, 2, 3, 4, 5]
    assert run(state.subscriptions([keys])) == [{}]


def test_an_ack_to_a_life_that_a_peer_began_and_nobody_named_drops_nothing(run: Run, born: Born, redis: Redis) -> None:
    keys, before = born()
    redis("DEL", *keys.shared)
    redis("HSET", keys.metadata, "ttl", 30, "source", "local", "discover", "false", "maxsize", 0)
    redis("RPUSH", keys.messages, 1, "x")
    redis("SET", keys.msgid, 1)
    assert ack(run, keys, 1, before.born) == AckResult("recreated", "")
    assert stored_ids(run, keys) == [1]


def test_positions_of_an_earlier_incarnation_hold_nothing_back_in_the_next(run: Run, born: Born, redis: Redis) -> None:
    keys, before = born()
    run(queue.push_many(keys, [b"x"] * 5))
    run(state.subscribe([keys], "old", ["earliest"]))
    ack(run, keys, 3, before.born, subscription="old")
    redis("DEL", *keys.shared)
    after = run(queue.attach(keys, "next", ttl_s=60))
    assert run(state.subscriptions([keys])) == [{}]
    run(queue.push_many(keys, [b"y"] * 5))
    assert run(state.subscribe([keys], "old", ["earliest"])) == [0]
    ack(run, keys, 4, after.born, subscription="old")
    assert stored_ids(run, keys) == [5]


def test_a_subscription_does_not_take_over_its_position_in_an_earlier_life(run: Run, born: Born, redis: Redis) -> None:
    keys, before = born()
    run(queue.push_many(keys, [b"x"] * 5))
    ack(run, keys, 5, before.born, subscription="s")
    redis("DEL", *keys.shared)
    redis("HSET", keys.metadata, "ttl", 30)  # a peer was here; the positions are still those of the first life
    assert run(state.subscribe([keys], "s", ["earliest"])) == [0]
    assert run(state.subscriptions([keys])) == [{"s": 0}]


def test_an_ack_to_a_queue_that_is_gone_says_missing(run: Run, fresh_keys: FreshKeys, redis: Redis) -> None:
    keys = fresh_keys()
    assert ack(run, keys, 5, "b", subscription="s") == AckResult("missing", "")
    assert redis("EXISTS", *keys.all) == 0


def test_an_ack_ahead_of_what_redis_has_given_says_older(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 3))
    assert ack(run, keys, 4, there.born, subscription="s") == AckResult("older", "3")
    assert stored_ids(run, keys) == [1, 2, 3]
    assert run(state.subscriptions([keys])) == [{}]


def test_an_ack_whose_id_belongs_to_another_message_says_reissued(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"a", b"b", b"c"]))
    mark, other = one_state(run, keys, 2).mark, one_state(run, keys, 3).mark
    assert ack(run, keys, 2, there.born, subscription="s", mark=other) == AckResult("reissued", mark)
    assert stored_ids(run, keys) == [1, 2, 3]
    assert ack(run, keys, 2, there.born, subscription="s", mark=mark) == AckResult("ok", "2")


def test_a_mark_of_a_message_that_has_left_is_not_compared(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"a", b"b", b"c"]))
    ack(run, keys, 2, there.born)
    assert ack(run, keys, 2, there.born, mark="anything") == OK


def test_an_ack_of_more_than_one_call_drops_all_of_it(run: Run, born: Born) -> None:
    keys, there = born()
    total = 2 * ACK_MOST + 500
    run(queue.push_many(keys, [b"x"] * total))
    assert ack(run, keys, total - 1, there.born, subscription="s").status == "ok"
    assert stored_ids(run, keys) == [total]


def test_an_ack_of_exactly_one_call_drops_all_of_it(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * (ACK_MOST + 1)))
    assert ack(run, keys, ACK_MOST, there.born) == AckResult("ok", str(ACK_MOST))
    assert stored_ids(run, keys) == [ACK_MOST + 1]


def test_many_queues_are_acked_at_once_each_on_its_own(run: Run, born: Born, fresh_keys: FreshKeys) -> None:
    (one, a), (two, b), gone = born(), born(), fresh_keys()
    run(queue.push_many(one, [b"x"] * (ACK_MOST + 5)))
    run(queue.push_many(two, [b"x"] * 5))
    results = run(state.ack_to([Ack(one, ACK_MOST + 1, a.born, ""), Ack(gone, 1, "b", ""), Ack(two, 2, b.born, "")]))
    assert [result.status for result in results] == ["ok", "missing", "ok"]
    assert (stored_ids(run, one)[0], stored_ids(run, two)[0]) == (ACK_MOST + 2, 3)


def test_one_call_drops_no_more_of_many_queues_than_of_one(link: SyncLink, born: Born) -> None:
    queues = [born() for _ in range(3)]
    for keys, _ in queues:
        link.run(queue.push_many(keys, [b"x"] * ACK_MOST))
    flow = state.ack_to([Ack(keys, ACK_MOST, there.born, "") for keys, there in queues])
    step = next(flow)
    for left in (2 * ACK_MOST, ACK_MOST):
        step = flow.send(link.execute(step))
        assert sum(len(stored_ids(link.run, keys)) for keys, _ in queues) == left
    with pytest.raises(StopIteration) as ended:
        flow.send(link.execute(step))
    assert [result.status for result in ended.value.value] == ["ok"] * 3


@settings(max_examples=60)
@given(st.sets(st.integers(1, 40), min_size=1), st.integers(0, 41))
def test_in_a_list_with_holes_an_ack_still_drops_exactly_what_it_covers(link: SyncLink, fresh: Fresh, ids: set[int], to: int) -> None:
    keys = QueueKeys(fresh())
    there = link.run(queue.attach(keys, "b", ttl_s=60))
    link.execute([command("RPUSH", keys.messages, id, b"v%d" % id) for id in sorted(ids)])
    link.execute(command("SET", keys.msgid, 41))
    assert ack(link.run, keys, to, there.born).status == "ok"
    assert stored_ids(link.run, keys) == sorted(id for id in ids if id > to)


@settings(max_examples=60)
@given(st.sets(st.integers(1, 40), min_size=1), st.integers(0, 41))
def test_in_a_list_with_holes_a_mark_is_that_of_the_id_or_none(link: SyncLink, fresh: Fresh, ids: set[int], wanted: int) -> None:
    keys, alone = QueueKeys(fresh()), QueueKeys(fresh())
    link.execute([command("RPUSH", keys.messages, id, b"v%d" % id) for id in sorted(ids)])
    link.execute(command("RPUSH", alone.messages, wanted, b"v%d" % wanted))
    expected = one_state(link.run, alone, wanted).newest_mark if wanted in ids else ""
    assert one_state(link.run, keys, wanted).mark == expected


# Subscriptions


@pytest.mark.parametrize(("start", "expected"), [("earliest", 2), ("latest", 6), (4, 4)])
def test_a_new_subscription_starts_where_it_was_told_to(run: Run, born: Born, start: str | int, expected: int) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"x"] * 6))
    run(queue.pop(keys, most=2))
    assert run(state.subscribe([keys], "s", [start])) == [expected]
    assert run(state.subscriptions([keys])) == [{"s": expected}]


def test_a_known_subscription_keeps_its_position(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 6))
    run(state.subscribe([keys], "s", ["earliest"]))
    ack(run, keys, 3, there.born, subscription="s")
    assert run(state.subscribe([keys], "s", ["latest"])) == [3]


def test_subscribing_to_an_emptied_queue_at_earliest_starts_behind_the_last_id(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"x"] * 6))
    run(queue.flush(keys))
    assert run(state.subscribe([keys], "s", ["earliest"])) == [6]


def test_positions_outlive_a_queue_with_a_short_ttl(run: Run, born: Born, redis: Redis) -> None:
    keys, there = born(ttl_s=5)
    run(queue.push(keys, b"x"))
    run(state.subscribe([keys], "s", ["earliest"]))
    assert redis("TTL", keys.acks) == LONG_TTL_S
    redis("EXPIRE", keys.acks, 5)
    ack(run, keys, 1, there.born, subscription="s")
    assert redis("TTL", keys.acks) == LONG_TTL_S


# Leases and keep-alive


def test_only_one_holds_a_lease_until_it_ends(run: Run, born: Born, redis: Redis) -> None:
    (one, _), (two, _) = born(), born()
    assert run(state.lease([one], "s", "me", 60_000, [""])) == ["me"]
    assert run(state.lease([one, two], "s", "you", 60_000, ["", ""])) == ["me", "you"]
    assert 50_000 < redis("PTTL", one.lease("s")) <= 60_000
    redis("DEL", one.lease("s"))  # what its end leaves
    assert run(state.lease([one], "s", "you", 60_000, [""])) == ["you"]


def test_the_holder_may_take_its_lease_again_and_other_subscriptions_are_free(run: Run, born: Born) -> None:
    keys, _ = born()
    assert run(state.lease([keys], "s", "me", 60_000, [""])) == ["me"]
    assert run(state.lease([keys], "s", "me", 60_000, [""])) == ["me"]
    assert run(state.lease([keys], "t", "you", 60_000, [""])) == ["you"]


def test_a_lease_is_taken_from_a_holder_known_to_be_dead_and_from_no_other(run: Run, born: Born) -> None:
    keys, _ = born()
    run(state.lease([keys], "s", "dead", 60_000, [""]))
    assert run(state.lease([keys], "s", "me", 60_000, ["somebody else"])) == ["dead"]
    assert run(state.lease([keys], "s", "me", 60_000, ["dead"])) == ["me"]


def test_keeping_alive_renews_every_key_by_the_stored_ttl_and_ours_for_longer(run: Run, born: Born, redis: Redis) -> None:
    keys, there = born(ttl_s=50)
    run(queue.push_many(keys, [b"x"] * 2))
    run(queue.pop(keys, reliable=True, ttl_s=50))
    redis("HSET", keys.acks, "s", 0, ":born", there.born)
    redis("HSET", keys.sinks, "s", "1:done")
    for key in keys.all:
        redis("EXPIRE", key, 5)
    assert run(state.keep_alive([keys])) == [1]
    assert [redis("TTL", key) for key in keys.all] == [50, 50, 50, 50, LONG_TTL_S, LONG_TTL_S]
    assert redis("EXISTS", keys.lease("")) == 0


def test_keeping_alive_tells_the_missing_and_the_taken_from_the_alive(run: Run, born: Born, fresh_keys: FreshKeys, redis: Redis) -> None:
    (mine, _), (taken, _), (free, _), missing = born(), born(), born(), fresh_keys()
    run(state.lease([mine, taken], "s", "me", 60_000, ["", ""]))
    redis("SET", taken.lease("s"), "you")
    assert run(state.keep_alive([mine, missing, taken, free], "s", "me", 90_000)) == [1, 0, -1, 1]
    assert redis("PTTL", mine.lease("s")) > 80_000
    assert redis("GET", free.lease("s")) == b"me"  # it had ended while nobody else wanted it
    assert redis("EXISTS", *missing.all, missing.lease("s")) == 0


def test_keeping_alive_does_not_create_a_lost_queue(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born()
    redis("DEL", *keys.shared)
    assert run(state.keep_alive([keys])) == [0]
    assert not run(queue.exists(keys))
