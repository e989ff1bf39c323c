"""What a source and a sink ask of a store, on every layout: patterns, subscriptions, caps, batch
reads, staged and plain writes. Without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import pytest

from busmq_spark.errors import QueueBusy, QueueFlushed
from busmq_spark.groups.topic import partition_of
from busmq_spark.options import ReadOptions, RedisOptions
from busmq_spark.queue import queue as core
from busmq_spark.spark.read.batch_reader import BatchReader
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import open_store
from tests.conftest import Fresh
from tests.layouts import LAYOUTS, servers_of
from tests.spark.engine import SCHEMA, Engine, rows_of
from tests.spark.sink_engines import SinkEngine
from tests.stored import read_at
from tests.support import wait_until

MakeEngine = Callable[..., Engine]
MakeSink = Callable[[Mapping[str, str]], SinkEngine]
pytestmark = pytest.mark.redis


class Servers:
    """A layout, and what a producer does there."""

    def __init__(self, url: str, layout: str) -> None:
        self.where = {"redis.url": url, "redis.layout": layout}
        self.options = {"url": url, "layout": layout}
        self.store = open_store(RedisOptions(**self.options))  # type: ignore[arg-type]

    def push(self, queue: str, *values: bytes) -> None:
        self.store.attach([queue], QueueCreateOptions(allowed=True, ttl_s=60))
        assert self.store._run(queue, core.push_many(self.store.keys(queue), values)) == len(values)

    def stored(self, queue: str) -> list[bytes]:
        return [
            message.value
            for message in self.store._run(queue, read_at(self.store.keys(queue), 0, 1000))
        ]


@pytest.fixture(params=LAYOUTS[1:])
def servers(request: pytest.FixtureRequest) -> Any:
    made = Servers(**servers_of(request.param, request.getfixturevalue))
    yield made
    made.store.close()


@pytest.fixture
def queues(servers: Servers, fresh: Fresh) -> list[str]:
    """Enough of them to be on every server."""
    hint = fresh("layout")
    made = [f"{hint}-{n}" for n in range(12)]
    for queue in made:
        servers.push(queue, *(b"%s %d" % (queue.encode(), n) for n in range(1, 6)))
    return made


def expected(queues: list[str]) -> set[tuple[str, int, bytes]]:
    return {(queue, n, b"%s %d" % (queue.encode(), n)) for queue in queues for n in range(1, 6)}


def test_a_pattern_finds_queues_on_every_server_and_everything_read_is_acked(
    servers: Servers, queues: list[str], engine: MakeEngine
) -> None:
    query = engine(
        {
            **servers.where,
            "subscribePattern": queues[0].removesuffix("-0") + "-.*",
            "maxMessagesPerTrigger": "25",
        }
    )
    batches = query.drain()
    assert [len(batch) for batch in batches] == [25, 25, 10]
    assert {row for batch in batches for row in batch} == expected(queues)
    query.reader.commit(query.planned[-1])
    assert [servers.stored(queue) for queue in queues] == [[]] * 12


def test_a_queue_that_is_read_is_not_given_to_another_reader(
    servers: Servers, queues: list[str], engine: MakeEngine
) -> None:
    query = engine({**servers.where, "subscribe": queues[0]})
    query.step()
    other = engine({**servers.where, "subscribe": queues[0], "subscription": "other"})
    with pytest.raises(QueueBusy, match="is read by a query without a subscription"):
        other.step()


def test_subscriptions_keep_messages_until_each_has_acked(
    servers: Servers, queues: list[str], engine: MakeEngine
) -> None:
    names = ",".join(queues)
    one, two = (
        engine(
            {**servers.where, "subscribe": names, "subscription": name, "maxBytesPerTrigger": "400"}
        )
        for name in ("one", "two")
    )
    two.step()
    assert {row for batch in one.drain() for row in batch} == expected(queues)
    one.reader.commit(one.planned[-1])
    assert sum(len(servers.stored(queue)) for queue in queues) > 0
    two.drain()
    two.reader.commit(two.planned[-1])
    assert [servers.stored(queue) for queue in queues] == [[]] * 12


def test_a_batch_read_sees_all_and_removes_nothing(servers: Servers, queues: list[str]) -> None:
    reader = BatchReader(ReadOptions(**servers.options, subscribe=tuple(queues)), SCHEMA)  # type: ignore[arg-type]
    assert {row for part in reader.partitions() for row in rows_of(reader, part)} == expected(
        queues
    )  # type: ignore[arg-type]
    assert {len(servers.stored(queue)) for queue in queues} == {5}


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_rows_of_a_task_reach_queues_on_every_server_once(
    servers: Servers, queues: list[str], sink_engine: MakeSink, delivery: str
) -> None:
    """The second time as after a restart, which computes the batch again."""
    once = {"sinkId": f"sink-{queues[0]}", "batchId": "0"} if delivery == "exactly-once" else {}
    for _ in range(2):
        write = sink_engine({**servers.where, "delivery": delivery, **once})
        write.stage([(queue, b"new %d" % n) for n in range(3) for queue in queues])
        write.commit()
    for queue in queues:
        assert servers.stored(queue)[5:] == [b"new 0", b"new 1", b"new 2"] * (1 if once else 2)


def test_a_topic_is_made_read_and_written_by_key_on_every_server(
    servers: Servers, fresh: Fresh, engine: MakeEngine, sink_engine: MakeSink
) -> None:
    topic = fresh("layout")
    where = {**servers.where, "topic": topic, "partitions": "7"}
    for batch in ("0", "1", "1"):
        write = sink_engine({**where, "sinkId": f"sink-{topic}", "batchId": batch})
        write.stage([(f"key {n}", b"%s %d" % (batch.encode(), n)) for n in range(50)])
        write.commit()
    places = [partition_of(f"key {n}", 7) for n in range(50)]
    wanted = [
        [b"%s %d" % (batch, n) for batch in (b"0", b"1") for n in range(50) if places[n] == p]
        for p in range(7)
    ]
    assert [servers.stored(f"{topic}/{p}") for p in range(7)] == wanted
    if len(servers.store.endpoints) > 1:
        assert list(servers.store.locate([f"{topic}/{p}" for p in range(7)]).values()) == [
            0,
            1,
            2,
            0,
            1,
            2,
            0,
        ]
    query = engine({**servers.where, "topic": topic})
    assert sorted(value for rows in query.drain() for _, _, value in rows) == sorted(
        chain.from_iterable(wanted)
    )
    query.reader.commit(query.planned[-1])
    assert [servers.stored(f"{topic}/{p}") for p in range(7)] == [[]] * 7
    reader = BatchReader(ReadOptions(**servers.options, topic=(topic,)), SCHEMA)  # type: ignore[arg-type]
    assert [row for part in reader.partitions() for row in rows_of(reader, part)] == []  # type: ignore[arg-type]


def test_a_partition_is_read_and_written_where_it_is(
    servers: Servers, fresh: Fresh, engine: MakeEngine, sink_engine: MakeSink
) -> None:
    topic = fresh("layout")
    for p in range(3):
        servers.push(f"{topic}/{p}", b"old")  # where its name hashes to
    where = {**servers.where, "topic": topic, "partitions": "3"}
    write = sink_engine(where)
    write.stage([(f"{n}", b"new") for n in range(30)])
    write.commit()
    assert [servers.stored(f"{topic}/{p}")[0] for p in range(3)] == [b"old"] * 3
    assert sum(len(rows) for rows in engine({**where, "ack": "none"}).drain()) == 33


def test_messages_that_are_gone_are_distinguished(
    servers: Servers, queues: list[str], engine: MakeEngine
) -> None:
    query = engine({**servers.where, "subscribe": queues[0]})
    query.drain()
    servers.push(queues[0], b"6")
    servers.store.truncate([queues[0]])
    with pytest.raises(QueueFlushed):
        wait_until(lambda: query.drain() is None, what="the next poll sees it")
