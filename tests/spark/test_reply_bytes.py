"""No reply is over 16 MB, whatever the order of large and small messages: Redis closes each
connection here for which it has to hold more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue.keys import QueueKeys
from tests.conftest import Fresh
from tests.spark.conftest import Bus, MakeBus
from tests.spark.live_engine import LiveEngine

MOST_BYTES = 16 * 1024 * 1024
SMALL, LARGE = b"s" * 20, b"l" * 2**20
ORDERS: dict[str, list[bytes]] = {
    "small, then large": [SMALL] * 25_000 + [LARGE] * 30,
    "large, then small, then large": [LARGE] * 30 + [SMALL] * 25_000 + [LARGE] * 30,
    "in turn": ([SMALL] * 3000 + [LARGE] * 17) * 3,
    "one among many, then large": (
        [SMALL] * 9000 + [LARGE] + [SMALL] * 25_000 + [b"m" * 60_000] * 400 + [LARGE] * 20
    ),
}
Fill = Callable[[str, Sequence[bytes]], None]


@pytest.fixture(scope="module")
def strict() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        server.command("CONFIG", "SET", "client-output-buffer-limit", f"normal {MOST_BYTES} 0 0")
        yield server


@pytest.fixture
def there(strict: EmbeddedRedis, bus_of: MakeBus) -> Iterator[Bus]:
    before = len(strict.log)
    yield bus_of(strict)
    assert "output buffer limits" not in strict.log[before:]


def pushed_by_us(bus: Bus) -> Fill:
    def fill(queue: str, values: Sequence[bytes]) -> None:
        for i in range(0, len(values), 1000):
            bus.push(queue, *values[i : i + 1000])

    return fill


def pushed_by_peers(bus: Bus) -> Fill:
    """What a queue looks like after the pushes of npm peers: nothing in it says how long its values
    are.
    """

    def fill(queue: str, values: Sequence[bytes]) -> None:
        keys = QueueKeys(queue)
        bus.attach(queue)
        first = int(bus("GET", keys.msgid) or 0) + 1
        for i in range(0, len(values), 1000):
            bus(
                "RPUSH",
                keys.messages,
                *[
                    word
                    for id, value in enumerate(values[i : i + 1000], first + i)
                    for word in (id, value)
                ],
            )
        bus("SET", keys.msgid, first + len(values) - 1)

    return fill


def pushed_by_both(bus: Bus) -> Fill:
    """We push a few small messages, and peers the rest; then we push again."""

    def fill(queue: str, values: Sequence[bytes]) -> None:
        half = len(values) // 2
        pushed_by_us(bus)(queue, values[:100])
        pushed_by_peers(bus)(queue, values[100:half])
        pushed_by_us(bus)(queue, values[half:])

    return fill


WRITERS = [pushed_by_us, pushed_by_peers, pushed_by_both]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("engine", ["busmq", "busmq-realtime"])
def test_a_range_of_small_and_large_messages(  # noqa: PLR0917  # fixtures
    engine: str,
    order: str,
    writer: Callable[[Bus], Fill],
    spark: SparkSession,
    there: Bus,
    fresh: Fresh,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "busmq-realtime":
        request.getfixturevalue("shim_jar")
    queue, values = fresh(), ORDERS[order]
    writer(there)(queue, values)
    frame = spark.read.format(engine).options(**{"redis.url": there.url, "subscribe": queue}).load()
    found = frame.selectExpr("count(*)", "min(id)", "max(id)", "sum(length(value))").collect()
    assert [tuple(row) for row in found] == [(len(values), 1, len(values), sum(map(len, values)))]
    there.close_queue(queue)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_reader_of_real_time_mode(
    writer: Callable[[Bus], Fill], spark: SparkSession, shim_jar: Path, there: Bus, fresh: Fresh
) -> None:
    queue, values = fresh(), [SMALL] * 1000 + [LARGE] * 40 + [SMALL] * 100 + [LARGE] * 20
    writer(there)(queue, values)
    query = LiveEngine(spark, {"redis.url": there.url, "subscribe": queue})
    try:
        found: list[Any] = query.begin().rows(len(values))
        assert [(id, len(value)) for _, id, value in found] == [
            (id, len(value)) for id, value in enumerate(values, 1)
        ]
    finally:
        query.stop()
    there.close_queue(queue)
