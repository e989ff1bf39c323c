"""A query and a reliable consumer of the asyncio bus hold the same lease."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busmq_spark.bus.bus import Bus as AsyncBus
from busmq_spark.errors import QueueBusy
from busmq_spark.spark.read import acquisition
from tests.spark.conftest import Bus
from tests.spark.engine import Engine


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquisition, "STOPPING_READER_GRACE_S", 0.0)


async def test_a_query_and_a_reliable_consumer_exclude_each_other(
    bus: Bus, engine: Callable[..., Engine], queue: str
) -> None:
    bus.fill(queue, 3)
    async with AsyncBus(bus.url) as there, there.queue(queue) as same:
        consumption = same.consume(reliable=True)
        assert (await anext(consumption)).id == 1
        query = engine({"redis.url": bus.url, "subscribe": queue})
        with pytest.raises(QueueBusy):
            query.step()
        await same.stop()
        await same.ack(1)
        [*_] = query.step() or []
        with pytest.raises(QueueBusy, match="reliable consumer already"):
            await anext(same.consume(reliable=True, wait=False))
