"""Fixtures every folder shares: real servers, started once, and names that no other test uses."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings

from busmq_spark.embedded import (
    EmbeddedCluster,
    EmbeddedRedis,
    EmbeddedSentinel,
    EmbeddedStandaloneServers,
)
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from tests import java
from tests.share import (
    keep_ports_apart,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
    starts_sparks,
    turn,
)

__all__ = ["pytest_xdist_auto_num_workers", "pytest_xdist_make_scheduler"]  # hooks
TESTS = Path(__file__).parent
SLOW_S = 900
"""The time limit of a test that starts Sparks of its own or is marked slow. That of others is in
pyproject.toml.
"""
MARKERS = {
    "contract": "redis",
    "redis_io": "redis",
    "bus": "redis",
    "peers": "peer",
}  # by folder; tests of others have the marks themselves

# No deadline: the machine that runs this is shared. Fixtures of a function may serve many examples,
# since names are fresh in each.
settings.register_profile(
    "busmq",
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("busmq")


def pytest_configure(config: pytest.Config) -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # set by a script that runs this in the background, and inherited by children
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # each of hundreds of processes would compile the package anew
    java.prepare()
    if worker := getattr(config, "workerinput", None):
        keep_ports_apart(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: turn(item.nodeid))
    if any(starts_sparks(item.nodeid) for item in items):
        java.share_classes(config.cache.mkdir("java"))
    for item in items:
        if item.path.is_relative_to(TESTS) and (
            marker := MARKERS.get(item.path.relative_to(TESTS).parts[0])
        ):
            item.add_marker(marker)
        if not item.get_closest_marker("timeout") and (
            item.get_closest_marker("slow") or starts_sparks(item.nodeid)
        ):
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests may be coroutine functions; each gets a loop of its own. What they open, they open in a
    scope, so async fixtures are not needed.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }
    with asyncio.Runner() as runner:
        try:
            runner.run(pyfuncitem.obj(**arguments))
        except pytest.fail.Exception:  # at the time limit, too: what has run is the loop alone
            for task in asyncio.all_tasks(runner.get_loop()):
                print("\n".join([task.get_name(), *awaits(task.get_coro())]))
            raise
    return True


def awaits(coroutine: object) -> Iterator[str]:
    """The lines at which a coroutine and those that it awaits stand; Task.print_stack has the first
    alone.
    """
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None)


class Fresh(Protocol):
    """Makes an unused queue name, with ``hint`` in it."""

    def __call__(self, hint: str = "q") -> str: ...


class FreshKeys(Protocol):
    """Makes the keys of an unused queue."""

    def __call__(self, hint: str = "q") -> QueueKeys: ...


_NUMBERS = itertools.count(1)
_RUN = secrets.token_hex(3)


@pytest.fixture(scope="session")
def fresh() -> Fresh:
    """Instead of FLUSHALL: tests share servers and cannot meet in a name."""
    return lambda hint="q": f"{hint}-{_RUN}-{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def fresh_keys(fresh: Fresh) -> FreshKeys:
    return lambda hint="q": QueueKeys(fresh(hint))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One server for the whole run. A test that stops, kills or configures a server, or flushes its
    scripts, starts its own: npm peers use it.
    """
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: EmbeddedRedis) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def three_servers() -> Iterator[EmbeddedStandaloneServers]:
    """Three servers that know nothing of each other: layout direct with three URLs."""
    with EmbeddedStandaloneServers(3) as group:
        yield group


@pytest.fixture(scope="session")
def sentinel_servers() -> Iterator[EmbeddedSentinel]:
    """A master, a replica and three sentinels. A test that makes them fail over starts its own
    group, or waits until all are well again.
    """
    with EmbeddedSentinel(
        down_after_s=4
    ) as group:  # a busy machine may stop any of them for a second, and of those below
        yield group


@pytest.fixture(scope="session")
def cluster_servers() -> Iterator[EmbeddedCluster]:
    """Six nodes, three of them masters. The same holds."""
    with EmbeddedCluster(node_timeout_s=6) as group:
        yield group


@pytest.fixture
def link(redis_url: str) -> Iterator[SyncLink]:
    made = link_to(redis_url)
    yield made
    made.close()


@pytest.fixture
def three_links(three_servers: EmbeddedStandaloneServers) -> Iterator[list[SyncLink]]:
    links = [link_to(url) for url in three_servers.urls]
    yield links
    for made in links:
        made.close()


def link_to(url: str) -> SyncLink:
    """A link of its own to the server behind ``url``."""
    return SyncLink(parse(url)[0])
