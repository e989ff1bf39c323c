"""npm busmq 3.1.0 and this package on the same queues, at the same time, both ways."""

from __future__ import annotations

import threading

import pytest

from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Message
from busmq_spark.reading import reader_operations
from busmq_spark.reading.range_reader import RangeCursor
from busmq_spark.reading.reader_operations import CumulativeAckRequest
from busmq_spark.redis_io.push_listener import RedisPushListenerThread
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from busmq_spark.writing import sink
from busmq_spark.writing.sink import StagedList
from tests.conftest import Fresh
from tests.peers.node import Peer
from tests.stored import read_at
from tests.support import PATIENCE_S, Life, wait_until

TEXTS = [
    "plain",
    "",
    "héllo 世",
    "😀 astral 𝒳",
    "line\nbreak\r\n\0 zero",
    '{"json": [1, null]}',
    "x" * 1_000_000,
]
BYTES = [text.encode() for text in TEXTS]


@pytest.fixture
def keys(fresh: Fresh) -> QueueKeys:
    return QueueKeys(fresh("peers"))


def attach(
    link: SyncLink, keys: QueueKeys, ttl_s: int = 60, maxsize: int = 0
) -> queue.AttachResult:
    return link.run(queue.attach(keys, "ours", ttl_s=ttl_s, maxsize=maxsize))


def numbered(values: list[bytes], first: int = 1) -> list[Message]:
    return [Message(id, value) for id, value in enumerate(values, first)]


# Node pushes, ours read


def test_what_node_pushes_we_pop_with_its_ids_order_and_bytes(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    peer.attach(keys.name)
    assert peer.push_all(keys.name, TEXTS) == list(range(1, len(TEXTS) + 1))
    assert link.run(queue.pop(keys, most=4)) == numbered(BYTES[:4])
    assert link.run(queue.pop(keys, most=100, most_bytes=10**9)) == numbered(BYTES[4:], 5)
    assert peer.count(keys.name) == 0


def test_what_node_pushes_we_read_by_index_and_it_stays(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    peer.attach(keys.name)
    peer.push_all(keys.name, TEXTS)
    assert link.run(read_at(keys, 0, 99)) == numbered(BYTES)
    assert link.run(read_at(keys, 3, 1)) == numbered(BYTES)[3:4]
    assert peer.count(keys.name) == len(TEXTS)


def test_what_node_pushes_we_read_as_a_range(peer: Peer, link: SyncLink, keys: QueueKeys) -> None:
    peer.attach(keys.name)
    peer.push_all(keys.name, [str(n) for n in range(1, 1001)])
    link.run(queue.pop(keys, most=100))
    cursor, values = RangeCursor(keys, 201, 900, 101), []
    while (call := cursor.ask()) is not None:
        reply = link.execute(call)
        piece = cursor.take(
            int(reply[0]), int(reply[-2]), len(reply) // 2, sum(map(len, reply[1::2]))
        )
        assert piece is not None
        values += reply[1::2][piece.start : piece.stop]
    assert cursor.done
    assert values == [b"%d" % n for n in range(201, 901)]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (42, b"42"),
        (True, b"true"),
        (None, b"null"),
        ([], b"[]"),
    ],
)
def test_what_is_no_text_in_node_arrives_as_the_protocol_says(
    peer: Peer, link: SyncLink, keys: QueueKeys, value: object, stored: bytes
) -> None:
    peer.attach(keys.name)
    peer.push(keys.name, value)
    assert link.run(queue.pop(keys))[0].value == stored


# Ours push, Node reads


def test_what_we_push_node_consumes_with_our_ids_order_and_text(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    attach(link, keys)
    link.run(queue.push(keys, BYTES[0]))
    link.run(queue.push_many(keys, BYTES[1:]))
    assert peer.attach(keys.name)
    peer.consume(keys.name)
    assert peer.received(keys.name, len(TEXTS)) == list(enumerate(TEXTS, 1))
    assert link.run(queue.count(keys)) == 0
    peer.stop(keys.name)


def test_what_our_sink_commits_node_consumes_in_order(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    attach(link, keys)
    link.execute(command("RPUSH", keys.stage("t"), *BYTES))
    link.run(
        sink.commit(keys, "s", 1, [StagedList(keys.name, 0, keys.stage("t"), ((3, 2), (1, 1)))])
    )
    peer.attach(keys.name)
    peer.consume(keys.name, max=len(TEXTS))
    assert peer.received(keys.name, len(TEXTS)) == list(enumerate(TEXTS, 1))


def test_what_we_push_node_reads_by_index_and_follows(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    attach(link, keys)
    link.run(queue.push_many(keys, BYTES))
    peer.attach(keys.name)
    peer.consume(keys.name, remove=False, index=2)
    assert peer.received(keys.name, len(TEXTS) - 2) == list(enumerate(TEXTS, 1))[2:]
    link.run(queue.push(keys, b"more"))
    assert peer.received(keys.name, 1) == [(len(TEXTS) + 1, "more")]
    assert link.run(queue.count(keys)) == len(TEXTS) + 1
    peer.stop(keys.name)


@pytest.mark.parametrize("way", ["push", "push_many", "commit"])
def test_each_way_of_pushing_wakes_a_waiting_node_consumer(
    peer: Peer, link: SyncLink, keys: QueueKeys, way: str
) -> None:
    attach(link, keys)
    peer.attach(keys.name)
    peer.consume(keys.name)
    wait_until(lambda: link.execute(command("PUBSUB", "NUMSUB", keys.available))[1] == 1)
    peer.count(keys.name)  # its first look at the empty queue is over
    for n in range(1, 4):
        if way == "commit":
            link.execute(command("RPUSH", keys.stage(str(n)), "a", "b"))
            link.run(
                sink.commit(keys, "s", n, [StagedList(keys.name, 0, keys.stage(str(n)), ((2, 1),))])
            )
        elif way == "push_many":
            link.run(queue.push_many(keys, [b"a", b"b"]))
        else:
            link.run(queue.push(keys, b"a"))
            link.run(queue.push(keys, b"b"))
        assert peer.received(keys.name, 2) == [(2 * n - 1, "a"), (2 * n, "b")]
    peer.stop(keys.name)


def test_both_push_at_once_and_ids_have_no_holes_and_no_doubles(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    attach(link, keys)
    peer.attach(keys.name)
    theirs: list[int] = []
    for n in range(10):
        theirs += peer.push_all(keys.name, [f"node {n}.{i}" for i in range(5)])
        link.run(queue.push_many(keys, [b"ours"] * 7))
    stored = link.run(read_at(keys, 0, 999))
    assert [m.id for m in stored] == list(range(1, 121))
    assert [m.id for m in stored if m.value != b"ours"] == theirs


# Reliable


def test_what_a_killed_node_consumer_had_not_acked_we_restore(
    npm: None, redis_url: str, link: SyncLink, keys: QueueKeys
) -> None:
    attach(link, keys)
    link.run(queue.push_many(keys, [b"%d" % n for n in range(1, 11)]))
    with Peer([redis_url]) as doomed:
        doomed.attach(keys.name)
        doomed.consume(keys.name, reliable=True)
        doomed.received(keys.name, 10)
        doomed.ack(keys.name, 4)
        doomed.kill()
    assert link.run(queue.count(keys)) == 0
    link.run(queue.push(keys, b"11"))
    link.run(queue.ack(keys, 5, ttl_s=60, restore=True))
    assert link.run(queue.pop(keys, reliable=True, ttl_s=60, most=99)) == numbered(
        [b"%d" % n for n in range(6, 12)], 6
    )


@pytest.mark.parametrize("pending", [0, 3])
def test_what_we_had_not_acked_node_restores(
    peer: Peer, link: SyncLink, keys: QueueKeys, pending: int
) -> None:
    attach(link, keys)
    link.run(queue.push_many(keys, [b"%d" % n for n in range(1, 11)]))
    link.run(queue.pop(keys, reliable=True, ttl_s=60, most=10))
    link.run(queue.ack(keys, 4, ttl_s=60))
    link.run(queue.push_many(keys, [b"%d" % n for n in range(11, 11 + pending)]))
    peer.attach(keys.name)  # we are gone; Node takes over and knows of 5
    peer.consume(keys.name, reliable=True, last=5)
    assert peer.received(keys.name, 5 + pending) == [(n, str(n)) for n in range(6, 11 + pending)]
    peer.ack(keys.name, 10 + pending)
    assert link.execute(command("EXISTS", keys.toack)) == 0
    peer.stop(keys.name)


def test_an_ack_of_ours_counts_for_what_node_took(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    peer.attach(keys.name)
    peer.push_all(keys.name, ["a", "b", "c"])
    peer.consume(keys.name, reliable=True)
    peer.received(keys.name, 3)
    link.run(queue.ack(keys, 2, ttl_s=30))
    assert link.execute(command("LRANGE", keys.toack, 0, -1)) == [b"3", b"c"]
    peer.stop(keys.name)


# Life of a queue


def test_each_side_adopts_what_the_other_created(peer: Peer, link: SyncLink, fresh: Fresh) -> None:
    theirs, ours = QueueKeys(fresh()), QueueKeys(fresh())
    assert not peer.attach(theirs.name, ttl=77, maxsize=9)
    found = attach(link, theirs, ttl_s=5)
    assert (found.existed, found.ttl_s, found.maxsize) == (True, 77, 9)
    attach(link, ours, ttl_s=44)
    assert peer.attach(ours.name, ttl=5)
    assert peer.ttl(ours.name) == 44


def test_a_queue_that_node_made_with_a_maxsize_is_full_for_us_too(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    peer.attach(keys.name, maxsize=3)
    peer.push(keys.name, "one")
    attach(link, keys)
    assert link.run(queue.push_many(keys, [b"x"] * 9)) == 2
    assert peer.push(keys.name, "more") is None


def test_what_node_closes_or_flushes_is_gone_for_us(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    there = attach(link, keys)
    peer.attach(keys.name)
    link.run(queue.push_many(keys, [b"x"] * 3))
    peer.flush(keys.name)
    seen = link.run(reader_operations.states([(keys, -1)]))[0]
    assert (seen.born, seen.last_id, seen.count) == (there.born, 3, 0)
    peer.close(keys.name)
    assert not link.run(reader_operations.states([(keys, -1)]))[0].exists


def test_what_we_close_or_flush_is_gone_for_node(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    peer.attach(keys.name)
    peer.push_all(keys.name, ["a", "b"])
    link.run(queue.flush(keys))
    assert peer.count(keys.name) == 0
    assert peer.push(keys.name, "c") == 3
    link.run(queue.delete(keys))
    assert not peer.exists(keys.name)


def test_a_queue_recreated_by_node_is_another_incarnation(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    there = attach(link, keys)
    link.run(queue.push_many(keys, [b"x"] * 3))
    peer.attach(keys.name)
    peer.close(keys.name)
    peer.attach(keys.name)
    assert peer.push(keys.name, "y") == 1
    assert (
        link.run(reader_operations.ack_to([CumulativeAckRequest(keys, 1, there.born, "")]))[
            0
        ].status
        == "recreated"
    )
    assert link.run(queue.attach(keys, "second", ttl_s=60)).born == "second"


def test_our_own_keys_neither_show_in_node_nor_stop_it(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    there = attach(link, keys)
    link.run(reader_operations.subscribe([keys], "s", ["earliest"]))
    link.run(reader_operations.lease([keys], "s", "me", 60_000, [""]))
    link.execute(command("RPUSH", keys.stage("t"), "staged"))
    link.run(sink.commit(keys, "sink", 1, [StagedList(keys.name, 0, keys.stage("t"), ((1, 1),))]))
    link.execute(command("RPUSH", keys.stage("other"), "not committed"))
    peer.attach(keys.name)
    assert peer.count(keys.name) == 1
    noted = link.run(queue.metadata(keys))["clock"]
    ours = {"born": there.born, "sizes": "1:1:6:0:0", "clock": noted}
    assert peer.metadata(keys.name) == {
        "ttl": "60",
        "source": "local",
        "discover": "false",
        "maxsize": "0",
        **ours,
    }
    peer.consume(keys.name, reliable=True)
    assert peer.received(keys.name, 1) == [(1, "staged")]
    peer.ack(keys.name, 1)
    assert (
        link.execute(command("EXISTS", keys.acks, keys.sinks, keys.lease("s"), keys.stage("other")))
        == 4
    )
    peer.stop(keys.name)


def test_a_node_producer_works_on_while_we_ack_behind_it(
    peer: Peer, link: SyncLink, keys: QueueKeys
) -> None:
    peer.attach(keys.name, ttl=300)
    there, life = attach(link, keys), Life(lambda *words: link.execute(command(*words)), 300)
    for round_ in range(1, 21):
        assert peer.push_all(keys.name, [f"{round_}.{i}" for i in range(5)]) == list(
            range(5 * round_ - 4, 5 * round_ + 1)
        )
        seen = link.run(reader_operations.states([(keys, -1)]))[0]
        assert (
            link.run(
                reader_operations.ack_to(
                    [CumulativeAckRequest(keys, seen.newest - 1, there.born, "")], "spark"
                )
            )[0].status
            == "ok"
        )
        assert [m.id for m in link.run(read_at(keys, 0, 99))] == [5 * round_]
    assert peer.count(keys.name) == 1
    assert life.given_to(keys.metadata, keys.messages, keys.msgid)


def test_a_push_by_node_notifies_us(
    peer: Peer, redis_url: str, link: SyncLink, keys: QueueKeys
) -> None:
    notified = threading.Event()
    listener = RedisPushListenerThread(parse(redis_url)[0], notified)
    peer.attach(keys.name)
    listener.listen([keys.available])
    assert notified.wait(PATIENCE_S)  # its subscription is confirmed
    wait_until(lambda: link.execute(command("PUBSUB", "NUMSUB", keys.available))[1] == 1)
    while notified.wait(0.2):
        notified.clear()
    peer.push(keys.name, "x")
    assert notified.wait(PATIENCE_S)
    listener.stop()
