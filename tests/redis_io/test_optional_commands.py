"""Commands that are only a nicety: a Redis that refuses one of them serves a bus and both kinds of
links all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io.pubsub_connection import PubSubConnection
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import open_store
from tests.conftest import Fresh
from tests.redis_io.fakes import FakeRedis

pytestmark = pytest.mark.redis

NICETIES = {
    "CLIENT": "-client",
    "INFO": "-info",
    "PING": "-ping",
    "PUBSUB": "-pubsub",
    "DBSIZE": "-dbsize",
    "CONFIG": "-config",
    "MEMORY": "-memory",
    "SCRIPT": "-script",
    "OBJECT": "-object",
    "ACL": "-acl",
    "COMMAND": "-command",
    "UNSUBSCRIBE": "-unsubscribe",
}
"""The commands, each with the rule that takes it from a user."""


@pytest.fixture(params=NICETIES)
def renamed(request: pytest.FixtureRequest) -> Iterator[EmbeddedRedis]:
    """A server that does not know one of the commands."""
    with EmbeddedRedis(settings={"rename-command": f'{request.param} ""'}) as server:
        yield server


@pytest.fixture(params=["direct", "three", "sentinel", "cluster"])
def weak(request: pytest.FixtureRequest, fresh: Fresh) -> dict[str, Any]:
    """The options of a user who has none of these rights, in a layout."""
    fixture = request.getfixturevalue
    group = (
        None
        if request.param == "direct"
        else fixture(
            {
                "three": "three_servers",
                "sentinel": "sentinel_servers",
                "cluster": "cluster_servers",
            }[request.param]
        )
    )
    servers = (
        [fixture("redis_server")]
        if group is None
        else group.nodes
        if request.param == "cluster"
        else group.servers
    )
    user, denied = fresh("user"), " ".join(NICETIES.values()).split()
    for server in servers:
        server.command(
            "ACL", "SETUSER", user, "reset", "on", ">secret", "~*", "&*", "+@all", *denied
        )
    url = servers[0].url if group is None else ",".join(group.urls)
    layout = "direct" if request.param == "three" else request.param
    return {"url": url, "layout": layout, "user": user, "password": "secret"}


async def use(queue: str, **where: Any) -> None:
    """Push, read by a group, publish."""
    async with Bus(**where) as bus, bus.queue(queue) as same:
        await same.push_many(["1", "2"])
        seen: list[str] = []
        async with same.group("g") as group:
            async for batch in group.batches():
                seen += [each.text for each in batch]
                await group.ack(batch)
                if len(seen) == 2:
                    await group.stop()
        async with bus.pubsub(f"{queue}-news") as news:
            await news.publish("x")
            async for message in news:
                assert message.value == b"x"
                break


async def test_a_bus_works_without_a_command_that_is_only_a_nicety(renamed: EmbeddedRedis) -> None:
    await use("q", url=renamed.url)


async def test_a_bus_works_for_a_user_without_these_rights(
    weak: dict[str, Any], fresh: Fresh
) -> None:
    await use(fresh(), **weak)


def test_a_store_works_without_it_and_still_tells_a_loss_apart(renamed: EmbeddedRedis) -> None:
    _read_and_ask(RedisOptions(url=renamed.url), "q")


def test_a_store_works_for_a_user_without_these_rights(weak: dict[str, Any], fresh: Fresh) -> None:
    _read_and_ask(RedisOptions(**weak), fresh())


def _read_and_ask(options: RedisOptions, queue: str) -> None:
    store = open_store(options)
    try:
        store.attach([queue], QueueCreateOptions(allowed=True, ttl_s=3600))
        assert store.traces(queue).unacked is None
        store.eviction_policies()
    finally:
        store.close()


async def test_a_silent_subscription_is_kept_where_ping_is_refused() -> None:
    pings = 0

    def answer(_number: int, words: list[bytes]) -> bytes:
        nonlocal pings
        if words[0] == b"SUBSCRIBE":
            return b"*3\r\n$9\r\nsubscribe\r\n$4\r\nping\r\n:1\r\n"
        pings += 1
        refusal = b"-NOPERM User me has no permissions to run the 'ping' command\r\n"
        return refusal + b"*3\r\n$7\r\nmessage\r\n$4\r\nping\r\n$1\r\nx\r\n" * (pings == 3)

    with FakeRedis(answer) as fake:
        said: list[bytes | None] = []
        heard = asyncio.Event()
        listening = PubSubConnection(fake.server, reply_s=0.1)
        task = asyncio.create_task(listening.run())
        await listening.subscribe("ping", lambda message: (said.append(message), heard.set())[0])
        waiting = asyncio.create_task(heard.wait())
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done()
        assert (said, fake.connections) == ([b"x"], 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_name_of_a_connection_is_set_where_it_may_be(redis_server: EmbeddedRedis) -> None:
    store = open_store(RedisOptions(url=redis_server.url))
    try:
        assert store._links[0].execute(command("CLIENT", "GETNAME")) == b"busmq_spark"
    finally:
        store.close()
