"""One behaviour, many places: a test that takes ``open_bus`` runs on one server, on three, behind sentinels and on a cluster; and with the objects of
another bus, behind our federation server (``federated``) and behind npm's (``npm``), save for what a table in federated.py excepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.core.flow import command
from busmq_spark.redis_io.link import SyncLink
from tests.bus.federated import EXCEPT, EXCEPT_NPM, SECRET, FederatedBus, serving
from tests.peers.node import Peer, missing, need
from tests.support import wait_until

Redis = Callable[..., Any]
LAYOUTS = ["direct", "three", "sentinel", "cluster"]
FAR = {"federated": "our_federation", "npm": "npm_federation"}


class OpenBus(Protocol):
    """Makes a bus on the servers of the layout: ``async with open_bus() as bus``."""

    def __call__(self, **settings: Any) -> Bus: ...


def where(layout: str, fixture: Callable[[str], Any]) -> dict[str, Any]:
    """The arguments of Bus for a layout; starts its servers when they are first wanted."""
    if layout == "direct":
        return {"url": fixture("redis_url")}
    group = fixture({"three": "three_servers", "sentinel": "sentinel_group", "cluster": "cluster_group"}[layout])
    return {"url": ",".join(group.urls), "layout": "direct" if layout == "three" else layout}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "layout" not in metafunc.fixturenames:
        return
    places: list[Any] = list(LAYOUTS)
    if "open_bus" in metafunc.fixturenames and "layout" not in metafunc.definition.originalname:
        name = f"{metafunc.module.__name__.rpartition('.')[2]}::{metafunc.function.__name__}"
        places += [] if name in EXCEPT else ["federated"]
        places += [] if name in EXCEPT or name in EXCEPT_NPM else [pytest.param("npm", marks=pytest.mark.peer)]
    metafunc.parametrize("layout", places, indirect=True)


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def redis(link: SyncLink) -> Redis:
    """A command to the server of the run, bytes back."""
    return lambda *words: link.execute(command(*words))


@pytest.fixture(scope="session")
def our_federation(redis_url: str) -> Iterator[str]:
    """The URL of a federation server of ours."""
    with serving(redis_url) as url:
        yield url


@pytest.fixture(scope="session")
def npm_federation(redis_url: str) -> Iterator[str]:
    """The URL of one of npm busmq. That it lives at the end is part of the contract: it dies of whatever it does not expect."""
    need(missing())
    with Peer([redis_url]) as peer:
        port = peer.call("federateServe", urls=[redis_url], path="/bus", secret=SECRET)
        yield f"ws://127.0.0.1:{port}/bus"
        wait_until(lambda: peer.call("federateSockets") == 0, what="the server has noticed that the last bus has gone")
        assert peer.errors == []


@pytest.fixture
def open_bus(layout: str, request: pytest.FixtureRequest) -> OpenBus:
    if layout in FAR:
        url, far = request.getfixturevalue("redis_url"), request.getfixturevalue(FAR[layout])
        given = {"federate": far, "federate_secret": SECRET, "federate_secret_in_url": layout == "npm"}
        return lambda **settings: FederatedBus(url, **{**given, **settings})
    place = where(layout, request.getfixturevalue)
    return lambda **settings: Bus(**{**place, **settings})
