"""Running a server: handshakes that are never finished, proxies, new secrets and certificates,
leaving.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame
from busmq_spark.federation.bulk.rpc_handler import BulkRpcHandler
from busmq_spark.federation.gate.handshake import client_address, parse_networks
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import until
from tests.federation.conftest import Serve
from tests.federation.raw import CLOSE, Raw, frame, request
from tests.federation.test_bulk_limits import call
from tests.federation.tools import SECRET, Wire
from tests.support import PATIENCE_S

BULK = ("Authorization: Bearer " + SECRET, "Sec-WebSocket-Protocol: busmq.bulk.v1")


async def page(port: int, path: str) -> int:
    raw = await Raw.dial(port)
    status, _, _ = await raw.ask(request(path))
    await raw.close()
    return status


async def test_connections_that_never_finish_their_handshake_keep_no_other_out(
    federation: Serve,
) -> None:
    async with federation(
        limits=PeerLimits(connections=3, connections_per_address=3, handshakes=5)
    ) as (_, server):
        idle = [await Raw.dial(server.port) for _ in range(40)]
        await until(lambda: len(server._socket_limiter._pending) == 5)
        async with Wire(server) as first, Wire(server) as second:
            assert await (await first.open("queue", "q")).call("isAttached") == [False]
            assert await (await second.open("queue", "q")).call("isAttached") == [False]
            assert await page(server.port, "/metrics") == 200
            async with Wire(server):
                assert (
                    await page(server.port, f"/bus?secret={SECRET}") == 503
                )  # one too many is let in no more, and learns why
        for each in idle:
            await each.close()
        await until(lambda: server._socket_limiter.open_count == 0)


async def test_the_places_of_handshakes_are_shared_by_addresses(federation: Serve) -> None:
    async with federation(limits=PeerLimits(handshakes=4)) as (_, server):
        other = await Raw.dial(server.port, local_addr=("127.0.0.2", 0))
        crowd = [await Raw.dial(server.port) for _ in range(20)]
        await until(lambda: len(server._socket_limiter._pending) == 4)
        status, _, _ = await other.ask(request(f"/bus?secret={SECRET}"))
        assert status == 101
        for each in (other, *crowd):
            await each.close()


async def test_behind_a_trusted_proxy_clients_are_counted_one_by_one(federation: Serve) -> None:
    limits = PeerLimits(connections_per_address=1)
    for proxies, expected in ((("127.0.0.1",), [101, 101, 503]), ((), [101, 503, 503])):
        async with federation(limits=limits, proxies=proxies) as (_, server):
            raws = [await Raw.dial(server.port) for _ in range(3)]
            asked = zip(raws, ("9.9.9.9, 10.0.0.1", "10.0.0.2", "10.0.0.1"), strict=True)
            found = [
                (await raw.ask(request(f"/bus?secret={SECRET}", f"X-Forwarded-For: {address}")))[0]
                for raw, address in asked
            ]
            assert found == expected
            for raw in raws:
                await raw.close()


async def test_the_log_names_the_client_behind_a_trusted_proxy(
    federation: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "busmq_spark")
    async with federation(proxies=("127.0.0.1",)) as (_, server):
        raw = await Raw.dial(server.port)
        await raw.ask(request("/bus?secret=wrong", "X-Forwarded-For: 9.9.9.9"))
        await raw.close()
    [refused] = [each for each in caplog.records if "refused a client" in each.message]
    assert refused.__dict__["address"] == "9.9.9.9"


async def test_a_page_takes_no_thread_from_the_calls_of_peers(federation: Serve) -> None:
    pool, ended = ThreadPoolExecutor(1), threading.Event()
    async with federation() as (_, server):
        asyncio.get_running_loop().set_default_executor(pool)
        pool.submit(ended.wait)
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert await page(server.port, "/metrics") == 200
        finally:
            ended.set()


def test_only_what_trusted_proxies_say_is_believed() -> None:
    trusted = parse_networks(["10.0.0.0/8", "::1"])
    for peer, forwarded, expected in (
        ("10.1.1.1", ["1.1.1.1, 2.2.2.2"], "2.2.2.2"),
        ("10.1.1.1", ["1.1.1.1", "2.2.2.2, 10.2.2.2"], "2.2.2.2"),
        ("::ffff:10.1.1.1", ["2.2.2.2"], "2.2.2.2"),
        ("10.1.1.1", [], "10.1.1.1"),
        ("10.1.1.1", ["nonsense"], "10.1.1.1"),
        ("8.8.8.8", ["2.2.2.2"], "8.8.8.8"),
    ):
        assert (
            client_address(peer, [("X-Forwarded-For", line) for line in forwarded], trusted)
            == expected
        )
    with pytest.raises(ConfigError, match="a proxy to trust"):
        parse_networks(["proxy.example.com"])


async def test_pages_say_whether_it_lives_and_whether_it_is_ready(federation: Serve) -> None:
    async with federation() as (_, server):
        assert [await page(server.port, path) for path in ("/livez", "/readyz", "/healthz")] == [
            200,
            200,
            200,
        ]
        server._draining = True
        assert [
            await page(server.port, path)
            for path in ("/livez", "/readyz", "/healthz", f"/bus?secret={SECRET}")
        ] == [200, 503, 503, 503]


async def test_a_server_that_leaves_answers_the_calls_under_way(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()

    def doing(self: BulkRpcHandler, name: str, arguments: Any, body: Any) -> Any:
        begun.set()
        assert released.wait(PATIENCE_S)
        return [None]

    monkeypatch.setattr(BulkRpcHandler, "run_call", doing)
    async with Bus(redis_url) as bus:
        server = await FederationServer(
            bus, Keyring.single(SECRET), limits=PeerLimits(drain_s=PATIENCE_S)
        ).__aenter__()
        raw, idle = [await Raw.open(server.port, "/bus", *BULK) for _ in range(2)]
        raw.send(frame(call(1, "counters", ["q"])))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        leaving = asyncio.create_task(server.__aexit__(None, None, None))
        assert (await idle.message())[0] == CLOSE
        assert await page(server.port, "/readyz") == 503
        released.set()
        _, payload = await raw.message()
        assert frames.decode_frame(payload) == BulkProtocolFrame(
            BulkFrameKind.REPLY, 1, [None], frames.decode_frame(payload).body
        )
        assert (await raw.message())[0] == CLOSE
        for each in (raw, idle):
            each.send(frame(b"\x03\xe9", CLOSE))
            await each.close()
        await leaving


async def test_a_stop_that_is_cancelled_leaves_no_server_that_listens(redis_url: str) -> None:
    async with Bus(redis_url) as bus:
        server = await FederationServer(bus, Keyring.single(SECRET)).__aenter__()
        leaving = asyncio.create_task(server.__aexit__(None, None, None))
        await asyncio.sleep(0)  # it has begun
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gc.collect()  # a coroutine that was made and not awaited is a warning now
        with pytest.raises(ConnectionRefusedError):
            await Raw.dial(server.port)
