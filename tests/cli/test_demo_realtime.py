"""The scene in real-time mode: what it counts, its picture, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import COMMAND, environment
from tests.cli.test_demo import BEGUN, alive
from tests.jvm import module
from tests.peers.node import need
from tests.support import PATIENCE_S, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(200)]
WAYS = ["without Spark", "real-time mode", "ordinary trigger"]


@pytest.fixture(autouse=True)
def jar() -> None:
    need(module.missing())
    module.built()


def test_every_order_arrives_once_in_order_and_a_picture_tells_how_long_they_took(tmp_path: Path) -> None:
    run = [*COMMAND, "demo", "realtime", "--seconds", "1", "--json", "--output", "plot.png"]
    done = subprocess.run(run, cwd=tmp_path, env=environment(None), capture_output=True, text=True, timeout=180, check=False)
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
    home, temporary, said = tmp_path / "home", tmp_path / "tmp", tmp_path / "out"
    home.mkdir()
    temporary.mkdir()
    started: dict[int, psutil.Process] = {}
    begun = [*BEGUN, "demo", "realtime"]
    environ = environment(None) | {"TMPDIR": str(temporary)}
    with (
        said.open("wb") as out,
        (tmp_path / "err").open("wb") as err,
        subprocess.Popen(begun, cwd=home, env=environ, stdout=out, stderr=err, start_new_session=True) as demo,
    ):

        def watched() -> bool:
            """Both clients are at work. What becomes of Spark is the matter of test_demo.py."""
            children = psutil.Process(demo.pid).children(recursive=True)
            started.update({child.pid: child for child in children})
            return sum("stopwatch" in " ".join(child.cmdline()) for child in children if alive(child)) == 2

        wait_until(watched, 2 * PATIENCE_S, what="the clients are at work")
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(PATIENCE_S) == 130
    assert "Traceback" not in (tmp_path / "err").read_text()
    wait_until(lambda: not [child for child in started.values() if alive(child)], what="every process has ended")
    assert list(temporary.iterdir()) == []
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("words", [["realtime", "--rows", "10"], ["flights", "--seconds", "5"]])
def test_options_of_another_scene_are_refused(tmp_path: Path, words: list[str]) -> None:
    run = [*COMMAND, "demo", *words, "--json"]
    done = subprocess.run(run, cwd=tmp_path, env=environment(None), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words[1] in json.loads(done.stderr)["error"]["message"]
