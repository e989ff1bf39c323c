"""The clock where only npm clients push: a reader of ours notes when it sees their messages, so
that a time finds the right id, to the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from busmq_spark import Bus
from busmq_spark.errors import TimeUnknown
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading import times_of_ids
from busmq_spark.redis_io.sync_link import SyncLink
from tests.clocks import SECOND, noted, pass_by
from tests.conftest import Fresh
from tests.peers.node import Peer
from tests.spark.engine import Engine
from tests.support import PATIENCE_S, wait_until

MINUTE = 60 * SECOND
Look = Callable[[], Any]
"""Lets the reader look for messages."""


@pytest.fixture
def keys(fresh: Fresh) -> QueueKeys:
    return QueueKeys(fresh("clock"))


@pytest.fixture(params=["query", "query with timestamps", "consumer"])
def reader(
    request: pytest.FixtureRequest, peer: Peer, redis_url: str, keys: QueueKeys
) -> Iterator[Look]:
    """The only program of ours. Nothing that it does removes a message here."""
    peer.attach(keys.name, ttl=3600)
    with ExitStack() as stack:
        if request.param.startswith("query"):
            options = {
                "redis.url": redis_url,
                "subscribe": keys.name,
                "ack": "none",
                "idlePollMs": "1",
                "failOnDataLoss": "false",
            }
            query = Engine(options)
            if "timestamps" in request.param:
                query.reader._planning._timed = True
            stack.callback(query.kill)
            yield query.step
            return
        queue = stack.enter_context(stack.enter_context(Bus.sync(redis_url)).queue(keys.name))
        yield lambda: [*queue.consume(remove=False, max=1)]


@pytest.fixture
def redis(link: SyncLink) -> Callable[..., Any]:
    return lambda *words: link.execute(command(*words))


def now_ms(link: SyncLink, keys: QueueKeys) -> int:
    return link.run(flows.clock_ms(keys))


def seen(reader: Look, redis: Callable[..., Any], keys: QueueKeys, newest: int) -> None:
    def is_noted() -> bool:
        reader()
        return [each.id for each in noted(redis, keys)][-1:] == [newest]

    wait_until(is_noted, PATIENCE_S)


def burst(
    peer: Peer, link: SyncLink, keys: QueueKeys, reader: Look, redis: Callable[..., Any], count: int
) -> tuple[int, int, int]:
    """Push from Node until the reader has seen it: the last id, and the times of the server before
    and after.
    """
    before = now_ms(link, keys)
    [*_, last] = peer.push_all(keys.name, [f"m{i}" for i in range(count)])
    seen(reader, redis, keys, last)
    return last, before, now_ms(link, keys)


def test_ten_minutes_ago_finds_the_right_id_to_the_second(
    peer: Peer, link: SyncLink, keys: QueueKeys, reader: Look, redis: Callable[..., Any]
) -> None:
    bursts = []
    for count in (3, 1, 5, 2):
        last, before, after = burst(peer, link, keys, reader, redis, count)
        assert before <= noted(redis, keys)[-1].ms <= after, (
            "it is the time at which the reader saw it, by the clock of the server"
        )
        bursts = [
            (id, first - 4 * MINUTE, until - 4 * MINUTE)
            for id, first, until in [*bursts, (last, before, after)]
        ]
        pass_by(redis, keys, 4 * MINUTE)
    for (earlier, _, _), (last, before, after) in pairwise(bursts):
        assert link.run(times_of_ids.id_at(keys, before - SECOND)) == earlier
        assert link.run(times_of_ids.id_at(keys, after + SECOND)) == last
    with pytest.raises(TimeUnknown):
        link.run(
            times_of_ids.id_at(keys, bursts[0][1] - SECOND)
        )  # nobody had looked before, and the messages are still there
    # The bursts came 16, 12, 8 and 4 minutes ago.
    assert [link.run(times_of_ids.id_at(keys, -minutes * MINUTE)) for minutes in (10, 6, 2)] == [
        4,
        9,
        11,
    ]
    at = next(each.ms for each in noted(redis, keys) if each.id == 4)
    second = at // SECOND * SECOND
    assert [
        link.run(times_of_ids.id_at(keys, ms))
        for ms in (second - 1, second, second + SECOND - 1, second + SECOND)
    ] == [3, 3, 3, 4]


def test_another_life_of_the_queue_has_its_own_times(
    peer: Peer, link: SyncLink, keys: QueueKeys, reader: Look, redis: Callable[..., Any]
) -> None:
    burst(peer, link, keys, reader, redis, 4)
    pass_by(redis, keys, 12 * MINUTE)
    burst(peer, link, keys, reader, redis, 2)
    pass_by(redis, keys, MINUTE)
    assert link.run(times_of_ids.id_at(keys, -10 * MINUTE)) == 4
    redis("DEL", *keys.peer_keys)  # what close of npm does, while others are attached
    peer.attach(keys.name, ttl=3600)
    burst(peer, link, keys, reader, redis, 3)
    pass_by(redis, keys, 11 * MINUTE)
    burst(peer, link, keys, reader, redis, 1)
    assert link.run(times_of_ids.id_at(keys, -10 * MINUTE)) == 3
    assert link.run(times_of_ids.ms_of(keys, 4)) == noted(redis, keys)[-1].ms
    assert [each.id for each in noted(redis, keys)][-2:] == [3, 4]


def test_after_trims_what_is_left_is_found_as_before(
    peer: Peer, link: SyncLink, keys: QueueKeys, reader: Look, redis: Callable[..., Any]
) -> None:
    for count in (3, 3, 3):
        burst(peer, link, keys, reader, redis, count)
        pass_by(redis, keys, 8 * MINUTE)
    assert link.run(times_of_ids.id_at(keys, -10 * MINUTE)) == 6
    link.run(flows.trim(keys, 5))
    assert link.run(times_of_ids.id_at(keys, -10 * MINUTE)) == 6
    assert link.run(times_of_ids.id_at(keys, -60 * MINUTE)) <= 5, "all that is left came later"
    link.run(flows.trim(keys, 8))
    assert burst(peer, link, keys, reader, redis, 2)[0] == 11
    assert next(each.id for each in noted(redis, keys)) >= 6, (
        "times that no stored message needs are gone"
    )
    assert link.run(times_of_ids.id_at(keys, -10 * MINUTE)) <= 8, (
        "message 9 is the first that came since then and is left"
    )
    assert link.run(times_of_ids.id_at(keys, -MINUTE)) == 9
