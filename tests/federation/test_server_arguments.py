"""Each argument of a federation server is taken as it is, or refused with ConfigError before it
listens.
"""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import AsyncExitStack
from dataclasses import fields
from typing import Any

import pytest

from busmq_spark import Bus
from busmq_spark.errors import ConfigError, LinkLost, StateError
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.serve.server import FederationServer
from busmq_spark.queue.message import Range
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR, read
from tests.support import wait_until

SECRET = "a-secret-of-this-test"
ROWS: dict[str, list[Any]] = {
    "host": [True, None, "", 1, b"127.0.0.1", ["127.0.0.1"]],
    "port": [True, None, "80", -1, 65536, 1.5, math.nan, b"80"],
    "path": [
        True,
        None,
        "",
        "bus",
        " /bus",
        "/bus ",
        "/bus\n",
        "/bus?x",
        "/bus#x",
        "/my bus",
        b"/bus",
    ],
    "keyring": ["secret", True, {"a": "b"}],
    "limits": [{"depth": 3}, 5, "x"],
    "origins": [True, None, 5, [""], [5], [b"x"], {"a": 1}],
    "proxies": [True, None, 5, [""], [5], ["nonsense"], "10.0.0.0/99", {"a": 1}],
    "compression": [None, 0, 1, "false", ""],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_bad_argument_is_refused(name: str) -> None:
    for value in ROWS[name]:
        with pytest.raises(ConfigError):
            FederationServer(Bus("redis://h"), **{name: value})


def test_one_text_is_a_list_of_one() -> None:
    FederationServer(Bus("redis://h"), origins="https://example.com", proxies="10.0.0.0/8")


@pytest.mark.parametrize("row", fields(PeerLimits), ids=lambda row: row.name)
def test_a_limit_is_a_number_above_zero(row: Any) -> None:
    for value in (
        True,
        None,
        "5",
        "",
        -1,
        0,
        math.nan,
        math.inf,
        b"5",
        [5],
        *([1.5] if type(row.default) is int else []),
    ):
        with pytest.raises(ConfigError, match=f"limit {row.name} is"):
            PeerLimits(**{row.name: value})


@pytest.mark.redis
async def test_a_server_begins_and_ends_without_a_block_and_may_begin_again(
    redis_url: str, fresh: Fresh
) -> None:
    name = fresh()
    async with Bus(redis_url) as bus:
        server = FederationServer(bus, Keyring.single(SECRET))
        await server.aclose()  # it was never open
        for _ in range(2):
            assert await server.start() is server
            with pytest.raises(StateError, match="open already"):
                await server.start()
            async with (
                Bus(federate=server.url, federate_secret=SECRET) as far,
                far.federate(far.queue(name)) as queue,
            ):
                await queue.push("one")
            await asyncio.to_thread(read_and_listen, FederationAddress(server.url, SECRET), name)
            await asyncio.gather(server.aclose(), server.aclose())
            await server.aclose()
            async with Bus(federate=server.url, federate_secret=SECRET) as far:
                with pytest.raises(LinkLost):
                    await far.federate(far.queue(name)).attach()
        async with bus.queue(name) as queue:
            assert await queue.count() == 2


def read_and_listen(address: FederationAddress, name: str) -> None:
    """What sources of Spark do, by bulk."""
    store, heard = FederationBulkStore(address), threading.Event()
    try:
        born, last_id = (
            store.attach([name], HOUR)[name].born,
            store.states({name: -1})[name].last_id,
        )
        assert read(store, Range(name, born, 1, last_id))[-1] == (last_id, b"one")
        [listeners] = store.push_listeners(heard)
        listeners.listen([name])
        wait_until(heard.is_set, what="the listener listens")
        listeners.stop()
    finally:
        store.close()


@pytest.mark.redis
@pytest.mark.parametrize("how", ["start", "leave"])
async def test_a_server_that_closes_is_begun_again_or_left_after_its_end(
    redis_url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, go = asyncio.Event(), asyncio.Event()
    wait = FederationServer._wait_until_closed

    async def wait_late(server: FederationServer, sockets: Any) -> None:
        ending.set()
        await go.wait()
        await wait(server, sockets)

    monkeypatch.setattr(FederationServer, "_wait_until_closed", wait_late)
    async with Bus(redis_url) as bus, AsyncExitStack() as block:
        server = FederationServer(bus, Keyring.single(SECRET))
        await block.enter_async_context(server)
        closing = asyncio.ensure_future(server.aclose())
        await ending.wait()
        asyncio.get_running_loop().call_later(0.1, go.set)
        await (server.start() if how == "start" else block.aclose())
        assert closing.done()
        await closing
