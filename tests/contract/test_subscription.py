"""Subscriptions as those who look after them see them: who holds messages back, since when, and how
one is forgotten.
"""

from __future__ import annotations

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import QueueBusy
from busmq_spark.queue import queue
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading import reader_operations
from busmq_spark.reading.reader_operations import CumulativeAckRequest
from busmq_spark.reading.reader_subscriptions import (
    ABANDONED_AFTER_S,
    QueueSubscriptionStatus,
    list_subscriptions,
    unsubscribe,
)
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from tests.conftest import Fresh
from tests.contract.conftest import Born, Redis, Run
from tests.stored import read_at


def by_name(run: Run, keys: QueueKeys) -> dict[str, QueueSubscriptionStatus]:
    return {each.name: each for each in run(list_subscriptions(keys))}


def test_what_stays_for_a_subscription_is_what_another_has_acked(run: Run, born: Born) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 9))
    for name in ("fast", "middle", "slow"):
        run(reader_operations.subscribe([keys], name, ["earliest"]))
    run(reader_operations.ack_to([CumulativeAckRequest(keys, 8, there.born, "")], "fast"))
    run(reader_operations.ack_to([CumulativeAckRequest(keys, 5, there.born, "")], "middle"))
    found = by_name(run, keys)
    assert {name: (each.last, each.behind, each.holds_back) for name, each in found.items()} == {
        "fast": (8, 1, 0),
        "middle": (5, 4, 3),
        "slow": (0, 9, 8),
    }
    assert all(
        each.idle_s is not None and each.idle_s < 3600 and not each.is_abandoned
        for each in found.values()
    )


def test_one_that_has_been_away_for_long_and_holds_messages_back_is_abandoned(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 4))
    for name in ("away", "here"):
        run(reader_operations.subscribe([keys], name, ["earliest"]))
    since = int(redis("HGET", keys.acks, ":at:away")) - ABANDONED_AFTER_S - 5
    redis("HSET", keys.acks, ":at:away", since)
    assert not by_name(run, keys)["away"].is_abandoned  # no subscription is further
    run(reader_operations.ack_to([CumulativeAckRequest(keys, 4, there.born, "")], "here"))
    found = by_name(run, keys)
    assert [name for name, each in found.items() if each.is_abandoned] == ["away"]
    assert (found["away"].idle_s or 0) >= ABANDONED_AFTER_S
    redis("SET", keys.lease("away"), "a-reader", "PX", 600_000)
    assert (by_name(run, keys)["away"].reader, by_name(run, keys)["away"].is_abandoned) == (
        "a-reader",
        False,
    )
    redis("DEL", keys.lease("away"))
    run(reader_operations.subscribe([keys], "away", ["earliest"]))
    assert not by_name(run, keys)["away"].is_abandoned  # it has come again


def test_positions_written_without_a_time_are_shown_without_one(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 4))
    redis("HSET", keys.acks, "old", 1, ":born", there.born)
    [found] = run(list_subscriptions(keys))
    assert (found.name, found.last, found.behind, found.holds_back, found.idle_s) == (
        "old",
        1,
        3,
        3,
        None,
    )
    assert not found.is_abandoned


def test_what_only_a_forgotten_subscription_held_back_leaves_at_once(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x"] * 9))
    for name in ("gone", "here", "also"):
        run(reader_operations.subscribe([keys], name, ["earliest"]))
    run(reader_operations.ack_to([CumulativeAckRequest(keys, 8, there.born, "")], "here"))
    run(reader_operations.ack_to([CumulativeAckRequest(keys, 6, there.born, "")], "also"))
    assert run(unsubscribe(keys, "gone"))
    assert [message.id for message in run(read_at(keys, 0, 99))] == [7, 8, 9]
    assert not run(unsubscribe(keys, "gone"))
    assert sorted(redis("HKEYS", keys.acks)) == [
        b":at:also",
        b":at:here",
        b":born",
        b"also",
        b"here",
    ]


def test_a_subscription_that_a_query_reads_with_is_kept(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born()
    run(reader_operations.subscribe([keys], "s", ["earliest"]))
    redis("SET", keys.lease("s"), "a-reader", "PX", 600_000)
    with pytest.raises(QueueBusy, match="is read by a query as subscription 's'"):
        run(unsubscribe(keys, "s"))
    assert list(by_name(run, keys)) == ["s"]
    assert run(unsubscribe(keys, "s", lambda holder: holder == "a-reader"))
    assert by_name(run, keys) == {}


def test_a_queue_that_does_not_exist_has_no_subscriptions(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    redis("DEL", *keys.all)
    assert run(list_subscriptions(keys)) == []
    assert not run(unsubscribe(keys, "s"))


def test_a_user_without_the_right_to_the_clock_may_do_everything_else(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    keys = QueueKeys(fresh())
    redis_server.command(
        "ACL", "SETUSER", "timeless", "reset", "on", ">secret", "~*", "&*", "+@all", "-time"
    )
    link = SyncLink(parse(f"redis://timeless:secret@127.0.0.1:{redis_server.port}")[0])
    try:
        there = link.run(queue.attach(keys, "life", ttl_s=60))
        link.run(queue.push_many(keys, [b"x"] * 4))
        link.run(reader_operations.subscribe([keys], "s", ["earliest"]))
        assert (
            link.run(
                reader_operations.ack_to([CumulativeAckRequest(keys, 3, there.born, "")], "s")
            )[0].status
            == "ok"
        )
        [found] = link.run(list_subscriptions(keys))
        assert (found.name, found.last, found.behind, found.idle_s) == ("s", 3, 1, None)
    finally:
        link.close()
