"""Rows and dead letters of one query are in their queues once, wherever the driver is killed between the two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from busmq_spark.core.dead_letter import opened
from tests.faults.process import DriverProcess, Garage
from tests.faults.proxy import Command, Held, Proxy
from tests.faults.scene import Bus, Pipeline
from tests.support import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(900)]

BATCH = 300
FORMATS = [{}, pytest.param({"into": "busmq-realtime", "of": "busmq-realtime"}, marks=pytest.mark.jvm)]


class Parted(Pipeline):
    """Every third message is no JSON."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        super().__init__(bus, folder, sink=None, change="parted")

    def feed(self, rows: int) -> None:
        before = self.fed["in"]
        self.bus.push("in", [b"bad %d" % n if n % 3 == 0 else b'{"n":%d}' % n for n in range(before, before + rows)])
        self.fed["in"] += rows

    def check(self, driver: DriverProcess) -> None:
        """Each once, in order, and each original whole."""
        numbers = range(self.fed["in"])
        good = [b'{"n":%d}' % n for n in numbers if n % 3]

        def arrived() -> bool:
            assert driver.active, driver.error
            return len(self.bus.values("out")) >= len(good) and len(self.bus.values("in.dead")) >= len(numbers) - len(good)

        wait_until(arrived, what="everything has arrived")
        assert self.bus.values("out") == good
        letters = [opened(value) for value in self.bus.values("in.dead")]
        assert [(each.queue, each.id, each.value) for each in letters] == [("in", n + 1, b"bad %d" % n) for n in numbers if n % 3 == 0]


def commits(command: Command) -> bool:
    return command.name == "commit"


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: "java" if form else "python")
def test_a_driver_killed_between_rows_and_dead_letters_repeats_neither(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path, form: dict[str, str]
) -> None:
    """Before the batch is recorded, between the first and the second queue, and when the last reply is lost; the dead one's packets come late."""
    run = Parted(bus, tmp_path)
    late: Held | None = None
    points: list[tuple[Callable[[Command], bool], int, bool]] = [
        (lambda command: command.name == "record", 0, False),
        (commits, 1, False),
        (commits, 1, True),
    ]
    for matches, skip, reply in points:
        with garage.take() as driver:
            run.start(driver, proxy.url, **form)
            run.check(driver)
            if late:
                late.release()
            gate = proxy.hold(matches, skip=skip, reply=reply)
            run.feed(BATCH)
            late = run.wait_at(gate, driver)
            driver.kill()
            gate.open()
    with garage.take() as driver:
        run.start(driver, proxy.url, **form)
        run.check(driver)
        assert late
        late.release()
        run.feed(BATCH)
        run.check(driver)


def test_executors_of_a_cluster_write_both(bus: Bus, tmp_path: Path) -> None:
    run = Parted(bus, tmp_path)
    with DriverProcess(tmp_path, master="local-cluster[2,1,1024]") as driver:
        for _ in range(2):
            run.feed(BATCH)
            if not run.attempts:
                run.start(driver)
            run.check(driver)
