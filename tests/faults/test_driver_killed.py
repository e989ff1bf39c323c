"""``kill -9`` of the driver, its JVM and its Python workers between any two steps of a batch;
``make soak`` does so at any command.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.process import Garage
from tests.faults.proxy import Command, Held, Proxy, ends_the_queue
from tests.faults.scene import Bus, Pipeline
from tests.support import wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

BATCH = 2500
"""Rows of a batch: two tasks of 1250, which are staged and appended as 1000, 250, 1000, 250."""
QUEUES = {f"bus:queue:{queue}:metadata": queue for queue in ("out-a", "out-b")}


@dataclass(frozen=True)
class Now:
    """What Redis and the checkpoint say while a command is held: the batch in the offset log, and
    how far it has come.
    """

    held: Held
    batch: int
    staged: int
    recorded: int
    progress: str
    unacked: int

    @classmethod
    def of(cls, run: Pipeline, held: Held) -> Now:
        batch = run.checkpoint.planned_with_rows
        staged = sum(run.bus.staged("out", batch).values())
        return cls(
            held,
            batch,
            staged,
            run.bus.recorded(run.checkpoint.query),
            run.bus.progress("out"),
            run.bus.count("in"),
        )


@dataclass(frozen=True)
class Point:
    """A moment in the life of a batch: the command that marks it, and what proves that it was this
    moment.
    """

    name: str
    matches: Callable[[Command], bool]
    holds: Callable[[Now], bool]
    reply: bool = False
    skip: int = 0
    committed: bool = False
    """Whether the batch is in the commit log by then."""


def named(script: str) -> Callable[[Command], bool]:
    return lambda command: command.name == script


POINTS = [
    Point(
        "before the commit",
        named("record"),
        lambda now: now.staged == BATCH and now.recorded < now.batch,
    ),
    Point(
        "after the decision, before the first row",
        named("commit"),
        lambda now: now.staged == BATCH and now.recorded == now.batch,
    ),
    Point(
        "in the middle of the commit, a reply lost",
        named("commit"),
        lambda now: now.progress == f"{now.batch}:1:1000",
        skip=2,
        reply=True,
    ),
    Point(
        "after the commit, before the commit log",
        ends_the_queue,
        lambda now: now.progress == f"{now.batch}:done",
        reply=True,
    ),
    Point(
        "after the commit log, before the ack",
        named("ack_to"),
        lambda now: now.unacked == BATCH,
        committed=True,
    ),
]


def test_a_driver_killed_at_any_point_loses_repeats_and_reorders_nothing(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path
) -> None:
    """One checkpoint, one driver after another. What a dead driver had sent reaches Redis long
    after its successor has done the batch.
    """
    run = Pipeline(bus, tmp_path, maxMessagesPerTrigger=str(BATCH), maxMessagesPerPartition="1250")
    late: Held | None = None
    for point in POINTS:
        with garage.take() as driver:
            run.start(driver, proxy.url)
            run.check_whole(driver)
            if late:
                late.arrive()
            gate = proxy.hold(point.matches, reply=point.reply, skip=point.skip, alone=True)
            run.feed(BATCH)
            late = run.wait_at(gate, driver)
            now = Now.of(run, late)
            assert run.checkpoint.committed == now.batch - (not point.committed), point.name
            assert point.holds(now), (point.name, now)
            driver.kill()
            gate.open()
    with (
        garage.take() as driver
    ):  # killed once more, idle, with everything in the commit log and acked
        run.start(driver, proxy.url)
        run.check_whole(driver)
        wait_until(
            lambda: run.checkpoint.committed == run.checkpoint.planned,
            what="the last batch is in the commit log",
        )
        driver.kill()
    with garage.take() as driver:
        run.start(driver, proxy.url)
        run.feed(100)
        run.check_whole(driver)
    assert run.attempts == len(POINTS) + 2


def test_a_batch_that_is_computed_differently_each_time_is_appended_as_it_was_recorded(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path
) -> None:
    """Two queues, a column ``queue``, rows in random order in random tasks. Killed in the middle of
    each queue's commit; the record decides.
    """
    run = Pipeline(
        bus,
        tmp_path,
        source="a,b",
        sink=None,
        change="never_the_same",
        maxMessagesPerTrigger="5000",
    )
    run.feed(2500)
    cut = ""
    for _ in range(2):
        with garage.take() as driver:
            # In one round trip the first queue has its rows appended, chunk by chunk, and then the
            # second.
            gate = proxy.hold(
                lambda command, cut=cut: command.name == "commit" and command.keys[0] != cut,
                skip=1 if cut else 2,
            )
            run.start(driver, proxy.url)
            held = run.wait_at(gate, driver)
            cut = held.command.keys[0]
            assert run.checkpoint.committed == -1
            assert bus.recorded(run.checkpoint.query) == 0
            assert re.fullmatch(r"0:\d:\d+", bus.progress(QUEUES[cut]))
            driver.kill()
            held.drop()
            gate.open()
    with garage.take() as driver:
        run.start(driver, proxy.url)
        run.wait_done(driver)
        assert {
            value.partition(b"|")[2] for queue in QUEUES.values() for value in bus.values(queue)
        } == {b"run 1"}
        run.feed(1000)
        run.wait_done(driver)
        for queue in run.sources:
            assert sorted(run.arrived(queue)) == list(range(3500))
            assert run.arrived(queue) != list(range(3500))
        run.check_clean(driver)
