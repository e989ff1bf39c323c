"""Queues with a cap, on every layout: each push drops the oldest, but for what a reader has not
acknowledged.
"""

from __future__ import annotations

import pytest

from busmq_spark.errors import ConfigError
from busmq_spark.groups import dead_letter
from busmq_spark.queue import queue
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading import reader_operations
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.writing import idempotent_push, sink
from tests.contract.conftest import Born, Redis, Run
from tests.contract.sinks import stage


def stored(redis: Redis, keys: QueueKeys) -> list[int]:
    return [int(id) for id in redis("LRANGE", keys.messages, 0, -1)[0::2]]


def capped(run: Run, born: Born, rule: str) -> tuple[QueueKeys, str]:
    keys, there = born()
    run(queue.set_cap(keys, rule))
    return keys, there.born


def test_the_newest_stay(run: Run, redis: Redis, born: Born) -> None:
    keys, _ = capped(run, born, "3")
    for first in range(1, 8, 2):
        run(queue.push_many(keys, [b"%d" % n for n in (first, first + 1)]))
        assert stored(redis, keys) == list(range(max(1, first - 1), first + 2))
    run(queue.set_cap(keys, ""))
    run(queue.push_many(keys, [b"v"] * 5))
    assert len(stored(redis, keys)) == 8


def test_what_a_reader_has_not_acknowledged_stays(run: Run, redis: Redis, born: Born) -> None:
    keys, life = capped(run, born, "2")
    run(reader_operations.subscribe([keys], "slow", ["earliest"]))
    run(reader_operations.subscribe([keys], "quick", ["latest"]))
    run(queue.push_many(keys, [b"v"] * 5))
    assert stored(redis, keys) == [1, 2, 3, 4, 5]
    run(
        reader_operations.ack_to(
            [reader_operations.CumulativeAckRequest(keys, 2, life, "")], "slow"
        )
    )
    run(
        reader_operations.ack_to(
            [reader_operations.CumulativeAckRequest(keys, 5, life, "")], "quick"
        )
    )
    run(queue.push(keys, b"v"))
    assert stored(redis, keys) == [3, 4, 5, 6]


def test_unless_the_oldest_are_to_be_dropped(run: Run, redis: Redis, born: Born) -> None:
    keys, _ = capped(run, born, "2:drop")
    run(reader_operations.subscribe([keys], "slow", ["earliest"]))
    run(queue.push_many(keys, [b"v"] * 5))
    assert stored(redis, keys) == [4, 5]


def test_much_too_many_go_some_at_a_time(run: Run, redis: Redis, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"v"] * 5000))
    run(queue.set_cap(keys, "10"))
    lengths = []
    for _ in range(4):
        run(queue.push(keys, b"v"))
        lengths.append(len(stored(redis, keys)))
    assert lengths == [3001, 1002, 10, 10]


def test_what_an_outbox_forwards_counts_too(run: Run, redis: Redis, born: Born) -> None:
    keys, _ = capped(run, born, "2")
    run(idempotent_push.push_from(keys, "outbox", range(1, 6), [b"v"] * 5))
    assert stored(redis, keys) == [4, 5]


def test_what_a_sink_commits_counts_too_and_no_row_of_the_batch_is_appended_again(
    run: Run, redis: Redis, born: Born, link: SyncLink
) -> None:
    keys, _ = capped(run, born, "2")
    part, _ = stage(link.execute, keys, "one", [3, 2])
    run(sink.commit(keys, "s", 0, [part]))
    run(sink.commit(keys, "s", 0, [part]))
    assert stored(redis, keys) == [4, 5]


def test_what_is_put_back_once_counts_too(run: Run, redis: Redis, born: Born) -> None:
    keys, _ = capped(run, born, "2")
    letters = [(id, b"v") for id in range(1, 6)]
    assert run(dead_letter.put_back(keys, "life", letters)) == 5
    assert run(dead_letter.put_back(keys, "life", letters)) == 5
    assert stored(redis, keys) == [4, 5]


@pytest.mark.parametrize(
    ("cap", "overflow", "rule"),
    [
        (None, None, None),
        (0, None, ""),
        (5, None, "5"),
        (5, "keep", "5"),
        (5, "drop-oldest", "5:drop"),
        (0, "keep", ""),
    ],
)
def test_what_is_said_of_a_cap(cap: int | None, overflow: str | None, rule: str | None) -> None:
    assert queue.queue_cap_field(cap, overflow) == rule


@pytest.mark.parametrize(
    ("cap", "overflow", "found"),
    [
        (-1, None, "cap is -1; expected a whole number"),
        (True, None, "cap is True"),
        ("5", None, "cap is '5'"),
        (5, "drop", "overflow is 'drop'; expected keep"),
        (None, "keep", "there is none; add cap="),
    ],
)
def test_what_makes_no_sense_is_refused(cap: int | None, overflow: str | None, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        queue.queue_cap_field(cap, overflow)
