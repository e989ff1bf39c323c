"""The scene in real-time mode: what it counts, its picture, and that nothing of it is left."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import COMMAND, environment
from tests.cli.test_demo import alive, interrupted
from tests.jvm import module
from tests.peers.node import need
from tests.support import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
WAYS = ["without Spark", "real-time mode", "ordinary trigger"]


@pytest.fixture(autouse=True)
def jar() -> None:
    need(module.missing())
    module.built()


def test_every_order_arrives_once_in_order_and_a_plot_shows_how_long_they_took(
    tmp_path: Path,
) -> None:
    run = [*COMMAND, "demo", "realtime", "--seconds", "1", "--json", "--output", "plot.png"]
    done = subprocess.run(
        run,
        cwd=tmp_path,
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [note] = [json.loads(line)["note"] for line in done.stderr.splitlines()]
    assert "allowlistCheck" in note  # what is switched off is said
    records = [json.loads(line) for line in done.stdout.splitlines()]
    ways = {record["stage"]: record for record in records if "stage" in record}
    assert list(ways) == WAYS
    for way in ways.values():
        assert way["pushed"] == way["arrived"] > 0
        assert (way["missing"], way["twice"], way["out_of_order"]) == (0, 0, 0)
        assert 0 < way["ms"]["p50"] <= way["ms"]["p99"] <= way["ms"]["max"]
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with interrupted(tmp_path, "demo", "realtime", notes="(.*allowlistCheck.*\\n)?") as demo:
        # What becomes of Spark is the matter of test_demo.py.
        wait_until(
            lambda: clients(demo.pid) == 2 and demo.has_said("redis"),
            2 * PATIENCE_S,
            what="both clients are at work",
        )


def clients(pid: int) -> int:
    return sum(
        "latency_clients" in " ".join(child.cmdline())
        for child in psutil.Process(pid).children(recursive=True)
        if alive(child)
    )
