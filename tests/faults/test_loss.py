"""Messages that vanish behind a query's back: each kind is found and named, or counted where that
is asked for.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue import queue as queues
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
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

DONE, LEFT = 30, 10
"""Messages that the query has read, and that are stored but not yet read, when something happens to
the queue.
"""


@dataclass(frozen=True)
class Damage:
    """What happens to a queue while its query is down, how the query must call it, and what it
    reads when it may go on.
    """

    name: str
    happens: Callable[[Bus, str], None]
    code: str
    lost: int
    """How many ids the offset then counts; 1 when the number is unknown."""
    goes_on_with: list[bytes] = field(default_factory=list)


def again(rows: int) -> list[bytes]:
    """Messages of a life after."""
    return [b"again %d" % i for i in range(rows)]


def expires(bus: Bus, queue: str) -> None:
    def expired() -> bool:
        keys = QueueKeys(queue)
        if (
            bus.link.execute(command("TTL", keys.metadata)) > 1
        ):  # also when the reader that was stopped has touched it once more
            bus.link.run(queues.touch(keys, 1))
        return not bus.state(queue).exists

    wait_until(expired, what="the queue has expired")


def closes(bus: Bus, queue: str) -> None:
    bus.close(queue)


def is_created_again(rows: int) -> Callable[[Bus, str], None]:
    def happens(bus: Bus, queue: str) -> None:
        bus.close(queue)
        bus.create(queue)
        bus.push(queue, again(rows))

    return happens


def is_flushed(bus: Bus, queue: str) -> None:
    bus.link.run(queues.flush(QueueKeys(queue)))
    bus.push(queue, again(3))


def is_consumed(bus: Bus, queue: str) -> None:
    assert len(bus.link.run(queues.pop(QueueKeys(queue), reliable=True, ttl_s=3600, most=4))) == 4


def goes_with_the_database(bus: Bus, queue: str) -> None:
    bus.server.command("FLUSHALL")


# More of them, and more of the returns below, without Spark: tests/spark/test_loss.py.
DAMAGES = [
    Damage("expired", expires, "BUSMQ_QUEUE_EXPIRED", 1),
    Damage(
        "created again", is_created_again(DONE + 20), "BUSMQ_QUEUE_RECREATED", 1, again(DONE + 20)
    ),
    Damage("flushed", is_flushed, "BUSMQ_QUEUE_FLUSHED", LEFT, again(3)),
    Damage(
        "consumed by another",
        is_consumed,
        "BUSMQ_CONSUMED_ELSEWHERE",
        4,
        [b"%07d" % seq for seq in range(DONE + 4, DONE + LEFT)],
    ),
    Damage("gone with everything", goes_with_the_database, "BUSMQ_QUEUE_FLUSHED", 1),
]


def error_of(driver: DriverProcess) -> str:
    wait_until(lambda: not driver.active, what="the query fails")
    error = driver.error
    assert "queue 'in'" in error
    return error


def goes_on(run: Pipeline, driver: DriverProcess, values: list[bytes], before: list[bytes]) -> None:
    """With failOnDataLoss=false at both ends the query reads ``values`` and then what comes."""
    run.options["failOnDataLoss"] = run.sink_options["failOnDataLoss"] = "false"
    run.start(driver)
    wait_until(
        lambda: run.bus.values("out") == [*before, *values],
        what="the query goes on from the oldest stored message",
    )
    wait_until(lambda: run.bus.state("in").exists, what="the query has taken hold of the queue")
    run.bus.push("in", [b"new"])
    wait_until(
        lambda: run.bus.values("out") == [*before, *values, b"new"] and run.bus.count("in") == 0,
        what="a new message is read and acked",
    )
    assert driver.active, driver.error


def lost(run: Pipeline) -> int:
    """What the offset counts as lost."""
    return int(run.checkpoint.end("in").get("lost", 0))


def bus_has(run: Pipeline, values: list[bytes]) -> bool:
    return run.bus.values(run.sink_of(run.sources[0])) == values


@pytest.fixture
def run(bus: Bus, tmp_path: Path) -> Pipeline:
    return Pipeline(bus, tmp_path)


@pytest.mark.parametrize("damage", [pytest.param(each, id=each.name) for each in DAMAGES])
def test_what_happened_to_a_queue_while_the_query_was_down_is_named(
    damage: Damage, bus: Bus, run: Pipeline, workshop: DriverProcess
) -> None:
    run.feed(DONE)
    run.start(workshop)
    run.check_whole(workshop)
    workshop.stop()
    run.feed(LEFT)
    damage.happens(bus, "in")

    run.start(workshop)
    assert f"[{damage.code}]" in error_of(workshop)
    goes_on(run, workshop, damage.goes_on_with, bus.values("out"))
    assert lost(run) == damage.lost


@dataclass(frozen=True)
class Return:
    """Redis comes back older than the checkpoint, and producers push others before the query is
    there again.
    """

    name: str
    pushed: int
    code: str


RETURNS = [
    Return("older", 0, "BUSMQ_REDIS_ROLLED_BACK"),
    Return("older, the same ids reissued", LEFT, "BUSMQ_IDS_REISSUED"),
]


def restore(server: EmbeddedRedis, copy: Path) -> None:
    """The data that ``copy`` holds, as an operator would restore a backup."""
    server.kill()
    for file in server.folder.glob("appendonly*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    for file in copy.glob("appendonly*"):
        (
            shutil.copytree(file, server.folder / file.name)
            if file.is_dir()
            else shutil.copy(file, server.folder / file.name)
        )
    server.restart()


@pytest.mark.parametrize("back", [pytest.param(each, id=each.name) for each in RETURNS])
def test_a_redis_that_comes_back_older_is_named(
    back: Return, bus: Bus, run: Pipeline, workshop: DriverProcess, tmp_path: Path
) -> None:
    run.start(workshop)
    run.feed(DONE)
    run.check_whole(workshop)
    shutil.copytree(bus.server.folder, tmp_path / "backup")
    run.feed(LEFT)
    run.check_whole(workshop)
    workshop.stop()
    restore(bus.server, tmp_path / "backup")
    assert bus.state("in").last_id == DONE
    bus.push("in", again(back.pushed))

    run.start(workshop)
    assert f"[{back.code}]" in error_of(workshop)
    goes_on(run, workshop, again(back.pushed), bus.values("out"))
    assert lost(run) > 0


def test_a_redis_that_comes_back_older_under_an_idle_query_is_named(
    bus: Bus, run: Pipeline, workshop: DriverProcess, tmp_path: Path
) -> None:
    run.start(workshop)
    run.feed(DONE)
    run.check_whole(workshop)
    shutil.copytree(bus.server.folder, tmp_path / "backup")
    run.feed(LEFT)
    run.check_whole(workshop)
    restore(bus.server, tmp_path / "backup")
    wait_until(lambda: not workshop.active, what="the query fails")
    # The source finds it when it plans, the sink with the empty batch of an idle query.
    assert re.search(r"\[BUSMQ_(REDIS|SINK)_ROLLED_BACK\]", workshop.error), workshop.error


def begins_to_read(command: Command) -> bool:
    return command.name in ("HGET", "probe") and command.keys[0].endswith(":metadata")


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        pytest.param(is_created_again(DONE + 20), "BUSMQ_QUEUE_RECREATED", id="created again"),
        pytest.param(closes, "BUSMQ_QUEUE_EXPIRED", id="closed"),
        pytest.param(is_flushed, "BUSMQ_QUEUE_FLUSHED", id="flushed"),
        pytest.param(is_consumed, "BUSMQ_CONSUMED_ELSEWHERE", id="consumed by another"),
    ],
)
def test_messages_that_vanish_between_planning_and_reading_are_named_and_the_batch_can_be_skipped(
    damage: Callable[[Bus, str], None],
    code: str,
    bus: Bus,
    proxy: Proxy,
    run: Pipeline,
    workshop: DriverProcess,
) -> None:
    run.start(workshop, proxy.url)
    run.feed(DONE)
    run.check_whole(workshop)
    gate = proxy.hold(begins_to_read)
    run.feed(LEFT)
    held = run.wait_at(gate, workshop)
    batch = run.checkpoint.planned
    damage(bus, "in")
    held.release()
    gate.open()
    assert f"[{code}]" in error_of(workshop)
    assert run.checkpoint.committed == batch - 1

    logged = len(workshop.log.read_text())
    goes_on(run, workshop, bus.values("in"), bus.values("out"))
    assert re.search(r"queue 'in': .*skipped", workshop.log.read_text()[logged:])
