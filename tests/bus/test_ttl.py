"""How long a queue exists when no client is attached."""

from __future__ import annotations

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from tests.bus.conftest import OpenBus, Redis
from tests.bus.test_service import LONG_S
from tests.conftest import Fresh
from tests.support import Life


async def test_a_queue_lives_seven_days_unless_its_program_says_otherwise(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        default, short = bus.queue(fresh()), bus.queue(fresh())
        await default.attach()
        await short.attach(ttl_s=30)
        assert (default.ttl_s, short.ttl_s) == (MIN_RECORD_TTL_S, 30)
        assert (await default.ttl(), await short.ttl()) == (MIN_RECORD_TTL_S, 30)
        await default.push("x")


async def test_a_program_that_leaves_messages_in_a_queue_of_npm_is_warned_once(
    redis_url: str, fresh: Fresh, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    name = fresh()
    async with Bus(redis_url) as bus:
        keys, life = QueueKeys(name), Life(redis, 30)
        redis(
            "HSET", keys.metadata, "ttl", 30, "source", "local", "discover", "false", "maxsize", 0
        )
        for _ in range(2):
            async with bus.queue(name) as queue:
                assert queue.ttl_s == 30
                await queue.push_many(["one", "two"])
        [text] = [text for text in caplog.messages if "is left with" in text]
        assert f"queue '{name}' is left with 2 unread messages and a ttl of 30 s" in text
        assert "create the queue with a longer ttl" in text
        assert life.given_to(keys.messages)


async def test_no_warning_without_messages_or_where_a_short_ttl_was_asked_for(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bus(redis_url) as bus:
        asked, drained, unread = bus.queue(fresh()), bus.queue(fresh()), bus.queue(fresh())
        await asked.attach(ttl_s=30)
        await asked.push("x")
        await asked.detach()
        async with unread:
            await unread.push("x")
        await drained.attach(ttl_s=30)
        await drained.detach()
        async with bus.queue(drained.name) as again:
            await again.push("x")
            assert [message.text async for message in again.consume(max=1)] == ["x"]
    assert [text for text in caplog.messages if "is left with" in text] == []


async def test_the_queues_of_services_live_no_longer_than_npms(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        provider = bus.service(fresh("s"))
        requester = bus.service(provider.name)
        await provider.serve(lambda data: data)
        await requester.connect(timeout_s=LONG_S)
        assert await requester.request("x") == "x"
        link = bus.servers.commands[0]
        found = [key async for key in _keys(link, f"bus:queue:service:{provider.name}*:metadata")]
        assert len(found) == 2
        assert {await link.execute(command("HGET", key, "ttl")) for key in found} == {b"30"}
        await requester.disconnect()
        await provider.disconnect()


async def _keys(link, pattern):  # type: ignore[no-untyped-def]
    cursor = b"0"
    while True:
        cursor, keys = await link.execute(command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
        for key in keys:
            yield key.decode()
        if cursor == b"0":
            return
