"""A running federation server, and a peer that is nothing but bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.keyring import Keyring
from busmq_spark.federation.server import FederationServer
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
