"""Redis is killed and comes back, or forgets its scripts, in the middle of a query that goes on by
itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from tests.faults.process import DriverProcess
from tests.faults.proxy import Command, Proxy
from tests.faults.scene import Bus, Pipeline
from tests.support import wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@dataclass(frozen=True)
class Point:
    """When Redis dies: as this command comes to it, or (``reply``) after it was executed and before
    anybody knows.
    """

    name: str
    matches: Callable[[Command], bool]
    reply: bool = False
    skip: int = 0


def reads(command: Command) -> bool:
    return command.name == "LRANGE" and command.keys[0].endswith(":messages")


def stages(command: Command) -> bool:
    return command.name == "RPUSHX" and ":stage:" in command.keys[0]


def named(script: str) -> Callable[[Command], bool]:
    return lambda command: command.name == script


POINTS = [
    Point("while reading", reads, skip=1),
    Point("a first staged chunk", named("stage")),
    Point("a first staged chunk, reply lost", named("stage"), reply=True),
    Point("while staging", stages),
    Point("while staging, reply lost", stages, reply=True),
    Point("before the commit", named("record")),
    Point("before the commit, reply lost", named("record"), reply=True),
    Point("in the middle of the commit", named("commit"), skip=1),
    Point("in the middle of the commit, reply lost", named("commit"), reply=True, skip=1),
    Point("while acknowledging", named("ack_to")),
    Point("while acknowledging, reply lost", named("ack_to"), reply=True),
]


def test_redis_killed_again_and_again_in_the_middle_of_a_query_that_never_stops(
    server: EmbeddedRedis, bus: Bus, proxy: Proxy, workshop: DriverProcess, tmp_path: Path
) -> None:
    run = Pipeline(bus, tmp_path, maxMessagesPerTrigger="2500")
    run.start(workshop, proxy.url)
    run.feed(2500)
    run.check_whole(workshop)
    for point in POINTS:
        gate = proxy.hold(point.matches, reply=point.reply, skip=point.skip, alone=True)
        run.feed(5000)
        held = run.wait_at(gate, workshop)
        server.kill()
        held.drop()
        gate.open()
        server.restart()
        bus.load_scripts()
        assert workshop.active, (point.name, workshop.error)
    run.check_whole(workshop)
    assert run.attempts == 1


def test_a_query_that_redis_left_alone_for_too_long_says_so_and_goes_on_after_a_restart(
    server: EmbeddedRedis, bus: Bus, workshop: DriverProcess, tmp_path: Path
) -> None:
    run = Pipeline(bus, tmp_path)
    run.start(workshop)
    run.feed(100)
    run.check_whole(workshop)
    server.kill()
    wait_until(lambda: not workshop.active, what="the query gives up")
    assert "[BUSMQ_LINK_LOST]" in workshop.error
    server.restart()
    run.feed(100)
    run.start(workshop)
    run.check_whole(workshop)


def test_scripts_flushed_all_the_time_change_nothing(
    bus: Bus, server: EmbeddedRedis, workshop: DriverProcess, tmp_path: Path
) -> None:
    run = Pipeline(bus, tmp_path, maxMessagesPerTrigger="1000")
    done, flushed = threading.Event(), 0

    def flush() -> None:
        nonlocal flushed
        while not done.is_set():
            server.command("SCRIPT", "FLUSH")
            flushed += 1

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        run.start(workshop)
        run.feed(10_000)
        run.check_whole(workshop)
    finally:
        done.set()
        thread.join()
    assert run.checkpoint.committed >= 9
    assert flushed > 100
