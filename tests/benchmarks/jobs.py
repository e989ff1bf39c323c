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
COUNTS = {"job": 2000, "request": 2000, "flight": 20_000}
ONE, FLIGHT = 1.5, 3.0


def run(runs: int = RUNS) -> Iterator[Row]:
    with redis() as (server, _), tempfile.TemporaryDirectory() as modules:
        ways = {how: partial(ours, server.url, how) for how in COUNTS}
        peer = installed(Path(modules))
        if peer:
            ways["hfxbus"] = partial(npm, Path(modules), server.url)
        found = alternating(runs, **ways)
    over = Spread.of(ratios(found["job"], found["request"]))
    what = "Job: send → worker → waiter, one in flight, median time against that of a bare request of a service"
    yield Row(what, f"{over.text()}; {Spread.of(found['job']).text(2, ' ms')}", f"≤ {ONE}", over.median <= ONE)
    rate = Spread.of(found["flight"]).text(0)
    if peer:
        over = Spread.of(ratios(found["flight"], found["hfxbus"]))
        what = f"Jobs, 1,000 in flight, one process: rate against npm {PACKAGES['hfxbus']}"
        yield Row(what, f"{over.text(1)}; {rate} a second", f"≥ {FLIGHT}", over.median >= FLIGHT)
    else:
        yield Row("Jobs, 1,000 in flight, one process: jobs a second", rate, "", None)


def ours(url: str, how: str) -> float:
    return _value([sys.executable, "-m", "tests.benchmarks.job_load", url, how, str(COUNTS[how])])


def npm(modules: Path, url: str) -> float:
    return _value([shutil.which("node") or "node", str(HERE / "job_load.js"), str(modules), url, str(COUNTS["flight"])])


def _value(line: list[str]) -> float:
    done = subprocess.run(line, cwd=HERE.parents[1], capture_output=True, text=True, check=True, timeout=300)
    value: float = json.loads(done.stdout)["value"]
    return value
