"""Groups against a plain reliable consumer and against npm's work queues, one process each, in
turn, on the same Redis; 100 B.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios, redis
from tests.peers.node import missing

HERE = Path(__file__).parent
PACKAGES = {"bullmq": "bullmq@6.7.0", "hfxbus": "hfxbus@2.2.0"}
MESSAGES = {
    "plain": 100_000,
    "ordered": 100_000,
    "shared": 100_000,
    "bullmq": 20_000,
    "hfxbus": 20_000,
}
ORDERED, SHARED, PEERS = 0.9, 50_000, 5.0


def run(runs: int = RUNS) -> Iterator[Row]:
    with redis() as (server, _), tempfile.TemporaryDirectory() as modules:
        peers = list(PACKAGES) if installed(Path(modules)) else []
        ways = {name: partial(ours, server.url, name) for name in ("plain", "ordered", "shared")}
        ways |= {name: partial(npm, Path(modules), server.url, name) for name in peers}
        found = alternating(runs, **ways)
    over, rate = Spread.of(ratios(found["ordered"], found["plain"])), Spread.of(found["shared"])
    of = "one process, batches of 100"
    yield Row(
        f"Ordered group, {of}: rate against a plain reliable consumer",
        over.text(),
        f"≥ {ORDERED}",
        over.median >= ORDERED,
    )
    yield Row(
        f"Shared group, {of}, lease and settle: messages a second",
        rate.text(0),
        f"≥ {SHARED}",
        rate.median >= SHARED,
    )
    for peer in peers:
        over = Spread.of(ratios(found["shared"], found[peer]))
        what = f"Shared group, {of}: rate against npm {PACKAGES[peer]}, 100 at once"
        yield Row(
            what,
            f"{over.text(1)}; {Spread.of(found[peer]).median / 1000:.1f} k/s",
            f"≥ {PEERS}",
            over.median >= PEERS,
        )


def installed(where: Path) -> bool:
    """Whether npm's packages are there now."""
    reason = missing()
    if not reason:
        line = [
            shutil.which("npm") or "npm",
            "install",
            "--silent",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(where),
        ]
        done = subprocess.run(
            [*line, *PACKAGES.values()], cwd=where, capture_output=True, text=True, check=False
        )
        reason = done.stderr.strip() if done.returncode else ""
    if reason:
        print(f"    npm's are left out: {reason}", file=sys.stderr)
    return not reason


def ours(url: str, how: str) -> float:
    return _rate(
        [sys.executable, "-m", "tests.benchmarks.group_load", url, how, str(MESSAGES[how])]
    )


def npm(modules: Path, url: str, which: str) -> float:
    node = shutil.which("node") or "node"
    return _rate(
        [node, str(HERE / "group_load.js"), str(modules), url, which, str(MESSAGES[which])]
    )


def _rate(line: list[str]) -> float:
    done = subprocess.run(
        line, cwd=HERE.parents[1], capture_output=True, text=True, check=True, timeout=300
    )
    rate: float = json.loads(done.stdout)["rate"]
    return rate
