"""Rows and dead letters of one query are in their queues once, wherever the driver is killed
between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.process import Garage
from tests.faults.proxy import Command, Held, Proxy
from tests.faults.scene import Bus, Parted

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

BATCH = 300
FORMATS = [
    {},
    pytest.param({"into": "busmq-realtime", "of": "busmq-realtime"}, marks=pytest.mark.jvm),
]


def commits(command: Command) -> bool:
    return command.name == "commit"


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: "java" if form else "python")
def test_a_driver_killed_between_rows_and_dead_letters_repeats_neither(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path, form: dict[str, str]
) -> None:
    """Before the batch is recorded, between the first and the second queue, and when the last reply
    is lost; the dead one's packets come late.
    """
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
                late.arrive()
            gate = proxy.hold(matches, skip=skip, reply=reply)
            run.feed(BATCH)
            late = run.wait_at(gate, driver)
            driver.kill()
            gate.open()
    with garage.take() as driver:
        run.start(driver, proxy.url, **form)
        run.check(driver)
        assert late
        late.arrive()
        run.feed(BATCH)
        run.check(driver)
