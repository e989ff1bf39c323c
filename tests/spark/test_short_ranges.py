"""A task of many short ranges, in both engines: they are fetched together, and each message comes
as if its range was read alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import QueueExpired
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.store import redis_range
from tests.conftest import Fresh
from tests.spark.conftest import Bus
from tests.spark.engine import Engine, Row

MakeEngine = Callable[..., Engine]
QUEUES = 40
"""More than ``read_tasks.MAX_UNPACKED_RANGES``: they share tasks."""
CONTENT = (
    [b"a", b"", b"c"],
    [b"x" * 30_000] * 4,  # the third is over what is taken of one range
    [b"y" * (redis_range.SHORT_RANGE_BYTES + 1), b"z"],  # the first is
    [b"v"] * (redis_range.SHORT_RANGE_ROWS + 1),
    [b"w"],
)


@pytest.fixture
def filled(bus: Bus, fresh: Fresh) -> dict[str, list[bytes]]:
    """Many queues, and the values in each."""
    base = fresh("short")
    found = dict(zip((f"{base}-{i:02}" for i in range(QUEUES)), cycle(CONTENT), strict=False))
    for queue, values in found.items():
        bus.push(queue, *values)
    return found


def options(bus: Bus, filled: dict[str, list[bytes]], **more: str) -> dict[str, str]:
    return {"redis.url": bus.url, "subscribe": ",".join(filled), **more}


def of(rows: list[Row] | None, queue: str) -> list[tuple[int, bytes]]:
    return [(id, value) for name, id, value in rows or [] if name == queue]


def test_each_message_of_many_queues_comes_once_and_in_order(
    bus: Bus, engine: MakeEngine, filled: dict[str, list[bytes]]
) -> None:
    query = engine(options(bus, filled))
    rows = query.step()
    assert len(query.tasks) < QUEUES
    assert {queue: of(rows, queue) for queue in filled} == {
        queue: list(enumerate(values, 1)) for queue, values in filled.items()
    }


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_task_does_not_ask_for_its_ranges_one_by_one(
    bus: Bus, engine: MakeEngine, fresh: Fresh, redis_server: EmbeddedRedis, strict: str
) -> None:
    base = fresh("short")
    queues = {f"{base}-{i:03}": [b"a", b"b"] for i in range(3 * QUEUES)}
    for queue, values in queues.items():
        bus.push(queue, *values)
    query = engine(options(bus, queues, failOnDataLoss=strict))
    assert len(query.step() or []) == 6 * QUEUES  # Redis knows the scripts now
    for queue, values in queues.items():
        bus.push(queue, *values)
    query.step("planned")
    before = reads(redis_server)
    assert len(query.step() or []) == 6 * QUEUES
    assert reads(redis_server) - before < QUEUES


def reads(server: EmbeddedRedis) -> int:
    """How often the server has received something from a client: once for all that was sent
    together, if it is not long.
    """
    [line] = [
        line
        for line in str(server.command("INFO", "stats")).splitlines()
        if line.startswith("total_reads_processed:")
    ]
    return int(line.partition(":")[2])


def spoil(bus: Bus, filled: dict[str, list[bytes]]) -> tuple[str, str, str]:
    """Of three queues that are planned one is removed, one loses its first message and one its
    second.
    """
    removed, trimmed, holed = [queue for queue, values in filled.items() if values is CONTENT[0]][
        1:4
    ]
    bus.close_queue(removed)
    bus("LTRIM", QueueKeys(trimmed).messages, 2, -1)
    bus("LSET", QueueKeys(holed).messages, 2, "gone")
    bus("LSET", QueueKeys(holed).messages, 3, "gone")
    assert bus("LREM", QueueKeys(holed).messages, 2, "gone") == 2
    return removed, trimmed, holed


def test_with_fail_on_data_loss_false_only_what_is_gone_is_missing(
    bus: Bus, engine: MakeEngine, filled: dict[str, list[bytes]]
) -> None:
    query = engine(options(bus, filled, failOnDataLoss="false"))
    query.step("planned")
    removed, trimmed, holed = spoil(bus, filled)
    rows = query.step()
    left = {removed: [], trimmed: [(2, b""), (3, b"c")], holed: [(1, b"a"), (3, b"c")]}
    assert {queue: of(rows, queue) for queue in filled} == {
        queue: left.get(queue, list(enumerate(values, 1))) for queue, values in filled.items()
    }


def test_a_queue_that_is_gone_among_many_fails_the_task(
    bus: Bus, engine: MakeEngine, filled: dict[str, list[bytes]]
) -> None:
    query = engine(options(bus, filled))
    query.step("planned")
    removed, *_ = spoil(bus, filled)
    with pytest.raises(QueueExpired, match=f"queue '{removed}'"):
        query.step()
