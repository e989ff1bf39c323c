"""The clock of a queue: to the second, for messages of ours and of peers, in every life of the
queue.
"""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.errors import ConfigError, TimeUnknown
from busmq_spark.queue import queue
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading import reader_operations, times_of_ids
from busmq_spark.reading.times_of_ids import NewestIdAtTime
from tests.clocks import DAY, SECOND, noted, npm_push, pass_by, store
from tests.contract.conftest import Redis, Run
from tests.support import Life


@pytest.fixture
def keys(run: Run, fresh_keys: Any) -> QueueKeys:
    made: QueueKeys = fresh_keys("clock")
    run(queue.attach(made, "b" * 16, ttl_s=600))
    return made


def begun(ms: int) -> int:
    """The begin of its second."""
    return ms // SECOND * SECOND


def test_what_came_in_a_second_or_later_is_behind_the_last_id_before_it(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    """The last message of a burst is not taken for one of the next, however much later that is."""
    for _ in range(3):
        run(queue.push_many(keys, [b"v"] * 3))
        run(queue.push(keys, b"v"))
        pass_by(redis, keys, 10 * SECOND)
    known = noted(redis, keys)
    first, *bursts = [each for each in known if each.id % 4 == 0]
    assert (first.id, [each.id for each in bursts]) == (0, [4, 8, 12])
    for before, at in zip((0, 4, 8), bursts, strict=True):
        assert run(times_of_ids.id_at(keys, begun(at.ms) - 5 * SECOND)) == before
        # The same, unless the second ended within the burst.
        assert run(times_of_ids.id_at(keys, at.ms)) == max(
            (each.id for each in known if each.ms < begun(at.ms)), default=before
        )
        assert run(times_of_ids.id_at(keys, at.ms + SECOND)) == at.id
        assert run(times_of_ids.ms_of(keys, at.id)) == at.ms
    assert run(times_of_ids.id_at(keys, -15 * SECOND)) == 8
    assert run(times_of_ids.id_at(keys, -DAY)) == 0, "the queue was empty before"
    assert run(times_of_ids.ms_of(keys, 13)) is None


def test_pushes_of_one_second_are_one_time(run: Run, redis: Redis, keys: QueueKeys) -> None:
    while True:
        for _ in range(10):
            run(queue.push(keys, b"v"))
        first, *_, last = known = noted(redis, keys)
        if (
            begun(last.ms) - begun(first.ms) <= SECOND
        ):  # else the second ended meanwhile, or this machine is slow
            break
        store(redis, keys, known[-1:])
    assert len(known) <= 3


def test_messages_of_peers_are_known_from_when_they_were_seen(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    npm_push(redis, keys, 5)
    assert (run(times_of_ids.note_times([keys])), run(times_of_ids.note_times([keys]))) == (
        [1],
        [0],
    )
    assert run(times_of_ids.ms_of(keys, 3)) is None
    pass_by(redis, keys, 10 * SECOND)
    npm_push(redis, keys, 2)
    assert run(times_of_ids.id_at(keys, -5 * SECOND)) == 5
    assert run(times_of_ids.ms_of(keys, 7)) == noted(redis, keys)[-1].ms
    with pytest.raises(TimeUnknown, match="of its times are known 2"):
        run(times_of_ids.id_at(keys, -DAY))
    run(queue.trim(keys, 5))
    assert run(times_of_ids.id_at(keys, -DAY)) == 5, "all that is stored came later"


def test_nothing_is_noted_of_a_queue_that_does_not_exist(
    run: Run, redis: Redis, fresh_keys: Any
) -> None:
    keys = fresh_keys("none")
    assert run(times_of_ids.note_times([keys])) == [-1]
    assert redis("EXISTS", keys.clock, keys.metadata) == 0
    with pytest.raises(TimeUnknown, match="none is known"):
        run(times_of_ids.id_at(keys, -SECOND))
    assert run(times_of_ids.ms_of(keys, 1)) is None


@pytest.mark.parametrize("how", ["closed", "closed by a peer", "ids begin again"])
def test_a_new_life_of_the_queue_has_times_of_its_own(
    run: Run, redis: Redis, keys: QueueKeys, how: str
) -> None:
    for _ in range(2):
        run(queue.push_many(keys, [b"v"] * 5))
        pass_by(redis, keys, 10 * SECOND)
    if how == "closed":
        run(queue.delete(keys))
        assert redis("EXISTS", keys.clock) == 0
    elif how == "closed by a peer":
        redis("DEL", *keys.peer_keys)
    else:
        redis("DEL", keys.messages, keys.msgid)
    run(queue.attach(keys, "c" * 16, ttl_s=600))
    run(queue.push(keys, b"v"))
    assert [each.id for each in noted(redis, keys)] == [0, 1]


def test_ids_that_begin_again_within_a_second_are_noticed_in_the_next(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    run(queue.push_many(keys, [b"v"] * 5))
    pass_by(redis, keys, 10 * SECOND)
    run(queue.push_many(keys, [b"v"] * 5))
    redis("DEL", keys.messages, keys.msgid)
    run(queue.push(keys, b"v"))
    pass_by(redis, keys, 10 * SECOND)
    run(queue.push(keys, b"v"))
    ids = [each.id for each in noted(redis, keys)]
    assert ids == sorted(set(ids))
    assert ids[-1] == 2


def test_queues_of_channels_and_services_have_no_clock(
    run: Run, redis: Redis, fresh_keys: Any
) -> None:
    for name in ("channel:server", "service"):
        keys = QueueKeys(f"{name}:{fresh_keys().name}", fresh_keys().cluster)
        run(queue.attach(keys, "b" * 16, ttl_s=600))
        run(queue.push(keys, b"v"))
        assert (redis("EXISTS", keys.clock), noted(redis, keys)) == (0, [])


def test_a_clock_that_is_set_back_stands_still(run: Run, redis: Redis, keys: QueueKeys) -> None:
    run(queue.push(keys, b"v"))
    pass_by(redis, keys, -3600 * SECOND)
    before = noted(redis, keys)
    run(queue.push_many(keys, [b"v"] * 3))
    assert noted(redis, keys) == [before[0], NewestIdAtTime(before[1].ms, 4)]


def test_a_day_of_seconds_is_kept(run: Run, redis: Redis, keys: QueueKeys) -> None:
    day = 86_400
    npm_push(redis, keys)
    redis("SET", keys.msgid, day)
    since = begun(run(queue.clock_ms(keys))) - DAY - SECOND
    store(redis, keys, [NewestIdAtTime(since + SECOND * i + 7, i) for i in range(day + 1)])
    for i in (0, 1, 1000, 40_000, day - 1):
        assert run(times_of_ids.id_at(keys, since + SECOND * (i + 1))) == i
        assert run(times_of_ids.ms_of(keys, i + 1)) == since + SECOND * (i + 1) + 7
    run(queue.push(keys, b"v"))
    assert redis("LLEN", keys.clock) == 2 * day
    assert [each.id for each in run(times_of_ids.all_known_times(keys, 2, day + 1))] == list(
        range(1, day + 2)
    )
    with pytest.raises(TimeUnknown, match="are known"):
        run(times_of_ids.id_at(keys, since))


def test_times_that_no_stored_message_needs_go(run: Run, redis: Redis, keys: QueueKeys) -> None:
    run(queue.push_many(keys, [b"v"] * 100))
    now = run(queue.clock_ms(keys))
    store(redis, keys, [NewestIdAtTime(now - SECOND * (101 - i), i) for i in range(101)])
    run(queue.trim(keys, 90))
    for _ in range(4):  # some at each call
        run(queue.push(keys, b"v"))
        pass_by(redis, keys, 2 * SECOND)
    assert [each.id for each in noted(redis, keys)] == [90, *range(91, 105)]
    assert run(times_of_ids.id_at(keys, -DAY)) == 90


def test_a_time_that_is_still_to_come_is_refused(run: Run, keys: QueueKeys) -> None:
    with pytest.raises(ConfigError, match="is still to come"):
        run(times_of_ids.id_at(keys, run(queue.clock_ms(keys)) + 60 * SECOND))


@pytest.mark.parametrize(("ttl_s", "lives_s"), [(600, 3600), (7200, 7200)])
def test_the_clock_lives_as_long_as_its_queue_and_an_hour_at_least(
    run: Run, redis: Redis, fresh_keys: Any, ttl_s: int, lives_s: int
) -> None:
    """So that queues of a moment leave nothing for days, and those that peers alone keep alive do
    not lose it at once.
    """
    keys = fresh_keys("clock")
    run(queue.attach(keys, "b" * 16, ttl_s=ttl_s))
    for use in (
        lambda: queue.push(keys, b"v"),
        lambda: queue.attach(keys, "c" * 16, ttl_s=ttl_s),
        lambda: reader_operations.keep_alive([keys]),
    ):
        redis("EXPIRE", keys.clock, 60)
        life = Life(redis, lives_s)
        pass_by(redis, keys, 2 * SECOND) if redis("EXISTS", keys.clock) else None
        run(use())
        assert life.given_to(keys.clock)
