"""Rows pushed to many queues at once: each queue has its own in their order, in few round trips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.errors import QueueFull, QueueMissing
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Range
from busmq_spark.store.protocol import FullQueueWait, QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.conftest import Fresh
from tests.layouts import servers_of

pytestmark = pytest.mark.redis
NOW = FullQueueWait(0)
QUEUES = 100


@pytest.fixture(params=["direct", "three", "cluster"])
def store(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    made = open_store(RedisOptions(**servers_of(request.param, request.getfixturevalue)))
    yield made
    made.close()


def test_every_queue_has_its_rows_in_order_also_more_than_a_chunk(
    store: RedisStore, fresh: Fresh
) -> None:
    name = fresh()
    parts = {
        f"{name}-{i}": [b"%d" % row for row in range(2500 if i == 5 else 3)] for i in range(20)
    }
    attached = store.attach(list(parts), QueueCreateOptions(allowed=True, ttl_s=60))
    store.appender().push_each(parts, NOW)
    servers = store.locate(list(parts))
    for queue, values in parts.items():
        rows = store.read(
            Range(queue, attached[queue].born, 1, len(values), servers[queue]),
            fail_on_data_loss=True,
        )
        assert [value for found in rows for value in found.values.to_pylist()] == values


def test_a_round_trip_is_for_several_queues(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, name = open_store(RedisOptions(url=redis_url)), fresh()
    queues = [f"{name}-{i}" for i in range(QUEUES)]
    store.attach(queues, QueueCreateOptions(allowed=True, ttl_s=60))
    [link] = store._links
    execute, trips = link.execute, list[Any]()
    monkeypatch.setattr(link, "execute", lambda step: (trips.append(step), execute(step))[1])
    store.appender().push_each({queue: [b"1", b"2"] for queue in queues}, NOW)
    assert len(trips) < QUEUES / 10
    assert set(store.ends(queues).values()) == {2}
    store.close()


def test_a_queue_that_is_full_or_missing_is_named(store: RedisStore, fresh: Fresh) -> None:
    queue, missing = fresh(), fresh()
    store.attach([queue], QueueCreateOptions(allowed=True, ttl_s=60, maxsize=2))
    with pytest.raises(QueueFull, match="holds its maxsize of 2 messages; 1 rows are not stored"):
        store.appender().push_each({queue: [b"1", b"2", b"3"]}, NOW)
    with pytest.raises(QueueMissing, match=missing):
        store.appender().push_each({missing: [b"1"]}, NOW)
