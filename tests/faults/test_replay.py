"""``kill -9`` of the driver between planning and commit, and the queue is another one when the
batch is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.process import DriverProcess, Garage
from tests.faults.proxy import Command, Proxy, ends_the_queue
from tests.faults.scene import Bus, Pipeline
from tests.support import wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

FORMATS = [
    pytest.param({"of": "busmq-quick", "into": "busmq"}, id="python"),
    pytest.param(
        {"of": "busmq-realtime-quick", "into": "busmq-realtime"}, marks=pytest.mark.jvm, id="java"
    ),
]
DONE, PLANNED = 30, 10
"""Messages that are read before, and that the batch has. The queue in the place of each one has
twice as many messages as that ever had.
"""


@dataclass(frozen=True)
class Point:
    """Where the driver is killed: at a command of the sink or its reply, when so many rows of the
    batch are written.
    """

    name: str
    matches: Callable[[Command], bool]
    reply: bool
    written: int


POINTS = [
    Point("before the commit", lambda command: command.name == "record", reply=False, written=0),
    Point("after the commit, before the commit log", ends_the_queue, reply=True, written=PLANNED),
]


def check(bus: Bus, driver: DriverProcess, expected: list[bytes]) -> None:
    """Exactly this is in the sink, and all of it is acked."""
    wait_until(
        lambda: (
            not driver.active or (len(bus.values("out")) >= len(expected) and bus.count("in") == 0)
        ),
        what="all is read and acked",
    )
    assert driver.active, driver.error
    assert bus.values("out") == expected


@pytest.mark.parametrize("how", FORMATS)
def test_with_fail_on_data_loss_false_a_batch_of_a_recreated_queue_gives_no_new_row(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path, how: dict[str, Any]
) -> None:
    """Its ids are given out again, and further than the batch goes. What is in the queue is read by
    the next batch, each message once.

    At each point, one after the other on one checkpoint: the driver that goes on after a kill is
    the one that is killed next.
    """
    run = Pipeline(bus, tmp_path, failOnDataLoss="false")
    expected = [b"first %d" % i for i in range(DONE)]
    bus.push("in", expected)
    for point in [*POINTS, None]:
        with garage.take() as driver:
            run.start(driver, **how)
            check(bus, driver, expected)
            if point is not POINTS[0]:
                assert "created again" in driver.log.read_text()
                assert "going on from the oldest stored message" in driver.log.read_text()
            if point is None:
                return
            driver.stop()
            gate = proxy.hold(point.matches, reply=point.reply)
            planned = [b"planned %s %d" % (point.name.encode(), i) for i in range(PLANNED)]
            bus.push("in", planned)
            run.start(driver, proxy.url, **how)
            held = run.wait_at(gate, driver)
            assert run.checkpoint.committed < run.checkpoint.planned_with_rows
            before = bus.values("out")
            assert before == [*expected, *planned[: point.written]], point.name
            driver.kill()
            held.drop()
            gate.open()
        anew = [
            b"after %s %d" % (point.name.encode(), i) for i in range(2 * bus.state("in").last_id)
        ]
        bus.close("in")
        bus.create("in")
        bus.push("in", anew)
        expected = [*before, *anew]
