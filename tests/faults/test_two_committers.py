"""A committer that outlives its driver, while the next driver commits the same batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.process import Garage, is_over
from tests.faults.proxy import Command, Held, Proxy
from tests.faults.scene import Bus, Pipeline
from tests.support import wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


STEP_S = 4.0
"""A committer that gets no answer for 10 s gives up; so it is let go on by one step when it has
waited for so long.
"""


def commits(command: Command) -> bool:
    return command.name == "commit"


def moved(held: Held) -> int:
    return int(held.command.args[4])


def test_an_orphan_and_the_next_driver_commit_one_batch_at_the_same_time_and_each_row_is_there_once(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path
) -> None:
    run = Pipeline(bus, tmp_path, maxMessagesPerTrigger="20000")
    run.feed(20_000)
    gate = proxy.hold(commits)
    with garage.take() as old, garage.take(last=True) as new:
        run.start(old, proxy.url)
        of_old = gate.wait()
        orphan = old.worker_at(of_old.ports)
        old.kill(orphan=orphan)
        assert bus.progress("out") in ("", f"0:0:{moved(of_old)}")
        of_old.release()  # so that the next driver is behind it, however soon it comes
        of_old = gate.wait()

        run.start(new, proxy.url)
        while (of_new := gate.poll(STEP_S)) is None:
            of_old.release()
            of_old = gate.wait()
        assert of_new.ports != of_old.ports
        while of_new.command.args != of_old.command.args:
            of_new.release()  # it begins at the first row, and learns how far the orphan has come
            of_new = gate.wait()
        before = moved(of_old)
        for step in (1, 2, 3):
            assert of_new.command.args == of_old.command.args, (
                "both are about to move the same rows"
            )
            of_old.release()
            of_new.release()
            of_old, of_new = gate.wait(), gate.wait()
            assert bus.progress("out") == f"0:0:{before + 1000 * step}"
        assert not is_over(orphan)
        gate.open()
        of_old.release()
        of_new.release()

        wait_until(lambda: is_over(orphan), what="the orphan is done")
        run.feed(100)
        run.check_whole(new)
