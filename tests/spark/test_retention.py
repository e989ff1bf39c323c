"""Queries on a queue that keeps what is acknowledged: they begin in what is kept, go back, and say
what is gone. Both engines, all layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from busmq_spark.errors import CheckpointOlder, ConsumedElsewhere, UnreadBacklog
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue as core
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.retention import parse_limits, read_retention, set_retention
from busmq_spark.reading.reader_operations import CumulativeAckRequest, ack_to
from busmq_spark.reading.reader_subscriptions import seek
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.clocks import HOUR, pass_by
from tests.conftest import Fresh
from tests.layouts import servers_of
from tests.spark.conftest import PATIENCE_S, Bus
from tests.spark.engine import Engine
from tests.spark.sink_engines import SinkEngine
from tests.stored import read_at
from tests.support import wait_until

MakeEngine = Callable[..., Engine]
WEEK, ONE = parse_limits("7d", None, None), parse_limits(None, 1, None)


@pytest.fixture
def kept(bus: Bus, queue: str) -> QueueKeys:
    """A queue that keeps a week, with the messages 1..3 of two hours ago and 4..6 of one."""
    keys = QueueKeys(queue)
    bus.attach(queue)
    bus.link.run(set_retention(keys, WEEK))
    for first in (1, 4):
        bus.fill(queue, 3, first=first)
        pass_by(bus, keys, HOUR)
    return keys


def made(engine: MakeEngine, bus: Bus, keys: QueueKeys, **options: str) -> Engine:
    return engine({"redis.url": bus.url, "subscribe": keys.name, **options})


def ids(batches: list[Any]) -> list[int]:
    return [id for rows in batches for _, id, _ in rows]


def done(query: Engine) -> list[int]:
    """Everything, acknowledged."""
    found = ids(query.drain())
    query.reader.commit(query.planned[-1])
    return found


def waiting(bus: Bus, keys: QueueKeys) -> tuple[int, int]:
    found = bus.link.run(read_retention(keys))
    assert found is not None
    return found.waiting, found.kept


@pytest.mark.parametrize("name", ["", "s"])
def test_what_a_query_acknowledges_is_kept_and_another_begins_in_it(
    bus: Bus, engine: MakeEngine, kept: QueueKeys, name: str
) -> None:
    first = made(engine, bus, kept, subscription=name) if name else made(engine, bus, kept)
    assert done(first) == [1, 2, 3, 4, 5, 6]
    assert (bus.ids(kept.name), waiting(bus, kept)) == ([1, 2, 3, 4, 5, 6], (0, 6))
    bus.fill(kept.name, 2, first=7)
    other = {"subscription": "other"} if name else {"ack": "none"}
    starts = {
        "-90m": [4, 5, 6, 7, 8],
        "-3 messages": [6, 7, 8],
        f'{{"{kept.name}": 1}}': [2, 3, 4, 5, 6, 7, 8],
        "earliest": [*range(1, 9)],
    }
    for at, (start, expected) in enumerate(starts.items()):
        again = made(
            engine,
            bus,
            kept,
            startingOffsets=start,
            **{key: f"{value}{at}" if name else value for key, value in other.items()},
        )
        assert ids(again.drain()) == expected
    assert done(first) == [7, 8]
    assert waiting(bus, kept) == (0, 8)


@pytest.mark.needs("start")
def test_a_new_checkpoint_begins_below_what_its_subscription_has_acknowledged_and_holds_it(
    bus: Bus, engine: MakeEngine, kept: QueueKeys
) -> None:
    first = made(engine, bus, kept, subscription="s")
    assert done(first) == [1, 2, 3, 4, 5, 6]
    first.kill()
    again = made(
        engine, bus, kept, subscription="s", startingOffsets="-90m", maxMessagesPerTrigger="1"
    )
    assert ids([again.step() or []]) == [4]
    bus.link.run(set_retention(kept, ONE))
    assert bus.ids(kept.name)[0] in (4, 5), "what it has still to read stays"
    assert ids(again.drain()) == [5, 6]
    again.reader.commit(again.planned[-1])
    bus.link.run(set_retention(kept, ONE))
    assert bus.ids(kept.name) == [6]


def test_a_query_without_a_subscription_begins_anew_below_its_own_acks(
    bus: Bus, engine: MakeEngine, kept: QueueKeys
) -> None:
    first = made(engine, bus, kept)
    assert done(first) == [1, 2, 3, 4, 5, 6]
    first.kill()
    again = made(engine, bus, kept, startingOffsets="-90m")
    assert done(again) == [4, 5, 6]
    assert waiting(bus, kept) == (0, 6)


@pytest.mark.needs("start")
def test_an_older_checkpoint_reads_again_what_is_kept_and_says_so(
    bus: Bus, engine: MakeEngine, kept: QueueKeys, caplog: pytest.LogCaptureFixture
) -> None:
    query = made(engine, bus, kept, subscription="s", maxMessagesPerTrigger="2")
    query.step()
    old = list(query.planned)
    query.drain()
    query.reader.commit(query.planned[-1])
    query.kill()
    query.planned, query.committed = old, 1
    query.restart()
    assert ids(query.drain()) == [3, 4, 5, 6]
    assert any(
        "acknowledged up to id 6 is kept, and is read again from id 3 on" in text
        for text in caplog.messages
    )


@pytest.mark.needs("start")
@pytest.mark.parametrize("name", ["", "s"])
def test_an_older_checkpoint_below_what_is_kept_is_told(
    bus: Bus, engine: MakeEngine, kept: QueueKeys, name: str
) -> None:
    query = made(
        engine, bus, kept, maxMessagesPerTrigger="2", **({"subscription": name} if name else {})
    )
    query.step()
    old = list(query.planned)
    query.drain()
    query.reader.commit(query.planned[-1])
    bus.link.run(set_retention(kept, ONE))
    assert bus.ids(kept.name) == [6]
    query.kill()
    query.planned, query.committed = old, 1
    query.restart()
    query.silence(bus, kept.name)
    with pytest.raises(CheckpointOlder):
        query.drain()


@pytest.mark.needs("start")
def test_what_a_consumer_in_node_takes_is_told(
    bus: Bus, engine: MakeEngine, kept: QueueKeys, caplog: pytest.LogCaptureFixture
) -> None:
    query = made(engine, bus, kept, maxMessagesPerTrigger="2")
    query.step()
    bus("RPUSH", kept.toack, *bus("LPOP", kept.messages, 8))
    query.kill()
    query.restart()
    with pytest.raises(ConsumedElsewhere):
        query.drain()
    other = made(engine, bus, kept, ack="none")
    assert ids(other.drain()) == [5, 6]
    assert any("a consumer that is no group" in text for text in caplog.messages)


@pytest.mark.needs("start")
def test_only_what_nobody_has_read_is_a_backlog(
    bus: Bus, engine: MakeEngine, kept: QueueKeys
) -> None:
    first = made(engine, bus, kept)
    done(first)
    first.kill()
    bus.fill(kept.name, 2, first=7)
    with pytest.raises(UnreadBacklog, match="2 "):
        made(engine, bus, kept, startingOffsets="latest").step()
    assert ids(made(engine, bus, kept, startingOffsets=f'{{"{kept.name}": 6}}').drain()) == [7, 8]


def test_a_group_that_is_moved_back_is_read_by_its_query_from_there(
    bus: Bus, engine: MakeEngine, kept: QueueKeys
) -> None:
    first = made(engine, bus, kept, subscription="s")
    done(first)
    first.kill()
    assert bus.link.run(seek(kept, "s", 2)) == 2
    assert bus.link.run(set_retention(kept, ONE)) is not None
    assert bus.ids(kept.name) == [3, 4, 5, 6]
    assert done(
        made(engine, bus, kept, subscription="s", startingOffsets=f'{{"{kept.name}": 2}}')
    ) == [3, 4, 5, 6]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_sink_has_room_where_all_is_acknowledged(
    sink_engine: Callable[..., SinkEngine], bus: Bus, queue: str, delivery: str
) -> None:
    keys = QueueKeys(queue)
    bus.attach(queue, maxsize=4)
    bus.link.run(set_retention(keys, WEEK))
    for batch in range(3):
        once = {"sinkId": queue, "batchId": str(batch)} if delivery == "exactly-once" else {}
        write = sink_engine(
            {"redis.url": bus.url, "queue": queue, "delivery": delivery, "onFull": "fail", **once}
        )
        write.stage([b"a", b"b", b"c", b"d"])
        write.commit()
        born = bus("HGET", keys.metadata, "born").decode()
        bus.link.run(ack_to([CumulativeAckRequest(keys, 4 * batch + 4, born, "")]))
    assert waiting(bus, keys) == (0, 12)


# The acceptance: a day's pipeline is run again, on every layout


class Layout:
    """The servers of a layout, and what a producer does there."""

    def __init__(self, url: str, layout: str) -> None:
        self.where = {"redis.url": url, "redis.layout": layout}
        self.store: RedisStore = open_store(RedisOptions(url=url, layout=layout))  # type: ignore[arg-type]

    def push(self, queue: str, ids: range) -> None:
        self.store.attach([queue], QueueCreateOptions(allowed=True, ttl_s=600))
        self.store._run(queue, core.push_many(self.store.keys(queue), [b"%d" % id for id in ids]))

    def stored(self, queue: str) -> list[int]:
        return [
            int(message.value)
            for message in self.store._run(queue, read_at(self.store.keys(queue), 0, 1000))
        ]

    def later(self, queue: str) -> None:
        keys = self.store.keys(queue)

        def ask(*words: str | int) -> Any:
            return self.store._link_of_queue(queue).execute(command(*words))

        pass_by(ask, keys, HOUR)


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[Layout]:
    made = Layout(**servers_of(request.param, request.getfixturevalue))
    yield made
    made.store.close()


# Each layout has one engine: how an engine reads and writes is not different on another, and each
# reads from all of them elsewhere.
@pytest.mark.parametrize(
    ("servers", "engine"),
    [
        ("direct", "python"),
        ("cluster", "python"),
        pytest.param("three", "java", marks=pytest.mark.jvm),
        pytest.param("sentinel", "java", marks=pytest.mark.jvm),
    ],
    indirect=["servers"],
)
def test_a_pipeline_is_run_again_into_another_queue_while_it_goes_on(
    servers: Layout,
    fresh: Fresh,
    spark: SparkSession,
    engine: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "java":
        request.getfixturevalue("shim_jar")
    hint = fresh("day")
    inputs = [f"{hint}-in-{n}" for n in range(3)]
    for queue in inputs:
        servers.push(queue, range(0))
        servers.store._run(queue, set_retention(servers.store.keys(queue), WEEK))
        for first in (1, 51):
            servers.push(queue, range(first, first + 50))
            servers.later(queue)

    def pipeline(name: str, **options: str) -> StreamingQuery:
        given = {**servers.where, "engine": engine}
        read = spark.readStream.format("busmq").options(
            **given,
            subscribe=",".join(inputs),
            subscription=name,
            maxMessagesPerTrigger="60",
            **options,
        )
        rows = read.load().selectExpr(f"replace(queue, '-in-', '-{name}-') queue", "value")
        write = (
            rows.writeStream.format("busmq")
            .options(**given, delivery="exactly-once")
            .option("checkpointLocation", str(tmp_path / name))
        )
        return write.start()

    def wait_for_ids(query: StreamingQuery, name: str, first: int, last: int) -> None:
        outputs = [queue.replace("-in-", f"-{name}-") for queue in inputs]

        def are_there() -> bool:
            if error := query.exception():
                raise error
            return all(len(servers.stored(queue)) >= last - first + 1 for queue in outputs)

        wait_until(are_there, PATIENCE_S, f"{name} has written")
        assert [servers.stored(queue) for queue in outputs] == [[*range(first, last + 1)]] * 3

    daily = pipeline("daily")
    wait_for_ids(daily, "daily", 1, 100)
    again = pipeline("again", startingOffsets="-90m")
    wait_for_ids(again, "again", 51, 100)
    again.stop()
    for queue in inputs:
        servers.push(queue, range(101, 131))
    again = pipeline("again", startingOffsets="-90m")
    wait_for_ids(daily, "daily", 1, 130)
    wait_for_ids(again, "again", 51, 130)
    for query in (daily, again):
        assert query.exception() is None
        query.stop()
    assert [servers.stored(queue) for queue in inputs] == [[*range(1, 131)]] * 3
