"""Both web-socket clients have one table of HTTP answers, and one rule for proxies of the
environment.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from busmq_spark.errors import BusError, FederationLost, FederationRefused
from busmq_spark.federation import address
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.client import BulkWebSocket
from busmq_spark.federation.client.socket import ReconnectingWebSocket, make_federation_target
from busmq_spark.federation.serve.server import FederationServer
from tests.federation.conftest import Serve
from tests.federation.tools import SECRET

VARIABLES = (
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "socks_proxy",
    "ws_proxy",
    "wss_proxy",
)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextmanager
def answering(answer: bytes, server_port: int = 0) -> Iterator[tuple[int, list[bytes]]]:
    """A port that answers each request head so; a proxy that opens the way to ``server_port`` where
    that is given.
    """
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(peer,), daemon=True).start()

        def talk(peer: socket.socket) -> None:
            with peer, suppress(OSError):
                head = b""
                while b"\r\n\r\n" not in head:
                    head += peer.recv(4096) or b"\r\n\r\n"
                heads.append(head)
                if not server_port:
                    peer.sendall(answer)
                    return
                with socket.create_connection(("127.0.0.1", server_port)) as server:
                    peer.sendall(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
                    back = threading.Thread(target=copy, args=(server, peer), daemon=True)
                    back.start()
                    copy(peer, server)
                    back.join()

        def copy(source: socket.socket, to: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(65536):
                    to.sendall(data)
                to.shutdown(socket.SHUT_WR)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1], heads
        listener.shutdown(socket.SHUT_RDWR)


def by_bulk(url: str) -> BusError | None:
    try:
        BulkWebSocket(FederationAddress(url, SECRET)).close()
    except BusError as error:
        return error
    return None


async def by_link(url: str) -> BusError | None:
    link = ReconnectingWebSocket(
        make_federation_target(url, SECRET),
        lambda *_: pytest.fail("nothing is spawned"),
        lambda: None,
    )
    try:
        made = await link._dial()
    except BusError as error:
        return error
    made.transport.abort()
    await made.wait_closed()
    return None


async def both(url: str) -> list[BusError | None]:
    return [await asyncio.to_thread(by_bulk, url), await by_link(url)]


ANSWERS: list[tuple[int, type[BusError], str]] = [
    (200, FederationRefused, "without web sockets"),
    (204, FederationRefused, "HTTP status 204"),
    (301, FederationRefused, "sends clients on to 'ws://elsewhere/bus' (301)"),
    (302, FederationRefused, "sends clients on to 'ws://elsewhere/bus' (302)"),
    (307, FederationRefused, "(307)"),
    (308, FederationRefused, "(308)"),
    (400, FederationRefused, "HTTP status 400"),
    (401, FederationRefused, "does not know the secret"),
    (403, FederationRefused, "forbids"),
    (404, FederationRefused, "nothing at this path"),
    (407, FederationRefused, "asks for credentials"),
    (408, FederationLost, "HTTP status 408"),
    (426, FederationRefused, "HTTP status 426"),
    (429, FederationLost, "HTTP status 429"),
    (500, FederationLost, "HTTP status 500"),
    (502, FederationLost, "HTTP status 502"),
    (503, FederationLost, "HTTP status 503"),
    (504, FederationLost, "HTTP status 504"),
]


@pytest.mark.parametrize(("status", "kind", "found"), ANSWERS, ids=lambda value: str(value)[:20])
async def test_an_http_answer_is_the_same_error_of_both_clients(
    status: int, kind: type[BusError], found: str
) -> None:
    head = (
        f"HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\nLocation:"
        f" ws://user:{SECRET}@elsewhere/bus?secret={SECRET}\r\n\r\n"
    )
    with answering(head.encode()) as (port, _):
        one, other = await both(f"ws://127.0.0.1:{port}/bus")
    assert (type(one), type(other), str(one)) == (kind, kind, str(other))
    assert found in str(one)
    assert SECRET not in str(one)


async def test_what_is_no_http_or_no_web_socket_is_a_lost_link_of_both_clients() -> None:
    for answer in (
        b"",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Protocol: busmq.bulk.v1\r\n\r\n",
    ):
        with answering(answer) as (port, _):
            assert [type(error) for error in await both(f"ws://127.0.0.1:{port}/bus")] == [
                FederationLost
            ] * 2


@pytest.mark.parametrize("variable", VARIABLES)
async def test_this_machine_is_reached_without_a_proxy(
    federation: Serve, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(
        variable, "socks5://127.0.0.1:9" if "socks" in variable else "http://127.0.0.1:9"
    )
    async with federation() as (_, server):
        for host in ("127.0.0.1", "localhost", "LOCALHOST"):
            assert await both(f"ws://{host}:{server.port}/bus") == [None, None]


def far(monkeypatch: pytest.MonkeyPatch, server: FederationServer) -> str:
    """The address of the server under a name that only the proxy can reach."""
    return f"ws://bus.example:{server.port}/bus"


@pytest.mark.parametrize("login", ["", "user:p%40ss@"])
async def test_both_clients_go_through_the_proxy_of_the_environment(
    federation: Serve, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    async with federation() as (_, server):
        with answering(b"", server.port) as (port, heads):
            monkeypatch.setenv("HTTP_PROXY", f"http://{login}127.0.0.1:{port}/")
            monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
            assert await both(far(monkeypatch, server)) == [None, None]
            assert [head.split(b"\r\n")[0] for head in heads] == [
                b"CONNECT bus.example:%d HTTP/1.1" % server.port
            ] * 2
            shown = b"Proxy-Authorization: Basic " + base64.b64encode(b"user:p@ss")
            assert [shown in head for head in heads] == [bool(login)] * 2
            monkeypatch.setenv("http_proxy", "")  # small letters win
            assert [type(error) for error in await both(far(monkeypatch, server))] == [
                FederationLost
            ] * 2
            assert len(heads) == 2


async def test_an_error_names_the_proxy_and_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:hunter2@127.0.0.1:9")
    for error in await both("ws://bus.example/bus"):
        assert type(error) is FederationLost
        assert "the proxy http://127.0.0.1:9 of HTTP_PROXY cannot be reached" in str(error)
        assert "hunter2" not in str(error)
    for status, kind in (
        (407, FederationRefused),
        (403, FederationRefused),
        (502, FederationLost),
        (503, FederationLost),
    ):
        with answering(f"HTTP/1.1 {status} No\r\n\r\n".encode()) as (port, _):
            monkeypatch.setenv("HTTP_PROXY", f"http://user:hunter2@127.0.0.1:{port}")
            one, other = await both("ws://bus.example/bus")
            assert (type(one), type(other), str(one)) == (kind, kind, str(other))
            assert f"of HTTP_PROXY answered CONNECT with HTTP status {status}" in str(one)
    for answer in (b"", b"SSH-2.0\r\n\r\n", b"x" * 20_000):
        with answering(answer) as (port, _):
            monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{port}")
            assert [type(error) for error in await both("ws://bus.example/bus")] == [
                FederationLost
            ] * 2
    for wrong in (
        "socks5://127.0.0.1:9",
        "https://127.0.0.1:9",
        "http://",
        "http://h:99999",
        "http://a b",
    ):
        monkeypatch.setenv("HTTP_PROXY", wrong)
        for error in await both("ws://bus.example/bus"):
            assert type(error) is FederationRefused
            assert "HTTP_PROXY names a proxy that cannot be used" in str(error)


@pytest.mark.parametrize(
    ("entries", "host", "port", "direct"),
    [
        ("*", "bus.example", 80, True),
        ("bus.example", "bus.example", 80, True),
        ("bus.example", "BUS.example", 80, True),
        ("example", "bus.example", 80, True),
        (".example", "bus.example", 80, True),
        ("*.example", "bus.example", 80, True),
        ("other, bus.example", "bus.example", 80, True),
        ("ample", "bus.example", 80, False),
        ("bus.example:81", "bus.example", 80, False),
        ("bus.example:80", "bus.example", 80, True),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.1.2.3:80", "10.1.2.3", 80, True),
        ("fd00::/8", "fd00::1", 80, True),
        ("[fd00::1]:80", "fd00::1", 80, True),
        ("fd00::1", "fd00::1", 80, True),
        ("", "bus.example", 80, False),
        (",", "bus.example", 80, False),
        ("", "127.8.8.8", 80, True),
        ("", "::1", 80, True),
        ("", "localhost.", 80, True),
        ("", "localhost.example", 80, False),
    ],
)
def test_hosts_that_need_no_proxy(
    monkeypatch: pytest.MonkeyPatch, entries: str, host: str, port: int, direct: bool
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", entries)
    found: Any = address.proxy_of("wss://x/bus", host, port, secure=True)
    assert (found is None) is direct
    if found:
        assert (found.host, found.port, found.variable) == ("proxy", 3128, "HTTPS_PROXY")
    assert address.proxy_of("ws://x/bus", host, port, secure=False) is None
