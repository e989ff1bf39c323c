"""Queues of other buses that are announced: who federates knows where they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.federation.client.federation_clients import (
    MAX_ANNOUNCED_TTL_S,
    _parse_announcement,
)
from busmq_spark.queue.keys import announced_name
from tests.bus.tools import redis, until
from tests.conftest import Fresh
from tests.federation.far import far
from tests.federation.tools import SECRET


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """The Redis of the client's own data centre."""
    with EmbeddedRedis() as server:
        yield server.url


async def knows(bus: Bus, name: str, source: str) -> None:
    async with asyncio.timeout(60):
        while await bus.queue(name).find() != source:  # noqa: ASYNC110  # no event announces it
            await asyncio.sleep(0.01)


async def test_a_queue_announced_over_there_is_found_here_and_used_there(
    redis_url: str, elsewhere: str, fresh: Fresh
) -> None:
    async with (
        far(redis_url) as both,
        Bus(elsewhere, federate=both.server.url, federate_secret=SECRET) as bus,
    ):
        federating: list[str] = []
        bus.on("federating", federating.append)
        shown, hidden = both.home.queue(fresh("shown")), both.home.queue(fresh("hidden"))
        await until(lambda: federating)
        await hidden.attach(ttl_s=60)
        await shown.attach(ttl_s=60, discoverable=True)
        await knows(bus, shown.name, both.server.url)
        assert federating == [both.server.url]
        here = bus.queue(shown.name)
        assert await here.exists()
        assert await here.ttl() is None
        assert 0 < await redis(here, "TTL", here.keys.metadata) <= 60
        assert await bus.queue(hidden.name).find() is None
        url = await here.find()
        assert url is not None
        async with bus.federate(here, url) as there:
            await there.push("from here")
        assert (await anext(shown.consume())).text == "from here"


async def test_a_queue_of_this_bus_stays_what_it_is(
    redis_url: str, elsewhere: str, fresh: Fresh
) -> None:
    """npm busmq writes another source and another ttl into it (protocol Q5)."""
    async with (
        far(redis_url) as both,
        Bus(elsewhere, federate=both.server.url, federate_secret=SECRET) as bus,
    ):
        federating = asyncio.Event()
        bus.on("federating", lambda _: federating.set())
        name, other = fresh("mine"), fresh("other")
        mine = bus.queue(name)
        await mine.attach(ttl_s=500)
        await federating.wait()
        await both.home.queue(name).attach(ttl_s=60, discoverable=True)
        await both.home.queue(other).attach(ttl_s=60, discoverable=True)
        await knows(bus, other, both.server.url)
        assert await mine.find() == "local"
        assert await redis(mine, "TTL", mine.keys.metadata) > 60
        stub = bus.queue(other)
        assert not await stub.attach(ttl_s=60)  # a stub is no queue yet: this makes one
        assert await stub.find() == "local"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"event":"queue","key":"bus:queue:a:b:metadata","ttl":30}', ("a:b", 30)),
        ('{"event":"queue","key":"{bus:queue:a}:metadata","ttl":1}', ("a", 1)),
        (
            '{"event":"queue","key":"bus:queue:a:metadata","ttl":99999999999}',
            ("a", MAX_ANNOUNCED_TTL_S),
        ),
        ('{"event":"queue","key":"bus:persisted:a","ttl":30}', None),
        ('{"event":"queue","key":"bus:queue::metadata","ttl":30}', None),
        ('{"event":"queue","key":"bus:queue:a:messages","ttl":30}', None),
        ('{"event":"queue","key":"bus:queue:a:metadata","ttl":0}', None),
        ('{"event":"queue","key":"bus:queue:a:metadata","ttl":true}', None),
        ('{"event":"queue","key":"bus:queue:a:metadata","ttl":"30"}', None),
        ('{"event":"queue","key":"bus:queue:\\ud800:metadata","ttl":30}', None),
        ('{"event":"other"}', None),
        ("[" * 100_000, None),
        ("no json", None),
    ],
)
def test_only_the_metadata_key_of_a_queue_is_believed(
    text: str, found: tuple[str, int] | None
) -> None:
    assert _parse_announcement(text) == found


def test_a_name_is_read_from_a_key_of_either_layout() -> None:
    assert announced_name("bus:queue:x:metadata") == announced_name("{bus:queue:x}:metadata") == "x"
    assert (
        announced_name("metadata")
        is announced_name("bus:queue:x")
        is announced_name("{bus:queue:x:metadata")
        is None
    )
