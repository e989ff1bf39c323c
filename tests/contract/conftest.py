"""The two drivers: every test of this folder that takes ``run`` is run by the blocking link and by the asyncio link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import pytest

from busmq_spark.core.flow import Flow, command
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.queue import Attached, attach
from busmq_spark.topology.async_link import AsyncLink
from busmq_spark.topology.link import SyncLink
from busmq_spark.topology.place import new_token
from busmq_spark.topology.urls import parse

T = TypeVar("T")
Redis = Callable[..., Any]


class Run(Protocol):
    """Runs a flow to its end, as a driver does."""

    def __call__(self, flow: Flow[T]) -> T: ...


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Run]:
    server = parse(redis_url)[0]
    if request.param == "sync":
        blocking = SyncLink(server)
        yield blocking.run
        blocking.close()
        return
    with asyncio.Runner() as runner:
        link = AsyncLink(server)
        yield lambda flow: runner.run(link.run(flow))
        runner.run(link.close())


@pytest.fixture
def redis(link: SyncLink) -> Redis:
    """One plain command, bytes back: what a stranger would see."""
    return lambda *words: link.execute(command(*words))


class Born(Protocol):
    """Attaches a queue that is new."""

    def __call__(self, hint: str = "q", *, ttl_s: int = 60, maxsize: int = 0) -> tuple[QueueKeys, Attached]: ...


@pytest.fixture
def born(link: SyncLink, fresh_keys: Callable[[str], QueueKeys]) -> Born:
    def make(hint: str = "q", *, ttl_s: int = 60, maxsize: int = 0) -> tuple[QueueKeys, Attached]:
        keys = fresh_keys(hint)
        return keys, link.run(attach(keys, new_token(), ttl_s=ttl_s, maxsize=maxsize))

    return make
