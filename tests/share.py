"""How two processes of pytest-xdist share the tests: ``pytest -n 2 --dist loadgroup``.

One has every test that starts Spark: two Sparks at once on two processors keep each other's Python workers waiting for too long. The other has
what mostly waits (time-outs, fail-overs, links that are cut), which costs nearly nothing beside Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from busmq_spark.embedded import server

TESTS = Path(__file__).parent
SPARKS = ("faults/", "spark/", "test_docs", "test_notebooks", "test_packaging", "cli/test_demo")


def share(items: list[pytest.Item]) -> None:
    """Say which process a test belongs to."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if _starts_spark(item) else "others"))


def keep_ports_apart(worker: int, workers: int) -> None:
    """A server that is killed and restarted wants its port again: none of the other process may have taken it meanwhile."""
    span = (server.LAST_PORT - server.FIRST_PORT) // workers
    server.FIRST_PORT += worker * span
    server.LAST_PORT = server.FIRST_PORT + span


def _starts_spark(item: pytest.Item) -> bool:
    path = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else item.path.name
    return path.startswith(SPARKS) or item.get_closest_marker("spark") is not None
