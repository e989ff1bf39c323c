"""A bus beyond one block: ``start`` and ``aclose`` beside ``async with``."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from busmq_spark import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.topics.topic import Topic
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost, StateError, Unauthorized
from busmq_spark.options import BusOptions
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.redis_io.conftest import absent


async def test_a_bus_that_is_started_works_until_it_is_closed(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    bus = await Bus(redis_server.url).start()
    queue = bus.queue(fresh("q"))
    await queue.attach()
    assert await queue.push("a") == 1
    before = asyncio.all_tasks()
    await bus.aclose()
    assert not queue.attached
    assert {each.get_name() for each in asyncio.all_tasks()} < {each.get_name() for each in before}
    with pytest.raises(StateError, match="not open"):
        await queue.count()
    await bus.aclose()


async def test_two_that_close_it_wait_for_the_same_end(redis_server: EmbeddedRedis) -> None:
    bus = await Bus(redis_server.url).start()
    before = asyncio.all_tasks()
    first, second = asyncio.create_task(bus.aclose()), asyncio.create_task(bus.aclose())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert not bus.online
    assert asyncio.all_tasks() - {first} < before
    with pytest.raises(asyncio.CancelledError):
        await first
    await bus.start()
    await asyncio.gather(bus.aclose(), bus.aclose())
    assert not bus.online


async def test_a_start_that_is_cancelled_leaves_nothing(redis_server: EmbeddedRedis) -> None:
    tasks = asyncio.all_tasks()
    bus = Bus(redis_server.url)
    starting = asyncio.create_task(bus.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert asyncio.all_tasks() == tasks


async def test_a_group_that_outlives_its_bus_is_left_without_an_error(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        bus = await Bus(server.url).start()
        queue, topic = bus.queue(fresh()), bus.topic(fresh(), 2)
        await queue.attach()
        groups: list[Any] = [queue.group("g"), queue.group("s", shared=True), topic.group("t")]
        for group in groups:
            await group.__aenter__()
        await bus.aclose()
        for group in groups:
            await group.aclose()
            await group.aclose()


async def test_it_can_be_started_again(redis_server: EmbeddedRedis) -> None:
    bus = Bus(redis_server.url)
    for _ in range(2):
        assert await bus.start() is bus
        assert bus.online
        await bus.aclose()


@pytest.mark.usefixtures("impatient")
async def test_a_start_without_a_server_raises_and_leaves_nothing() -> None:
    tasks = asyncio.all_tasks()
    bus = Bus(f"redis://127.0.0.1:{absent().port}")
    with pytest.raises(LinkLost):
        await bus.start()
    assert asyncio.all_tasks() == tasks
    await bus.aclose()


async def test_a_bus_is_opened_once(redis_server: EmbeddedRedis) -> None:
    bus = await Bus(redis_server.url).start()
    with pytest.raises(StateError, match="open already"):
        await bus.start()
    assert bus.online
    await bus.aclose()
    async with bus:
        with pytest.raises(StateError, match="open for a block"):
            await bus.aclose()


async def test_what_ends_it_is_raised_where_it_is_closed_and_cancels_nobody(
    redis_server: EmbeddedRedis,
) -> None:
    async def fail() -> None:
        raise Unauthorized(url="redis://h", reason="NOPERM")

    bus = await Bus(redis_server.url).start()
    with pytest.raises(Unauthorized):
        await bus._spawn(fail(), "failing")
    with pytest.raises(Unauthorized):
        await bus.aclose()
    with pytest.raises(StateError, match="not open"):
        await bus.queue("q").count()


@pytest.mark.parametrize("dies", [False, True], ids=["closed", "dead"])
async def test_a_push_under_way_fails_with_the_bus_and_cancels_nobody(
    fresh: Fresh, dies: bool
) -> None:
    async def fail() -> None:
        raise Unauthorized(url="redis://h", reason="NOPERM")

    with EmbeddedRedis() as server:
        bus = await Bus(server.url).start()
        queue, topic = bus.queue(fresh()), bus.topic(fresh(), 2)
        await queue.attach()
        await topic.attach()
        await asyncio.to_thread(server.kill)
        await until(lambda: not bus.online)
        other = bus.topic(fresh(), 2)

        async def push(what: Queue | Topic) -> None:
            await what.push("x")

        pushes = [asyncio.create_task(push(what)) for what in (queue, topic, other)]
        await asyncio.sleep(0)
        if dies:
            with pytest.raises(Unauthorized):
                await bus._spawn(fail(), "failing")
        with suppress(Unauthorized):
            await bus.aclose()
        outcomes = await asyncio.gather(*pushes, return_exceptions=True)
        assert [type(each) for each in outcomes] == [StateError] * 3


@pytest.mark.parametrize("make", [Bus, Bus.sync])
def test_settings_are_named_with_the_defaults_of_their_table(make: object) -> None:
    named = inspect.signature(make).parameters  # type: ignore[arg-type]
    defaults = {
        name: each.default
        for name, each in named.items()
        if each.kind is not inspect.Parameter.VAR_KEYWORD and name != "self"
    }
    assert defaults == {row.name: row.default for row in fields(BusOptions)}


def test_a_file_of_a_certificate_may_be_a_path() -> None:
    assert Bus("rediss://h", tls_ca=Path("a/b")).options.tls_ca == str(Path("a/b"))
