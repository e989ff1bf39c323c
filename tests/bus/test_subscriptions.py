"""Subscriptions of a queue, as a program looks after them that feeds Spark queries."""

from __future__ import annotations

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError, QueueBusy, StateError
from busmq_spark.queue.command_generators import command
from tests.conftest import Fresh


async def test_a_subscription_is_registered_listed_and_forgotten(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        assert await queue.subscribe("early") == 0
        await queue.push_many(["one", "two", "three"])
        assert await queue.subscribe("late", "latest") == 3
        assert await queue.subscribe("third", 2) == 2
        assert await queue.subscribe("early", "latest") == 0  # it keeps its place
        found = await queue.subscriptions()
        assert [(each.name, each.last, each.behind, each.holds_back) for each in found] == [
            ("early", 0, 3, 3),
            ("late", 3, 0, 0),
            ("third", 2, 1, 1),
        ]
        assert await queue.unsubscribe("early")
        assert await queue.count() == 1
        assert not await queue.unsubscribe("early")


async def test_what_makes_no_sense_is_refused(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        with pytest.raises(StateError, match="attach"):
            await queue.subscribe("s")
        async with queue:
            with pytest.raises(ConfigError, match="does not begin with a colon"):
                await queue.subscribe(":born")
            with pytest.raises(ConfigError, match=r"start is 1; expected .* up to 0"):
                await queue.subscribe("s", 1)
            link = bus.servers.commands[queue.server]
            await link.execute(command("SET", queue.keys.lease(""), "a-query", "PX", 600_000))
            with pytest.raises(QueueBusy, match="is read by a query without a subscription"):
                await queue.subscribe("s")
            assert await queue.subscriptions() == []


def test_the_same_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        queue.subscribe("s")
        assert [each.name for each in queue.subscriptions()] == ["s"]


async def test_over_federation_it_is_refused_with_what_to_do() -> None:
    async with Bus(federate="ws://127.0.0.1:9", federate_secret="x" * 20) as bus:
        far = bus.federate(bus.queue("orders"))
        with pytest.raises(
            ConfigError,
            match=(
                r"subscriptions\(\) cannot be said over federation; call it on a bus at the Redis"
                r" of queue 'orders'"
            ),
        ):
            await far.subscriptions()
