"""``kill -9`` of the driver between planning and commit, and the queue is another one when the batch is read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.process import Garage
from tests.faults.proxy import Command, Proxy, ends_the_queue
from tests.faults.scene import Bus, Pipeline
from tests.support import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(900)]

FORMATS = [
    pytest.param({"of": "busmq-quick", "into": "busmq"}, id="python"),
    pytest.param({"of": "busmq-realtime", "into": "busmq-realtime"}, marks=pytest.mark.jvm, id="java"),
]
DONE, PLANNED, ANEW = 30, 10, 60
"""Messages that are read before, that the batch has, and that the queue has which is in the place of the first one."""


@dataclass(frozen=True)
class Point:
    """Where the driver is killed: at a command of the sink or its reply, when so many rows of the batch are written."""

    name: str
    matches: Callable[[Command], bool]
    reply: bool
    written: int


POINTS = [
    Point("before the commit", lambda command: command.name == "record", reply=False, written=0),
    Point("after the commit, before the commit log", ends_the_queue, reply=True, written=PLANNED),
]


@pytest.mark.parametrize("how", FORMATS)
@pytest.mark.parametrize("point", [pytest.param(each, id=each.name) for each in POINTS])
def test_with_fail_on_data_loss_false_a_batch_of_a_queue_that_was_created_again_gives_no_row_of_the_new_one(
    bus: Bus,
    proxy: Proxy,
    garage: Garage,
    tmp_path: Path,
    how: dict[str, Any],
    point: Point,
) -> None:
    """Its ids are given out again, and further than the batch goes. What is in the queue is read by the next batch, each message once."""
    run = Pipeline(bus, tmp_path, failOnDataLoss="false")
    with garage.take() as driver:
        run.feed(DONE)
        run.start(driver, **how)
        run.check_whole(driver)
        driver.stop()
        gate = proxy.hold(point.matches, reply=point.reply)
        run.feed(PLANNED)
        run.start(driver, proxy.url, **how)
        held = run.wait_at(gate, driver)
        assert run.checkpoint.committed < run.checkpoint.planned_with_rows
        assert len(bus.values("out")) == DONE + point.written
        driver.kill()
        held.drop()
        gate.open()
    before = bus.values("out")
    bus.close("in")
    bus.create("in")
    anew = [b"again %d" % i for i in range(ANEW)]
    bus.push("in", anew)

    with garage.take() as driver:
        run.start(driver, **how)
        wait_until(lambda: not driver.active or (len(bus.values("out")) >= len(before) + ANEW and bus.count("in") == 0), what="all is read and acked")
        assert driver.active, driver.error
        assert bus.values("out") == [*before, *anew]
        assert "created again" in driver.log.read_text()
        assert "going on from the oldest stored message" in driver.log.read_text()
