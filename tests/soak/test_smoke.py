"""A round of the soak, always the same: it must end well, and the checks must find what is
wrong.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.soak.__main__ import one
from tests.soak.drivers import Drivers
from tests.soak.faults import FAULTS, chosen
from tests.soak.flat import Flat
from tests.soak.machine import Machine, can_be_set
from tests.soak.run import KINDS, Run, Violation
from tests.soak.site import Site
from tests.support import PATIENCE_S, gone, wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.fault
@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.slow
def test_a_round_of_the_soak_ends_well() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.soak",
        "--seed",
        "4",
        "--round",
        "1",
        "--kind",
        "python",
        "--fault",
        "packet late",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=880
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "packet late" in done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Drivers]]:
    """One for the rounds of all variants, so that they share a driver."""
    folder = tmp_path_factory.mktemp("soak")
    with Site(folder) as site:
        drivers = Drivers(folder, site.machines["spark"])
        try:
            yield site, drivers
        finally:
            drivers.kill()


@pytest.mark.fault
@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("topic", "topic grown"),
        ("shared", "group worker answers late"),
        ("mirror", "mirror killed"),
    ],
)
def test_a_round_of_each_variant_ends_well(
    place: tuple[Site, Drivers], kind: str, fault: str
) -> None:
    result = one(*place, 1, argparse.Namespace(seed=3946, kind=[kind], fault=[fault]))
    assert not result.violation, result.violation
    assert result.done[0].startswith(fault)


@pytest.mark.fault
@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.slow
def test_ctrl_c_ends_a_soak_with_one_line_and_with_all_that_it_started() -> None:
    command = [sys.executable, "-u", "-m", "tests.soak", "--seed", "4", "--kind", "python"]
    soak = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    myself = psutil.Process(soak.pid)
    started: list[psutil.Process] = []

    def at_work() -> bool:
        started[:] = myself.children(recursive=True)
        with suppress(psutil.Error):  # one that has just ended
            return any("tests.faults.driver" in " ".join(each.cmdline()) for each in started)
        return False

    with soak:
        try:
            wait_until(at_work, what="a round has begun")
            soak.send_signal(signal.SIGINT)
            out, err = soak.communicate(timeout=PATIENCE_S)
        finally:
            soak.kill()
    assert soak.returncode == 130, out + err
    assert [line for line in out.splitlines() if line.strip()] == [
        "seed 4",
        "interrupted: seed 4, 0 rounds done",
    ]
    assert err == ""
    wait_until(
        lambda: all(gone(each.pid) for each in started), what="all that it started has ended"
    )


WRITES = """
import os, sys
for folder in sys.argv[1:]:
    for name, text, synced in [("whole", "whole", "both"), ("longer", "long", "both"), ("empty", "bytes", "name"),
                               ("longer", "longer", ""), ("nameless", "nameless", "bytes")]:
        file, names = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), os.open(folder, os.O_RDONLY)
        os.write(file, text.encode())
        if synced in ("both", "bytes"):
            os.fsync(file)
        if synced in ("both", "name"):
            os.fsync(names)
"""  # noqa: E501


@pytest.mark.skipif(not can_be_set(), reason="a C compiler on Linux is needed")
def test_a_power_cut_keeps_what_was_synced_and_may_take_anything_else(tmp_path: Path) -> None:
    machine, outcomes = Machine(tmp_path / "machine"), set()
    folders = [tmp_path / str(at) for at in range(50)]
    for folder in folders:
        folder.mkdir()
    with machine.on():
        subprocess.run([sys.executable, "-c", WRITES, *folders], check=True)
    for at, folder in enumerate(folders):
        machine.cut_power(folder, Random(at))
        found = {file.name: file.read_text() for file in folder.iterdir()}
        assert found["whole"] == "whole"
        assert found["longer"] in ("long", "longer")
        assert found.get("nameless", "nameless") == "nameless"
        outcomes.add(("nameless" in found, found["longer"], found["empty"] == "bytes"))
    assert len(outcomes) == 8, outcomes


@pytest.mark.skipif(not can_be_set(), reason="a C compiler on Linux is needed")
def test_a_clock_that_is_set_is_set_for_the_processes_of_its_machine_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    program = (
        "import time, sys; print(time.time(), time.monotonic(), flush=True); sys.stdin.readline();"
        " print(time.time(), time.monotonic())"
    )
    with (
        machine.on(),
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        before, steady = map(float, process.stdout.readline().split())
        machine.set_clock(-86_400)
        after, later = map(float, process.communicate("\n")[0].split())
    assert after - before == pytest.approx(later - steady - 86_400, abs=PATIENCE_S)
    assert time.time() >= before


def test_what_grows_in_a_process_from_round_to_round_is_found() -> None:
    flat = Flat()
    assert not flat.grown("it", 1, {"threads": 100})
    assert not flat.grown("it", 1, {"threads": 140})
    assert not flat.grown("another", 2, {"threads": 900})
    assert "141 threads" in flat.grown("it", 1, {"threads": 141})


class Sunk(Run):
    """The end of a round without its servers."""

    def __init__(self, fed: int, sunk: list[int], **of: Any) -> None:
        self.sources, self.fed, self.sunk = ["q"], {"q": fed}, sunk
        self.harmed, self.repeats, self.errors = (
            of.get(name, default)
            for name, default in (("harmed", False), ("repeats", False), ("errors", []))
        )
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
        pytest.param(
            Sunk(4, [0, 3], harmed=True, errors=["LINK_LOST"]),
            id="an error that says something else",
        ),
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
    drawn = {kind: [chosen(Random(f"7:{number}"), kind) for number in range(300)] for kind in KINDS}
    assert drawn == {
        kind: [chosen(Random(f"7:{number}"), kind) for number in range(300)] for kind in KINDS
    }
    for kind, rounds in drawn.items():
        assert {fault.name for faults in rounds for fault in faults} == {
            fault.name for fault in FAULTS if kind in fault.kinds
        }
