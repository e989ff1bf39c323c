"""Jobs against bare requests of a service, and against npm hfxbus with 1,000 in flight; one process
each, in turn, on the same Redis.
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

from tests.benchmarks.groups import PACKAGES, installed
from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios, redis

HERE = Path(__file__).parent
COUNTS = {"job": 2000, "request": 2000, "flight": 20_000, "many": 20_000, "empty": 20_000}
ONE, FLIGHT = 1.5, 3.0


def run(runs: int = RUNS) -> Iterator[Row]:
    costs: dict[str, list[dict[str, float]]] = {how: [] for how in (*COUNTS, "hfxbus")}
    with redis() as (server, _), tempfile.TemporaryDirectory() as modules:
        ways = {how: partial(ours, server.url, how, costs[how]) for how in COUNTS}
        peer = installed(Path(modules))
        if peer:
            ways["hfxbus"] = partial(npm, Path(modules), server.url, costs["hfxbus"])
        found = alternating(runs, **ways)
    over = Spread.of(ratios(found["job"], found["request"]))
    what = (
        "Job: send → worker → waiter, one in flight, median time against that of a bare request of"
        " a service"
    )
    yield Row(
        what,
        f"{over.text()}; {Spread.of(found['job']).text(2, ' ms')}",
        f"≤ {ONE}",
        over.median <= ONE,
    )
    for how, said, target in (
        ("many", "100 in a call", FLIGHT),
        ("flight", "each sent by a task of its own", None),
    ):
        rate, cost = (
            Spread.of(found[how]).text(0),
            ", ".join(f"{name} {spent(costs[how], name, runs)}" for name in ("process", "redis")),
        )
        if peer:
            over = Spread.of(ratios(found[how], found["hfxbus"]))
            what = (
                f"Jobs, 1,000 in flight, one process, {said}: rate against npm"
                f" {PACKAGES['hfxbus']}; a second; µs of CPU a job"
            )
            yield Row(
                what,
                f"{over.text(1)}; {rate}; {cost}",
                f"≥ {target}" if target else "",
                over.median >= target if target else None,
            )
        else:
            yield Row(
                f"Jobs, 1,000 in flight, one process, {said}: jobs a second; µs of CPU a job",
                f"{rate}; {cost}",
                "",
                None,
            )
    for how, what in (
        ("hfxbus", f"npm {PACKAGES['hfxbus']}: µs of CPU a job"),
        ("empty", "The least on asyncio, a task and a future: µs of CPU"),
    ):
        if costs[how]:
            yield Row(what, spent(costs[how], "process", runs), "", None)


def spent(costs: list[dict[str, float]], name: str, runs: int) -> str:
    return Spread.of([each[f"{name}_us"] for each in costs[-runs:]]).text(1)


def ours(url: str, how: str, costs: list[dict[str, float]]) -> float:
    """The value; ``costs`` gets all that was measured."""
    return _value(
        [sys.executable, "-m", "tests.benchmarks.job_load", url, how, str(COUNTS[how])], costs
    )


def npm(modules: Path, url: str, costs: list[dict[str, float]]) -> float:
    return _value(
        [
            shutil.which("node") or "node",
            str(HERE / "job_load.js"),
            str(modules),
            url,
            str(COUNTS["flight"]),
        ],
        costs,
    )


def _value(line: list[str], costs: list[dict[str, float]]) -> float:
    done = subprocess.run(
        line, cwd=HERE.parents[1], capture_output=True, text=True, check=True, timeout=300
    )
    costs.append(json.loads(done.stdout))
    return costs[-1]["value"]
