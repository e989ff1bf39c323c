"""The notebooks run from top to bottom in a fresh kernel, and are committed with their outputs and
plots.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jvm import module
from tests.peers.node import missing, need

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WITH_PEER = ROOT / "notebooks" / "02_bus_and_peers.ipynb"
WITH_JAR = ROOT / "notebooks" / "04_real_time.ipynb"
NODE_IS_THERE, NODE_IS_NOT = "this is npm busmq 3.1.0", "No Node.js on PATH"
PATHS = re.compile(
    r"(?<![\w:/])/(?:root|home|Users|tmp|var|opt|usr|mnt|private|work|workspace|builds?)/\w|[A-Z]:\\\\|site-packages|file://"
)
# A process of its own: the kernel's client has threads and sockets that pytest should not have to
# judge.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=880, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
print(*(output.text for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "stream"))
"""  # noqa: E501

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in cells(path) for output in cell["outputs"]]


def run(path: Path, folder: Path, **more: str) -> str:
    """What it prints. ``more``: environment variables."""
    variables = {
        name: value for name, value in os.environ.items() if name != "BUSMQ_REDIS_URL"
    } | more
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [sys.executable, "-c", EXECUTE, str(path), str(folder)]
    done = subprocess.run(
        command, env=variables, cwd=folder, capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@each_notebook
def test_a_title_takes_the_numbers_of_a_run_from_the_run(path: Path) -> None:
    """A number of rows or reports in the title of a plot is right also where the code before it
    changes.
    """
    titles = [
        title
        for cell in cells(path)
        for title in re.findall(r'title=f?"([^"]*)"', "".join(cell["source"]))
    ]
    assert [title for title in titles if re.match(r"\d+ ", title)] == []


@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(900)
@each_notebook
def test_it_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    if path == WITH_JAR:
        need(module.missing())
        module.built()
    printed = run(path, tmp_path)
    if path == WITH_PEER and (os.environ.get("CI") == "true" or not missing()):
        assert NODE_IS_THERE in printed, missing()


@pytest.mark.redis
@pytest.mark.timeout(900)
def test_without_node_the_peer_is_a_second_python(tmp_path: Path) -> None:
    (bare := tmp_path / "bin").mkdir()
    if redis_server := shutil.which("redis-server"):
        (bare / "redis-server").symlink_to(redis_server)
    printed = run(WITH_PEER, tmp_path, PATH=str(bare))
    assert NODE_IS_NOT in printed
    assert NODE_IS_THERE not in printed


def test_a_reader_sees_what_node_said() -> None:
    assert NODE_IS_THERE in json.dumps(outputs(WITH_PEER))


@each_notebook
def test_every_cell_was_run_once_and_in_order(path: Path) -> None:
    assert [cell["execution_count"] for cell in cells(path)] == list(range(1, len(cells(path)) + 1))


@each_notebook
def test_it_is_committed_with_outputs_and_a_plot_and_without_noise(path: Path) -> None:
    found = outputs(path)
    assert [output for output in found if "image/png" in output.get("data", {})], "no plot"
    assert [output for output in found if output["output_type"] == "stream"], "no text"
    assert [
        output
        for output in found
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ] == []


@each_notebook
def test_it_contains_nothing_of_the_machine_it_was_run_on(path: Path) -> None:
    texts = json.loads(path.read_text())
    for cell in texts["cells"]:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("image/png", None)
    assert PATHS.findall(json.dumps(texts)) == []
