"""What an idle query costs, and how it is woken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.options import ReadOptions
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Range
from busmq_spark.queue.scripts import load
from busmq_spark.spark.read import planning, stream_reader
from busmq_spark.store.redis_store import open_store
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus, MakeBus
from tests.spark.engine import Engine
from tests.spark.monitor import Monitor
from tests.support import wait_until

MakeEngine = Callable[..., Engine]
MOST_PER_S = 25
TOUCH = load("touch").digest


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as made:
        yield made


@pytest.mark.only("python", reason="the clock of Java cannot be replaced")
@pytest.mark.parametrize("queues", [1, 300])
@pytest.mark.parametrize("pattern", [False, True])
def test_an_idle_query_sends_at_most_25_commands_a_second_however_many_queues_it_reads(
    server: EmbeddedRedis,
    bus_of: MakeBus,
    engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    queues: int,
    pattern: bool,
) -> None:
    now = [0.0]
    for module in (planning, stream_reader):
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
        )
    bus = bus_of(server)
    for i in range(queues):
        bus.push(f"q{i}", "1")
    names = (
        {"subscribePattern": "q.*"}
        if pattern
        else {"subscribe": ",".join(f"q{i}" for i in range(queues))}
    )
    query = engine({"redis.url": bus.url, "idlePollMs": "50", **names})
    query.drain()
    with Monitor(server) as monitor:
        for _ in range(100):  # 10 ms each, as Spark does
            assert query.step() is None
            now[0] += 0.01
    query.kill()
    asked = [
        words for words in monitor.words if words[1:2] != [TOUCH]
    ]  # which keeps queues and leases alive by the clock of the machine
    assert 0 < len(asked) <= MOST_PER_S, asked


def test_an_idle_query_asks_no_oftener_than_its_option_says(
    server: EmbeddedRedis, bus_of: MakeBus, engine: MakeEngine
) -> None:
    bus = bus_of(server)
    bus.push("q", "1")
    query = engine({"redis.url": bus.url, "subscribe": "q", "idlePollMs": "600000"})
    query.drain()
    heard: list[object] = []
    wait_until(
        lambda: heard.append(query.step()) or bus("PUBSUB", "NUMSUB", QueueKeys("q").available)[1],
        PATIENCE_S,
    )

    def asks() -> bool:
        with Monitor(server) as monitor:
            for _ in range(50):
                assert query.step() is None
        return "MGET" in monitor.commands

    assert not all(asks() for _ in range(3))  # once it may hear late that it listens
    query.kill()


def test_a_push_wakes_a_query_that_would_not_look_for_minutes(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    query = engine({"redis.url": bus.url, "subscribe": queue, "idlePollMs": "600000"})
    query.drain()
    wait_until(
        lambda: query.step() is None and bus("PUBSUB", "NUMSUB", QueueKeys(queue).available)[1],
        PATIENCE_S,
    )
    assert [query.step() for _ in range(3)] == [None] * 3
    bus.push(queue, "hello")
    found: list[object] = []
    wait_until(lambda: found.extend(query.step() or []) or found, PATIENCE_S)
    assert found == [(queue, 1, b"hello")]


@pytest.mark.needs("limits")
def test_planning_transfers_no_messages(
    server: EmbeddedRedis, bus_of: MakeBus, engine: MakeEngine
) -> None:
    bus = bus_of(server)
    for _ in range(8):
        bus.push("q", b"x" * 1_000_000)

    def sent() -> int:
        info: bytes = bus("INFO", "stats")
        return int(info.split(b"total_net_output_bytes:")[1].split()[0])

    query = engine({"redis.url": bus.url, "subscribe": "q", "maxBytesPerTrigger": "5000000"})
    before = sent()
    end = query.reader.latestOffset(
        query.reader.initialOffset(), query.reader.getDefaultReadLimit()
    )
    query.reader.partitions(query.reader.initialOffset(), end)
    assert end["queues"]["q"]["last"] == 5
    assert sent() - before < 20_000
    query.kill()


@pytest.mark.parametrize(("size", "rows"), [(10, 50_000), (100_000, 300), (1_000_000, 40)])
def test_a_reply_stays_small_whatever_the_size_of_messages(
    bus: Bus, fresh: Fresh, size: int, rows: int
) -> None:
    queue = fresh()
    for at in range(0, rows, 5_000):
        bus.push(queue, *[b"x" * size] * min(5_000, rows - at))
    born = bus("HGET", QueueKeys(queue).metadata, "born").decode()
    store = open_store(ReadOptions(url=bus.url, subscribe=(queue,)))
    pieces = [len(piece.values) for piece in store.read(Range(queue, born, 1, rows), True)]
    store.close()
    assert sum(pieces) == rows
    assert max(pieces) * (size + 30) <= 6 * 1024 * 1024 or max(pieces) <= 50
    bus.close_queue(queue)
