"""A Redis that loses its tail between the planning of a batch and its reading: no row of another
history, and the right cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import DataLoss, IdsReissued, RedisRolledBack
from busmq_spark.queue.keys import QueueKeys
from tests.faults.proxy import Proxy
from tests.spark.conftest import Bus, MakeBus
from tests.spark.engine import Engine, Row
from tests.support import PATIENCE_S, wait_until

MakeEngine = Callable[..., Engine]


def roll_back(bus: Bus, queue: str, to: int, pushed: int) -> None:
    """Redis is as it was when ``to`` was the last id; since then other messages were pushed."""
    keys = QueueKeys(queue)
    bus("SET", keys.msgid, to)
    bus("LTRIM", keys.messages, 0, 2 * (to - bus.ids(queue)[0] + 1) - 1)
    if pushed:
        bus.push(queue, *(f"other:{i}" for i in range(to + 1, to + pushed + 1)))


@pytest.fixture
def planned(bus: Bus, engine: MakeEngine, queue: str) -> Callable[..., Engine]:
    """A query that has read 1 to 4 and planned 5 to 10, in tasks of ``size`` messages."""

    def make(strict: str, size: str) -> Engine:
        bus.fill(queue, 4)
        query = engine(
            {
                "redis.url": bus.url,
                "subscribe": queue,
                "failOnDataLoss": strict,
                "maxMessagesPerPartition": size,
                "idlePollMs": "1",
            }
        )
        assert len(query.step() or []) == 4
        bus.fill(queue, 6, first=5)
        query.step("planned")
        return query

    return make


@pytest.mark.parametrize("size", ["100", "2"])
@pytest.mark.parametrize(
    ("pushed", "error"), [(0, RedisRolledBack), (2, RedisRolledBack), (9, IdsReissued)]
)
def test_a_task_reads_no_message_that_was_given_a_planned_id_later(
    bus: Bus,
    planned: Callable[..., Engine],
    queue: str,
    pushed: int,
    error: type[DataLoss],
    size: str,
) -> None:
    query = planned("true", size)
    roll_back(bus, queue, 6, pushed)
    with pytest.raises(error, match=f"queue '{queue}'"):
        query.step()


@pytest.mark.parametrize("size", ["100", "2"])
@pytest.mark.parametrize("pushed", [0, 2, 9])
def test_with_fail_on_data_loss_false_the_batch_is_left_out_and_the_oldest_comes_next(
    bus: Bus, planned: Callable[..., Engine], queue: str, pushed: int, size: str
) -> None:
    query = planned("false", size)
    roll_back(bus, queue, 6, pushed)
    assert query.step() == []
    stored = bus.stored(queue)
    rows: list[Row] = []

    def more() -> bool:
        rows.extend(row for batch in query.drain() for row in batch)
        return len(rows) >= len(stored)

    wait_until(more, PATIENCE_S)
    assert [value for _, _, value in rows] == stored
    assert [id for _, id, _ in rows] == sorted({id for _, id, _ in rows})


def test_a_rollback_while_a_task_reads_fails_it_behind_its_last_row(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.attach(queue)
    query = engine({"redis.url": bus.url, "subscribe": queue})
    query.step()
    for _ in range(12):
        bus.push(queue, *[b"x" * 100_000] * 10)  # more than a task asks for at once
    query.step("planned")
    [part] = query.reader.partitions(query.planned[-2], query.planned[-1])
    rows = query.rows_of(part)
    assert next(rows)[1] == 1
    bus("LSET", QueueKeys(queue).messages, -1, "another")
    with pytest.raises(IdsReissued):
        list(rows)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with EmbeddedRedis() as server, Proxy(server.port) as made:
        yield made


@pytest.mark.parametrize("many", [1, 40])
def test_with_fail_on_data_loss_false_no_row_that_was_read_after_a_rollback_is_in_the_batch(
    proxy: Proxy, bus_of: MakeBus, engine: MakeEngine, queue: str, many: int
) -> None:
    """The check before the rows has found nothing; what is read then is of the other history."""
    bus, queues = bus_of(proxy.url), [f"{queue}{i:02}" for i in range(many)]
    for each in queues:
        bus.fill(each, 4)
    query = engine(
        {"redis.url": proxy.url, "subscribe": ",".join(queues), "failOnDataLoss": "false"}
    )
    assert len(query.step() or []) == 4 * many
    for each in queues:
        bus.fill(each, 6, first=5)
    query.step("planned")
    gate = proxy.hold(lambda command: command.name in ("short", "window", "LRANGE"))
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(query.step)
        held = gate.wait()
        gate.open()
        roll_back(bus, queues[0], 6, 9)
        held.release()
        rows = reading.result(PATIENCE_S) or []
    assert {each: [id for name, id, _ in rows if name == each] for each in queues[1:]} == {
        each: [*range(5, 11)] for each in queues[1:]
    }
    assert not [row for row in rows if row[0] == queues[0] and row[2].startswith(b"other")]
