"""``kill -9`` of a driver that writes with the Java module and an ordinary trigger; the next one
writes with the Python sink.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.process import Garage
from tests.faults.proxy import Proxy
from tests.faults.scene import Bus, Pipeline
from tests.jvm import module
from tests.peers.node import need

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

BATCH = 2500
"""Rows of a batch: two tasks of 1250, which are staged and appended as 1000, 250, 1000, 250."""
JAVA, PYTHON = "busmq-realtime", "busmq"


@pytest.fixture(autouse=True)
def _needed() -> None:
    need(module.missing())


def test_a_driver_killed_between_record_and_commit_log_is_succeeded_by_one_with_the_other_sink(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path
) -> None:
    """What the dead driver had sent last reaches Redis when its successor has done the batch."""
    run = Pipeline(bus, tmp_path, maxMessagesPerTrigger=str(BATCH), maxMessagesPerPartition="1250")
    with garage.take() as driver:
        run.start(driver, proxy.url, into=JAVA)
        run.feed(BATCH)
        run.check_whole(driver)
        gate = proxy.hold(lambda command: command.name == "commit", skip=1)
        run.feed(BATCH)
        late = run.wait_at(gate, driver)
        batch = run.checkpoint.planned
        assert run.checkpoint.committed == batch - 1
        assert bus.recorded(run.checkpoint.query) == batch
        assert bus.progress("out") == f"{batch}:0:1000"
        driver.kill()
        gate.open()
    with garage.take(last=True) as driver:
        run.start(driver, proxy.url, into=PYTHON)
        run.check_whole(driver)
        late.arrive()
        driver.stop()
        run.start(driver, proxy.url, into=JAVA)
        run.feed(100)
        run.check_whole(driver)
