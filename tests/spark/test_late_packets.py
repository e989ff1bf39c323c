"""A packet of a link that broke arrives when its rows have long been staged again: beside the
repetition, in the middle of the commit, after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.queue.scripts import load
from busmq_spark.writing.sink import STAGE_TTL_S
from tests.faults.proxy import Command, Held, Proxy
from tests.spark.conftest import Bus, MakeBus
from tests.spark.sink_engines import SinkEngine
from tests.support import PATIENCE_S, Life

CHUNKS = [b"%d:" % i + b"x" * 300_000 for i in range(6)]
"""So large that each row is a chunk."""
MakeSink = Callable[[Mapping[str, str]], SinkEngine]


@pytest.fixture
def lone(bus_of: MakeBus) -> Iterator[tuple[Bus, Proxy]]:
    """A Redis of its own that knows the script of a commit, so that each is sent once; and a proxy
    before it.
    """
    with EmbeddedRedis() as server, Proxy(server.port) as proxy:
        bus = bus_of(server)
        bus("SCRIPT", "LOAD", load("commit").text)
        yield bus, proxy


def stages(command: Command) -> bool:
    return command.name in ("stage", "RPUSHX", "RPUSH") and ":stage:" in command.keys[0]


def staged_in_spite_of(
    proxy: Proxy, sink: SinkEngine, chunk: int, pool: ThreadPoolExecutor
) -> Held:
    """Stage the rows over a link that breaks when a chunk is on its way; it stays on its way."""
    gate = proxy.hold(stages, skip=chunk)
    staging = pool.submit(sink.stage, CHUNKS)
    late = gate.wait()
    gate.open()
    late.cut()
    staging.result(PATIENCE_S)
    return late


@pytest.mark.parametrize("moment", ["repeated", "half-committed", "committed"])
@pytest.mark.parametrize("chunk", [0, 1, 3, 5])
def test_a_packet_of_an_old_link_neither_doubles_nor_displaces_rows(
    lone: tuple[Bus, Proxy], sink_engine: MakeSink, chunk: int, moment: str
) -> None:
    bus, proxy = lone
    sink = sink_engine({"redis.url": proxy.url, "queue": "q"})
    with ThreadPoolExecutor() as pool:
        late = staged_in_spite_of(proxy, sink, chunk, pool)
        if moment == "repeated":
            late.arrive()
        gate = proxy.hold(lambda command: command.name == "commit", skip=1)
        committing = pool.submit(sink.commit)
        held = gate.wait()
        if moment == "half-committed":
            late.arrive()
        gate.open()
        held.release()
        committing.result(PATIENCE_S)
        if moment == "committed":
            late.arrive()
    assert [value[:2] for value in bus.stored("q")] == [row[:2] for row in CHUNKS]
    left = bus("KEYS", QueueKeys("q").stage("*"))
    assert all(0 < bus("TTL", key) <= STAGE_TTL_S for key in left), (
        "what a late packet makes ends by itself"
    )
    assert [key for key in bus("KEYS", "*") if bus("TTL", key) < 0] == []


def test_staged_rows_live_for_days_before_anything_is_recorded(
    lone: tuple[Bus, Proxy], sink_engine: MakeSink
) -> None:
    bus, proxy = lone
    sink = sink_engine({"redis.url": proxy.url, "queue": "q"})
    sink.stage(CHUNKS[:2])
    gate, life = proxy.hold(lambda command: command.name == "record"), Life(bus, MIN_RECORD_TTL_S)
    with ThreadPoolExecutor() as pool:
        committing = pool.submit(sink.commit)
        held = gate.wait()
        [key] = bus("KEYS", QueueKeys("q").stage("*"))
        assert life.given_to(key), (
            "a driver that dies right behind the record has the time that is promised"
        )
        gate.open()
        held.release()
        committing.result(PATIENCE_S)


def test_a_queue_that_is_closed_in_the_middle_of_a_commit_gets_the_rest_in_its_next_life(
    lone: tuple[Bus, Proxy], sink_engine: MakeSink
) -> None:
    bus, proxy = lone
    sink = sink_engine({"redis.url": proxy.url, "queue": "q"})
    sink.stage(CHUNKS)
    gate = proxy.hold(lambda command: command.name == "commit", skip=1)
    with ThreadPoolExecutor() as pool:
        committing = pool.submit(sink.commit)
        held = gate.wait()
        before = bus.stored("q")
        bus.close_queue("q")
        gate.open()
        held.release()
        committing.result(PATIENCE_S)
    assert before
    assert [value[:2] for value in (*before, *bus.stored("q"))] == [row[:2] for row in CHUNKS]
    assert [key for key in bus("KEYS", "*") if bus("TTL", key) < 0] == []
