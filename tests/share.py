"""How two processes of pytest-xdist share the tests: ``pytest -n 2 --dist loadscope``.

One begins with the tests that share a Spark, the other with what mostly waits (time-outs, fail-overs, links that are cut), which costs nearly nothing
beside Spark. What starts Sparks of its own comes in parts, the largest first: each part to whichever process has come to its end.
"""

from __future__ import annotations

from busmq_spark.embedded import server

OWN_SPARKS = {
    "tests/faults/": "faults",
    "tests/soak/": "soak",
    "tests/spark/test_installed": "installed",
    "tests/cli/test_demo": "demos",
    "tests/test_docs": "docs",
    "tests/test_exports": "packages",
    "tests/test_notebooks": "notebooks",
    "tests/test_packaging": "packages",
}


def starts_sparks(nodeid: str) -> bool:
    """Whether a test starts Sparks in processes of their own."""
    return nodeid.startswith(tuple(OWN_SPARKS))


def share(nodeid: str) -> str:
    """The part that a test belongs to; all tests of a part run in one process."""
    own = next((part for prefix, part in OWN_SPARKS.items() if nodeid.startswith(prefix)), "")
    return own or ("spark" if nodeid.startswith("tests/spark/") else "others")


def keep_ports_apart(worker: int, workers: int) -> None:
    """A server that is killed and restarted needs its port again: none of the other process may have taken it meanwhile."""
    span = (server.LAST_PORT - server.FIRST_PORT) // workers
    server.FIRST_PORT += worker * span
    server.LAST_PORT = server.FIRST_PORT + span
