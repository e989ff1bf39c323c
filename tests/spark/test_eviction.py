"""A Redis that evicts removes queues without an error: a query or bus that starts warns of it, or
refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from busmq_spark.bus.bus import Bus as AsyncBus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError
from tests.spark.conftest import MakeBus
from tests.spark.engine import Engine
from tests.spark.sink_engines import SinkEngine

MakeEngine = Callable[..., Engine]
MakeSink = Callable[[Mapping[str, str]], SinkEngine]


@pytest.fixture(params=["allkeys-lru", "noeviction"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def policed(policy: str) -> Iterator[EmbeddedRedis]:
    """A server with that ``maxmemory-policy``."""
    with EmbeddedRedis(settings={"maxmemory-policy": policy}) as server:
        yield server


def test_a_redis_that_evicts_is_warned_about_once(
    policed: EmbeddedRedis,
    policy: str,
    bus_of: MakeBus,
    engine: MakeEngine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = bus_of(policed)
    bus.push("q", "1")
    query = engine({"redis.url": bus.url, "subscribePattern": "q.*"})
    query.drain()
    bus.push("q2", "1")
    query.drain()
    query.kill()
    found = [text for text in caplog.messages if "maxmemory-policy of Redis" in text]
    assert len(found) == (policy != "noeviction")
    assert policy == "noeviction" or f"is {policy}" in found[0]


def test_a_redis_that_evicts_is_refused_where_that_is_asked_for(
    policed: EmbeddedRedis, policy: str, bus_of: MakeBus, engine: MakeEngine
) -> None:
    bus = bus_of(policed)
    bus.push("q", "1")
    query = engine({"redis.url": bus.url, "subscribe": "q", "requireNoEviction": "true"})
    if policy == "noeviction":
        assert query.step()
        query.kill()
        return
    with pytest.raises(ConfigError, match=f"is {policy}.*requireNoEviction=true refuses"):
        query.step()


async def test_a_bus_warns_of_it_or_refuses_it_too(
    policed: EmbeddedRedis, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncBus(policed.url):
        assert len([text for text in caplog.messages if "maxmemory-policy of Redis" in text]) == (
            policy != "noeviction"
        )
    if policy == "noeviction":
        async with AsyncBus(policed.url, require_no_eviction=True):
            return
    with pytest.raises(ConfigError, match="requireNoEviction=true refuses"):
        await AsyncBus(policed.url, require_no_eviction=True).__aenter__()


def test_a_sink_is_refused_it_where_that_is_asked_for(
    policed: EmbeddedRedis, policy: str, bus_of: MakeBus, sink_engine: MakeSink
) -> None:
    def write() -> None:
        sink = sink_engine({"redis.url": policed.url, "queue": "q", "requireNoEviction": "true"})
        sink.stage([b"1"])
        sink.commit()

    if policy == "noeviction":
        write()
        assert bus_of(policed).stored("q") == [b"1"]
        return
    with pytest.raises(ConfigError, match="requireNoEviction=true refuses"):
        write()
