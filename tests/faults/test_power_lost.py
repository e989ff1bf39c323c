"""The machine of the driver loses its power, and with it all that was not synced. Spark's own
checkpoint managers sync nothing.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from busmq_spark.spark.tune import CHECKPOINT_MANAGER_SETTING
from tests.faults.process import DriverProcess
from tests.faults.proxy import Proxy, ends_the_queue
from tests.faults.scene import Bus, Pipeline
from tests.jvm import module
from tests.peers.node import need
from tests.soak.machine import Machine, can_be_set
from tests.soak.run import SPARKS_MANAGER

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not can_be_set(), reason="cutting the power of a process needs Linux and a C compiler (cc)"
    ),
]
BATCH = 500


class Worst(Random):
    """With this, a power cut takes all that it may."""

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize("form", ["busmq", pytest.param("busmq-realtime", marks=pytest.mark.jvm)])
def test_rows_that_are_appended_do_not_come_again_after_a_loss_of_power(
    bus: Bus, proxy: Proxy, tmp_path: Path, form: str
) -> None:
    """Power is lost when a batch is appended and not yet in the commit log: in the first batch of a
    query, and in a later one.

    Without the query's id the query would start again as another one, and without the batch's
    offsets it would plan another batch.
    """
    if form != "busmq":
        need(module.missing())
    machine = Machine(tmp_path / "machine")
    run = Pipeline(bus, tmp_path, maxMessagesPerTrigger=str(BATCH))
    lost = []
    for cut in (True, True, False):
        with DriverProcess(tmp_path / f"driver-{run.attempts}", more=machine.environment) as driver:
            driver.ask("set", name=CHECKPOINT_MANAGER_SETTING, value=SPARKS_MANAGER)
            run.start(driver, proxy.url, of=f"{form}-quick", into=form)
            run.check_whole(driver)
            if not cut:
                break
            gate = proxy.hold(ends_the_queue, reply=True)
            run.feed(BATCH)
            run.wait_at(gate, driver).drop()
            run.feed(10)
            driver.kill()
            gate.open()
        lost.append(machine.cut_power(run.checkpoint.folder, Worst()))
    assert any(lost), "its checkpoint manager has synced everything itself"
