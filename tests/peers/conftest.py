"""npm busmq as a fixture. Without Node these tests skip on a person's machine, and never in CI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.spark import stores
from busmq_spark.spark.read import acquisition, planning
from busmq_spark.store import multi_source_store
from tests.federation.far import quick
from tests.layouts import servers_of
from tests.peers.node import Peer, missing, need
from tests.peers.npm import Npm
from tests.peers.queries import SECRET as QUERIES_SECRET
from tests.peers.queries import Queries
from tests.support import PATIENCE_S


@pytest.fixture(scope="session")
def npm() -> None:
    need(missing())


@pytest.fixture(scope="module")
def peer(npm: None, redis_url: str) -> Iterator[Peer]:
    """A Node process that the tests of a file share; a test that kills one starts its own."""
    with Peer([redis_url]) as made:
        yield made
        assert made.errors == []


@pytest.fixture(scope="module", params=["direct", "three", "sentinel"])
def layout(request: pytest.FixtureRequest) -> str:
    """Those in which npm busmq works (protocol Q8)."""
    return str(request.param)


@pytest.fixture(scope="module")
def place(layout: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of Bus for the layout."""
    return servers_of(layout, request.getfixturevalue)


@pytest.fixture(scope="module")
def node(npm: None, layout: str, place: dict[str, Any]) -> Iterator[Peer]:
    """A Node process on the servers of the layout."""
    options = {"layout": "sentinels", "driver": "ioredis"} if layout == "sentinel" else {}
    with Peer(place["url"].split(","), **options) as made:
        yield made
        assert made.errors == []


@pytest.fixture(scope="module")
def npm_server(npm: None, redis_url: str) -> Iterator[Npm]:
    """A federation server of npm's that the tests of a file share; a test that kills one starts its
    own.
    """
    made = Npm(redis_url, QUERIES_SECRET)
    yield made
    assert made.peer.call("federateSockets") is not None, "it lives"
    assert made.peer.errors == []
    made.peer.kill()


@pytest.fixture
def queries(npm_server: Npm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    """Streaming queries on it, with pauses short enough for a test."""
    monkeypatch.setattr(
        multi_source_store, "ANSWER_BUDGET_S", PATIENCE_S
    )  # a busy machine does not make it look away
    monkeypatch.setattr(multi_source_store, "PROBE_PAUSES_S", (0.02, 0.1))
    monkeypatch.setattr(acquisition, "STOPPING_READER_GRACE_S", 0.5)
    monkeypatch.setattr(planning, "LINK_POLL_S", 0.02)
    monkeypatch.setattr(stores, "_shared_stores", {})
    quick(monkeypatch)
    made = Queries(npm_server)
    yield made
    made.close()
