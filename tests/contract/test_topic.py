"""A topic on every layout, through both drivers: how many partitions it has, and who is a member of
its groups.
"""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.errors import ConfigError, QueueDamaged, TopicMissing, TopicShrinks
from busmq_spark.groups import topic as flows
from busmq_spark.groups.topic import MEMBER_TTL_MS, TopicState
from busmq_spark.queue.command_generators import Flow
from busmq_spark.queue.keys import TopicKeys
from busmq_spark.redis_io.layout import RedisLayout
from tests.conftest import Fresh
from tests.contract.conftest import Redis, Run


@pytest.fixture
def keys(where: RedisLayout, fresh: Fresh) -> TopicKeys:
    return TopicKeys(fresh("t"), where.cluster)


def test_who_opens_a_topic_first_says_how_many_partitions_it_has(
    run: Run, keys: TopicKeys, redis: Redis
) -> None:
    assert run(flows.read_topic(keys)) is None
    assert run(flows.open_topic(keys, 10, "b1")) == TopicState(10, "b1")
    assert (
        run(flows.open_topic(keys, 4, "b2"))
        == run(flows.open_topic(keys, 20, "b3"))
        == run(flows.open_topic(keys, None, "b4"))
        == TopicState(10, "b1")
    )
    assert run(flows.read_topic(keys)) == TopicState(10, "b1")
    assert flows.TOPIC_RECORD_TTL_S - 60 < redis("TTL", keys.base) <= flows.TOPIC_RECORD_TTL_S


def test_a_topic_that_nobody_has_made_is_missing(run: Run, keys: TopicKeys, redis: Redis) -> None:
    with pytest.raises(TopicMissing, match="does not exist"):
        run(flows.open_topic(keys, None, "b"))
    with pytest.raises(TopicMissing):
        run(flows.grow_topic(keys, 5))
    assert not redis("EXISTS", keys.base)


def test_a_topic_grows_and_never_shrinks(run: Run, keys: TopicKeys) -> None:
    run(flows.open_topic(keys, 10, "b"))
    assert run(flows.grow_topic(keys, 20)) == run(flows.grow_topic(keys, 20)) == TopicState(20, "b")
    with pytest.raises(TopicShrinks, match="has 20 partitions and cannot have 10") as refused:
        run(flows.grow_topic(keys, 10))
    assert refused.value.details == {"topic": keys.name, "found": 20, "expected": 10}
    assert run(flows.read_topic(keys)) == TopicState(20, "b")


def test_a_growth_that_comes_late_or_again_takes_nothing_back(run: Run, keys: TopicKeys) -> None:
    run(flows.open_topic(keys, 10, "b"))
    late = flows.grow_topic(keys, 20)
    call = next(late)
    first = run(_only(call))
    late.send(first)  # it is about to ask for 20
    run(flows.grow_topic(keys, 30))
    run(_only(flows._topic_call(keys, 20, "b", grows=True)))
    assert run(flows.read_topic(keys)) == TopicState(30, "b")


def _only(call: Any) -> Flow[Any]:
    return (yield call)


def test_a_topic_that_redis_has_lost_is_made_anew_by_who_uses_it(
    run: Run, keys: TopicKeys, redis: Redis
) -> None:
    known = run(flows.open_topic(keys, 10, "b"))
    redis("DEL", keys.base)
    assert run(flows.keep_alive(keys, known)) == TopicState(10, "b")
    redis("DEL", keys.base)
    run(flows.open_topic(keys, 4, "b2"))
    assert run(flows.join_group(keys, known, "g", "m")).topic == TopicState(
        10, "b2"
    )  # partitions that are in use are not forgotten


@pytest.mark.parametrize("stored", ["x", "-3", "1001", ""])
def test_a_number_of_partitions_that_is_none_is_told(
    run: Run, keys: TopicKeys, redis: Redis, stored: str
) -> None:
    redis("HSET", keys.base, "partitions", stored, "born", "b")
    for flow in (
        flows.read_topic(keys),
        flows.open_topic(keys, 10, "c"),
        flows.open_topic(keys, None, "c"),
    ):
        with pytest.raises(QueueDamaged, match="the number of partitions of the topic is"):
            run(flow)


def test_a_bad_name_or_number_never_reaches_redis(run: Run, keys: TopicKeys) -> None:
    for flow in (
        flows.open_topic(TopicKeys("a:members:b"), 3, "b"),
        flows.open_topic(keys, 0, "b"),
        flows.grow_topic(keys, 1001),
    ):
        with pytest.raises(ConfigError):
            run(flow)


def test_members_come_and_go(run: Run, keys: TopicKeys, redis: Redis) -> None:
    known = run(flows.open_topic(keys, 10, "b"))
    assert list(run(flows.join_group(keys, known, "g", "m1")).members) == ["m1"]
    found = run(flows.join_group(keys, known, "g", "m2"))
    assert sorted(found.members) == ["m1", "m2"]
    assert found.members["m2"] == found.now_ms + MEMBER_TTL_MS
    assert list(run(flows.join_group(keys, known, "other", "m3")).members) == ["m3"]
    run(flows.leave_group(keys, "g", "m1"))
    run(flows.leave_group(keys, "g", "m1"))
    assert list(run(flows.join_group(keys, known, "g", "m2")).members) == ["m2"]
    run(flows.leave_group(keys, "g", "m2"))
    assert not redis("EXISTS", keys.members("g"))


def test_who_is_not_heard_of_or_known_to_be_dead_is_no_member(
    run: Run, keys: TopicKeys, redis: Redis
) -> None:
    known = run(flows.open_topic(keys, 10, "b"))
    now = run(flows.join_group(keys, known, "g", "m1")).now_ms
    redis(
        "ZADD",
        keys.members("g"),
        now - 1,
        "silent",
        now + 10_000,
        "killed",
        now + 10**9,
        "of another clock",
        now + 9_000,
        "well",
    )
    assert sorted(
        run(flows.join_group(keys, known, "g", "m1", ["killed", "never there"])).members
    ) == ["m1", "well"]
    assert sorted(redis("ZRANGE", keys.members("g"), 0, -1)) == [b"m1", b"well"]


def test_one_member_that_joins_again_stays_one(run: Run, keys: TopicKeys) -> None:
    known = run(flows.open_topic(keys, 10, "b"))
    first = run(flows.join_group(keys, known, "g", "m")).members["m"]
    assert run(flows.join_group(keys, known, "g", "m")).members["m"] >= first


def test_members_are_forgotten_when_nobody_is_there(
    run: Run, keys: TopicKeys, redis: Redis
) -> None:
    run(flows.join_group(keys, run(flows.open_topic(keys, 10, "b")), "g", "m"))
    assert 0 < redis("TTL", keys.members("g")) <= flows.MEMBERS_KEY_TTL_S
