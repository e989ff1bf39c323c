"""Pushes of a bus with ``durability``: what returned is on the replica, what did not is named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from busmq_spark import Bus, Outbox
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    BusError,
    ConfigError,
    NotReplicated,
    PublishIncomplete,
    QueueFull,
    StateError,
    TooFewReplicas,
    UnconfirmedLost,
)
from busmq_spark.options import Durability
from busmq_spark.queue.keys import QueueKeys
from tests.replicated import LONG, SOON, Pair, count, running_pair
from tests.support import wait_until

pytestmark = pytest.mark.redis
KEYS = QueueKeys("orders", False)


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with running_pair() as pair:
        yield pair


@pytest.fixture
def pair(servers: Pair) -> Pair:
    servers.heal()
    servers.master.command("FLUSHALL")
    return servers


def durable_bus(pair: Pair, timeout_ms: int = LONG, **settings: Any) -> Bus:
    return Bus(
        pair.master.url,
        durability="replicated",
        durability_timeout_s=timeout_ms / 1000,
        **settings,
    )


async def unconfirmed(pair: Pair, orders: Queue, values: list[str]) -> NotReplicated:
    """The error of a push that the replica does not get."""
    pair.between.hush()
    with pytest.raises(NotReplicated) as caught:
        await orders.push_many(values)
    return caught.value


async def test_what_a_push_has_returned_for_is_on_the_replica(pair: Pair) -> None:
    async with durable_bus(pair) as bus, bus.queue("orders") as orders:
        assert await orders.push("a") == 1
        assert await orders.push_many(["b"] * 2500) == list(range(2, 2502))
        assert count(pair.replica, "orders") == 2501
        async with bus.topic("metrics", 2) as topic:
            await topic.push("1", partition=1)
            assert count(pair.replica, "metrics/1") == 1
        async with bus.jobs("work") as jobs:
            await jobs.send(jobs.new())
            assert count(pair.replica, "work") == 1
        await bus.subscribe("user.*", into="mail")
        async with bus.queue("mail"):
            await bus.publish("user.new", {"n": 1})
            await bus.send("commands", {"n": 1})
        assert (count(pair.replica, "mail"), count(pair.replica, "commands")) == (1, 1)


async def test_what_is_not_confirmed_is_named(pair: Pair) -> None:
    async with durable_bus(pair, SOON) as bus, bus.queue("orders") as orders:
        await orders.push("first")
        error = await unconfirmed(pair, orders, ["x"] * 1500)
        found = {name: error.details[name] for name in ("queue", "first", "last", "left")}
        assert found == {"queue": "orders", "first": 2, "last": 1001, "left": 500}
        assert (error.details["asked"], error.details["received"]) == (1, 0)
        assert "await queue.confirm(2, 1001)" in str(error)
        assert count(pair.master, "orders") == 1001
        await bus.subscribe("user.*", into="orders")
        with pytest.raises(PublishIncomplete, match="BUSMQ_NOT_REPLICATED"):
            await bus.publish("user.new")


async def test_a_command_that_is_not_confirmed_is_stored_and_named(pair: Pair) -> None:
    """Also where its queue must be made first; and a full queue is still a full one."""
    async with durable_bus(pair, SOON) as bus, bus.queue("orders") as orders:
        full = bus.queue("full")
        await full.attach(maxsize=1)
        await full.push("x")
        await bus.subscribe("user.*", into="full")
        await unconfirmed(pair, orders, ["x"])
        with pytest.raises(NotReplicated) as caught:
            await bus.send("commands")
        found = {name: caught.value.details[name] for name in ("queue", "first", "last")}
        assert found == {"queue": "commands", "first": 1, "last": 1}
        assert "Repeat the call" not in str(caught.value)
        assert count(pair.master, "commands") == 1
        with pytest.raises(PublishIncomplete, match="BUSMQ_QUEUE_FULL"):
            await bus.publish("user.new")


async def test_confirm_waits_again(pair: Pair) -> None:
    async with durable_bus(pair, SOON) as bus, bus.queue("orders") as orders:
        await unconfirmed(pair, orders, ["a", "b"])
        with pytest.raises(NotReplicated):
            await orders.confirm(1, 2)
        pair.heal()
        await orders.confirm(1, 2)
        assert count(pair.replica, "orders") == 2
        with pytest.raises(StateError, match="not waiting for it"):
            await orders.confirm(1, 2)


@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        ("rolled-back", [("LTRIM", KEYS.messages, "0", "1"), ("SET", KEYS.msgid, "1")]),
        ("reissued", [("LSET", KEYS.messages, "3", "other")]),
        ("removed", [("LTRIM", KEYS.messages, "4", "-1")]),
        ("recreated", [("HSET", KEYS.metadata, "born", "anew")]),
    ],
)
async def test_confirm_says_what_became_of_lost_messages(
    pair: Pair, kind: str, commands: list[tuple[str, ...]]
) -> None:
    async with durable_bus(pair, SOON) as bus, bus.queue("orders") as orders:
        await unconfirmed(pair, orders, ["a", "b", "c"])
        for words in commands:
            pair.master.command(*words)
        pair.heal()
        with pytest.raises(UnconfirmedLost) as caught:
            await orders.confirm(1, 3)
        assert caught.value.details["kind"] == kind


async def test_other_calls_do_not_wait_for_the_replica(pair: Pair) -> None:
    async with durable_bus(pair) as bus, bus.queue("orders") as orders:
        await orders.push("first")
        pair.between.hush()
        waiting = asyncio.ensure_future(orders.push("second"))
        async with bus.queue("quick", durability="memory") as quick:
            for _ in range(100):
                await quick.push("x")
            assert await orders.count() == 2
            assert not waiting.done()
        pair.heal()
        assert await waiting == 2


async def test_a_push_is_confirmed_by_its_mark_after_a_failover(pair: Pair) -> None:
    """There and back: the connection survives, and the confirmation of WAIT does not count."""
    async with durable_bus(pair) as bus, bus.queue("orders") as orders:
        await orders.push("first")
        await asyncio.to_thread(pair.fail_over_and_back)
        assert await orders.push("second") == 2
        assert (count(pair.master, "orders"), count(pair.replica, "orders")) == (2, 2)


async def test_a_push_whose_second_look_fails_is_named(pair: Pair) -> None:
    """It was executed: an error that says otherwise would make its caller repeat it."""
    async with durable_bus(pair) as bus, bus.queue("orders") as orders:
        await orders.push("first")
        pair.between.hush()
        pushing = asyncio.ensure_future(orders.push("second"))
        await asyncio.to_thread(
            wait_until,
            lambda: "blocked_clients:1" in str(pair.master.command("INFO", "clients")),
        )
        pair.master.command("ACL", "SETUSER", "default", "-info")
        try:
            pair.between.cut()
            with pytest.raises(NotReplicated, match="BUSMQ_UNAUTHORIZED") as caught:
                await pushing
        finally:
            pair.master.command("ACL", "SETUSER", "default", "+@all")
        details = caught.value.details
        assert (details["first"], details["last"], details["left"]) == (2, 2, 0)
        pair.heal()
        await orders.confirm(2, 2)
        assert count(pair.replica, "orders") == 2


async def test_a_full_queue_is_full_whatever_the_durability(pair: Pair) -> None:
    async with durable_bus(pair) as bus:
        orders = bus.queue("orders")
        await orders.attach(maxsize=2)
        with pytest.raises(QueueFull):
            await orders.push_many(["a", "b", "c"])
        assert count(pair.replica, "orders") == 2
        with pytest.raises(QueueFull):
            await orders.push("d")


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"durability": "replicated", "replicas": 2}, TooFewReplicas, "needs at least 2"),
        ({"durability": "disk"}, ConfigError, "Redis 7.2 or newer|append-only file is off"),
    ],
)
async def test_a_server_that_cannot_keep_it_gets_nothing(
    pair: Pair, settings: dict[str, Any], kind: type[BusError], text: str
) -> None:
    async with Bus(pair.master.url) as bus, bus.queue("orders", **settings) as orders:
        with pytest.raises(kind, match=text):
            await orders.push("x")
        assert await orders.count() == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"durability": "Disk"}, "durability is 'Disk'; expected memory, disk"),
        ({"durability": "replicated", "replicas": 0}, "replicas is 0; expected 'all', or 1"),
        ({"replicas": 1}, "durability=memory waits for none"),
        ({"durability": "replicated", "durability_timeout_s": 0}, "durability_timeout_s is 0"),
    ],
)
def test_a_bad_setting_is_refused_before_any_connection(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        Bus("redis://h", **settings)
    with pytest.raises(ConfigError, match=text):
        Bus("redis://h").queue("orders", **settings)


def test_a_queue_has_the_replicas_of_its_bus_only_if_it_waits_for_them() -> None:
    bus = Bus("redis://h", durability="replicated", replicas=2)
    assert bus.queue("hints", durability="memory").durability == Durability()
    assert bus.queue("orders", durability="replicated-disk").durability.replicas == 2
    with pytest.raises(ConfigError, match="durability=memory waits for none"):
        bus.queue("hints", durability="memory", replicas=2)


def test_federation_is_refused_before_any_connection(tmp_path: Path) -> None:
    """A server would push it with a weaker promise, in silence."""
    bus = Bus("redis://h", durability="replicated")
    for thing in (bus.queue("orders"), bus.topic("metrics", 2), bus.jobs("work")):
        with pytest.raises(ConfigError, match="cannot be said over federation"):
            bus.federate(thing, "ws://h/bus", secret="s")
    plain = Bus("redis://h")
    with pytest.raises(ConfigError, match="cannot be said over federation"):
        plain.federate(plain.queue("orders", durability="disk"), "ws://h/bus", secret="s")
    bus.federate(bus.queue("orders", durability="memory"), "ws://h/bus", secret="s")
    settings = {"federate_secret": "s", "durability": "replicated"}
    with pytest.raises(ConfigError, match="cannot be said over federation"):
        Outbox(tmp_path / "outbox.db", "ws://h/bus", **settings)


async def test_a_mirror_is_on_the_replica_before_it_counts_as_copied(pair: Pair) -> None:
    with EmbeddedRedis() as origin:
        async with Bus(origin.url) as there, there.queue("orders") as orders:
            await orders.push_many(["a", "b", "c"])
            async with durable_bus(pair) as bus, bus.mirror(origin.url, "orders") as mirror:
                await mirror.caught_up()
                assert count(pair.replica, "orders") == 3
