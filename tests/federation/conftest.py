"""A running federation server, and a peer that is nothing but bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.keyring import Keyring
from busmq_spark.federation.server import FederationServer
from tests.federation.abused import Served, serve_process
from tests.federation.tools import SECRET

Serve = Callable[..., AbstractAsyncContextManager[tuple[Bus, FederationServer]]]


@pytest.fixture
def federation(redis_url: str) -> Serve:
    """``async with federation(limits=…) as (bus, server)``: a server on the session's Redis, in the loop of the test."""

    @asynccontextmanager
    async def serve(keyring: Keyring | None = None, **settings: Any) -> AsyncIterator[tuple[Bus, FederationServer]]:
        async with Bus(redis_url) as bus, FederationServer(bus, keyring or Keyring.single(SECRET), **settings) as server:
            yield bus, server

    return serve


@pytest.fixture(scope="module")
def served(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server in a process of its own, which survives what is done to it."""
    with serve_process(redis_url, tmp_path_factory.mktemp("served")) as made:
        yield made
