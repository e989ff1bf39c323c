"""How far readers are behind, by name and without one, on every layout."""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.queue import queue
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading import times_of_ids
from busmq_spark.reading.reader_operations import CumulativeAckRequest, ack_to, states, subscribe
from busmq_spark.reading.reader_subscriptions import list_subscriptions, register
from busmq_spark.reading.readers import ReaderStatus, read_readers
from tests.clocks import HOUR, SECOND, npm_push, pass_by
from tests.contract.conftest import Redis, Run

Ages = dict[str, tuple[str, int, int | None]]


@pytest.fixture
def keys(run: Run, redis: Redis, fresh_keys: Any) -> QueueKeys:
    """A queue with the messages 1..3 of two hours ago and 4..6 of one."""
    made: QueueKeys = fresh_keys("lag")
    run(queue.attach(made, "b" * 16, ttl_s=600))
    for _ in range(2):
        run(queue.push_many(made, [b"v"] * 3))
        pass_by(redis, made, HOUR)
    return made


def hours(found: list[ReaderStatus]) -> Ages:
    return {
        each.reader: (each.kind, each.behind, each.behind_s and each.behind_s // 3600)
        for each in found
    }


def test_the_age_of_a_message_is_known_where_the_clock_reaches(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    found = run(times_of_ids.ages([(keys, id) for id in (1, 3, 4, 6, 7)]))
    assert [age // HOUR for age in found] == [2, 2, 1, 1, -1]
    npm_push(redis, keys)
    run(times_of_ids.note_times([keys]))
    assert 0 <= run(times_of_ids.ages([(keys, 7)]))[0] < HOUR
    pass_by(redis, keys, -10 * HOUR)
    assert run(times_of_ids.ages([(keys, 7)])) == [0], "a clock that was set back"
    redis("DEL", keys.clock)
    assert run(times_of_ids.ages([(keys, 7)])) == [-1], (
        "the first time that is known says nothing of what was there before"
    )
    assert run(times_of_ids.ages([(QueueKeys("none", keys.cluster), 1)])) == [-1]


def test_every_reader_of_a_queue_is_listed_with_messages_and_seconds(
    run: Run, keys: QueueKeys
) -> None:
    run(subscribe([keys], "done", ["latest"]))
    run(subscribe([keys], "late", [2]))
    run(subscribe([keys], "later", [0]))
    run(register(keys, "shared", 3, shared={"lease_ms": 60_000}))
    assert hours(run(read_readers([keys]))) == {
        "done": ("ordered", 0, 0),
        "late": ("ordered", 4, 2),
        "later": ("ordered", 6, 2),
        "shared": ("shared", 3, 1),
    }
    assert {
        each.name: each.behind_s and each.behind_s // 3600 for each in run(list_subscriptions(keys))
    } == {
        "done": 0,
        "late": 2,
        "later": 2,
        "shared": 1,
    }


def test_what_reads_without_a_name_is_behind_by_what_it_has_not_acknowledged(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    assert hours(run(read_readers([keys]))) == {"": ("consumer", 6, 2)}
    redis("SET", keys.lease(""), "a-query", "PX", 60_000)
    [state] = run(states([(keys, -1)]))
    run(ack_to([CumulativeAckRequest(keys, 3, state.born, "")]))
    [found] = run(read_readers([keys]))
    assert (found.holder, hours([found])) == ("a-query", {"": ("query", 3, 1)})
    run(ack_to([CumulativeAckRequest(keys, 6, state.born, "")]))
    assert hours(run(read_readers([keys]))) == {"": ("query", 0, 0)}
    redis("DEL", keys.lease(""))
    assert run(read_readers([keys])) == []


def test_what_a_reliable_consumer_has_taken_is_still_waiting(run: Run, keys: QueueKeys) -> None:
    for _ in range(4):
        run(queue.pop(keys, reliable=True, ttl_s=600))
    assert hours(run(read_readers([keys]))) == {"": ("consumer", 6, 2)}
    run(queue.ack(keys, 3, ttl_s=600))
    assert hours(run(read_readers([keys]))) == {"": ("consumer", 3, 1)}


def test_messages_of_peers_count_from_when_they_were_seen(
    run: Run, redis: Redis, fresh_keys: Any
) -> None:
    keys = fresh_keys("lag")
    run(queue.attach(keys, "b" * 16, ttl_s=600))
    npm_push(redis, keys, 5)
    run(subscribe([keys], "s", [0]))
    assert [(each.behind, each.behind_s) for each in run(read_readers([keys]))] == [(5, None)]
    pass_by(redis, keys, 10 * SECOND)
    npm_push(redis, keys)
    run(ack_to([CumulativeAckRequest(keys, 5, "b" * 16, "")], "s"))
    [found] = run(read_readers([keys]))
    assert found.behind == 1
    assert found.behind_s is not None
    assert found.behind_s < 10


def test_many_queues_are_asked_together_and_those_that_do_not_exist_have_no_readers(
    run: Run, fresh_keys: Any
) -> None:
    made = [fresh_keys(f"many{n}") for n in range(7)]
    for n, keys in enumerate(made):
        run(queue.attach(keys, "b" * 16, ttl_s=600))
        run(queue.push_many(keys, [b"v"] * n))
    found = run(read_readers([*made, fresh_keys("none")]))
    assert [(each.queue, each.behind) for each in found] == [
        (keys.name, n) for n, keys in enumerate(made) if n
    ]
    assert run(read_readers([])) == []
