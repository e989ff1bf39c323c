"""What a queue is. Reads as the specification of queue/queue.py; run by both drivers."""

from __future__ import annotations

import pytest

from busmq_spark.errors import ConfigError, MessageRefused, QueueMissing
from busmq_spark.queue import queue
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES, MAX_ID, Message
from busmq_spark.queue.queue import MAX_MESSAGES_PER_ACK, MIN_RECORD_TTL_S
from tests.conftest import FreshKeys
from tests.contract.conftest import Born, Redis, Run
from tests.stored import read_at
from tests.support import Life


def numbered(first: int, last: int) -> list[Message]:
    return [Message(i, b"%d" % i) for i in range(first, last + 1)]


def values(first: int, last: int) -> list[bytes]:
    return [message.value for message in numbered(first, last)]


# Attach


def test_attaching_a_new_queue_writes_what_npm_busmq_writes(
    run: Run, redis: Redis, fresh_keys: FreshKeys
) -> None:
    keys, life = fresh_keys(), Life(redis, 45)
    attached = run(queue.attach(keys, "b1", ttl_s=45, maxsize=7))
    assert (attached.existed, attached.ttl_s, attached.maxsize, attached.born) == (
        False,
        45,
        7,
        "b1",
    )
    assert run(queue.metadata(keys)) == {
        "ttl": "45",
        "source": "local",
        "discover": "false",
        "maxsize": "7",
        "born": "b1",
    }
    assert life.given_to(keys.metadata)


def test_attaching_an_existing_queue_adopts_its_ttl_and_maxsize(
    run: Run, redis: Redis, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    redis("HSET", keys.metadata, "ttl", 300, "source", "local", "discover", "true", "maxsize", 9)
    life = Life(redis, 300)
    attached = run(queue.attach(keys, "b1", ttl_s=999, maxsize=1))
    assert (attached.existed, attached.ttl_s, attached.maxsize) == (True, 300, 9)
    assert run(queue.metadata(keys)) == {
        "ttl": "300",
        "source": "local",
        "discover": "true",
        "maxsize": "9",
        "born": "b1",
    }
    assert life.given_to(keys.metadata)


def test_the_first_who_names_an_incarnation_names_it_for_all(
    run: Run, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    assert run(queue.attach(keys, "mine", ttl_s=30)).born == "mine"
    assert run(queue.attach(keys, "yours", ttl_s=30)).born == "mine"


def test_a_queue_that_died_and_came_back_is_another_incarnation_with_ids_from_1(
    run: Run, redis: Redis, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    run(queue.attach(keys, "one", ttl_s=30))
    run(queue.push(keys, b"x"))
    redis("DEL", *keys.peer_keys)  # what expiry leaves
    assert run(queue.attach(keys, "two", ttl_s=30)).born == "two"
    assert run(queue.push(keys, b"y")) == 1


def test_attaching_over_a_stub_of_federation_creates_a_local_queue(
    run: Run, redis: Redis, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    redis("HSET", keys.metadata, "source", "http://elsewhere:8881")
    assert run(queue.exists(keys))
    assert not run(queue.attach(keys, "b", ttl_s=30)).existed
    assert run(queue.metadata(keys))["source"] == "local"


def test_attaching_without_permission_to_create_leaves_nothing_behind(
    run: Run, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    with pytest.raises(QueueMissing, match=keys.name):
        run(queue.attach(keys, "b", ttl_s=30, create=False))
    assert not run(queue.exists(keys))


def test_attaching_without_permission_to_create_takes_what_exists(run: Run, born: Born) -> None:
    keys, there = born()
    assert run(queue.attach(keys, "b", ttl_s=1, create=False)).born == there.born


@pytest.mark.parametrize("ttl_s", [0, -5])
def test_a_ttl_that_would_delete_the_queue_at_once_is_refused(
    run: Run, born: Born, ttl_s: int
) -> None:
    keys, _ = born()
    run(queue.push(keys, b"x"))
    for flow in (
        queue.attach(keys, "b", ttl_s=ttl_s),
        queue.touch(keys, ttl_s),
        queue.pop(keys, reliable=True, ttl_s=ttl_s),
        queue.ack(keys, 0, ttl_s=ttl_s, restore=True),
    ):
        with pytest.raises(ConfigError, match="ttl"):
            run(flow)
    assert run(queue.count(keys)) == 1


@pytest.mark.parametrize("field", ["ttl", "maxsize"])
def test_metadata_that_is_no_number_counts_as_none(
    run: Run, redis: Redis, fresh_keys: FreshKeys, field: str
) -> None:
    keys = fresh_keys()
    redis("HSET", keys.metadata, "ttl", 30, "maxsize", 5, field, "many")
    attached = run(queue.attach(keys, "b", ttl_s=60, maxsize=4))
    assert (attached.ttl_s, attached.maxsize) == ((60, 4) if field == "ttl" else (30, 0))


# Push


def test_pushes_get_ids_from_1_without_holes_and_keep_their_order(run: Run, born: Born) -> None:
    keys, _ = born()
    assert [run(queue.push(keys, value)) for value in values(1, 3)] == [1, 2, 3]
    assert run(queue.push_many(keys, values(4, 3000))) == 2997
    assert run(queue.push(keys, b"3001")) == 3001
    assert run(queue.count(keys)) == 3001
    assert [m for at in range(0, 3001, 1000) for m in run(read_at(keys, at, 1000))] == numbered(
        1, 3001
    )


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00\xff\xfe", "héllo 世😀".encode(), b"1" * (CHUNK_BYTES + 1)],
    ids=["empty", "binary", "text", "large"],
)
def test_a_value_is_stored_as_the_bytes_it_is(run: Run, born: Born, value: bytes) -> None:
    keys, _ = born()
    run(queue.push(keys, value))
    run(queue.push_many(keys, [b"before", value, b"after"]))
    assert [m.value for m in run(read_at(keys, 0, 9))] == [value, b"before", value, b"after"]


def test_a_push_to_a_queue_that_is_not_attached_stores_nothing(
    run: Run, redis: Redis, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    with pytest.raises(QueueMissing):
        run(queue.push(keys, b"x"))
    with pytest.raises(QueueMissing):
        run(queue.push_many(keys, [b"x"]))
    assert redis("EXISTS", *keys.all) == 0


def test_a_full_queue_takes_no_message_and_no_id(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born(maxsize=2)
    assert [run(queue.push(keys, b"x")) for _ in range(4)] == [1, 2, None, None]
    assert redis("GET", keys.msgid) == b"2"
    run(queue.pop(keys))
    assert run(queue.push(keys, b"x")) == 3


def test_push_many_stores_what_fits_under_the_stored_maxsize(run: Run, born: Born) -> None:
    keys, _ = born(maxsize=1500)
    assert run(queue.push_many(keys, values(1, 1200))) == 1200
    assert run(queue.push_many(keys, values(1201, 4000))) == 300
    assert run(queue.push_many(keys, [b"x"])) == 0
    assert run(read_at(keys, 1400, 999)) == numbered(1401, 1500)


def test_a_queue_that_a_peer_overfilled_takes_nothing_more(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born(maxsize=1)
    redis("RPUSH", keys.messages, 1, "a", 2, "b", 3, "c")
    assert run(queue.push_many(keys, [b"x"])) == 0


def test_a_push_renews_all_four_keys_with_the_stored_ttl(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born(ttl_s=50)
    run(queue.push_many(keys, [b"a", b"b"]))
    run(queue.pop(keys, reliable=True, ttl_s=50))
    for key in keys.peer_keys:
        redis("EXPIRE", key, 40)
    life = Life(redis, 50)
    run(queue.push(keys, b"c"))
    assert life.given_to(*keys.peer_keys)


def test_ids_are_exact_up_to_the_last_that_javascript_can_count(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    redis("SET", keys.msgid, MAX_ID - 3)
    assert run(queue.push(keys, b"a")) == MAX_ID - 2
    assert run(queue.push_many(keys, [b"b", b"c"])) == 2
    assert [m.id for m in run(read_at(keys, 0, 9))] == [MAX_ID - 2, MAX_ID - 1, MAX_ID]


def test_beyond_the_last_id_a_push_is_refused_and_stores_nothing(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    redis("SET", keys.msgid, MAX_ID - 1)
    with pytest.raises(MessageRefused, match="used up its ids"):
        run(queue.push_many(keys, [b"a", b"b"]))
    assert redis("GET", keys.msgid) == b"%d" % (MAX_ID - 1)
    assert run(queue.count(keys)) == 0
    assert run(queue.push(keys, b"a")) == MAX_ID


# Pop, ack, restore


def test_an_unreliable_pop_removes_the_oldest(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 5)))
    assert run(queue.pop(keys)) == numbered(1, 1)
    assert run(queue.pop(keys, most=3)) == numbered(2, 4)
    assert run(queue.pop(keys, most=3)) == numbered(5, 5)
    assert run(queue.pop(keys, most=3)) == []
    assert redis("EXISTS", keys.toack) == 0


def test_a_pop_stops_after_the_message_that_reaches_its_bytes(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"x" * 100] * 5))
    assert len(run(queue.pop(keys, most=5, most_bytes=150))) == 2


def test_reading_without_removing_stops_after_the_message_that_reaches_the_byte_limit(
    run: Run, born: Born
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"x" * 100] * 5 + [b"x" * 100_000] * 3))
    assert [message.id for message in run(queue.read_after(keys, 0, 1, 9, 150))] == [2, 3]
    assert [message.id for message in run(queue.read_after(keys, 3, 0, 9, 200_000))] == [4, 5, 6, 7]
    assert [message.id for message in run(queue.read_after(keys, 0, 0, 3, 200_000))] == [1, 2, 3]
    assert run(queue.read_after(keys, 8, 0, 9, 150)) == []


def test_a_reliable_pop_records_what_it_took_until_it_is_acked(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 4)))
    life = Life(redis, 60)
    assert run(queue.pop(keys, reliable=True, ttl_s=60, most=3)) == numbered(1, 3)
    assert redis("LRANGE", keys.toack, 0, -1) == [b"1", b"1", b"2", b"2", b"3", b"3"]
    assert life.given_to(keys.toack)
    run(queue.ack(keys, 2, ttl_s=60))
    assert redis("LRANGE", keys.toack, 0, -1) == [b"3", b"3"]
    assert run(queue.count(keys)) == 1


def test_restoring_puts_the_unacked_back_before_what_is_pending(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 9)))
    run(queue.pop(keys, reliable=True, ttl_s=60, most=6))
    run(queue.ack(keys, 2, ttl_s=60, restore=True))
    assert run(read_at(keys, 0, 99)) == numbered(3, 9)
    assert redis("EXISTS", keys.toack) == 0
    assert redis("TTL", keys.messages) > 0


def test_restoring_works_when_nothing_is_pending(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 3)))
    run(queue.pop(keys, reliable=True, ttl_s=60, most=3))
    run(queue.ack(keys, 0, ttl_s=60, restore=True))
    assert run(read_at(keys, 0, 99)) == numbered(1, 3)


@pytest.mark.parametrize("pending", [0, 10])
def test_more_than_one_chunk_is_acked_and_restored_in_order(
    run: Run, born: Born, pending: int
) -> None:
    keys, _ = born()
    acked, restored = (
        2 * MAX_MESSAGES_PER_ACK + 7,
        2 * MAX_MESSAGES_PER_ACK + 11,
    )  # more than one call to ack, more than one piece to restore
    total = acked + restored
    run(queue.push_many(keys, values(1, total + pending)))
    for _ in range(total // CHUNK_MESSAGES):
        run(queue.pop(keys, reliable=True, ttl_s=60, most=CHUNK_MESSAGES))
    run(queue.pop(keys, reliable=True, ttl_s=60, most=total % CHUNK_MESSAGES))
    assert run(queue.count(keys)) == pending
    run(queue.ack(keys, acked, ttl_s=60, restore=True))
    assert run(read_at(keys, 0, total)) == numbered(acked + 1, total + pending)


def test_an_ack_of_exactly_one_chunk_still_restores_the_rest(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, MAX_MESSAGES_PER_ACK + 1)))
    for _ in range(3):
        run(queue.pop(keys, reliable=True, ttl_s=60, most=CHUNK_MESSAGES))
    run(queue.ack(keys, MAX_MESSAGES_PER_ACK, ttl_s=60, restore=True))
    assert run(read_at(keys, 0, 9)) == numbered(MAX_MESSAGES_PER_ACK + 1, MAX_MESSAGES_PER_ACK + 1)


def test_an_ack_is_cumulative_and_an_older_one_changes_nothing(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 4)))
    run(queue.pop(keys, reliable=True, ttl_s=60, most=4))
    run(queue.ack(keys, 3, ttl_s=60))
    run(queue.ack(keys, 1, ttl_s=60))
    assert redis("LRANGE", keys.toack, 0, -1) == [b"4", b"4"]
    run(queue.ack(keys, 1000, ttl_s=60))
    assert redis("EXISTS", keys.toack) == 0


# The rest


def test_index_reads_by_position_and_removes_nothing(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 5)))
    run(queue.pop(keys))
    assert run(read_at(keys, 0)) == numbered(2, 2)
    assert run(read_at(keys, 1, 2)) == numbered(3, 4)
    assert run(read_at(keys, 4)) == []
    assert run(queue.count(keys)) == 4


def test_flush_deletes_messages_while_ids_go_on_and_the_unacked_stay(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 3)))
    run(queue.pop(keys, reliable=True, ttl_s=60))
    run(queue.flush(keys))
    assert run(queue.count(keys)) == 0
    assert run(queue.push(keys, b"x")) == 4
    assert redis("LLEN", keys.toack) == 2


@pytest.mark.parametrize("last", [0, 3, 5000, 6000])
def test_trim_deletes_up_to_an_id_and_nothing_newer(
    run: Run, born: Born, redis: Redis, last: int
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 6000)))
    assert run(queue.newest_id(keys)) == 6000
    for _ in range(2):
        run(queue.trim(keys, last))
        assert run(queue.count(keys)) == 6000 - last
    assert redis("LINDEX", keys.messages, 0) == (b"%d" % (last + 1) if last < 6000 else None)
    run(queue.flush(keys))
    assert run(queue.newest_id(keys)) == 0


def test_close_removes_every_key_of_the_queue_but_how_far_sinks_have_come(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, values(1, 3)))
    run(queue.pop(keys, reliable=True, ttl_s=60))
    redis("HSET", keys.acks, "s", 1)
    redis("HSET", keys.sinks, "s", "1:done")
    life = Life(redis, MIN_RECORD_TTL_S)
    run(queue.delete(keys))
    assert redis("EXISTS", *keys.peer_keys, keys.acks) == 0
    assert life.given_to(keys.sinks)
    assert not run(queue.exists(keys))


def test_touch_renews_the_shared_keys(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born(ttl_s=60)
    run(queue.push(keys, b"x"))
    life = Life(redis, 90)
    run(queue.touch(keys, 90))
    assert [life.given_to(key) for key in keys.peer_keys] == [
        True,
        True,
        True,
        False,
    ]  # nothing to ack


def test_attaching_keeps_our_own_records_longer_than_the_queue(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, there = born(ttl_s=30)
    redis("HSET", keys.acks, "s", 1, ":born", there.born)
    redis("HSET", keys.sinks, "s", "1:done")
    life = Life(redis, MIN_RECORD_TTL_S)
    run(queue.attach(keys, "b", ttl_s=30))
    assert life.given_to(keys.acks, keys.sinks)


def test_metadata_of_a_queue_that_does_not_exist_is_empty(run: Run, fresh_keys: FreshKeys) -> None:
    assert run(queue.metadata(fresh_keys())) == {}
