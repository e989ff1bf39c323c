"""``aclose`` returns the handle of an object of a bus and deletes nothing; ``delete`` deletes."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import busmq_spark.bus
import busmq_spark.federation.client
import busmq_spark.mirror
from busmq_spark.bus.bus import Bus
from busmq_spark.bus.emitter import Handle
from tests.bus.conftest import OpenBus
from tests.conftest import Fresh
from tests.layouts import servers_of


def classes_with_a_block() -> Iterator[type]:
    """Each class of an object that is used inside ``async with``."""
    for package in (busmq_spark.bus, busmq_spark.federation.client, busmq_spark.mirror):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for cls in vars(module).values():
                if (
                    inspect.isclass(cls)
                    and cls.__module__ == module.__name__
                    and getattr(cls, "__aexit__", Handle).__module__.startswith("busmq_spark.")
                    and hasattr(cls, "__aexit__")
                    and not getattr(cls, "_is_protocol", False)
                ):
                    yield cls


@pytest.mark.parametrize("cls", [*classes_with_a_block()], ids=lambda cls: cls.__qualname__)
def test_every_object_is_closed_with_aclose(cls: type) -> None:
    assert issubclass(cls, Handle | Bus)
    assert not hasattr(cls, "close")


async def test_closing_a_queue_keeps_it_and_deleting_it_does_not(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus:
        queue = bus.queue(fresh())
        await queue.attach()
        await queue.push("kept")
        await queue.aclose()
        await queue.aclose()
        assert not queue.attached
        assert (await queue.exists(), await queue.count()) == (True, 1)
        await queue.delete()
        assert (await queue.exists(), await queue.count()) == (False, 0)


async def test_closing_what_was_never_opened_is_no_error(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus:
        name = fresh()
        for thing in (bus.queue(name), bus.channel(name), bus.pubsub(name), bus.service(name)):
            await thing.aclose()


@pytest.mark.parametrize("settings", [{"url": "redis://h"}, {"federate": "wss://h"}], ids=str)
async def test_that_holds_for_every_kind_of_a_bus_that_is_not_open(
    settings: dict[str, Any], fresh: Fresh
) -> None:
    bus, name = Bus(**settings, federate_secret="s"), fresh()
    topic, jobs = bus.topic(name, 2), bus.jobs(name)
    worker = jobs.worker(group="w")(print)
    things: list[Handle] = [
        *(bus.queue(name), bus.channel(name), bus.pubsub(name), bus.service(name)),
        *(topic, topic.group("g"), topic.jobs(), bus.consumer([topic], group="c")),
        *(jobs, worker, bus.workers(worker), bus.persist(name), bus.mirror("redis://h", name)),
        *(bus.queue(name).group("g"), bus.queue(name).group("g", shared=True)),
    ]
    for thing in things:
        await thing.aclose()
        await thing.detach()


async def test_closing_stops_groups_members_workers_and_jobs(redis_url: str, fresh: Fresh) -> None:
    async def work(job: object) -> None:
        del job

    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        topic, jobs = bus.topic(fresh(), 2), bus.jobs(fresh())
        await topic.attach()
        things: list[Any] = [
            queue.group("g"),
            queue.group("s", shared=True),
            topic.group("t"),
            bus.consumer([topic], group="c"),
            jobs.worker(group="w")(work),
            bus.workers(jobs.worker(group="v")(work)),
            jobs,
            jobs.completions(),
            topic,
        ]
        for thing in things:
            await thing.__aenter__()
        for thing in things:
            await thing.aclose()
            await thing.aclose()
            await thing.detach()
        assert not topic.attached
        assert await queue.exists()


def test_without_a_loop_it_is_close(
    layout: str, request: pytest.FixtureRequest, fresh: Fresh
) -> None:
    bus = Bus.sync(**servers_of(layout, request.getfixturevalue)).start()
    queue = bus.queue(fresh())
    queue.attach()
    queue.push("kept")
    queue.close()
    assert (queue.attached, queue.exists(), queue.count()) == (False, True, 1)
    queue.delete()
    assert not queue.exists()
    bus.close()
    bus.close()
