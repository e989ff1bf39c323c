"""Both drivers behind one face: a test that takes ``driver`` is run by the blocking link and by the
asyncio link.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.queue.command_generators import Flow, Step
from busmq_spark.redis_io import connection_factory
from busmq_spark.redis_io.async_link import AsyncClusterLink, AsyncLink
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds
from busmq_spark.redis_io.sync_link import SyncClusterLink, SyncLink
from busmq_spark.redis_io.urls import RedisServerAddress, parse
from tests.tls import authority, mutual_tls, plain_tls, stranger  # noqa: F401  # fixtures

MAX_PATIENCE_S = 30.0


class Driver:
    """A link, called from plain code."""

    def __init__(self, way: str) -> None:
        self.way = way
        self._runner = asyncio.Runner() if way == "async" else None
        self._links: list[Any] = []

    def __call__(self, server: RedisEndpoint | str, patience_s: float = MAX_PATIENCE_S) -> Driver:
        endpoint = parse(server)[0] if isinstance(server, str) else server
        kinds: tuple[type[Any], type[Any]] = (
            (SyncClusterLink, AsyncClusterLink)
            if isinstance(endpoint, ClusterSeeds)
            else (SyncLink, AsyncLink)
        )
        # Looked up now: a test may have made the timeout shorter.
        timeout = (connection_factory.REPLY_TIMEOUT_S,) if self._runner else ()
        self._links.append(kinds[self._runner is not None](endpoint, patience_s, *timeout))
        return self

    def execute(self, step: Step) -> Any:
        return self._wait(self._links[-1].execute(step))

    def run(self, flow: Flow[Any]) -> Any:
        return self._wait(self._links[-1].run(flow))

    def close(self) -> None:
        for each in self._links:
            self._wait(each.close())
        if self._runner:
            self._runner.close()

    def breathe(self) -> None:
        """Let the loop see what came in meanwhile, as it would in a program that lives on it."""
        if self._runner:
            for _ in range(3):
                self._runner.run(asyncio.sleep(0))

    def _wait(self, made: Any) -> Any:
        return self._runner.run(made) if self._runner else made


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    made = Driver(request.param)
    yield made
    made.close()


def absent() -> RedisServerAddress:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return RedisServerAddress("127.0.0.1", held.getsockname()[1], password="hidden-secret")
