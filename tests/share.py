"""How two processes of pytest-xdist share the tests: ``pytest -n 2 --dist loadscope``.

One has every test that starts Spark: two Sparks at once on two processors keep each other's Python workers waiting for too long. The other has
what mostly waits (time-outs, fail-overs, links that are cut), which costs nearly nothing beside Spark.
"""

from __future__ import annotations

from busmq_spark.embedded import server

SPARKS = tuple(
    f"tests/{name}" for name in ("faults/", "soak/", "spark/", "test_docs", "test_notebooks", "test_exports", "test_packaging", "cli/test_demo")
)


def starts_sparks(nodeid: str) -> bool:
    """Whether a test starts Sparks in processes of their own."""
    return nodeid.startswith(SPARKS) and (not nodeid.startswith("tests/spark/") or "test_installed" in nodeid)


def share(nodeid: str) -> str:
    """Which of the two a test belongs to."""
    return "spark" if nodeid.startswith(SPARKS) else "others"


def keep_ports_apart(worker: int, workers: int) -> None:
    """A server that is killed and restarted wants its port again: none of the other process may have taken it meanwhile."""
    span = (server.LAST_PORT - server.FIRST_PORT) // workers
    server.FIRST_PORT += worker * span
    server.LAST_PORT = server.FIRST_PORT + span
