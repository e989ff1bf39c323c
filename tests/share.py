"""How the processes of pytest-xdist share the tests: ``pytest -n 4 --dist loadscope``, or
``-n auto``. Hooks that ``conftest.py`` imports.

Most tests wait more than they compute, so there are more processes than cores. The tests that share
a Spark are three parts; what mostly waits for servers (time-outs, fail-overs, links that are cut)
are a few; each file that starts Sparks of its own is a part by itself. The parts are handed out in
this order, each to the first process that has come to its end: the longest first, so that none is
left over at the end, and beside the parts that compute those that wait, so that the cores are
neither idle nor shared by four. Measured on two cores: 14 min, and 18 with the parts that wait
last.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import Any

import pytest

from busmq_spark.embedded import server

PARTS = [
    "tests/spark/test_[p-z]",
    "tests/spark/test_[i-o]",
    "tests/bus/",
    "tests/faults/",
    "tests/federation/",
    "tests/contract/",
    "tests/",
    "tests/test_notebooks",
    "tests/spark/test_[a-h]",
    "tests/spark/test_installed",
    "tests/cli/",
    "tests/test_docs",
    "tests/peers/",
    "tests/faults/test_driver_killed",
    "tests/cli/test_demo",
    "tests/faults/test_on_executors",
    "tests/faults/test_power_lost",
    "tests/faults/test_loss",
    "tests/faults/test_realtime_killed",
    "tests/faults/test_executors_killed",
    "tests/faults/test_realtime_sink",
    "tests/test_packaging",
    "tests/test_exports",
    "tests/soak/",
]
"""Beginnings of the ids of tests, as patterns of fnmatch; the longest one that fits is the part of
a test.
"""
SPARKS = (
    "tests/faults/",
    "tests/soak/",
    "tests/spark/test_installed",
    "tests/cli/test_demo",
    "tests/test_docs",
    "tests/test_notebooks",
)


def starts_sparks(nodeid: str) -> bool:
    """Whether a test starts Sparks in processes of their own."""
    return nodeid.startswith(SPARKS)


def share(nodeid: str) -> str:
    """The part that a test belongs to; all tests of a part run in one process."""
    return max(
        (part for part in PARTS if fnmatchcase(nodeid, f"{part}*")), key=len, default="tests/"
    )


def turn(nodeid: str) -> int:
    """When the part of a test is handed out: 0 first."""
    return PARTS.index(share(nodeid))


def keep_ports_apart(worker: int, workers: int) -> None:
    """A server that is killed and restarted needs its port again: none of the other processes may
    have taken it meanwhile.
    """
    span = (server.LAST_PORT - server.FIRST_PORT) // workers
    server.FIRST_PORT += worker * span
    server.LAST_PORT = server.FIRST_PORT + span


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three processes a core, where the machine has 2 GB for each: with its Spark and its servers
    one takes up to 1.5 GB.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**31
    return max(2, min(3 * (os.cpu_count() or 1), memory, 8))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The parts are those of ``--dist loadscope``; other ways are pytest-xdist's own."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import (
        LoadScopeScheduling,
    )  # only where it runs: it is a tool of development

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share(nodeid)

    config.option.loadscopereorder = (
        False  # the parts with the most tests first: they are not the longest ones
    )
    return Shares(config, log)
