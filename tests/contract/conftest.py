"""The two drivers on four layouts: a test that takes ``run`` is run by the blocking and the asyncio
link, on each layout its file is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pytest

from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import Flow, command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import AttachResult, attach, push_many
from busmq_spark.redis_io.layout import Link, RedisLayout, async_links, redis_layout, sync_links
from busmq_spark.redis_io.queue_location import new_token
from tests.conftest import Fresh, FreshKeys
from tests.contract.group_tools import Make, Shared
from tests.layouts import LAYOUTS, servers_of

T = TypeVar("T")
Redis = Callable[..., Any]
EVERYWHERE = (
    "test_queue",
    "test_clock",
    "test_acks",
    "test_sink",
    "test_ranges",
    "test_state",
    "test_full",
    "test_subscription",
    "test_group",
    "test_group_leases",
    "test_group_model",
    "test_cap",
    "test_job",
    "test_sender",
    "test_topic",
    "test_mirror",
    "test_retention",
    "test_readers",
)
"""Files whose tests run on every layout; the others on one server."""


class Run(Protocol):
    """Runs a flow to its end, as a driver does."""

    def __call__(self, flow: Flow[T]) -> T: ...


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "layout" in metafunc.fixturenames:
        everywhere = metafunc.module.__name__.rpartition(".")[2] in EVERYWHERE
        metafunc.parametrize("layout", LAYOUTS if everywhere else LAYOUTS[:1], scope="session")


@pytest.fixture(scope="session")
def where(layout: str, request: pytest.FixtureRequest) -> RedisLayout:
    """The servers of the layout. Of three independent ones this is the last: the core does not know
    that there are others.
    """
    options = RedisOptions(**servers_of(layout, request.getfixturevalue))
    return redis_layout(
        replace(options, url=options.address.rpartition(",")[2]) if layout == "three" else options
    )


@pytest.fixture
def link(where: RedisLayout) -> Iterator[Link]:
    [made] = sync_links(where)
    yield made
    made.close()


@pytest.fixture(scope="session")
def fresh_keys(where: RedisLayout, fresh: Fresh) -> FreshKeys:
    return lambda hint="q": QueueKeys(fresh(hint), where.cluster)


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, where: RedisLayout) -> Iterator[Run]:
    if request.param == "sync":
        [blocking] = sync_links(where)
        yield blocking.run
        blocking.close()
        return
    with asyncio.Runner() as runner:
        [link] = async_links(where)
        yield lambda flow: runner.run(link.run(flow))
        runner.run(link.close())


@pytest.fixture
def redis(link: Link) -> Redis:
    """One plain command, bytes back: what a stranger would see."""
    return lambda *words: link.execute(command(*words))


class Born(Protocol):
    """Attaches a queue that is new."""

    def __call__(
        self, hint: str = "q", *, ttl_s: int = 60, maxsize: int = 0
    ) -> tuple[QueueKeys, AttachResult]: ...


@pytest.fixture
def born(link: Link, fresh_keys: FreshKeys) -> Born:
    def make(
        hint: str = "q", *, ttl_s: int = 60, maxsize: int = 0
    ) -> tuple[QueueKeys, AttachResult]:
        keys = fresh_keys(hint)
        return keys, link.run(attach(keys, new_token(), ttl_s=ttl_s, maxsize=maxsize))

    return make


@pytest.fixture
def shared(run: Run, redis: Redis, born: Born) -> Make:
    """A group, and so many messages ``v1``, ``v2`` … in its queue."""

    def make(messages: int = 6, **settings: int) -> Shared:
        keys, there = born()
        made = Shared(run, redis, keys, there.born, **settings)
        run(push_many(keys, [b"v%d" % n for n in range(1, messages + 1)]))
        return made

    return make
