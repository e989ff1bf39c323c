"""No script of ours does more than so much in one call, however long its lists are: Redis serves
one call at a time.

Counted are the commands that a script calls, and the items of lists that they touch, as MONITOR
shows both. That holds on a busy machine, too.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.groups import shared_group
from busmq_spark.queue import queue, retention
from busmq_spark.queue.command_generators import Flow, RedisCall, command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import CHUNK_MESSAGES, chunks
from busmq_spark.reading import range_reader, reader_operations, reader_subscriptions, times_of_ids
from busmq_spark.reading.reader_operations import QUEUES_PER_CALL, CumulativeAckRequest
from busmq_spark.store import redis_range
from busmq_spark.writing import sink
from busmq_spark.writing.sink import StagedList, encode_chunks
from tests.conftest import FreshKeys, link_to
from tests.stored import read_at
from tests.support import PATIENCE_S

MOST_COMMANDS, MOST_ITEMS = 2_500, 13_000
"""Of one call: about 2 ms of Redis on a quiet machine where items are small."""
MANY = 400_000
LINE = re.compile(r'\+\S+ \[\d+ (?P<who>\S+)\] (?P<words>".*")')
WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass
class Work:
    """What one call of a script did."""

    commands: int = 0
    items: float = 0


class Watched:
    """A server of its own and a link to it; ``run`` says what each script call of a flow did."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.server, self.link = server, link_to(server.url)

    def run(self, flow: Flow[object]) -> list[Work]:
        with socket.create_connection(("127.0.0.1", self.server.port), PATIENCE_S) as monitor:
            monitor.sendall(b"MONITOR\r\n")
            lines = monitor.makefile("r", encoding="utf-8", errors="replace")
            assert lines.readline() == "+OK\n"
            self.link.run(flow)
            self.server.command("ECHO", "that was all")
            found: list[Work] = []
            for line in lines:
                if (match := LINE.match(line)) is None:
                    continue
                words = WORD.findall(match["words"])
                if words[0].upper() == "ECHO":
                    return found
                if match["who"] != "lua":
                    found.append(Work())
                else:
                    found[-1].commands += 1
                    found[-1].items += items(words)
        raise AssertionError("MONITOR ended")


def items(words: list[str]) -> float:
    """How many items of a list a command touches, at most."""
    match words:
        case ["LRANGE", _, first, last]:
            return int(last) - int(first) + 1 if int(last) >= 0 or int(first) < 0 else float("inf")
        case ["LTRIM", _, first, "-1"]:
            return abs(int(first))
        case ["LTRIM", _, "0", last]:
            return -int(last) if int(last) < 0 else 0
        case ["LPOP" | "RPOP", _, count]:
            return int(count)
        case ["RPUSH" | "LPUSH", _, *values]:
            return len(values)
        case _:
            return 1


@pytest.fixture(scope="module")
def own() -> Iterator[Watched]:
    with EmbeddedRedis() as server:
        watched = Watched(server)
        yield watched
        watched.link.close()


def bounded(own: Watched, *flows: Flow[object]) -> None:
    """Each call of the flows keeps to the limits."""
    for flow in flows:
        work = own.run(flow)
        assert work
        assert max(call.commands for call in work) <= MOST_COMMANDS, work
        assert max(call.items for call in work) <= MOST_ITEMS, work


@pytest.fixture
def filled(own: Watched, fresh_keys: FreshKeys) -> Iterator[Callable[[int], QueueKeys]]:
    """A new queue with so many small messages."""
    made: list[QueueKeys] = []

    def make(many: int) -> QueueKeys:
        keys = fresh_keys()
        made.append(keys)
        own.link.run(queue.attach(keys, "b", ttl_s=600))
        own.link.run(queue.push_many(keys, [b"x"] * many))
        return keys

    yield make
    for keys in made:
        own.link.run(queue.delete(keys))


def taken(own: Watched, keys: QueueKeys, many: int) -> int:
    """Take so many reliably; the last id."""
    last = 0
    while last < many:
        batch = own.link.run(
            queue.take(keys, keys.toack, last, most=CHUNK_MESSAGES, ttl_s=600, token="me")
        )
        assert batch
        last = batch[-1].id
    return last


def test_the_measurement_sees_a_script_that_does_too_much(
    own: Watched, filled: Callable[[int], QueueKeys]
) -> None:
    def all_at_once() -> Flow[object]:
        found: object = yield RedisCall(
            ("EVAL", "return #redis.call('LRANGE', KEYS[1], 0, 20000)", 1, filled(10).messages)
        )
        return found

    with pytest.raises(AssertionError, match="items=20001"):
        bounded(own, all_at_once())


def test_taking_acking_and_giving_back_with_many_messages_not_acked(
    own: Watched, filled: Callable[[int], QueueKeys]
) -> None:
    keys = filled(MANY + 3 * CHUNK_MESSAGES)
    own.link.run(reader_operations.lease([keys], "", "me", 600_000, [""]))
    last = taken(own, keys, MANY)

    def take(after: int) -> Flow[object]:
        return queue.take(keys, keys.toack, after, most=CHUNK_MESSAGES, ttl_s=600, token="me")

    bounded(
        own, take(last), take(last), take(0)
    )  # the second time its reply was lost; and an id that is not there
    assert (
        own.link.run(queue.give_back(keys, keys.toack, last, ttl_s=600, token="me"))
        == CHUNK_MESSAGES
    )
    bounded(own, take(last), queue.give_back(keys, keys.toack, last, ttl_s=600, token="me"))
    bounded(own, queue.ack(keys, 100_000, ttl_s=600))
    bounded(own, queue.ack(keys, 150_000, ttl_s=600, restore=True))
    stored = own.link.run(read_at(keys, 0, MANY))
    assert [message.id for message in stored] == list(range(150_001, MANY + 3 * CHUNK_MESSAGES + 1))


def test_giving_back_everything_of_a_long_record(
    own: Watched, filled: Callable[[int], QueueKeys]
) -> None:
    keys = filled(25_000)
    own.link.run(reader_operations.lease([keys], "", "me", 600_000, [""]))
    taken(own, keys, 20_000)
    bounded(own, queue.give_back(keys, keys.toack, 0, ttl_s=600, token="me"))
    assert [message.id for message in own.link.run(read_at(keys, 0, 30_000))] == list(
        range(1, 25_001)
    )
    assert own.link.run(queue.take(keys, keys.toack, 0, most=5, ttl_s=600, token="me"))


@pytest.mark.parametrize("behind", [0, 300])
def test_giving_back_behind_many_that_another_has_given_back(
    own: Watched, filled: Callable[[int], QueueKeys], behind: int
) -> None:
    keys = filled(50_000 + 100 + behind)
    own.link.run(reader_operations.lease([keys], "", "me", 600_000, [""]))
    taken(own, keys, 50_000)
    own.link.run(queue.take(keys, keys.in_flight("h"), 0, most=100, ttl_s=600))
    own.link.run(queue.ack(keys, 0, ttl_s=600, restore=True))
    bounded(own, queue.give_back(keys, keys.in_flight("h"), 0, ttl_s=600))
    assert [message.id for message in own.link.run(read_at(keys, 0, 60_000))] == list(
        range(1, 50_101 + behind)
    )


@pytest.mark.parametrize(
    ("before", "behind"), [(20_000, 20_000), (30_000, 10_000), (10_000, 30_000)]
)
def test_giving_back_between_many_moves_the_shorter_side_once(
    own: Watched, filled: Callable[[int], QueueKeys], before: int, behind: int
) -> None:
    keys = filled(before + 100 + behind)
    own.link.run(reader_operations.lease([keys], "", "me", 600_000, [""]))
    taken(own, keys, before)
    own.link.run(queue.take(keys, keys.in_flight("h"), 0, most=100, ttl_s=600))
    own.link.run(queue.ack(keys, 0, ttl_s=600, restore=True))
    [work] = own.run(queue.give_back(keys, keys.in_flight("h"), 0, ttl_s=600))
    shorter = 2 * min(before, behind)
    assert work.items <= 3 * shorter + MOST_ITEMS  # read, taken off, put back
    assert work.commands <= MOST_COMMANDS
    assert [message.id for message in own.link.run(read_at(keys, 0, 60_000))] == list(
        range(1, before + 100 + behind + 1)
    )


@pytest.mark.parametrize("most", [1, CHUNK_MESSAGES])
def test_pushing_popping_and_reading(
    own: Watched, filled: Callable[[int], QueueKeys], most: int
) -> None:
    keys = filled(MANY)
    bounded(
        own,
        queue.push_many(keys, [b"x"] * 5_000),
        queue.pop(keys, reliable=True, ttl_s=60, most=most),
        queue.pop(keys, most=most),
    )
    bounded(
        own,
        queue.read_after(keys, 300_000, 0, most),
        range_reader.read_range_start(keys, 200_000),
        range_reader.find_id(keys, 200_000),
        queue.trim(keys, 10_000),
    )
    bounded(
        own,
        queue.take(keys, keys.in_flight("h"), 0, most=most, ttl_s=60),
        queue.give_back(keys, keys.in_flight("h"), 0, ttl_s=60),
    )


def test_acking_positions(own: Watched, filled: Callable[[int], QueueKeys]) -> None:
    keys = filled(20_000)
    bounded(
        own,
        reader_operations.subscribe([keys], "s", ["earliest"]),
        reader_operations.states([(keys, 10_000)]),
        reader_operations.marks([(keys, 10_000)]),
    )
    bounded(
        own,
        reader_operations.ack_to([CumulativeAckRequest(keys, 10_000, "b", "")], "s"),
        reader_operations.ack_to([CumulativeAckRequest(keys, 20_000, "b", "")], "s"),
    )


@pytest.mark.parametrize("limits", [(1, None, None), (None, 10, None), (None, None, 10)])
def test_dropping_what_is_kept_no_longer(
    own: Watched, filled: Callable[[int], QueueKeys], limits: tuple[int | None, ...]
) -> None:
    keys = filled(60_000)
    own.link.run(retention.set_retention(keys, retention.parse_limits("7d", None, None)))
    own.link.run(reader_operations.ack_to([CumulativeAckRequest(keys, 50_000, "b", "")]))
    own.link.execute(command("HSET", keys.metadata, "clock", "1:60000"))
    bounded(own, retention.set_retention(keys, retention.parse_limits(*limits)))
    assert own.link.run(read_at(keys, 0))[0].id == 50_001
    own.link.execute(command("HSET", keys.metadata, "lets", "0:0"))
    bounded(
        own,
        reader_operations.ack_to([CumulativeAckRequest(keys, 60_000, "b", "")]),
        times_of_ids.note_times([keys]),
        reader_operations.keep_alive([keys]),
        queue.push(keys, b"v"),
    )
    bounded(own, retention.set_retention(keys, retention.parse_limits(None, None, None)))


@pytest.mark.parametrize("action", ["ack", "retry", "extend", "release"])
def test_leasing_and_settling(
    own: Watched, filled: Callable[[int], QueueKeys], action: shared_group.Action
) -> None:
    keys, held = filled(60_000), list[shared_group.LeasedMessage]()
    own.link.run(reader_subscriptions.register(keys, "g", shared={"lease_ms": 600_000, "limit": 0}))
    while len(held) < 50_000:
        held += own.link.run(
            shared_group.lease(keys, "g", f"t{len(held)}", CHUNK_MESSAGES)
        ).deliveries
    for start in range(1, 50_000, CHUNK_MESSAGES):
        part = [
            shared_group.SettleRequest(each.id, each.token, "ack")
            for each in held[start : start + CHUNK_MESSAGES]
        ]
        own.link.run(shared_group.settle(keys, "g", "b", part))
    bounded(own, shared_group.lease(keys, "g", "t", CHUNK_MESSAGES))
    one, two = held[0], own.link.run(shared_group.lease(keys, "g", "u", CHUNK_MESSAGES)).deliveries
    for some in ([one], two, two[::-1], two[::2], held[1:50_000:50], []):
        bounded(
            own,
            shared_group.settle(
                keys,
                "g",
                "b",
                [shared_group.SettleRequest(each.id, each.token, action, 0) for each in some],
            ),
        )
    bounded(
        own,
        shared_group.lease(keys, "g", "v", CHUNK_MESSAGES),
        shared_group.lease(keys, "g", "v", CHUNK_MESSAGES, again=True),
    )


def test_measuring_how_many_bytes_messages_have(
    own: Watched, filled: Callable[[int], QueueKeys]
) -> None:
    bounded(own, reader_operations.bytes_until(filled(100_000), 1, 100_000, 2**50))


def test_a_cap_of_bytes_looks_at_less_than_a_tenth_of_the_messages(
    own: Watched, filled: Callable[[int], QueueKeys]
) -> None:
    work = own.run(reader_operations.bytes_until(filled(100_000), 1, 100_000, 2**50))
    assert sum(call.items for call in work) <= 2 * 100_000 / 10


def test_a_cap_of_bytes_looks_at_few_places_of_a_long_queue(
    own: Watched, filled: Callable[[int], QueueKeys]
) -> None:
    """Redis walks to every place, which costs more than the messages there."""
    keys = filled(0)
    own.link.run(queue.push_many(keys, [b"x" * size for size in (10, 500, 90, 300)] * 15_000))
    work = own.run(reader_operations.bytes_until(keys, 1, 60_000, 2**50))
    assert sum(call.commands for call in work) <= 160
    assert sum(call.items for call in work) >= 2 * 1_500


@pytest.mark.parametrize("maxsize", [0, 10**9])
def test_staging_and_committing(own: Watched, fresh_keys: FreshKeys, maxsize: int) -> None:
    keys, cut, before = fresh_keys(), list(chunks([b"x"] * 20_000)), 0
    bounded(own, queue.attach(keys, "b", ttl_s=60, maxsize=maxsize))
    for chunk in cut:
        before = own.link.execute(sink.stage(keys.stage("one"), before, chunk))
    part = StagedList(keys.name, 0, keys.stage("one"), encode_chunks([len(chunk) for chunk in cut]))
    bounded(own, sink.commit(keys, "s", 1, [part]))
    own.link.run(queue.delete(keys))


@pytest.mark.parametrize("before", [0, 200_000])
def test_reading_short_ranges(
    own: Watched, filled: Callable[[int], QueueKeys], before: int
) -> None:
    keys = filled(before + 250)
    bounded(
        own,
        range_reader.read_short_ranges(
            [(keys, before + 1, before + 250)] * 64, redis_range.SHORT_RANGE_BYTES
        ),
    )


def test_planning_acking_and_keeping_alive_as_many_queues_as_one_call_takes(
    own: Watched, filled: Callable[[int], QueueKeys]
) -> None:
    crowd = [filled(100) for _ in range(QUEUES_PER_CALL)]
    for wanted in (-1, 50, 100):
        bounded(own, reader_operations.states([(keys, wanted) for keys in crowd]))
    bounded(
        own,
        reader_operations.keep_alive(crowd, "s", "me", 60_000),
        reader_operations.lease(crowd, "s", "me", 60_000, [""] * len(crowd)),
    )
    bounded(
        own,
        reader_operations.ack_to([CumulativeAckRequest(keys, 5, "b", "") for keys in crowd], "s"),
        reader_operations.ack_to([CumulativeAckRequest(keys, 100, "b", "") for keys in crowd], "s"),
    )
    bounded(own, reader_operations.marks([(keys, 100) for keys in crowd]))
