"""``kill -9`` of the driver while a batch goes into the partitions of a topic; both engines by
turns, with one checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from busmq_spark.groups.topic import partition_of, partition_queues
from tests.faults.process import DriverProcess, Garage
from tests.faults.proxy import Command, Held, Proxy
from tests.faults.scene import Bus, Pipeline
from tests.jvm import module
from tests.support import FACTOR, wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

BATCH = 5000
"""Rows of a batch: four tasks, which stage some for each of three partitions."""
QUEUES = partition_queues("metrics", 3)
MOMENTS: list[tuple[str, int, bool]] = [
    ("record", 0, False),
    ("record", 0, True),
    ("commit", 3, True),
    ("ack_to", 0, False),
]
"""Scripts of a batch, how many of them come before the kill, and whether the last one reaches
Redis.
"""
if (
    FACTOR > 1
    # At commit 3 one partition is whole, one in its middle and one empty; at the first only one has
    # rows
):
    MOMENTS += [("commit", 0, True)]


def of(script: str) -> Callable[[Command], bool]:
    return lambda command: command.name == script


def check_whole(run: Pipeline, bus: Bus, driver: DriverProcess) -> None:
    """Every message is in the partition of its key once, in order, and nothing of ours stays for
    ever.
    """
    [fed] = run.fed.values()
    wait_until(
        lambda: (sum(map(bus.count, QUEUES)) >= fed and bus.count("in") == 0) or driver.error,
        what="all messages are in the topic and acked",
    )
    for partition, queue in enumerate(QUEUES):
        assert bus.values(queue) == [
            b"%07d" % n for n in range(fed) if partition_of(str(n % 17), 3) == partition
        ]
    assert driver.active, driver.error
    assert [key for key in bus.kept_for_ever() if not key.startswith("bus:queue:in")] == []


def test_a_driver_killed_at_any_point_of_a_batch_repeats_and_loses_nothing_in_any_partition(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path
) -> None:
    run = Pipeline(
        bus,
        tmp_path,
        change="keyed",
        maxMessagesPerTrigger=str(BATCH),
        maxMessagesPerPartition="1250",
    )
    run.sink_options = {"topic": "metrics", "partitions": "3"}
    sinks = ["busmq"] if module.missing() else ["busmq", "busmq-realtime"]
    late: Held | None = None
    for turn, (script, before, reply) in enumerate(MOMENTS):
        with garage.take() as driver:
            run.start(driver, proxy.url, into=sinks[turn % len(sinks)])
            check_whole(run, bus, driver)
            if late:
                late.arrive()
            gate = proxy.hold(of(script), reply=reply, skip=before)
            run.feed(BATCH)
            late = run.wait_at(gate, driver)
            driver.kill()
            gate.open()
    with garage.take() as driver:
        run.start(driver, proxy.url)
        run.feed(100)
        check_whole(run, bus, driver)
