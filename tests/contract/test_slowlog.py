"""No script of ours holds Redis longer than 5 ms, whatever the batch and the size of the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from busmq_spark.core import queue, ranges, sink, state
from busmq_spark.core.flow import Step, command
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.message import CHUNK_MESSAGES, chunks
from busmq_spark.core.scripts import load
from busmq_spark.core.sink import Staged, encode_runs
from busmq_spark.core.state import QUEUES_PER_CALL, Ack
from busmq_spark.embedded import RedisServer
from busmq_spark.store import redis_short
from busmq_spark.topology.link import SyncLink
from busmq_spark.topology.urls import parse
from tests.conftest import FreshKeys

LIMIT_US = 5000
ATTEMPTS = 10
"""The machine may stop Redis for longer than 5 ms at any moment; a script that is slow by itself is slow every time."""
SCRIPTS = {
    load(name).digest: name
    for name in ("ack", "ack_to", "attach", "commit", "measure", "pop", "push", "short", "stage", "state", "subscribe", "touch")
}
# Not among them: 1 MB values when pushed, committed or freed. Freeing 200 of them took Redis 13 ms: the 5 ms are not kept there.
SHAPES = [(1, 20_000), (100, 20_000), (1000, 5000), (10_240, 3000)]
"""Bytes of a message, and how many of them."""


class TimedLink(SyncLink):
    """Notes for each step the scripts that took longer than the limit, with their microseconds."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(parse(server.url)[0])
        self.steps: list[list[tuple[str, int]]] = []

    def execute(self, step: Step) -> Any:
        reply = super().execute(step)
        entries: list[list[Any]] = super().execute(command("SLOWLOG", "GET", 1000))
        slow = [(SCRIPTS.get(words[1].decode(), "another script"), micros) for _, _, micros, words, *_ in entries if words[0].startswith(b"EVAL")]
        self.steps.append(slow)
        if entries:
            super().execute(command("SLOWLOG", "RESET"))
        return reply

    def timed(self, work: Callable[[], object]) -> list[list[tuple[str, int]]]:
        """What was slow in each step of ``work``."""
        self.steps = []
        work()
        return self.steps


@pytest.fixture(scope="module")
def own() -> Iterator[TimedLink]:
    with RedisServer(settings={"slowlog-log-slower-than": str(LIMIT_US), "slowlog-max-len": "1000"}) as server:
        link = TimedLink(server)
        yield link
        link.close()


def never_slow(link: TimedLink, work: Callable[[], object]) -> None:
    """Each step of ``work``, which takes the same steps every time, keeps to the limit: not in one attempt, since one of many is always unlucky."""
    slow = link.timed(work)
    for _ in range(ATTEMPTS - 1):
        if not any(slow):
            return
        slow = [before and now for before, now in zip(slow, link.timed(work), strict=True)]
    assert not any(slow), [each for each in slow if each]


def test_the_measurement_sees_a_script_that_is_slow(own: TimedLink) -> None:
    spin = "local n = 0 while n < 3e6 do n = n + 1 end return n"
    with pytest.raises(AssertionError, match="another script"):
        never_slow(own, lambda: own.execute(command("EVAL", spin, 0)))


@pytest.mark.parametrize(("size", "many"), SHAPES)
def test_pushing_popping_acking_and_restoring(own: TimedLink, fresh_keys: FreshKeys, size: int, many: int) -> None:
    values = [b"x" * size] * many

    def work() -> None:
        keys = fresh_keys()
        own.run(queue.attach(keys, "b", ttl_s=60))
        own.run(queue.push_many(keys, values))
        for _ in range(5):
            own.run(queue.pop(keys, reliable=True, ttl_s=60, most=CHUNK_MESSAGES))
            own.run(queue.pop(keys, most=CHUNK_MESSAGES))
        own.run(queue.ack(keys, 1000, ttl_s=60, restore=True))
        own.run(queue.close(keys))

    never_slow(own, work)


@pytest.mark.parametrize(("size", "many"), SHAPES)
def test_acking_positions(own: TimedLink, fresh_keys: FreshKeys, size: int, many: int) -> None:
    values = [b"x" * size] * many

    def work() -> None:
        keys = fresh_keys()
        own.run(queue.attach(keys, "b", ttl_s=60))
        own.run(queue.push_many(keys, values))
        own.run(state.subscribe([keys], "s", ["earliest"]))
        mark = own.run(state.states([(keys, many // 2)]))[0].mark
        own.run(state.ack_to([Ack(keys, many // 2, "b", mark)], "s"))
        own.run(state.ack_to([Ack(keys, many, "b", "")], "s"))
        own.run(queue.close(keys))

    never_slow(own, work)


@pytest.mark.parametrize(("size", "many"), [*SHAPES, (1_048_576, 20)])
def test_measuring_how_many_bytes_messages_have(own: TimedLink, fresh_keys: FreshKeys, size: int, many: int) -> None:
    keys = fresh_keys()
    own.run(queue.attach(keys, "b", ttl_s=60))
    own.run(queue.push_many(keys, [b"x" * size] * many))
    never_slow(own, lambda: own.run(state.bytes_until(keys, 1, many, 2**50)))
    own.run(queue.close(keys))


@pytest.mark.parametrize(("size", "many"), SHAPES)
@pytest.mark.parametrize("maxsize", [0, 10**9])
def test_committing(own: TimedLink, fresh_keys: FreshKeys, size: int, many: int, maxsize: int) -> None:
    cut = list(chunks([b"x" * size] * many))

    def work() -> None:
        keys = fresh_keys()
        own.run(queue.attach(keys, "b", ttl_s=60, maxsize=maxsize))
        before = 0
        for chunk in cut:
            before = own.execute(sink.stage(keys.stage("one"), before, chunk))
        part = Staged(keys.name, 0, keys.stage("one"), encode_runs([len(chunk) for chunk in cut]))
        own.run(sink.commit(keys, "s", 1, [part]))
        own.run(queue.close(keys))

    never_slow(own, work)


@pytest.fixture(scope="module")
def crowd(own: TimedLink, fresh_keys: FreshKeys) -> Iterator[list[QueueKeys]]:
    """As many queues as one call takes, of messages from 100 B to 10 KB."""
    queues = [fresh_keys("crowd") for _ in range(QUEUES_PER_CALL)]
    for n, keys in enumerate(queues):
        own.run(queue.attach(keys, "b", ttl_s=600))
        own.run(queue.push_many(keys, [b"x" * (100, 1000, 10_240)[n % 3]] * 100))
        own.run(state.subscribe([keys], "s", ["earliest"]))
    yield queues
    for keys in queues:
        own.run(queue.close(keys))


@pytest.mark.parametrize(("rows", "size"), [(250, 0), (250, 250), (6, 10_240), (3, 1_048_576)])
@pytest.mark.parametrize("before", [0, 200_000])
def test_reading_short_ranges(own: TimedLink, fresh_keys: FreshKeys, rows: int, size: int, before: int) -> None:
    keys = fresh_keys()
    own.run(queue.attach(keys, "b", ttl_s=600))
    own.run(queue.push_many(keys, [b"x"] * before + [b"x" * size] * rows))
    never_slow(own, lambda: own.run(ranges.shorts([(keys, before + 1, before + rows)] * 64, redis_short.SHORT_BYTES)))
    own.run(queue.close(keys))


@pytest.mark.parametrize("wanted", [-1, 50, 100])
def test_the_state_of_many_queues(own: TimedLink, crowd: list[QueueKeys], wanted: int) -> None:
    never_slow(own, lambda: [own.run(state.states([(keys, wanted) for keys in crowd])) for _ in range(20)])


def test_acking_many_queues_a_little_and_all(own: TimedLink, fresh_keys: FreshKeys) -> None:
    def work() -> None:
        queues = [fresh_keys() for _ in range(QUEUES_PER_CALL)]
        for n, keys in enumerate(queues):
            own.run(queue.attach(keys, "b", ttl_s=60))
            own.run(queue.push_many(keys, [b"x" * (100, 1000, 10_240)[n % 3]] * 100))
        marks = [found.mark for found in own.run(state.states([(keys, 5) for keys in queues]))]
        own.run(state.ack_to([Ack(keys, 5, "b", mark) for keys, mark in zip(queues, marks, strict=True)], "s"))
        own.run(state.ack_to([Ack(keys, 100, "b", "") for keys in queues], "s"))
        for keys in queues:
            own.run(queue.close(keys))

    never_slow(own, work)


def test_keeping_many_queues_alive(own: TimedLink, crowd: list[QueueKeys]) -> None:
    never_slow(own, lambda: [own.run(state.keep_alive(crowd, "s", "me", 60_000)) for _ in range(20)])
