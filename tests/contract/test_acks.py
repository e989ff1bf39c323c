"""Positions acked by readers: what leaves a queue, when, and what is refused instead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import Step, command, run_sync
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import MAX_MESSAGES_PER_ACK, MIN_RECORD_TTL_S
from busmq_spark.reading import reader_operations, reader_subscriptions
from busmq_spark.reading.reader_operations import AckResult, CumulativeAckRequest
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.resp_codec import calls_of
from tests.conftest import FreshKeys
from tests.contract.conftest import Born, Redis, Run
from tests.stored import read_at
from tests.support import Life

OK = AckResult("ok", "0")


def state_of(run: Run, keys: QueueKeys, wanted: int) -> reader_operations.QueueState:
    return run(reader_operations.states([(keys, wanted)]))[0]


def stored_ids(run: Run, keys: QueueKeys) -> list[int]:
    return [message.id for message in run(read_at(keys, 0, 100_000))]


def ack(
    run: Run, keys: QueueKeys, id: int, born: str, *, subscription: str = "", mark: str = ""
) -> AckResult:
    return run(
        reader_operations.ack_to([CumulativeAckRequest(keys, id, born, mark)], subscription)
    )[0]


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
    assert run(reader_operations.subscriptions([keys])) == [{"s": 3}]


def test_acking_zero_is_allowed_and_drops_nothing(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 2))
    assert ack(run, keys, 0, there.born) == OK
    assert stored_ids(run, keys) == [1, 2]


def test_a_message_leaves_only_when_every_subscription_has_acked_it(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 9))
    for name in ("one", "two", "three"):
        assert run(reader_operations.subscribe([keys], name, ["earliest"])) == [0]
    ack(run, keys, 7, there.born, subscription="one")
    ack(run, keys, 5, there.born, subscription="two")
    assert stored_ids(run, keys) == list(range(1, 10))
    ack(run, keys, 2, there.born, subscription="three")
    assert stored_ids(run, keys) == list(range(3, 10))
    ack(run, keys, 9, there.born, subscription="three")
    assert stored_ids(run, keys) == [6, 7, 8, 9]


def test_a_reader_without_a_subscription_waits_for_those_that_have_one(
    run: Run, born: Born
) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 5))
    run(reader_operations.subscribe([keys], "slow", [2]))
    ack(run, keys, 5, there.born)
    assert stored_ids(run, keys) == [3, 4, 5]


def test_a_forgotten_subscription_holds_nothing_back(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 5))
    run(reader_operations.subscribe([keys], "gone", ["earliest"]))
    run(reader_operations.subscribe([keys], "here", ["earliest"]))
    assert run(reader_subscriptions.unsubscribe(keys, "gone"))
    assert not run(reader_subscriptions.unsubscribe(keys, "gone"))
    ack(run, keys, 4, there.born, subscription="here")
    assert stored_ids(run, keys) == [5]


def test_an_ack_of_an_earlier_incarnation_drops_nothing(run: Run, born: Born, redis: Redis) -> None:
    keys, before = born()
    run(queue.push_many(keys, [b"x"] * 5))
    redis("DEL", *keys.peer_keys)
    run(queue.attach(keys, "second-life", ttl_s=60))
    run(queue.push_many(keys, [b"y"] * 5))
    assert ack(run, keys, 5, before.born, subscription="s") == AckResult("recreated", "second-life")
    assert stored_ids(run, keys) == [1, 2, 3, 4, 5]
    assert run(reader_operations.subscriptions([keys])) == [{}]


def test_an_ack_to_an_incarnation_that_a_peer_began_without_a_token_drops_nothing(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, before = born()
    redis("DEL", *keys.peer_keys)
    redis("HSET", keys.metadata, "ttl", 30, "source", "local", "discover", "false", "maxsize", 0)
    redis("RPUSH", keys.messages, 1, "x")
    redis("SET", keys.msgid, 1)
    assert ack(run, keys, 1, before.born) == AckResult("recreated", "")
    assert stored_ids(run, keys) == [1]


def test_positions_of_an_earlier_incarnation_hold_nothing_back_in_the_next(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, before = born()
    run(queue.push_many(keys, [b"x"] * 5))
    run(reader_operations.subscribe([keys], "old", ["earliest"]))
    ack(run, keys, 3, before.born, subscription="old")
    redis("DEL", *keys.peer_keys)
    after = run(queue.attach(keys, "next", ttl_s=60))
    assert run(reader_operations.subscriptions([keys])) == [{}]
    run(queue.push_many(keys, [b"y"] * 5))
    assert run(reader_operations.subscribe([keys], "old", ["earliest"])) == [0]
    ack(run, keys, 4, after.born, subscription="old")
    assert stored_ids(run, keys) == [5]


def test_a_subscription_does_not_take_over_its_position_in_an_earlier_life(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, before = born()
    run(queue.push_many(keys, [b"x"] * 5))
    ack(run, keys, 5, before.born, subscription="s")
    redis("DEL", *keys.peer_keys)
    redis(
        "HSET", keys.metadata, "ttl", 30
    )  # a peer was here; the positions are still those of the first life
    assert run(reader_operations.subscribe([keys], "s", ["earliest"])) == [0]
    assert run(reader_operations.subscriptions([keys])) == [{"s": 0}]


def test_an_ack_to_a_queue_that_is_gone_says_missing(
    run: Run, fresh_keys: FreshKeys, redis: Redis
) -> None:
    keys = fresh_keys()
    assert ack(run, keys, 5, "b", subscription="s") == AckResult("missing", "")
    assert redis("EXISTS", *keys.all) == 0


def test_an_ack_ahead_of_what_redis_has_given_says_older(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 3))
    assert ack(run, keys, 4, there.born, subscription="s") == AckResult("older", "3")
    assert stored_ids(run, keys) == [1, 2, 3]
    assert run(reader_operations.subscriptions([keys])) == [{}]


def test_an_ack_whose_id_belongs_to_another_message_says_reissued(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"a", b"b", b"c"]))
    mark, other = state_of(run, keys, 2).mark, state_of(run, keys, 3).mark
    assert ack(run, keys, 2, there.born, subscription="s", mark=other) == AckResult(
        "reissued", mark
    )
    assert stored_ids(run, keys) == [1, 2, 3]
    assert ack(run, keys, 2, there.born, subscription="s", mark=mark) == AckResult("ok", "2")


def test_a_mark_of_a_message_that_has_left_is_not_compared(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"a", b"b", b"c"]))
    ack(run, keys, 2, there.born)
    assert ack(run, keys, 2, there.born, mark="anything") == OK


def test_an_ack_of_more_than_one_call_drops_all_of_it(run: Run, born: Born) -> None:
    keys, there = born()
    total = 2 * MAX_MESSAGES_PER_ACK + 500
    run(queue.push_many(keys, [b"x"] * total))
    assert ack(run, keys, total - 1, there.born, subscription="s").status == "ok"
    assert stored_ids(run, keys) == [total]


def test_an_ack_of_exactly_one_call_drops_all_of_it(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * (MAX_MESSAGES_PER_ACK + 1)))
    assert ack(run, keys, MAX_MESSAGES_PER_ACK, there.born) == AckResult(
        "ok", str(MAX_MESSAGES_PER_ACK)
    )
    assert stored_ids(run, keys) == [MAX_MESSAGES_PER_ACK + 1]


def test_many_queues_are_acked_at_once_each_on_its_own(
    run: Run, born: Born, fresh_keys: FreshKeys
) -> None:
    (one, a), (two, b), gone = born(), born(), fresh_keys()
    run(queue.push_many(one, [b"x"] * (MAX_MESSAGES_PER_ACK + 5)))
    run(queue.push_many(two, [b"x"] * 5))
    results = run(
        reader_operations.ack_to(
            [
                CumulativeAckRequest(one, MAX_MESSAGES_PER_ACK + 1, a.born, ""),
                CumulativeAckRequest(gone, 1, "b", ""),
                CumulativeAckRequest(two, 2, b.born, ""),
            ]
        )
    )
    assert [result.status for result in results] == ["ok", "missing", "ok"]
    assert (stored_ids(run, one)[0], stored_ids(run, two)[0]) == (MAX_MESSAGES_PER_ACK + 2, 3)


def test_one_call_drops_no_more_of_many_queues_than_of_one(link: Link, born: Born) -> None:
    queues = [born() for _ in range(3)]
    for keys, _ in queues:
        link.run(queue.push_many(keys, [b"x"] * MAX_MESSAGES_PER_ACK))
    left = [3 * MAX_MESSAGES_PER_ACK]

    def execute(step: Step) -> Any:
        reply = link.execute(step)
        left.append(sum(len(stored_ids(link.run, keys)) for keys, _ in queues))
        assert left[-2] - left[-1] <= MAX_MESSAGES_PER_ACK * len(calls_of(step))
        return reply

    results = run_sync(
        reader_operations.ack_to(
            [
                CumulativeAckRequest(keys, MAX_MESSAGES_PER_ACK, there.born, "")
                for keys, there in queues
            ]
        ),
        execute,
    )
    assert (left[-1], [result.status for result in results]) == (0, ["ok"] * 3)


@settings(max_examples=60)
@given(st.sets(st.integers(1, 40), min_size=1), st.integers(0, 41))
def test_in_a_list_with_holes_an_ack_still_drops_exactly_what_it_covers(
    link: Link, fresh_keys: FreshKeys, ids: set[int], to: int
) -> None:
    keys = fresh_keys()
    there = link.run(queue.attach(keys, "b", ttl_s=60))
    link.execute([command("RPUSH", keys.messages, id, b"v%d" % id) for id in sorted(ids)])
    link.execute(command("SET", keys.msgid, 41))
    assert ack(link.run, keys, to, there.born).status == "ok"
    assert stored_ids(link.run, keys) == sorted(id for id in ids if id > to)


# Subscriptions


@pytest.mark.parametrize(("start", "expected"), [("earliest", 2), ("latest", 6), (4, 4)])
def test_a_new_subscription_starts_at_its_starting_offset(
    run: Run, born: Born, start: str | int, expected: int
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"x"] * 6))
    run(queue.pop(keys, most=2))
    assert run(reader_operations.subscribe([keys], "s", [start])) == [expected]
    assert run(reader_operations.subscriptions([keys])) == [{"s": expected}]


def test_a_known_subscription_keeps_its_position(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 6))
    run(reader_operations.subscribe([keys], "s", ["earliest"]))
    ack(run, keys, 3, there.born, subscription="s")
    assert run(reader_operations.subscribe([keys], "s", ["latest"])) == [3]


def test_a_first_ack_at_0_registers_its_subscription_and_the_acks_of_others_keep_its_messages(
    run: Run, born: Born
) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 6))
    assert ack(run, keys, 0, there.born, subscription="s").status == "ok"
    assert ack(run, keys, 6, there.born).status == "ok"
    assert run(reader_operations.subscriptions([keys])) == [{"s": 0}]
    assert stored_ids(run, keys) == [1, 2, 3, 4, 5, 6]


def test_subscribing_to_an_emptied_queue_at_earliest_starts_behind_the_last_id(
    run: Run, born: Born
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"x"] * 6))
    run(queue.flush(keys))
    assert run(reader_operations.subscribe([keys], "s", ["earliest"])) == [6]


def test_positions_outlive_a_queue_with_a_short_ttl(run: Run, born: Born, redis: Redis) -> None:
    keys, there = born(ttl_s=60)
    run(queue.push(keys, b"x"))
    life = Life(redis, MIN_RECORD_TTL_S)
    run(reader_operations.subscribe([keys], "s", ["earliest"]))
    assert life.given_to(keys.acks)
    redis("EXPIRE", keys.acks, 60)
    ack(run, keys, 1, there.born, subscription="s")
    assert life.given_to(keys.acks)


@settings(max_examples=200)
@given(st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)), st.integers(1, 5))
def test_what_is_given_back_comes_in_its_place_among_what_others_gave_back(
    link: Link,
    fresh_keys: FreshKeys,
    monkeypatch: pytest.MonkeyPatch,
    stored: set[int],
    taken: set[int],
    most: int,
) -> None:
    monkeypatch.setattr(queue, "MAX_MESSAGES_PER_ACK", most)
    keys = fresh_keys()
    record = keys.in_flight("h")
    for name, ids in ((keys.messages, stored - taken), (record, taken)):
        link.execute([command("RPUSH", name, id, f"v{id}") for id in sorted(ids)])
    assert link.run(queue.give_back(keys, record, 0, ttl_s=60)) == len(taken)
    assert link.execute(command("LRANGE", keys.messages, 0, -1)) == [
        word for id in sorted(stored | taken) for word in (b"%d" % id, b"v%d" % id)
    ]
