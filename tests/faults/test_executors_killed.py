"""Executors and Python workers die while a batch runs; Spark tries their tasks again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.process import DriverProcess
from tests.faults.proxy import Command, Proxy
from tests.faults.scene import Bus, Pipeline
from tests.jvm import module

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

BATCH = 3000


def reads(command: Command) -> bool:
    return (
        command.name == "LRANGE"
        and command.keys[0].endswith(":messages")
        and int(command.args[0]) > 0
    )


def stages(command: Command) -> bool:
    return command.name == "RPUSHX" and ":stage:" in command.keys[0]


def test_a_task_whose_worker_or_executor_dies_is_repeated_and_its_first_rows_are_not_seen(
    bus: Bus, proxy: Proxy, tmp_path: Path
) -> None:
    run = Pipeline(bus, tmp_path, maxMessagesPerTrigger=str(BATCH), maxMessagesPerPartition="1500")
    with DriverProcess(tmp_path, master="local-cluster[2,1,1024]") as driver:
        run.start(driver, proxy.url)
        run.feed(BATCH)
        run.check_whole(driver)
        for matches, executor in ((stages, False), (stages, True), (reads, False)):
            gate = proxy.hold(matches)
            run.feed(BATCH)
            held = run.wait_at(gate, driver)
            batch = run.checkpoint.planned_with_rows
            assert run.checkpoint.committed == batch - 1
            worker = driver.worker_at(held.ports)
            (driver.executor_of(worker) if executor else worker).kill()
            held.drop()
            gate.open()
            run.check_whole(driver)
            assert run.checkpoint.planned_with_rows == batch
            if (
                matches is stages and not executor
            ):  # a worker whose executor is gone may take back its rows
                assert sum(bus.staged("out", batch).values()) > 0, (
                    "the first attempt has left what it had staged, with a ttl"
                )
        assert run.attempts == 1
        if not module.missing():
            an_executor_dies_with_the_sink_of_the_java_module(run, bus, proxy, driver)


def an_executor_dies_with_the_sink_of_the_java_module(
    run: Pipeline, bus: Bus, proxy: Proxy, driver: DriverProcess
) -> None:
    """It stages in the executor itself. Here and not in a test of its own, since executors cost
    many seconds.
    """
    driver.stop()
    run.start(driver, proxy.url, into="busmq-realtime")
    gate = proxy.hold(
        lambda command: command.name == "RPUSHX"
    )  # the second chunk of a list: the first one is there
    run.feed(BATCH)
    held = run.wait_at(gate, driver)
    batch = run.checkpoint.planned_with_rows
    driver.worker_at(held.ports).kill()
    held.drop()
    gate.open()
    run.check_whole(driver)
    assert run.checkpoint.planned_with_rows == batch
    assert sum(bus.staged("out", batch).values()) > 0, (
        "the first attempt has left what it had staged, with a ttl"
    )
