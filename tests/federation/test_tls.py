"""Handshakes of TLS: counted like every other socket, and forgotten when they fail."""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.asyncio.client import connect

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import FederationLost, TlsError
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.client import BulkWebSocket
from busmq_spark.federation.client import remote_reconnector
from busmq_spark.federation.client.federation_clients import FederationClients
from busmq_spark.federation.client.socket import make_federation_target
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.serve.server import FederationServer
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.far import quick
from tests.federation.raw import Raw, request
from tests.federation.tools import SECRET
from tests.tls import Authority


async def test_who_does_not_finish_the_handshake_of_tls_counts_as_a_socket(
    redis_url: str, tmp_path: Path
) -> None:
    authority, limits = Authority.in_(tmp_path), PeerLimits(handshake_s=60.0, handshakes=5)
    tls = authority.server_context("localhost")
    async with (
        Bus(redis_url) as bus,
        FederationServer(bus, Keyring.single(SECRET), tls=tls, limits=limits) as server,
    ):
        silent = [await Raw.dial(server.port) for _ in range(8)]
        assert [await raw.drained() for raw in silent[:3]] == [b""] * 3
        assert server._socket_limiter.open_count == 5
        assert 'refused_total{reason="busy"} 3' in server.metrics.text()
        silent[3].send(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
        await silent[3].drained()
        await until(lambda: server._socket_limiter.open_count == 4)
        for raw in silent:
            await raw.close()
        await until(lambda: server._socket_limiter.open_count == 0)
        trusting = ssl.create_default_context(cafile=str(authority.file))
        async with connect(
            f"{server.url.replace('127.0.0.1', 'localhost')}?secret={SECRET}",
            ssl=trusting,
            compression=None,
        ) as socket:
            assert server._socket_limiter.open_count == 1
            await (await socket.ping())
        await until(lambda: server._socket_limiter.open_count == 0)
        with pytest.raises(ssl.SSLError):
            await connect(f"{server.url}?secret={SECRET}", ssl=ssl.create_default_context())
        await until(lambda: server._socket_limiter.open_count == 0)


async def test_a_request_in_the_packet_that_ends_the_handshake_of_tls_is_read(
    redis_url: str, tmp_path: Path
) -> None:
    authority = Authority.in_(tmp_path)
    async with (
        Bus(redis_url) as bus,
        FederationServer(
            bus, Keyring.single(SECRET), tls=authority.server_context("localhost")
        ) as server,
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = ssl.create_default_context(cafile=str(authority.file)).wrap_bio(
            incoming, outgoing, server_hostname="localhost"
        )
        raw = await Raw.dial(server.port)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.send(outgoing.read())
                incoming.write(await raw.reader.read(65536))
        tls.write(request(f"/bus?secret={SECRET}"))
        raw.send(outgoing.read())
        answer = b""
        while not answer:
            incoming.write(await raw.reader.read(65536))
            with suppress(ssl.SSLWantReadError):
                answer = tls.read(65536)
        assert answer.startswith(b"HTTP/1.1 101 ")
        await raw.close()


def test_a_client_reads_the_authorities_again_only_when_their_file_has_changed(
    tmp_path: Path,
) -> None:
    made = make_federation_target("wss://there/bus", SECRET, str(Authority.in_(tmp_path).file))
    first = made.ssl_context
    assert made.ssl_context is first
    os.utime(tmp_path / "ca.pem", ns=(1, 1))
    assert made.ssl_context is not first
    assert (
        make_federation_target("wss://there/bus", SECRET).ssl_context
        is make_federation_target("wss://elsewhere/bus", SECRET).ssl_context
    )
    assert make_federation_target("ws://there/bus", SECRET).ssl_context is None


def test_a_file_of_authorities_that_replaces_one_of_the_same_time_is_read(tmp_path: Path) -> None:
    """As of a package, an archive, or a volume of Kubernetes, whose links change at once."""
    files = []
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        files.append(Authority.in_(tmp_path / name).file)
        os.utime(files[-1], (1_000_000_000, 1_000_000_000))
    link = tmp_path / "ca.pem"
    link.symlink_to(files[0])
    target = make_federation_target("wss://localhost/", SECRET, str(link))
    before = target.ssl_context
    link.unlink()
    link.symlink_to(files[1])
    assert target.ssl_context is not before


async def test_a_file_of_authorities_that_is_away_for_a_moment_ends_no_bus(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    authority, away = Authority.in_(tmp_path / "ours"), tmp_path / "away.pem"
    async with (
        Bus(redis_url) as home,
        FederationServer(
            home, Keyring.single(SECRET), tls=authority.server_context("localhost")
        ) as server,
    ):
        url = server.url.replace("127.0.0.1", "localhost")
        settings: dict[str, Any] = {
            "federate_secret": SECRET,
            "federate_tls_ca": str(authority.file),
            "federate_sockets": 1,
        }
        async with (
            Bus(federate=url, **settings) as bus,
            bus.federate(bus.queue("authorities")) as queue,
        ):
            await queue.push("before")
            authority.file.rename(away)
            [pool] = cast("FederationClients", bus._federation_links())._pools.values()
            pool.abort_connections()
            await until(lambda: "No such file" in str(pool.last_error))
            away.rename(authority.file)
            await queue.push("after")


async def test_tls_trusts_the_authority_that_it_is_given(
    redis_url: str, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = Authority.in_(tmp_path / "ours"), Authority.in_(tmp_path / "theirs")
    async with (
        Bus(redis_url) as home,
        FederationServer(
            home, Keyring.single(SECRET), tls=ours.server_context("localhost")
        ) as server,
    ):
        url = (
            server.url.replace("ws://", "wss://")
            .replace("wsss://", "wss://")
            .replace("127.0.0.1", "localhost")
        )
        async with (
            Bus(federate=url, federate_secret=SECRET, federate_tls_ca=str(ours.file)) as bus,
            bus.federate(bus.queue(fresh())) as queue,
        ):
            assert await queue.push("x") == 1
        async with Bus(
            federate=url, federate_secret=SECRET, federate_tls_ca=str(theirs.file)
        ) as bus:
            [pool] = cast("FederationClients", bus._federation_links())._pools.values()
            with pytest.raises(TlsError, match="certificate"):
                await bus.federate(bus.queue(fresh())).attach()
            assert isinstance(pool.last_error, TlsError)


FAULTS = {
    "an authority that is not trusted": ("wss", "theirs", "localhost", TlsError),
    "another host": ("wss", "ours", "127.0.0.1", TlsError),
    "no TLS at the port": ("wss", "plain", "localhost", FederationLost),
    "TLS at the port of a plain URL": ("ws", "ours", "localhost", FederationLost),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_both_clients_say_the_same_of_a_handshake_that_fails(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    scheme, trusted, host, kind = FAULTS[fault]
    monkeypatch.setattr(remote_reconnector, "PATIENCE_S", 0.3)
    ours, theirs = Authority.in_(tmp_path / "ours"), Authority.in_(tmp_path / "theirs")
    tls = None if trusted == "plain" else ours.server_context("localhost")
    async with (
        Bus(redis_url) as home,
        FederationServer(home, Keyring.single(SECRET), tls=tls) as server,
    ):
        url = f"{scheme}://{host}:{server.port}/bus"
        ca = str(theirs.file if trusted == "theirs" else ours.file)
        address = FederationAddress(url, SECRET, tls_ca=ca if scheme == "wss" else None)
        with pytest.raises(kind) as bulk:
            await asyncio.to_thread(BulkWebSocket, address)
        settings: dict[str, Any] = {"federate_tls_ca": ca} if scheme == "wss" else {}
        async with Bus(federate=url, federate_secret=SECRET, **settings) as bus:
            with pytest.raises(kind) as npm:
                await bus.federate(bus.queue("q")).attach()
        assert str(npm.value) == str(bulk.value)
