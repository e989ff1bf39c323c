"""How new queues of a pattern are found: beside the planning, in small steps, and none that was
there at the start is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.redis_io.queue_location import queues_of
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from busmq_spark.spark.read import reader_threads
from tests.spark.conftest import PATIENCE_S, Bus, MakeBus
from tests.spark.engine import Engine, Row
from tests.spark.monitor import Monitor
from tests.support import wait_until

MakeEngine = Callable[..., Engine]
OTHERS = 3_500


@pytest.fixture
def crowded() -> Iterator[EmbeddedRedis]:
    """A server with keys of another program."""
    with EmbeddedRedis() as made:
        made.command("MSET", *[word for i in range(OTHERS) for word in (f"app:{i}", "x")])
        yield made


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_threads, "DISCOVERY_INTERVAL_S", 0.02)


def walks(bus: Bus) -> int:
    """How many SCAN commands the server has answered."""
    info: bytes = bus("INFO", "commandstats")
    return (
        int(info.split(b"cmdstat_scan:calls=")[1].split(b",")[0]) if b"cmdstat_scan:" in info else 0
    )


def test_planning_walks_over_no_keys_once_the_query_runs(
    crowded: EmbeddedRedis, bus_of: MakeBus, engine: MakeEngine
) -> None:
    bus = bus_of(crowded)
    bus.push("q1", "1")
    query = engine({"redis.url": bus.url, "subscribePattern": "q.", "idlePollMs": "1"})
    assert len(query.drain()) == 1
    with Monitor(crowded) as monitor:
        before = walks(bus)
        wait_until(lambda: query.step() is None and walks(bus) > before + 4, PATIENCE_S)
        bus.push("q2", "2")
        found: list[Row] = []
        wait_until(lambda: found.extend(query.step() or []) or found, PATIENCE_S)
    query.kill()
    assert found == [("q2", 1, b"2")]
    walking = {
        client
        for client, words in zip(monitor.clients, monitor.words, strict=True)
        if words[0].upper() == "SCAN"
    }
    others = {
        words[0].upper()
        for client, words in zip(monitor.clients, monitor.words, strict=True)
        if client in walking
    }
    assert others <= {"SCAN", "CLIENT", "PING"}


def test_a_walk_pauses_after_each_thousand_keys(crowded: EmbeddedRedis, bus_of: MakeBus) -> None:
    bus = bus_of(crowded)
    bus.push("q", "1")
    link, at = SyncLink(parse(bus.url)[0]), []
    assert queues_of(link, lambda: at.append(walks(bus))) == ["q"]
    link.close()
    assert at == list(range(1, len(at) + 1))
    assert OTHERS // 1000 <= len(at) < OTHERS // 1000 + 2


def test_available_now_reads_every_queue_that_is_there_and_none_that_comes_later(
    crowded: EmbeddedRedis, bus_of: MakeBus, engine: MakeEngine
) -> None:
    bus = bus_of(crowded)
    for number in range(20):
        bus.push(f"q{number}", "1")
    query = engine({"redis.url": bus.url, "subscribePattern": "q.*", "maxMessagesPerTrigger": "5"})
    query.reader.prepareForTriggerAvailableNow()
    rows = query.step() or []
    before = walks(bus)
    bus.push("q-late", "1")
    rows += [row for batch in query.drain() for row in batch]
    assert sorted(queue for queue, _, _ in rows) == sorted(f"q{number}" for number in range(20))
    assert walks(bus) == before
    query.kill()


def test_a_search_that_breaks_off_is_made_again(
    crowded: EmbeddedRedis, bus_of: MakeBus, engine: MakeEngine
) -> None:
    bus = bus_of(crowded)
    query = engine({"redis.url": bus.url, "subscribePattern": "q.", "idlePollMs": "1"})
    assert query.drain() == []
    for number in range(3):
        bus("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        bus.push(f"q{number}", "1")
        found: list[Row] = []
        # It ends before the next
        wait_until(lambda: found.extend(query.step() or []) or found, PATIENCE_S)  # noqa: B023
        assert found == [(f"q{number}", 1, b"1")]
    query.kill()
