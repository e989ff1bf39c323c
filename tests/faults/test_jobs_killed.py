"""``kill -9`` of the driver between the outcomes of some jobs and the commit of their batch, at
seeded random points.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.faults.job_scene import JobPipeline, sending, settles
from tests.faults.process import Garage
from tests.faults.proxy import Held, Proxy
from tests.faults.scene import Bus
from tests.support import FACTOR, wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ROUNDS, MANY = 2 if FACTOR == 1 else 3 * FACTOR, 40


async def test_a_driver_killed_among_outcomes_leaves_each_job_one_and_what_it_has_sent_changes_none(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path
) -> None:
    chance = Random(14)
    run = JobPipeline(bus, tmp_path)
    late: list[Held] = []
    unsettled: list[int] = []
    async with sending(bus.server.url) as sent:
        for turn in range(ROUNDS):
            with await asyncio.to_thread(garage.take) as driver:
                gate = proxy.hold(settles, skip=chance.randrange(1, MANY), reply=bool(turn % 2))
                await asyncio.to_thread(run.start, driver, proxy.url)
                sent.send(MANY)
                held = await asyncio.to_thread(run.wait_at, gate, driver)
                assert run.checkpoint.committed < run.checkpoint.planned, (
                    "its batch is not committed"
                )
                await asyncio.to_thread(driver.kill)
            held.cut()
            gate.open()
            late.append(held)
            unsettled.append((turn + 1) * MANY - await sent.settled())
        assert [0 < left < (turn + 1) * MANY for turn, left in enumerate(unsettled)].count(
            True
        ) > 0, "some were settled, and some were not"
        with await asyncio.to_thread(garage.take) as driver:
            await asyncio.to_thread(run.start, driver, proxy.url)
            await sent.check()
            for held in late:
                await asyncio.to_thread(held.arrive)
            await sent.check_once()
            await asyncio.to_thread(
                wait_until,
                lambda: bus.count("in") == 0 or driver.error,
                what="all messages are acked",
            )
            assert driver.active, driver.error
