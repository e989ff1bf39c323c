"""Waiting for room in a full queue, with a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import QueueFull
from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.store import protocol
from busmq_spark.store.protocol import FullQueueWait, QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(
        protocol, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep)
    )
    return made


def test_a_queue_that_stays_full_fails_after_the_deadline_and_says_what_is_left(
    clock: Clock,
) -> None:
    policy = FullQueueWait(5000)
    with pytest.raises(  # noqa: PT012  # it takes many waits
        QueueFull, match="'q' holds its maxsize of 10 messages for 5 s; 7 rows are not stored"
    ) as failed:  # it takes many waits
        for _ in range(10_000):
            policy.wait_for_room("q", 10, 7)
    assert 5 <= sum(clock.slept) < 5.2
    assert failed.value.details["left"] == 7


def test_every_bit_of_room_starts_the_deadline_anew(clock: Clock) -> None:
    policy = FullQueueWait(5000)
    for left in range(100, 0, -1):
        started = clock.now
        while clock.now < started + 4:
            policy.wait_for_room("q", 10, left)
    assert clock.now > 1000 + 50 * 5


def test_a_queue_that_is_full_again_later_is_waited_for_anew(
    clock: Clock,
    redis_server: EmbeddedRedis,
    fresh: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = fresh()
    store = RedisStore(redis_layout(RedisOptions(url=redis_server.url)))
    store.attach([queue], QueueCreateOptions(allowed=True, ttl_s=60, maxsize=1))
    keys, policy = store.keys(queue), FullQueueWait(5000)

    def taken_meanwhile(seconds: float) -> None:
        clock.now += seconds
        redis_server.command("DEL", keys.messages)

    monkeypatch.setattr(
        "busmq_spark.store.protocol.time.sleep", taken_meanwhile
    )  # of the clock, which stands for the module
    for _ in range(3):
        store.appender().push(queue, [b"one"], policy)
        clock.now += 60
    store.close()


def test_pauses_begin_short_and_never_get_long(clock: Clock) -> None:
    policy = FullQueueWait(5000)
    for _ in range(40):
        policy.wait_for_room("q", 10, 7)
    assert clock.slept[0] == 0.005
    assert max(clock.slept) == 0.1


def test_a_timeout_of_zero_fails_at_once(clock: Clock) -> None:
    with pytest.raises(QueueFull, match="holds its maxsize of 10 messages; 7 rows are not stored"):
        FullQueueWait(0).wait_for_room("q", 10, 7)
    assert clock.slept == []
