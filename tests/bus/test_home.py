"""On which of several servers a queue is created."""

from __future__ import annotations

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedStandaloneServers
from busmq_spark.errors import ConfigError
from tests.conftest import Fresh


async def test_a_queue_is_created_on_the_server_that_is_named_and_found_there_by_all(
    three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    url = ",".join(three_servers.urls)
    async with Bus(url) as bus, Bus(url) as other:
        for server in range(3):
            name = fresh()
            async with bus.queue(name, server=server) as queue:
                await queue.push("here")
                async with (
                    other.queue(name) as same,
                    other.queue(name, server=(server + 1) % 3) as third,
                ):
                    assert (queue.server, same.server, third.server) == (server,) * 3
                    assert [message.text async for message in same.consume(max=1)] == ["here"]


async def test_who_has_looked_for_a_queue_before_it_was_created_finds_it_all_the_same(
    three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    url = ",".join(three_servers.urls)
    async with Bus(url) as bus, Bus(url) as other:
        for server in range(3):
            name = fresh()
            assert not await other.queue(name).exists()
            async with bus.queue(name, server=server), other.queue(name) as same:
                assert same.server == server


async def test_a_server_that_is_none_is_refused(
    three_servers: EmbeddedStandaloneServers, redis_url: str, fresh: Fresh
) -> None:
    async with Bus(",".join(three_servers.urls)) as bus, Bus(redis_url) as one:
        for queue in (
            bus.queue(fresh(), server=3),
            one.queue(fresh(), server=1),
        ):
            with pytest.raises(ConfigError, match="this bus has the servers 0 to"):
                await queue.attach()
        with pytest.raises(ConfigError, match="expected a whole number of at least 0"):
            bus.queue(fresh(), server=-1)
