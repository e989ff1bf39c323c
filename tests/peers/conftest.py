"""npm busmq as a fixture. Without Node these tests skip on a person's machine, and never in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.peers.node import Peer, missing


@pytest.fixture(scope="session")
def npm() -> None:
    if reason := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}. In CI these tests do not skip")
        pytest.skip(reason)  # Node is no dependency of the package; the reason says how to get it


@pytest.fixture(scope="module")
def peer(npm: None, redis_url: str) -> Iterator[Peer]:
    """A Node process that the tests of a file share; whoever kills one starts one of his own."""
    with Peer([redis_url]) as made:
        yield made
        assert made.errors == []
