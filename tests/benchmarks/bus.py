"""The asyncio bus against the npm package: one process each, in turn, on the same Redis; 100
queues, 32 B, pushing and consuming at once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.harness import RUNS, Row, Spread, ratios, redis
from tests.peers.node import missing

HERE = Path(__file__).parent
COUNTS = {"each": 1000, "burst": 1000, "many": 5000}
BATCHED, AWAITED, CORE = 3.0, 0.5, 0.05
Rates = dict[str, float]


def run(runs: int = RUNS) -> Iterator[Row]:
    if reason := missing():
        print(f"    left out: {reason}", file=sys.stderr)
        return
    with redis() as (server, _):
        url = server.url
        names = {"npm each": npm, "npm burst": npm, "ours each": ours, "ours many": ours}
        found: dict[str, list[Rates]] = {name: [] for name in names}
        for turn in range(runs + 1):
            for name, way in names.items():
                rates = way(url, name.split()[1])
                if turn:
                    found[name].append(rates)
                    print(
                        f"    {name} {turn}/{runs}: {rates['push']:.0f} pushed,"
                        f" {rates['consume']:.0f} consumed a second",
                        file=sys.stderr,
                        flush=True,
                    )
        for ours_, npm_, target in (
            ("many", "each", BATCHED),
            ("each", "each", AWAITED),
            ("many", "burst", None),
        ):
            yield from compared(found[f"ours {ours_}"], found[f"npm {npm_}"], ours_, npm_, target)
        yield from saturated(url, runs)
        cost = ours(url, "idle", 20)
        yield Row(
            "Keeping 10,000 attached queues of 30 s alive in one process: part of a core",
            f"{cost['core']:.3f}",
            f"≤ {CORE}",
            cost["core"] <= CORE,
        )
        yield Row("Memory of an attached queue", f"{cost['bytes'] / 1024:.1f} KB", "", None)


def compared(
    here: list[Rates], there: list[Rates], mode: str, npm_mode: str, target: float | None
) -> Iterator[Row]:
    words = {"each": "one awaited call per message", "many": "batches of 100"}[mode]
    other = {
        "each": "npm busmq, a push after the answer to the one before",
        "burst": "npm busmq, all pushes at once",
    }[npm_mode]
    for direction in ("push", "consume"):
        over = Spread.of(ratios([r[direction] for r in here], [r[direction] for r in there]))
        shown = f"{over.text()}, {Spread.of([r[direction] for r in here]).median / 1000:.0f} k/s"
        met = None if target is None else over.median >= target
        yield Row(
            f"Bus in Python, {direction}, {words}, against {other}",
            shown,
            "" if target is None else f"≥ {target}",
            met,
        )


def saturated(url: str, runs: int) -> Iterator[Row]:
    """Consumption while others keep Redis busy with pushes, as a part of what is pushed by the same
    process at the same time.
    """
    kept: dict[str, list[float]] = {"npm": [], "ours": []}
    with pushers(url):
        for _ in range(runs):
            for name, rates in (("npm", npm(url, "burst")), ("ours", ours(url, "many"))):
                kept[name].append(rates["consume"] / rates["push"])
    share, other = Spread.of(kept["ours"]), Spread.of(kept["npm"])
    shown = f"{share.text()}; npm {other.text()}"
    yield Row(
        "Bus in Python, messages consumed per message pushed while two more processes saturate"
        " Redis with pushes",
        shown,
        "≥ 0.5",
        share.median >= 0.5,
    )


@contextmanager
def pushers(url: str) -> Iterator[None]:
    """Two processes that push as fast as they can, to queues of their own."""
    line = [sys.executable, "-m", "tests.benchmarks.saturate", url]
    busy = [subprocess.Popen([*line, f"busy{i}"]) for i in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def npm(url: str, mode: str) -> Rates:
    node = shutil.which("node") or "node"
    return _rates([node, str(HERE / "npm_load.js"), url, mode, str(COUNTS[mode])])


def ours(url: str, mode: str, count: int = 0) -> Rates:
    return _rates(
        [sys.executable, "-m", "tests.benchmarks.bus_load", url, mode, str(count or COUNTS[mode])]
    )


def _rates(line: list[str]) -> Rates:
    done = subprocess.run(
        line, cwd=HERE.parents[1], capture_output=True, text=True, check=True, timeout=300
    )
    rates: Rates = json.loads(done.stdout)
    return rates
