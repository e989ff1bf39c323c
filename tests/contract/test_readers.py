"""Readers announce themselves with the renewal of their lease, on every layout."""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.errors import QueueDamaged
from busmq_spark.groups import shared_group
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import delete, push_many
from busmq_spark.reading.reader_operations import (
    CumulativeAckRequest,
    ack_to,
    keep_alive,
    lease,
    subscribe,
)
from busmq_spark.reading.reader_record import (
    Announcement,
    ReaderRecord,
    id_of,
    lease_field,
    mirror_field,
    shared_field,
)
from busmq_spark.reading.readers import ReaderStatus, describe_holder_of, read_readers
from tests.contract.conftest import Born, Redis, Run
from tests.contract.group_tools import Make

DAY_S = 24 * 3600
LEASE_MS = 15_000
TOKEN = "ab12|machine|7.1"


def said(subscription: str = "", token: str = TOKEN, **facts: Any) -> Announcement:
    record = ReaderRecord(kind="query", id=id_of(token), host="h", pid=7, **facts)
    return Announcement(lease_field(subscription), record.encode())


def hold(run: Run, keys: QueueKeys, subscription: str = "", **facts: Any) -> None:
    """Take the lease, or renew it, with a record."""
    words = said(subscription, **facts)
    assert run(lease([keys], subscription, TOKEN, LEASE_MS, [""], words)) == [TOKEN]


def only(found: list[ReaderStatus]) -> ReaderStatus:
    [each] = found
    return each


def age(redis: Redis, keys: QueueKeys, ms: int) -> None:
    """As if so much time had gone by since all that the records note."""
    for field in redis("HKEYS", keys.readers):
        head, _, record = redis("HGET", keys.readers, field).decode().partition(" ")
        first, *looks = head.split(";")
        seen, held, moved, below = first.split(":")
        older = [f"{int(seen) - ms}:{held}:{int(moved) - ms}:{below}"]
        for look in looks:
            at, rest = look.split(":", 1)
            older.append(f"{int(at) - ms}:{rest}")
        redis("HSET", keys.readers, field, f"{';'.join(older)} {record}")


def test_the_lease_brings_the_record_and_the_renewal_replaces_it(
    run: Run, redis: Redis, born: Born
) -> None:
    keys, _ = born()
    run(push_many(keys, [b"v"] * 5))
    run(subscribe([keys], "billing", [0]))
    hold(run, keys, "billing", name="first")
    found = only(run(read_readers([keys])))
    assert (found.queue, found.reader, found.kind, found.state) == (
        keys.name,
        "billing",
        "query",
        "ok",
    )
    assert (found.name, found.position, found.newest, found.behind) == ("first", 0, 5, 5)
    assert run(keep_alive([keys], "billing", TOKEN, LEASE_MS, said("billing", name="second"))) == [
        1
    ]
    assert only(run(read_readers([keys]))).name == "second"
    assert DAY_S - 60 < redis("TTL", keys.readers) <= DAY_S, "it outlives its holder by a day"
    [value] = redis("HVALS", keys.readers)
    assert len(value) < 1024


def test_a_renewal_of_another_reader_changes_no_record(run: Run, redis: Redis, born: Born) -> None:
    keys, _ = born()
    hold(run, keys, name="mine")
    other = "cd34|machine|8.1"
    late = said(token=other, name="theirs")
    assert run(keep_alive([keys], "", other, LEASE_MS, late)) == [-1]
    assert run(lease([keys], "", other, LEASE_MS, [""], late)) == [TOKEN]
    assert only(run(read_readers([keys]))).name == "mine"


def test_a_later_holder_without_a_record_is_not_taken_for_the_earlier(
    run: Run, redis: Redis, born: Born
) -> None:
    keys, _ = born()
    hold(run, keys, name="earlier")
    old = "cd34|machine|8.1"
    redis("SET", keys.lease(""), old, "PX", 60_000)
    found = only(run(read_readers([keys])))
    assert (found.holder, found.records, found.kind, found.held) == (old, (), "query", True)
    text = run(describe_holder_of(keys, "", old, lambda token: f"the process of {token}"))
    assert text == f"the process of {old}"
    text = run(describe_holder_of(keys, "", TOKEN, lambda _: "process 7 of this machine"))
    assert text == "query 'earlier', process 7 of this machine"


def test_a_reader_whose_lease_has_ended_is_gone_for_a_day(
    run: Run, redis: Redis, born: Born
) -> None:
    keys, _ = born()
    hold(run, keys, name="n")
    dead = only(run(read_readers([keys], lambda token: token == TOKEN)))
    assert (dead.state, dead.held) == ("gone", False)
    redis("DEL", keys.lease(""))
    found = only(run(read_readers([keys])))
    assert (found.state, found.name, found.held, found.behind) == ("gone", "n", False, 0)
    run(delete(keys))
    assert not redis("EXISTS", keys.readers)
    assert run(read_readers([keys])) == []


def test_a_reader_that_does_not_move_is_stuck_only_while_messages_wait(
    run: Run, redis: Redis, born: Born
) -> None:
    keys, there = born()
    run(subscribe([keys], "s", [0]))
    hold(run, keys, "s")
    age(redis, keys, 120_000)
    assert only(run(read_readers([keys]))).state == "ok", "nothing waits"
    run(push_many(keys, [b"v"] * 5))
    run(keep_alive([keys], "s", TOKEN, LEASE_MS, said("s")))
    age(redis, keys, 61_000)
    assert only(run(read_readers([keys]))).state == "stuck"
    assert only(run(read_readers([keys], stuck_after_s=300))).state == "ok"
    run(keep_alive([keys], "s", TOKEN, LEASE_MS, said("s")))
    found = only(run(read_readers([keys])))
    assert found.state == "stuck", "a renewal is no movement"
    assert (found.unmoved_s or 0) >= 61
    run(ack_to([CumulativeAckRequest(keys, 1, there.born, "")], "s"))
    assert only(run(read_readers([keys]))).state == "ok"
    assert only(run(read_readers([keys]))).behind == 4


def test_a_reader_whose_lag_grows_in_three_looks_is_behind(
    run: Run, redis: Redis, born: Born
) -> None:
    keys, there = born()
    run(subscribe([keys], "s", [0]))
    hold(run, keys, "s")
    for n in range(1, 4):
        run(push_many(keys, [b"v"] * 10))
        run(ack_to([CumulativeAckRequest(keys, n, there.born, "")], "s"))
        age(redis, keys, 2_000)
        run(keep_alive([keys], "s", TOKEN, LEASE_MS, said("s")))
    found = only(run(read_readers([keys])))
    assert (found.state, found.behind) == ("behind", 27)
    assert found.rate is not None
    assert 0 < found.rate < 1
    assert len(found.records[0].looks) == 4
    run(ack_to([CumulativeAckRequest(keys, 30, there.born, "")], "s"))
    age(redis, keys, 2_000)
    assert only(run(read_readers([keys]))).state == "ok"


def test_a_query_that_reads_again_is_replaying(run: Run, redis: Redis, born: Born) -> None:
    keys, there = born()
    redis("HSET", keys.metadata, "retain", "messages:100")
    run(push_many(keys, [b"v"] * 9))
    run(ack_to([CumulativeAckRequest(keys, 6, there.born, "")]))
    hold(run, keys)
    assert only(run(read_readers([keys]))).position == 6
    again = said()._replace(own={keys.name: 2})
    run(keep_alive([keys], "", TOKEN, LEASE_MS, again))
    found = only(run(read_readers([keys])))
    assert (found.state, found.position, found.behind) == ("replaying", 2, 7)
    run(keep_alive([keys], "", TOKEN, LEASE_MS, again._replace(own={keys.name: 6})))
    assert only(run(read_readers([keys]))).state == "ok"


def test_a_shared_group_has_the_records_of_its_holders(
    run: Run, redis: Redis, shared: Make
) -> None:
    group = shared(6)
    keys, name = group.keys, group.name
    for holder in ("aa", "bb"):
        words = Announcement(
            shared_field(name, holder),
            ReaderRecord(kind="shared", name=holder).encode(),
            {},
            15_000,
        )
        run(shared_group.lease(keys, name, f"token-{holder}", 2, said=words))
    found = only(run(read_readers([keys])))
    assert (found.kind, found.reader, found.state, found.position) == ("shared", name, "ok", 0)
    assert sorted(each.record.name for each in found.records if each.record) == ["aa", "bb"]
    run(shared_group.pause(keys, name, paused=True))
    assert only(run(read_readers([keys]))).state == "paused"
    run(shared_group.pause(keys, name, paused=False))
    redis("DEL", *keys.group(name)[1:])
    age(redis, keys, 10 * 60_000)
    assert only(run(read_readers([keys]))).state == "gone"


def test_a_mirror_is_a_reader_of_its_origin(run: Run, born: Born) -> None:
    keys, _ = born()
    run(push_many(keys, [b"v"] * 3))
    words = Announcement(
        mirror_field("eu"), ReaderRecord(kind="mirror", name="eu").encode(), {keys.name: 8}, 60_000
    )
    run(keep_alive([keys], said=words))
    found = {each.kind: each for each in run(read_readers([keys]))}
    mirror = found["mirror"]
    assert (mirror.reader, mirror.position, mirror.newest, mirror.behind, mirror.held) == (
        "eu",
        3,
        8,
        5,
        True,
    )


def test_damage_by_hand_neither_stops_a_reader_nor_hides_it(
    run: Run, redis: Redis, born: Born
) -> None:
    keys, _ = born()
    run(subscribe([keys], "s", [0]))
    hold(run, keys, "s")
    for damage in (b"", b"nonsense", b"\xff\x00", b"1:2:3:;4:5:6 {", b"9" * 5000):
        redis("HSET", keys.readers, lease_field("s"), damage)
        found = only(run(read_readers([keys])))
        assert (found.damaged, found.kind, found.held, found.state) == (True, "ordered", True, "ok")
        assert run(keep_alive([keys], "s", TOKEN, LEASE_MS, said("s"))) == [1]
        assert not only(run(read_readers([keys]))).damaged, "the renewal replaces it"
    redis("DEL", keys.readers)
    redis("SET", keys.readers, "a string")
    assert run(keep_alive([keys], "s", TOKEN, LEASE_MS, said("s"))) == [1]
    assert run(lease([keys], "s", TOKEN, LEASE_MS, [""], said("s"))) == [TOKEN]
    assert only(run(read_readers([keys]))).held
    redis("HSET", keys.acks, "s", "x")
    with pytest.raises(QueueDamaged, match="acked id of a subscription"):
        run(read_readers([keys]))


def test_a_hash_has_at_most_a_hundred_records_and_none_of_last_week(
    run: Run, redis: Redis, born: Born
) -> None:
    keys, _ = born()
    hold(run, keys)
    seen = int(redis("HGET", keys.readers, "l:").partition(b":")[0])
    record = ReaderRecord(kind="shared").encode()
    for n in range(120):
        redis("HSET", keys.readers, f"g:{n}:x", f"{seen - 1000 * n}:15000:{seen}: {record}")
    redis("HSET", keys.readers, "g:old:x", f"{seen - 1000 * DAY_S - 1000}:1:1: {record}")
    redis("HDEL", keys.readers, "l:")
    run(keep_alive([keys], "", TOKEN, LEASE_MS, said()))
    left = {field.decode() for field in redis("HKEYS", keys.readers)}
    assert len(left) == 100
    assert {"l:", "g:0:x", "g:98:x"} <= left
    assert not {"g:99:x", "g:119:x", "g:old:x"} & left


def test_a_record_ends_after_a_day_while_another_reader_renews(
    run: Run, redis: Redis, born: Born
) -> None:
    keys, _ = born()
    run(subscribe([keys], "s", [0]))
    hold(run, keys, "s", name="ended")
    redis("DEL", keys.lease("s"))
    age(redis, keys, 1000 * DAY_S - 60_000)
    assert only(run(read_readers([keys]))).name == "ended"
    age(redis, keys, 61_000)
    hold(run, keys, name="other")
    found = {each.reader: each for each in run(read_readers([keys]))}
    assert (found["s"].state, found["s"].records, found[""].name) == ("gone", (), "other")


def test_more_readers_than_a_call_may_have_are_all_found(run: Run, born: Born) -> None:
    keys, _ = born()
    many = {f"s{n}" for n in range(400)}
    for name in many:
        run(subscribe([keys], name, ["earliest"]))
    other, _ = born()
    run(push_many(other, [b"v"]))
    found = run(read_readers([keys, other]))
    assert {each.reader for each in found if each.queue == keys.name} == many
    assert [each.behind for each in found if each.queue == other.name] == [1]
