"""What a queue keeps of what is acknowledged, as programs of the bus use it."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import BusError, ConfigError, QueueBusy
from busmq_spark.queue.retention import Retention
from tests.bus.conftest import OpenBus, Redis
from tests.bus.federated import SECRET
from tests.conftest import Fresh


async def read(queue: Queue, name: str, many: int, **options: Any) -> list[str]:
    """So many messages of a group, acknowledged."""
    found: list[str] = []
    async with queue.group(name, **options) as group:
        while len(found) < many:
            async for batch in group.batches(most=many - len(found)):
                found += [each.text for each in batch]
                await group.ack(batch)
                break
    return found


@pytest.mark.parametrize("shared", [False, True])
async def test_a_group_goes_back_while_another_reads_on(
    open_bus_here: Bus, fresh: Fresh, shared: bool
) -> None:
    async with open_bus_here as bus, bus.queue(fresh()) as queue:
        await queue.retain(age="7d")
        await queue.push_many(list("abc"))
        for name in ("one", "two"):
            assert await read(queue, name, 3, shared=shared) == list("abc")
        assert (await queue.count(), await queue.retention()) == (
            0,
            Retention(7 * 86400, None, None, 0, 3),
        )
        group = queue.group("one", shared=shared)
        assert await group.seek("-2 messages") == 1
        await queue.push("d")
        assert await read(queue, "two", 1, shared=shared) == ["d"]
        assert await read(queue, "one", 3, shared=shared) == list("bcd")
        assert await group.seek("-1h") == 0
        assert await read(queue, "late", 4, shared=shared, start="earliest") == list("abcd")
        assert await read(queue, "one", 4, shared=shared) == list("abcd")
        assert await queue.count() == 0


@pytest.fixture
def open_bus_here(redis_url: str) -> Bus:
    return Bus(redis_url)


@pytest.mark.parametrize("reliable", [False, True])
async def test_a_consumer_that_removes_is_refused(
    redis_url: str, fresh: Fresh, reliable: bool
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await queue.retain(messages=10)
        await queue.push_many(list("abc"))
        assert await read(queue, "g", 2) == ["a", "b"]
        with pytest.raises(QueueBusy, match=r"keeps what is acknowledged.*Read with a group"):
            await anext(queue.consume(reliable=reliable))
        follower = queue.consume(remove=False, max=3)
        assert [each.text async for each in follower] == list("abc")
        assert await queue.retain() is None
        assert [each.text async for each in queue.consume(max=1)] == ["c"]


@pytest.mark.parametrize("reliable", [False, True])
async def test_a_peer_of_a_federation_server_is_refused_too(
    redis_url: str, our_federation: str, fresh: Fresh, reliable: bool
) -> None:
    name = fresh()
    async with Bus(redis_url) as bus, bus.queue(name) as queue:
        await queue.retain(messages=10)
        await queue.push_many(list("abc"))
        async with (
            Bus(federate=our_federation, federate_secret=SECRET) as far,
            far.federate(far.queue(name)) as remote,
        ):
            with pytest.raises(BusError, match="keeps what is acknowledged"):
                await anext(remote.consume(reliable=reliable))
            assert await remote.count() == 3
            assert [each.text async for each in remote.consume(remove=False, max=3)] == list("abc")
        assert await queue.count() == 3


async def test_limits_are_given_as_they_are_thought_of(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        assert await queue.retain(timedelta(hours=1), 5, "1k") == Retention(3600, 5, 1024, 0, 0)
        assert await queue.retain(bytes=7) == Retention(None, None, 7, 0, 0)
        with pytest.raises(ConfigError, match="age is 'long'"):
            await queue.retain(age="long")
        assert await queue.retention() == Retention(None, None, 7, 0, 0)
        for field in ("retain", "done", "lets", "bytes"):
            with pytest.raises(ConfigError):
                await queue.set_metadata({field: "1"})


async def test_a_ttl_that_is_shorter_is_mentioned(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        await queue.attach(ttl_s=60)
        with caplog.at_level(logging.WARNING):
            await queue.retain(age=60)
            assert not caplog.records
            await queue.retain(age=61)
        assert "keeps messages for 61 s and has a ttl of 60 s" in caplog.text
        await queue.detach()


@pytest.mark.parametrize("how", ["taken", "taken and not acknowledged", "capped", "kept"])
async def test_attaching_warns_where_a_consumer_in_node_has_taken_messages(
    redis_url: str, redis: Redis, fresh: Fresh, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    name = fresh()
    async with Bus(redis_url) as bus:
        async with bus.queue(name) as queue:
            await queue.push_many(["before"])
            await read(queue, "g", 1)
            await queue.retain(messages=10)
            await queue.push_many(list("abc"))
            await read(queue, "g", 3)
            if how == "taken":
                redis("LPOP", queue.keys.messages, 2)
            elif how == "capped":
                redis("HSET", queue.keys.metadata, "cap", 1)
                await queue.push("d")
            elif how != "kept":
                redis("RPUSH", queue.keys.toack, 2, "a")
        async with bus.queue(name):
            assert ("a consumer that is no group" in caplog.text) == (how not in ("kept", "capped"))


async def test_it_is_the_same_on_all_layouts_and_ends_with_the_queue(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        queue = bus.queue(fresh())
        await queue.attach()
        await queue.retain(messages=100)
        await queue.push_many(list("abc"))
        assert await read(queue, "g", 3) == list("abc")
        assert await queue.count() == 0
        await queue.delete()
        await queue.attach()
        assert await queue.retention() is None
        await queue.push("d")
        assert await queue.count() == 1
        await queue.delete()


def test_a_plain_program_does_the_same(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        assert queue.retain(age="1h") == queue.retention() == Retention(3600, None, None, 0, 0)
        assert queue.retain() is None
