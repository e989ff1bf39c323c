"""Real-time mode is at least once: when a process is killed in a long batch, that batch is
repeated, in order, and nothing else is.

And a batch is no longer than its trigger says, whatever becomes of the wall clock.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.faults.process import DriverProcess
from tests.faults.scene import Bus, Checkpoint
from tests.jvm import module
from tests.peers.node import need
from tests.soak.machine import Machine, can_be_set
from tests.support import wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
LONG = "1000 seconds"


class Live:
    """Queue ``in`` to queue ``out`` in real-time mode on one checkpoint."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self.bus, self.checkpoint = bus, Checkpoint(folder / "checkpoint")
        self.pushed = 0
        bus.create("in")

    def start(self, driver: DriverProcess, duration: str, **sink: str) -> None:
        where = {"redis.url": self.bus.server.url}
        sink = {**where, "queue": "out", **sink}
        driver.ask(
            "live",
            checkpoint=str(self.checkpoint.folder),
            source={**where, "subscribe": "in"},
            sink=sink,
            duration=duration,
        )

    def feed(self, rows: int) -> None:
        self.bus.push("in", [b"%07d" % seq for seq in range(self.pushed, self.pushed + rows)])
        self.pushed += rows

    def wait(self, driver: DriverProcess, rows: int) -> None:
        def arrived() -> bool:
            if not driver.active:
                raise AssertionError(driver.error)
            return self.bus.count("out") >= rows

        wait_until(arrived, what=f"{rows} rows have arrived")

    def wait_committed(self) -> None:
        """Until what was pushed is in the commit log and, since that has come back to the source,
        acknowledged.
        """
        wait_until(lambda: self.bus.count("in") == 0, what="everything is acknowledged")

    def check(self, *parts: range) -> None:
        """What has arrived, run by run."""
        assert [int(value) for value in self.bus.values("out")] == [
            seq for part in parts for seq in part
        ]


@pytest.fixture
def live(bus: Bus, tmp_path: Path) -> Live:
    need(module.missing())
    return Live(bus, tmp_path)


def test_a_driver_killed_in_a_long_batch_repeats_what_came_since_the_checkpoint_and_no_more(
    live: Live, tmp_path: Path
) -> None:
    with DriverProcess(tmp_path / "1", live=True) as driver:
        live.start(driver, "1 seconds")
        live.feed(100)
        live.wait(driver, 100)
        live.wait_committed()
        driver.stop()
        live.start(driver, LONG)
        live.feed(200)
        live.wait(driver, 300)
        before = live.checkpoint.committed
        driver.kill()
    assert live.checkpoint.committed == before
    with DriverProcess(tmp_path / "2", live=True) as driver:
        live.feed(50)
        live.start(driver, "1 seconds")
        live.wait(driver, 300 + 200 + 50)
        live.wait_committed()
    live.check(range(300), range(100, 350))  # 200 twice: those of the batch that never ended


def test_an_executor_killed_in_a_long_batch_costs_its_task_a_second_try_from_the_start(
    live: Live, tmp_path: Path
) -> None:
    with DriverProcess(tmp_path, master="local-cluster[1,1,1024]", live=True) as driver:
        live.start(driver, LONG)
        live.feed(100)
        live.wait(driver, 100)
        [executor] = [each for each in driver.processes() if is_executor(each)]
        assert "-XX:G1HeapRegionSize=4m" in executor.cmdline()  # realtime has said so
        executor.kill()
        live.feed(50)
        live.wait(driver, 100 + 150)
        live.check(range(100), range(150))
        assert live.checkpoint.committed == -1


def test_a_driver_or_executor_killed_in_a_long_batch_repeats_nothing_where_rows_say_their_origin(
    live: Live, tmp_path: Path
) -> None:
    with DriverProcess(tmp_path / "1", master="local-cluster[1,1,1024]", live=True) as driver:
        live.start(driver, LONG, delivery="exactly-once")
        live.feed(100)
        live.wait(driver, 100)
        [executor] = [each for each in driver.processes() if is_executor(each)]
        executor.kill()
        live.feed(50)
        live.wait(driver, 150)
        live.check(range(150))
        driver.kill()
    assert live.checkpoint.committed == -1
    with DriverProcess(tmp_path / "2", live=True) as driver:
        live.feed(50)
        live.start(driver, "1 seconds", delivery="exactly-once")
        live.wait(driver, 200)
        live.wait_committed()
    live.check(range(200))


def is_executor(process: psutil.Process) -> bool:
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "CoarseGrainedExecutorBackend" in words and "SparkSubmit" not in words


@pytest.mark.skipif(
    not can_be_set(), reason="setting the clock of a process needs Linux and a C compiler (cc)"
)
def test_a_batch_during_which_the_clock_is_set_back_ends_when_it_would_have(
    live: Live, tmp_path: Path
) -> None:
    """Spark computes the end of a batch from the wall clock: a day behind, it would acknowledge
    nothing for a day.
    """
    machine = Machine(tmp_path / "machine")
    with DriverProcess(tmp_path / "1", live=True, more=machine.environment) as driver:
        live.start(driver, "4 seconds")
        live.feed(100)
        live.wait(driver, 100)
        machine.set_clock(-86_400)
        live.feed(100)
        live.wait(driver, 200)
        live.wait_committed()
        live.feed(100)  # later batches go by the clock as it is now
        live.wait(driver, 300)
        live.wait_committed()
    live.check(range(300))
