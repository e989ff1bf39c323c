"""Each kind of reader of a bus leaves its record beside its lease."""

from __future__ import annotations

import os
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError, QueueBusy
from busmq_spark.reading.readers import ReaderStatus, read_readers
from tests.bus.tools import LONG_S, redis
from tests.conftest import Fresh


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUSMQ_CLIENT_NAME", "billing-3")


async def reader(queue: Any) -> ReaderStatus:
    [found] = await queue.run(read_readers([queue.keys]))
    return found


def named_by_itself(found: ReaderStatus, kind: str) -> bool:
    record = found.record
    assert record is not None
    assert (record.name, record.pid, record.engine) == ("billing-3", os.getpid(), "python")
    assert (found.kind, found.state, found.held) == (kind, "ok", True)
    return True


async def test_a_group_names_its_holder_to_the_next(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        async with queue.group("billing") as group, queue.group("billing") as other:
            batch = await anext(aiter(group.batches()))
            assert named_by_itself(await reader(queue), "ordered")
            other._position = 3  # as if it had been handed out before the lease was lost
            who = rf"group 'billing' \(ordered 'billing-3', process {os.getpid()} of this machine\)"
            with pytest.raises(QueueBusy, match=who):
                await other.ack(3)
            await group.ack(batch)
            await redis(queue, "PEXPIRE", queue.keys.lease("billing"), 1000 * LONG_S)
        found = await reader(queue)
        assert (found.state, found.name, found.position) == ("gone", "billing-3", 3)


async def test_a_shared_group_names_its_holders(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.push_many("abc")
        async with queue.group("mail", shared=True) as group:
            await anext(aiter(group.batches()))
            assert named_by_itself(await reader(queue), "shared")


async def test_a_reliable_consumer_names_itself_to_the_next(redis_url: str, fresh: Fresh) -> None:
    async with (
        Bus(redis_url) as bus,
        Bus(redis_url) as other,
        bus.queue(fresh()) as queue,
        other.queue(queue.name) as same,
    ):
        await queue.push_many("abc")
        consumption = queue.consume(reliable=True)
        assert (await anext(consumption)).id == 1
        assert named_by_itself(await reader(queue), "consumer")
        who = rf"already \(consumer 'billing-3', process {os.getpid()} of this machine\)"
        with pytest.raises(QueueBusy, match=who):
            await anext(same.consume(reliable=True, wait=False))
        await consumption.stop()


async def test_a_member_of_a_topic_names_itself(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        topic = bus.topic(fresh("topic"), partitions=1)
        await topic.push("a", partition=0)
        async with topic.group("agg") as member:
            await anext(aiter(member.batches()))
            async with bus.queue(f"{topic.name}/0") as queue:
                assert named_by_itself(await reader(queue), "topic")


async def test_a_name_with_a_line_break_is_refused(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSMQ_CLIENT_NAME", "billing\n")
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        with pytest.raises(ConfigError, match="BUSMQ_CLIENT_NAME ends with a line break"):
            queue.group("billing")
