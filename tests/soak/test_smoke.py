"""A round of the soak, always the same: it must end well, and the checks must find what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.soak.faults import FAULTS, chosen
from tests.soak.run import KINDS, Run, Violation

ROOT = Path(__file__).parents[2]


@pytest.mark.fault
@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.slow
def test_a_round_of_the_soak_ends_well() -> None:
    command = [sys.executable, "-m", "tests.soak", "--seed", "4", "--round", "1", "--kind", "python"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "packet late" in done.stdout


class Sunk(Run):
    """The end of a round without its servers."""

    def __init__(self, fed: int, sunk: list[int], **of: Any) -> None:
        self.sources, self.fed, self.sunk = ["q"], {"q": fed}, sunk
        self.harmed, self.repeats, self.errors = (of.get(name, default) for name, default in (("harmed", False), ("repeats", False), ("errors", [])))
        self.bus: Any = SimpleNamespace(kept_for_ever=lambda: of.get("kept", []))

    def arrived(self, queue: str) -> list[int]:
        return self.sunk


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Sunk(4, [0, 1, 2]), id="the last is missing"),
        pytest.param(Sunk(4, [0, 2, 3]), id="one is missing"),
        pytest.param(Sunk(4, [0, 1, 1, 2, 3]), id="one comes twice"),
        pytest.param(Sunk(4, [0, 2, 1, 3]), id="two change places"),
        pytest.param(Sunk(4, [0, 1, 2, 3], kept=["key"]), id="a key stays"),
        pytest.param(Sunk(4, [0, 3], harmed=True), id="harm without an error"),
        pytest.param(Sunk(4, [0, 3], errors=["LINK_LOST"]), id="an error without a harm"),
        pytest.param(Sunk(4, [0, 3], harmed=True, errors=["LINK_LOST"]), id="an error that says something else"),
        pytest.param(Sunk(4, [0, 1, 3, 2], repeats=True), id="a gap, where repeats are allowed"),
    ],
)
def test_what_is_wrong_is_a_violation(run: Sunk) -> None:
    with pytest.raises(Violation):
        run.check()


def test_what_is_right_is_none() -> None:
    Sunk(3, [0, 1, 2]).check()
    Sunk(3, [0, 1, 0, 1, 2], repeats=True).check()
    Sunk(4, [0, 3], harmed=True, errors=["QUEUE_FLUSHED"]).check()


def test_a_seed_and_a_round_always_draw_the_same_faults_and_every_fault_has_its_turn() -> None:
    from random import Random

    drawn = {kind: [chosen(Random(f"7:{number}"), kind) for number in range(300)] for kind in KINDS}
    assert drawn == {kind: [chosen(Random(f"7:{number}"), kind) for number in range(300)] for kind in KINDS}
    for kind, rounds in drawn.items():
        assert {fault.name for faults in rounds for fault in faults} == {fault.name for fault in FAULTS if kind in fault.kinds}
