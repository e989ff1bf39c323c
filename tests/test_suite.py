"""How the suite is run: a target for each subject, and a test that hangs ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {path.parent.name for path in ROOT.glob("tests/*/test_*.py")}
NAMED = re.findall(r"make (test(?:-[a-z0-9_]+)*)\b", (ROOT / "CONTRIBUTING.md").read_text())
HANGS = """
import asyncio

async def waits_for_ever():
    await asyncio.get_running_loop().create_future()

async def test_hangs():
    await waits_for_ever()
"""


def make(*words: str) -> str:
    run = subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_every_folder_of_tests_is_a_subject() -> None:
    [subjects] = re.findall("tests of a subject: (.*)", make("help"))
    assert {*subjects.split()} == FOLDERS


@pytest.mark.parametrize("target", sorted({*NAMED, *(f"test-{name}" for name in FOLDERS)}))
def test_a_target_runs_tests_that_are_there(target: str) -> None:
    [*_, runs] = re.findall(r"-m pytest (.*)", make("--dry-run", "CI=", target).replace("\\\n", ""))
    folders = re.findall(r"tests/[a-z_/.]*", runs)
    assert folders or target == "test"
    assert [each for each in folders if not (ROOT / each).exists()] == []


def test_a_test_that_hangs_ends_with_the_stack_of_its_task(tmp_path: Path) -> None:
    path = tmp_path / "test_hanging.py"
    path.write_text(HANGS)
    words = ["-p", "tests.conftest", "-o", "timeout=1", f"--rootdir={tmp_path}", path]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Timeout (>1.0s)" in run.stdout
    assert "in waits_for_ever" in run.stdout
