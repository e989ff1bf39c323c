"""What a queue keeps of what is acknowledged: by age, number and bytes, while readers go on, go
back, come late and leave.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import QueueBusy, QueueMissing, Unauthorized
from busmq_spark.groups import shared_group
from busmq_spark.groups.shared_group import SettleRequest
from busmq_spark.queue import queue, retention
from busmq_spark.queue.command_generators import script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.retention import Retention, parse_limits
from busmq_spark.reading import reader_operations, reader_subscriptions, readers, times_of_ids
from busmq_spark.reading.loss import count_messages_to_delete
from busmq_spark.reading.reader_operations import AckResult, CumulativeAckRequest
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from busmq_spark.writing import idempotent_push
from busmq_spark.writing.sink import StagedList, commit
from tests.clocks import DAY, HOUR, SECOND, noted, npm_push, pass_by
from tests.conftest import Fresh
from tests.contract.conftest import Redis, Run
from tests.stored import read_at

BORN = "b" * 16
WEEK, HUNDRED = parse_limits("7d", None, None), parse_limits(None, 100, None)


@pytest.fixture
def keys(run: Run, fresh_keys: Any) -> QueueKeys:
    made: QueueKeys = fresh_keys("kept")
    run(queue.attach(made, BORN, ttl_s=600))
    return made


def push(run: Run, keys: QueueKeys, many: int, size: int = 1) -> None:
    run(queue.push_many(keys, [b"v" * size] * many))


def ack(run: Run, redis: Redis, keys: QueueKeys, last: int, name: str = "") -> AckResult:
    """In a new second: only then it is looked at what may go."""
    soon(redis, keys)
    [found] = run(reader_operations.ack_to([CumulativeAckRequest(keys, last, BORN, "")], name))
    return found


def soon(redis: Redis, keys: QueueKeys) -> None:
    """The next call looks anew at what may go, as one of the next second does."""
    if bound := redis("HGET", keys.metadata, "lets"):
        redis("HSET", keys.metadata, "lets", b"0:" + bound.partition(b":")[2])


def ids(redis: Redis, keys: QueueKeys) -> list[int]:
    return [int(id) for id in redis("LRANGE", keys.messages, 0, -1)[0::2]]


def numbers(run: Run, keys: QueueKeys) -> tuple[int, int]:
    """How many wait, and how many are kept: as everybody counts them."""
    found = run(retention.read_retention(keys))
    [known] = run(reader_operations.states([(keys, -1)]))
    waiting = run(queue.count(keys))
    assert (known.waiting, known.kept_count) == (waiting, found.kept if found else 0)
    return waiting, known.kept_count


def test_an_ack_moves_the_position_and_deletes_nothing(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    push(run, keys, 10)
    assert run(retention.set_retention(keys, HUNDRED)) == Retention(None, 100, None, 10, 0)
    assert ack(run, redis, keys, 7) == AckResult("ok", "0")
    assert numbers(run, keys) == (3, 7)
    assert redis("HGET", keys.metadata, "acked") == b"7"
    assert ids(redis, keys) == list(range(1, 11))
    assert ack(run, redis, keys, 4) == AckResult("ok", "0"), "an older packet, that comes late"
    assert numbers(run, keys) == (3, 7)


@pytest.mark.parametrize(
    "limits",
    [
        parse_limits(*given)
        for given in (("1h", None, None), ("7d", 4, None), (None, 4, None), (None, None, 4))
    ],
)
def test_what_is_acked_and_beyond_a_limit_goes_with_an_ack(
    run: Run, redis: Redis, keys: QueueKeys, limits: str
) -> None:
    for _ in range(3):
        push(run, keys, 1)
        push(run, keys, 1)
    pass_by(redis, keys, 2 * HOUR)
    for _ in range(4):
        push(run, keys, 1)
    run(retention.set_retention(keys, limits))
    assert numbers(run, keys) == (10, 0), "nobody has read any of it"
    ack(run, redis, keys, 3)
    assert ids(redis, keys) == list(range(4, 11)), (
        "6 are beyond the limit, of which 3 are acknowledged"
    )
    ack(run, redis, keys, 10)
    assert ids(redis, keys) == list(range(7, 11))
    assert numbers(run, keys) == (0, 4)
    assert run(reader_subscriptions.register(keys, "late")) == 6, (
        "the oldest kept message is the earliest"
    )
    assert numbers(run, keys) == (0, 4), "they wait for that one alone"


def test_within_a_second_an_ack_moves_the_position_and_looks_no_further(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    push(run, keys, 10)
    while True:
        run(retention.set_retention(keys, parse_limits(None, 2, None)))
        looked_at = redis("HGET", keys.metadata, "lets").partition(b":")[0]
        [found] = run(reader_operations.ack_to([CumulativeAckRequest(keys, 9, BORN, "")]))
        stored = ids(redis, keys)
        if redis("TIME")[0] == looked_at:
            break
        run(retention.set_retention(keys, parse_limits(None, 3, None)))
    assert (found, stored[-1]) == (AckResult("ok", "0"), 10)
    assert numbers(run, keys)[0] == 1
    soon(redis, keys)
    push(run, keys, 1)
    assert ids(redis, keys) == [10, 11]


@pytest.mark.parametrize(
    "how", ["push", "push_from", "push_once", "commit", "note", "touch", "retain"]
)
def test_time_goes_on_while_nobody_acks(run: Run, redis: Redis, keys: QueueKeys, how: str) -> None:
    run(retention.set_retention(keys, parse_limits("1h", None, None)))
    push(run, keys, 10)
    run(reader_subscriptions.register(keys, "s"))
    ack(run, redis, keys, 9, "s")
    pass_by(redis, keys, 2 * HOUR)
    soon(redis, keys)
    assert numbers(run, keys) == (1, 9)
    match how:
        case "push":
            push(run, keys, 1)
        case "push_from":
            assert run(idempotent_push.push_from(keys, "box", [1], [b"v"])) == (1, 0)
        case "push_once":
            names = (*keys.peer_keys, keys.sinks, keys.clock, keys.acks, keys.bytes)
            run(
                _one(
                    script(
                        "push_once", names, (keys.available, "query", 600, "origin", 1, 1, 0, b"v")
                    )
                )
            )
        case "commit":
            redis("RPUSH", keys.stage("a:0:1"), "v")
            assert (
                run(
                    commit(
                        keys, "sink", 0, [StagedList(keys.name, 0, keys.stage("a:0:1"), ((1, 1),))]
                    )
                )
                is None
            )
        case "note":
            run(times_of_ids.note_times([keys]))
        case "touch":
            run(reader_operations.keep_alive([keys]))
        case "retain":
            run(retention.set_retention(keys, ""))
    assert ids(redis, keys)[0] == 10, "what nobody has acknowledged stays, however old it is"


def _one(call: Any) -> Any:
    return (yield call)


def test_the_slowest_reader_holds_back_and_one_that_goes_back_too(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    push(run, keys, 10)
    run(retention.set_retention(keys, parse_limits(None, 2, None)))
    for name in ("slow", "quick"):
        run(reader_subscriptions.register(keys, name))
    ack(run, redis, keys, 9, "quick")
    assert numbers(run, keys) == (10, 0)
    ack(run, redis, keys, 4, "slow")
    assert (ids(redis, keys)[0], numbers(run, keys)) == (5, (6, 0))
    ack(run, redis, keys, 9, "slow")
    assert (ids(redis, keys)[0], numbers(run, keys)) == (9, (1, 1))
    run(retention.set_retention(keys, HUNDRED))
    push(run, keys, 10)
    for name in ("slow", "quick"):
        ack(run, redis, keys, 20, name)
    assert run(reader_subscriptions.seek(keys, "slow", 12)) == 12
    run(retention.set_retention(keys, parse_limits(None, 2, None)))
    assert ids(redis, keys)[0] == 13, "it has still to read them"
    assert numbers(run, keys) == (0, 8), "and a producer need not wait for that"
    assert [each.behind for each in run(reader_subscriptions.list_subscriptions(keys))] == [0, 8]
    ack(run, redis, keys, 20, "slow")
    assert ids(redis, keys) == [19, 20]


def test_a_shared_group_leases_again_what_is_kept(run: Run, redis: Redis, keys: QueueKeys) -> None:
    push(run, keys, 6)
    run(retention.set_retention(keys, WEEK))
    run(reader_subscriptions.register(keys, "g", shared={"lease_ms": 60_000, "limit": 0}))
    for round_ in (1, 2):
        held = run(shared_group.lease(keys, "g", f"t{round_}", 10)).deliveries
        assert [(each.id, each.tries) for each in held] == [(id, 1) for id in range(1, 7)]
        assert (
            run(
                shared_group.settle(
                    keys, "g", BORN, [SettleRequest(each.id, each.token, "ack") for each in held]
                )
            )
            == [1] * 6
        )
        assert numbers(run, keys) == (0, 6)
        assert run(reader_subscriptions.seek(keys, "g", "earliest")) == 0
    run(reader_subscriptions.seek(keys, "g", "latest"))
    run(retention.set_retention(keys, parse_limits(None, 2, None)))
    assert ids(redis, keys) == [5, 6]


def test_maxsize_counts_what_waits(run: Run, redis: Redis, fresh_keys: Any) -> None:
    keys = fresh_keys("small")
    run(queue.attach(keys, BORN, ttl_s=600, maxsize=10))
    run(retention.set_retention(keys, HUNDRED))
    assert run(queue.push_many(keys, [b"v"] * 12)) == 10
    ack(run, redis, keys, 4)
    assert run(queue.push_many(keys, [b"v"] * 12)) == 4
    assert run(idempotent_push.push_from(keys, "box", [1], [b"v"])) == (0, 10)
    ack(run, redis, keys, 14)
    assert run(idempotent_push.push_from(keys, "box", [1], [b"v"])) == (1, 0)
    assert numbers(run, keys) == (1, 14)


def test_an_end_deletes_what_is_acked_in_steps(run: Run, redis: Redis, keys: QueueKeys) -> None:
    run(retention.set_retention(keys, WEEK))
    push(run, keys, 5001)
    ack(run, redis, keys, 5000)
    assert run(retention.set_retention(keys, parse_limits(None, None, None))) is None
    assert (ids(redis, keys), numbers(run, keys)) == ([5001], (1, 0))
    assert redis("HMGET", keys.metadata, "retain", "done", "lets", "bytes") == [None] * 4
    ack(run, redis, keys, 5001)
    assert ids(redis, keys) == []
    assert run(retention.set_retention(keys, parse_limits(None, None, None))) is None, "again"


def test_an_end_that_was_killed_half_way_goes_on_with_whatever_comes(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    run(retention.set_retention(keys, WEEK))
    push(run, keys, 5001)
    ack(run, redis, keys, 5000)
    names = (
        keys.metadata,
        keys.messages,
        keys.msgid,
        keys.toack,
        keys.acks,
        keys.clock,
        keys.bytes,
    )
    run(_one(script("retain", names, ("end", 2000))))
    assert ids(redis, keys)[0] == 2001
    push(run, keys, 1)
    run(reader_operations.keep_alive([keys]))
    assert (ids(redis, keys), redis("HGET", keys.metadata, "retain")) == ([5001, 5002], None)


def test_an_end_waits_for_a_reader_that_has_gone_back(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    run(retention.set_retention(keys, WEEK))
    push(run, keys, 10)
    run(reader_subscriptions.register(keys, "s"))
    ack(run, redis, keys, 10, "s")
    run(reader_subscriptions.seek(keys, "s", 6))
    found = run(retention.set_retention(keys, parse_limits(None, None, None)))
    assert found is not None
    assert found.ends
    assert ids(redis, keys) == [7, 8, 9, 10]
    ack(run, redis, keys, 10, "s")
    assert (ids(redis, keys), run(retention.read_retention(keys))) == ([], None)


def test_messages_of_peers_are_kept_from_when_they_were_seen(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    run(retention.set_retention(keys, parse_limits("1h", None, None)))
    npm_push(redis, keys, 5)
    soon(redis, keys)
    ack(run, redis, keys, 5)
    assert noted(redis, keys)[-1].id == 5, "an ack sees them"
    pass_by(redis, keys, 2 * HOUR)
    npm_push(redis, keys, 2)
    soon(redis, keys)
    ack(run, redis, keys, 7)
    assert ids(redis, keys) == [6, 7]


def test_bytes_of_peers_are_counted_too(run: Run, redis: Redis, keys: QueueKeys) -> None:
    npm_push(redis, keys, 5)
    run(retention.set_retention(keys, parse_limits(None, None, 10)))
    push(run, keys, 3, 2)
    npm_push(redis, keys, 3)
    push(run, keys, 1, 4)
    soon(redis, keys)
    ack(run, redis, keys, 12)
    assert redis("HGET", keys.metadata, "bytes") == b"18:12:18"
    assert sum(len(value) for value in redis("LRANGE", keys.messages, 0, -1)[1::2]) in range(10, 16)
    assert ids(redis, keys)[0] > 5


def test_a_call_counts_a_bounded_number_of_bytes_of_peers(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    run(retention.set_retention(keys, parse_limits(None, None, 10**9)))
    redis("RPUSH", keys.messages, *(word for id in range(1, 1501) for word in (id, "v")))
    redis("SET", keys.msgid, 1500)
    for counted in (b"1000", b"1500"):
        run(_one(script("note_time", keys.retention_keys * 2, (1,))))
        assert redis("HGET", keys.metadata, "bytes").split(b":")[1] == counted


def test_a_late_reader_goes_back_to_where_its_checkpoint_is(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    """What a query does that begins anew, or with an older checkpoint, below what its subscription
    has acknowledged.
    """
    run(retention.set_retention(keys, HUNDRED))
    push(run, keys, 10)
    run(reader_operations.subscribe([keys], "s", ["earliest"]))
    ack(run, redis, keys, 10, "s")
    assert run(reader_operations.subscribe([keys], "s", [4])) == [10], (
        "one who only registers keeps its place"
    )
    assert run(reader_operations.subscribe([keys], "s", ["=4"])) == [4]
    assert run(reader_operations.subscribe([keys], "s", ["=6"])) == [4], "it goes back only"
    run(retention.set_retention(keys, parse_limits(None, 1, None)))
    assert ids(redis, keys) == [5, 6, 7, 8, 9, 10]
    ack(run, redis, keys, 10, "s")
    assert ids(redis, keys) == [10]
    run(retention.set_retention(keys, parse_limits(None, None, None)))
    assert run(reader_operations.subscribe([keys], "s", ["=4"])) == [10], "nothing is kept"


def test_what_all_have_acked_is_no_backlog(run: Run, redis: Redis, keys: QueueKeys) -> None:
    run(retention.set_retention(keys, HUNDRED))
    push(run, keys, 10)
    ack(run, redis, keys, 6)
    [now] = run(reader_operations.states([(keys, -1)]))
    assert (now.done, now.floor) == (6, 0)
    assert [count_messages_to_delete(now, last, None, []) for last in (3, 6, 8, 10)] == [0, 0, 2, 4]
    assert [each.behind for each in run(readers.read_readers([keys]))] == [4]


def test_a_queue_that_is_made_anew_keeps_nothing(run: Run, redis: Redis, keys: QueueKeys) -> None:
    run(retention.set_retention(keys, parse_limits(None, 100, 100)))
    push(run, keys, 10)
    ack(run, redis, keys, 10)
    run(queue.delete(keys))
    assert redis("EXISTS", keys.bytes) == 0
    run(queue.attach(keys, "c" * 16, ttl_s=600))
    push(run, keys, 3)
    assert (run(retention.read_retention(keys)), numbers(run, keys)) == (None, (3, 0))
    assert ack(run, redis, keys, 2) == AckResult("recreated", "c" * 16), (
        "an ack of the life before, that comes late"
    )
    assert ids(redis, keys) == [1, 2, 3]


def test_ids_that_begin_again_do_not_count_as_acknowledged(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    run(retention.set_retention(keys, parse_limits(None, 1, None)))
    push(run, keys, 10)
    run(reader_subscriptions.register(keys, "s", "latest"))
    ack(run, redis, keys, 10, "s")
    redis("DEL", keys.messages, keys.msgid)
    push(run, keys, 5)
    soon(redis, keys)
    push(run, keys, 1)
    assert ids(redis, keys) == [1, 2, 3, 4, 5, 6]


def test_ids_of_16_digits(run: Run, redis: Redis, keys: QueueKeys) -> None:
    redis("SET", keys.msgid, 2**53 - 12)
    run(retention.set_retention(keys, parse_limits("7d", 4, "10g")))
    push(run, keys, 10)
    soon(redis, keys)
    ack(run, redis, keys, 2**53 - 2)
    assert ids(redis, keys) == [2**53 - 5, 2**53 - 4, 2**53 - 3, 2**53 - 2]
    assert redis("HGET", keys.metadata, "done") == b"%d" % (2**53 - 2)


def test_a_clock_that_is_set_back_keeps_what_is_there(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    run(retention.set_retention(keys, parse_limits("1h", None, None)))
    push(run, keys, 5)
    pass_by(redis, keys, -DAY)
    soon(redis, keys)
    ack(run, redis, keys, 5)
    assert numbers(run, keys) == (0, 5)


def test_limits_are_changed_while_readers_run(run: Run, redis: Redis, keys: QueueKeys) -> None:
    push(run, keys, 10, 10)
    run(retention.set_retention(keys, parse_limits(None, None, 1000)))
    ack(run, redis, keys, 10)
    assert numbers(run, keys) == (0, 10)
    assert run(retention.set_retention(keys, parse_limits(None, 4, None))) == Retention(
        None, 4, None, 0, 4
    )
    assert redis("EXISTS", keys.bytes) == 0
    assert run(retention.set_retention(keys, parse_limits(None, 100, None))) == Retention(
        None, 100, None, 0, 4
    ), "what is gone stays so"


def test_what_readers_of_a_mirror_have_acknowledged_counts_as_such(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    push(run, keys, 6)
    redis("HSET", keys.acks, "one", 4, "two", 5, ":born", BORN)
    assert run(retention.set_retention(keys, HUNDRED)) == Retention(None, 100, None, 2, 4)


def test_what_cannot_be_kept_is_refused(
    run: Run, redis: Redis, keys: QueueKeys, fresh_keys: Any
) -> None:
    with pytest.raises(QueueMissing):
        run(retention.set_retention(fresh_keys("none"), WEEK))
    push(run, keys, 3)
    run(queue.pop(keys, reliable=True, ttl_s=60))
    with pytest.raises(QueueBusy, match="reliable consumer took"):
        run(retention.set_retention(keys, WEEK))
    assert redis("HEXISTS", keys.metadata, "retain") == 0


def test_a_queue_that_keeps_for_months_notes_fewer_times(
    run: Run, redis: Redis, keys: QueueKeys
) -> None:
    """At most 604,800 of them: of 90 days one in 13 s. To that time it is right, then."""
    run(retention.set_retention(keys, parse_limits("90d", None, None)))
    for _ in range(20):
        push(run, keys, 1)
        pass_by(redis, keys, 2 * SECOND)
    times = [each.ms for each in noted(redis, keys)[1:-1]]
    assert 2 <= len(times) <= 4
    assert all(
        12 * SECOND <= later - earlier <= 20 * SECOND
        for earlier, later in itertools.pairwise(times)
    )


def test_a_user_without_the_right_to_the_time_sets_no_age_and_may_do_everything_else(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    keys = QueueKeys(fresh("kept"))
    redis_server.command(
        "ACL", "SETUSER", "timeless", "reset", "on", ">secret", "~*", "&*", "+@all", "-time"
    )
    link, other = (
        SyncLink(parse(f"redis://timeless:secret@127.0.0.1:{redis_server.port}")[0]),
        SyncLink(parse(redis_server.url)[0]),
    )
    try:
        link.run(queue.attach(keys, BORN, ttl_s=60))
        with pytest.raises(Unauthorized):
            link.run(retention.set_retention(keys, WEEK))
        assert link.run(retention.read_retention(keys)) is None
        link.run(retention.set_retention(keys, parse_limits(None, 2, None)))
        link.run(queue.push_many(keys, [b"x"] * 9))
        assert (
            link.run(reader_operations.ack_to([CumulativeAckRequest(keys, 9, BORN, "")]))[0].status
            == "ok"
        )
        assert link.run(read_at(keys, 0))[0].id == 8
        other.run(retention.set_retention(keys, WEEK))
        link.run(queue.push_many(keys, [b"x"] * 9))
        assert (
            link.run(reader_operations.ack_to([CumulativeAckRequest(keys, 18, BORN, "")]))[0].status
            == "ok"
        )
        assert link.run(read_at(keys, 0))[0].id == 8, "only others let it go by its age"
    finally:
        link.close()
        other.close()
