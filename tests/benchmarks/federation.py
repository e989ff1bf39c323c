"""Federated pushing and consuming against the npm package: server and client in a process each, in
turn, on the same Redis; one queue, 32 B.

A further way to push or consume is a further line in SCENARIOS.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from busmq_spark.redis_io.sync_link import SyncLink
from tests.benchmarks.harness import RUNS, Row, Spread, fill, ratios, redis
from tests.peers.node import missing

HERE = Path(__file__).parent
NODE = shutil.which("node") or "node"
SECRET = "only-for-measuring"
MODES = {
    "burst": "push, all at once",
    "each": "push, each after the answer to the one before",
    "consume": "consume",
}
COUNTS = {"burst": 20_000, "each": 5_000, "consume": 40_000}
Client = Callable[[str, str, str, int], list[str]]


def npm_client(url: str, mode: str, queue: str, count: int) -> list[str]:
    """The command that measures npm's client."""
    return [NODE, str(HERE / "fed_client.js"), url, SECRET, mode, queue, str(count)]


def our_client(url: str, mode: str, queue: str, count: int) -> list[str]:
    """The command that measures ours."""
    return [
        sys.executable,
        "-m",
        "tests.benchmarks.fed_client",
        url,
        SECRET,
        mode,
        queue,
        str(count),
    ]


def our_source(url: str, mode: str, queue: str, count: int) -> list[str]:
    """The command that measures what Spark's source does at a server without bulk."""
    return [
        sys.executable,
        "-m",
        "tests.benchmarks.fed_source",
        url,
        SECRET,
        mode,
        queue,
        str(count),
    ]


def npm_server(url: str) -> list[str]:
    """The command that serves with npm."""
    return [NODE, str(HERE / "fed_server.js"), url, SECRET]


def our_server(url: str) -> list[str]:
    """The command that serves with this package."""
    return [sys.executable, "-m", "tests.benchmarks.fed_serve", url, SECRET]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A client at a server. Its rates are compared with those of npm's client at npm's server."""

    what: str
    client: Client
    server: str
    target: float | None
    modes: Collection[str] = tuple(MODES)


BASE = Scenario("npm client, npm server", npm_client, "npm", 1.0)
SCENARIOS = [
    Scenario("npm client at our server", npm_client, "ours", 1.0),
    Scenario("our client at npm's server", our_client, "npm", 1.0),
    Scenario("our client at our server", our_client, "ours", 1.0),
    Scenario(
        "what Spark's source does at npm's server (look, then remove)",
        our_source,
        "npm",
        None,
        ("consume",),
    ),
]


def run(runs: int = RUNS) -> Iterator[Row]:
    if reason := missing():
        print(f"    left out: {reason}", file=sys.stderr)
        return
    with redis() as (server, link), ExitStack() as stack:
        urls = {
            "npm": stack.enter_context(serving(npm_server(server.url))),
            "ours": stack.enter_context(serving(our_server(server.url))),
        }
        for mode, words in MODES.items():
            scenarios = [scenario for scenario in SCENARIOS if mode in scenario.modes]
            found: dict[str, list[float]] = {scenario.what: [] for scenario in (BASE, *scenarios)}
            for turn in range(runs + 1):
                for scenario in (BASE, *scenarios):
                    rate = measure(link, scenario.client, urls[scenario.server], mode)
                    if turn:
                        found[scenario.what].append(rate)
                        print(
                            f"    {words}, {scenario.what} {turn}/{runs}: {rate:.0f} a second",
                            file=sys.stderr,
                            flush=True,
                        )
            for scenario in scenarios:
                yield compared(words, scenario, found[scenario.what], found[BASE.what])


def compared(words: str, scenario: Scenario, here: list[float], there: list[float]) -> Row:
    over, rate, base = Spread.of(ratios(here, there)), Spread.of(here), Spread.of(there)
    shown = f"{over.text()}; {rate.median / 1000:.1f} k/s, npm {base.median / 1000:.1f} k/s"
    what = f"Federated {words}: {scenario.what}, against {BASE.what}"
    return (
        Row(what, shown, "", None)
        if scenario.target is None
        else Row(what, shown, f"≥ {scenario.target}", over.median >= scenario.target)
    )


def measure(link: SyncLink, client: Client, url: str, mode: str) -> float:
    """Messages a second, as the client counts them, on a fresh queue."""
    count = COUNTS[mode]
    fill(link, "federated", count if mode == "consume" else 1, 32)
    done = subprocess.run(
        client(url, mode, "federated", count),
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return float(json.loads(done.stdout))


@contextmanager
def serving(line: list[str]) -> Iterator[str]:
    """The URL of a server that runs meanwhile."""
    with subprocess.Popen(
        line, cwd=HERE.parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate(timeout=30)
