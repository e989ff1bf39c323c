"""One behaviour, many places: a test that takes ``place`` runs on one server, on three, behind
sentinels and on a cluster; one that takes ``open_bus`` also with the objects of another bus, behind
our federation server (``federated``) and behind npm's (``npm``), save for what a table in
federated.py excepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io import endpoint
from busmq_spark.redis_io.sync_link import SyncLink
from tests.bus.federated import EXCEPT, EXCEPT_NPM, SECRET, FederatedBus, serving
from tests.layouts import LAYOUTS, servers_of
from tests.peers.node import Peer, missing, need
from tests.support import wait_until

Redis = Callable[..., Any]
FAR = {"federated": "our_federation", "npm": "npm_federation"}


class OpenBus(Protocol):
    """Makes a bus on the servers of the layout: ``async with open_bus() as bus``."""

    def __call__(self, **settings: Any) -> Bus: ...


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "layout" not in metafunc.fixturenames:
        return
    places: list[Any] = list(LAYOUTS)
    if "open_bus" in metafunc.fixturenames and "layout" not in metafunc.definition.originalname:
        name = f"{metafunc.module.__name__.rpartition('.')[2]}::{metafunc.function.__name__}"
        places += [] if name in EXCEPT else ["federated"]
        places += (
            []
            if name in EXCEPT or name in EXCEPT_NPM
            else [pytest.param("npm", marks=pytest.mark.peer)]
        )
    metafunc.parametrize("layout", places, indirect=True)


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(layout: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The servers of each layout, as arguments of Bus."""
    return servers_of(layout, request.getfixturevalue)


@pytest.fixture
def redis(link: SyncLink) -> Redis:
    """A command to the server of the run, bytes back."""
    return lambda *words: link.execute(command(*words))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step at a server that is away is given up after 1 s, and not after 8: for tests of what
    comes after that.
    """
    monkeypatch.setattr(endpoint, "PATIENCE_S", 1.0)


@pytest.fixture(scope="session")
def our_federation(redis_url: str) -> Iterator[str]:
    """The URL of a federation server of ours."""
    with serving(redis_url) as url:
        yield url


@pytest.fixture(scope="session")
def npm_federation(redis_url: str) -> Iterator[str]:
    """The URL of one of npm busmq. That it lives at the end is part of the contract: it dies of
    whatever it does not expect.
    """
    need(missing())
    with Peer([redis_url]) as peer:
        port = peer.call("federateServe", urls=[redis_url], path="/bus", secret=SECRET)
        yield f"ws://127.0.0.1:{port}/bus"
        wait_until(
            lambda: peer.call("federateSockets") == 0,
            what="the server has noticed that the last bus has gone",
        )
        assert peer.errors == []


@pytest.fixture
def open_bus(layout: str, request: pytest.FixtureRequest) -> OpenBus:
    if layout in FAR:
        url, far = request.getfixturevalue("redis_url"), request.getfixturevalue(FAR[layout])
        given = {
            "federate": far,
            "federate_secret": SECRET,
            "federate_secret_in_url": layout == "npm",
        }
        return lambda **settings: FederatedBus(url, **{**given, **settings})
    servers = servers_of(layout, request.getfixturevalue)
    return lambda **settings: Bus(**{**servers, **settings})
