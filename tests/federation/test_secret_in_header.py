"""The secret travels in a header. It stands in a URL, which everything on the way may log, only
where that was asked for.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import BusError, ConfigError, FederationRefused
from busmq_spark.federation.client import socket as sockets
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions
from busmq_spark.spark.stores import open_link
from tests.bus.tools import until

SECRET = "the-production-secret-000"
HEADER = f"Authorization: Bearer {SECRET}"


class Proxy:
    """Answers every request with the same words, and keeps the requests."""

    def __init__(
        self,
        answer: str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ) -> None:
        self.answer = answer
        self.requests: list[list[str]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}/bus"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                data = b""
                while b"\r\n\r\n" not in data and (piece := peer.recv(65536)):
                    data += piece
                if data:
                    self.requests.append(data.decode("latin-1").split("\r\n"))
                    peer.sendall(self.answer.encode())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def ask_spark(url: str, **options: str) -> BusError:
    """What a query whose link leads there fails with."""
    given = {"subscribe": "q", "federation.url": f"eu={url}", "federation.secret": SECRET}
    store = open_link(parse(ReadOptions, {**given, **options}), "eu", patience_s=0.2)
    try:
        with pytest.raises(BusError) as failed:
            store.states({"q": -1})
        return failed.value
    finally:
        store.close()


def logged(proxy: Proxy) -> list[str]:
    """What the access log of a proxy has: the first line of each request."""
    return [lines[0] for lines in proxy.requests]


def test_spark_shows_the_secret_in_the_header_and_says_how_an_npm_server_gets_it(
    proxy: Proxy,
) -> None:
    error = ask_spark(proxy.url)
    assert isinstance(error, FederationRefused)
    assert "federation.secretInUrl" in str(error)
    assert SECRET not in str(error)
    assert logged(proxy) == ["GET /bus HTTP/1.1"]
    assert HEADER in proxy.requests[0]


@pytest.mark.parametrize("named", ["true", "eu"])
def test_spark_puts_the_secret_into_the_url_of_a_link_for_which_that_was_asked(
    proxy: Proxy, named: str
) -> None:
    error = ask_spark(proxy.url, **{"federation.secretInUrl": named})
    assert SECRET not in str(error)
    assert logged(proxy) == ["GET /bus HTTP/1.1", f"GET /bus?secret={SECRET} HTTP/1.1"]


def test_spark_does_not_put_it_into_the_url_of_another_link(proxy: Proxy) -> None:
    ask_spark(
        proxy.url,
        **{
            "federation.url": f"eu={proxy.url},us=ws://127.0.0.1:9/bus",
            "federation.secretInUrl": "us",
        },
    )
    assert logged(proxy) == ["GET /bus HTTP/1.1"]


async def test_a_bus_shows_the_secret_in_the_header_and_says_how_an_npm_server_gets_it(
    proxy: Proxy,
) -> None:
    async with Bus(federate=proxy.url, federate_secret=SECRET, federate_sockets=1) as bus:
        with pytest.raises(FederationRefused, match="secret_in_url") as refused:
            await bus.federate(bus.queue("q")).attach()
    assert SECRET not in str(refused.value)
    assert logged(proxy) == ["GET /bus HTTP/1.1"]
    assert HEADER in proxy.requests[0]


async def test_a_bus_puts_the_secret_into_the_url_where_that_was_asked_for(proxy: Proxy) -> None:
    asked = [
        (True, None, True),
        ((proxy.url,), None, True),
        (False, True, True),
        (("ws://elsewhere/bus",), None, False),
        (True, False, False),
    ]
    for setting, named, expected in asked:
        proxy.requests.clear()
        async with Bus(
            federate="ws://127.0.0.1:9/bus",
            federate_secret=SECRET,
            federate_sockets=1,
            federate_secret_in_url=setting,
        ) as bus:
            with pytest.raises(FederationRefused, match="401"):
                await bus.federate(bus.queue("q"), proxy.url, secret_in_url=named).attach()
        assert logged(proxy) == [
            f"GET /bus?secret={SECRET} HTTP/1.1" if expected else "GET /bus HTTP/1.1"
        ]
        assert HEADER in proxy.requests[0]


async def test_a_redirect_does_not_take_the_secret_to_another_server(proxy: Proxy) -> None:
    other = Proxy(
        f"HTTP/1.1 302 Found\r\nLocation: {proxy.url}\r\nContent-Length: 0\r\nConnection:"
        " close\r\n\r\n"
    )
    try:
        async with Bus(federate=other.url, federate_secret=SECRET, federate_sockets=1) as bus:
            with pytest.raises(FederationRefused, match="302"):
                await bus.federate(bus.queue("q")).attach()
        assert len(other.requests) == 1
    finally:
        other.close()
    assert proxy.requests == []


async def test_a_secret_that_no_header_can_carry_is_an_error_unless_it_may_stand_in_the_url(
    proxy: Proxy,
) -> None:
    async with Bus(
        federate="ws://127.0.0.1:9/bus", federate_secret=SECRET, federate_sockets=1
    ) as bus:
        with pytest.raises(ConfigError, match="no HTTP header can carry") as failed:
            bus.federate(bus.queue("q"), proxy.url, secret="s3cret & more")
        assert "s3cret" not in str(failed.value)
        with pytest.raises(FederationRefused, match="401"):
            await bus.federate(
                bus.queue("q"), proxy.url, secret="s3cret & more", secret_in_url=True
            ).attach()
    assert logged(proxy) == ["GET /bus?secret=s3cret%20%26%20more HTTP/1.1"]


async def test_an_answer_that_is_no_http_does_not_end_the_bus(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.answer = "what is this\r\n\r\n"
    monkeypatch.setattr(sockets, "DIAL_PAUSES_S", (0.005, 0.05))
    async with Bus(federate=proxy.url, federate_secret=SECRET, federate_sockets=1):
        await until(lambda: len(proxy.requests) >= 3)
