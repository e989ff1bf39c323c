"""A running federation server, and what stands on both sides of one for bulk (bulk_site.py: each
test file has its own, ``here``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.serve.server import FederationServer
from busmq_spark.options import RedisOptions
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.federation.abused import Served, serve_process
from tests.federation.bulk_site import Site
from tests.federation.cutting import Cutter, cutter
from tests.federation.tools import SECRET

Serve = Callable[..., AbstractAsyncContextManager[tuple[Bus, FederationServer]]]


@pytest.fixture
def federation(redis_url: str) -> Serve:
    """``async with federation(limits=…) as (bus, server)``: a server on the session's Redis, in the
    loop of the test.
    """

    @asynccontextmanager
    async def serve(
        keyring: Keyring | None = None, **settings: Any
    ) -> AsyncIterator[tuple[Bus, FederationServer]]:
        async with (
            Bus(redis_url) as bus,
            FederationServer(bus, keyring or Keyring.single(SECRET), **settings) as server,
        ):
            yield bus, server

    return serve


@pytest.fixture(scope="module")
def served(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server in a process of its own, which survives what is done to it."""
    with serve_process(redis_url, tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture(scope="module")
def wire(redis_server: EmbeddedRedis) -> Iterator[Cutter]:
    """Between the federation server and its Redis."""
    with cutter(redis_server.port) as made:
        yield made


@pytest.fixture
def direct(redis_url: str) -> Iterator[RedisStore]:
    made = open_store(RedisOptions(url=redis_url))
    yield made
    made.close()


@pytest.fixture
def store(here: Site) -> Iterator[FederationBulkStore]:
    made = FederationBulkStore(here.address())
    yield made
    made.close()
