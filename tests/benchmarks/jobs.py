"""Jobs against bare requests of a service, and against npm hfxbus with 1,000 in flight; one process each, in turn, on the same Redis."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.benchmarks.groups import PACKAGES, installed
from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios, redis

HERE = Path(__file__).parent
COUNTS = {"job": 2000, "request": 2000, "flight": 20_000, "many": 20_000, "empty": 20_000}
ONE, FLIGHT = 1.5, 3.0


def run(runs: int = RUNS) -> Iterator[Row]:
    costs: dict[str, list[dict[str, float]]] = {how: [] for how in COUNTS}
    with redis() as (server, _), tempfile.TemporaryDirectory() as modules:
        ways = {how: partial(ours, server.url, how, costs[how]) for how in COUNTS}
        peer = installed(Path(modules))
        if peer:
            ways["hfxbus"] = partial(npm, Path(modules), server.url)
        found = alternating(runs, **ways)
    over = Spread.of(ratios(found["job"], found["request"]))
    what = "Job: send → worker → waiter, one in flight, median time against that of a bare request of a service"
    yield Row(what, f"{over.text()}; {Spread.of(found['job']).text(2, ' ms')}", f"≤ {ONE}", over.median <= ONE)
    for how, said, target in (("many", "100 in a call", FLIGHT), ("flight", "each sent by a task of its own", None)):
        rate, cost = Spread.of(found[how]).text(0), ", ".join(f"{name} {spent(costs[how], name, runs)}" for name in ("process", "redis"))
        if peer:
            over = Spread.of(ratios(found[how], found["hfxbus"]))
            what = f"Jobs, 1,000 in flight, one process, {said}: rate against npm {PACKAGES['hfxbus']}; a second; µs of CPU a job"
            yield Row(what, f"{over.text(1)}; {rate}; {cost}", f"≥ {target}" if target else "", over.median >= target if target else None)
        else:
            yield Row(f"Jobs, 1,000 in flight, one process, {said}: jobs a second; µs of CPU a job", f"{rate}; {cost}", "", None)
    yield Row("The least on asyncio: a task and a future for each, µs of CPU", spent(costs["empty"], "process", runs), "", None)


def spent(costs: list[dict[str, float]], name: str, runs: int) -> str:
    return Spread.of([each[f"{name}_us"] for each in costs[-runs:]]).text(1)


def ours(url: str, how: str, costs: list[dict[str, float]]) -> float:
    """The value; ``costs`` gets all that was measured."""
    found = _found([sys.executable, "-m", "tests.benchmarks.job_load", url, how, str(COUNTS[how])])
    costs.append(found)
    return found["value"]


def npm(modules: Path, url: str) -> float:
    return _found([shutil.which("node") or "node", str(HERE / "job_load.js"), str(modules), url, str(COUNTS["flight"])])["value"]


def _found(line: list[str]) -> dict[str, float]:
    done = subprocess.run(line, cwd=HERE.parents[1], capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, float] = json.loads(done.stdout)
    return found
