"""Runs that die between staging and commit: what they staged goes when the next run begins, and
nothing that any run needs goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import BatchChanged, BusError, StaleRun
from busmq_spark.queue.keys import QueueKeys, sink_record
from busmq_spark.queue.scripts import load
from busmq_spark.spark.write import tasks
from busmq_spark.writing.sink import STAGE_TTL_S
from tests.faults.proxy import Proxy
from tests.spark.conftest import Bus, MakeBus
from tests.spark.java_log import java_log
from tests.spark.lines import Lines
from tests.spark.sink_engines import JavaSink, PythonSink, SinkEngine
from tests.support import PATIENCE_S, Life, wait_until

Make = Callable[..., SinkEngine]
RUNS = 8
ROWS = [b"%d:" % i + b"x" * 50_000 for i in range(40)]


@pytest.fixture(params=["python", pytest.param("java", marks=pytest.mark.jvm)])
def make(request: pytest.FixtureRequest) -> Make:
    """A run of the sink ``s`` that writes batch 0, or the one given."""
    kind: Callable[[dict[str, str]], SinkEngine] = PythonSink
    if request.param == "java":
        spark = request.getfixturevalue("spark")
        request.getfixturevalue("shim_jar")
        kind = lambda options: JavaSink(spark, options)  # noqa: E731
    return lambda url, batch=0, queue="q": kind(
        {"redis.url": url, "queue": queue, "sinkId": "s", "batchId": str(batch)}
    )


@pytest.fixture
def lone(bus_of: MakeBus) -> Any:
    """A Redis of its own that knows the script of a commit, so that each is sent once."""
    with EmbeddedRedis() as server:
        bus = bus_of(server)
        bus("SCRIPT", "LOAD", load("commit").text)
        yield bus


@pytest.fixture
def often(
    request: pytest.FixtureRequest, make: Make, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Staged lists are renewed many times a second, not four times an hour."""
    monkeypatch.setattr(tasks, "RENEWAL_INTERVAL_S", 0.05)
    properties = (
        request.getfixturevalue("spark")._jvm.java.lang.System
        if "java" in request.node.name
        else None
    )
    if properties is not None:
        properties.setProperty("busmq.renewalMs", "50")
    yield
    if properties is not None:
        properties.clearProperty("busmq.renewalMs")


@pytest.fixture
def said(
    request: pytest.FixtureRequest, make: Make, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[], str]]:
    """What was logged."""
    if "java" not in request.node.name:
        yield lambda: caplog.text
        return
    with java_log(request.getfixturevalue("spark")) as log:
        yield lambda: log.text


def lists(bus: Bus) -> list[bytes]:
    found: list[bytes] = bus("KEYS", QueueKeys("q").stage("*"))
    return sorted(found)


def used(bus: Bus) -> int:
    return int(bus("INFO", "memory").split(b"used_memory:")[1].split()[0])


def test_a_loop_of_runs_that_die_before_their_commit_does_not_fill_redis(
    lone: Bus, make: Make
) -> None:
    keys, memory = [], []
    for _ in range(RUNS):
        run = make(lone.url)
        run.stage(ROWS)
        keys.append(len(lone("KEYS", "*")))
        memory.append(used(lone))
    assert len(lists(lone)) == 1
    assert keys[-1] == keys[1]
    assert memory[-1] - memory[1] < sum(map(len, ROWS)), "less than one more run takes"
    run.commit()
    assert lone.stored("q") == ROWS
    assert lists(lone) == []


def test_what_a_run_without_a_successor_has_staged_goes_within_the_hour(
    lone: Bus, make: Make
) -> None:
    """A batch write that is killed has none."""
    make(lone.url).stage(ROWS[:2])
    ttls = [lone("TTL", key) for key in (*lists(lone), QueueKeys("q").stages("s"))]
    assert len(ttls) == 2
    assert all(0 < ttl <= 3600 for ttl in ttls), ttls


def test_a_run_that_is_followed_by_another_records_nothing_and_takes_nothing_from_it(
    lone: Bus, make: Make
) -> None:
    zombie, after = make(lone.url), make(lone.url)
    zombie.stage(ROWS[:2])
    after.stage(ROWS[:2])
    zombie.stage(ROWS[2:4])  # a task of it is still there
    with pytest.raises(
        StaleRun, match="batch 0 is not recorded, since a later run of the query has begun"
    ):
        zombie.commit()
    assert lone.stored("q") == []
    after.stage(ROWS[2:4])
    after.commit()
    assert lone.stored("q") == ROWS[:4]


def test_what_a_dead_run_has_recorded_is_appended_by_the_next_and_once(
    lone: Bus, make: Make
) -> None:
    with Proxy(int(lone.url.rpartition(":")[2])) as proxy, ThreadPoolExecutor() as pool:
        dead = make(proxy.url)
        dead.stage(ROWS[:20])
        dead.stage(ROWS[20:])
        gate = proxy.hold(lambda command: command.name == "commit", skip=1)
        committing = pool.submit(dead.commit)
        held = gate.wait()
        assert lone.stored("q")
        after = make(lone.url)
        after.stage(ROWS[:30])
        assert len(lists(lone)) == 3
        after.stage(ROWS[30:])
        after.commit()
        assert lone.stored("q") == ROWS
        gate.open()
        held.release()
        committing.result(PATIENCE_S)
    assert lone.stored("q") == ROWS
    assert lists(lone) == []


def test_a_record_that_comes_late_from_a_dead_run_names_nothing(lone: Bus, make: Make) -> None:
    """Its lists were sealed, and are gone."""
    with Proxy(int(lone.url.rpartition(":")[2])) as proxy, ThreadPoolExecutor() as pool:
        dead = make(proxy.url)
        dead.stage(ROWS[:5])
        gate = proxy.hold(lambda command: command.name == "record")
        committing = pool.submit(dead.commit)
        held = gate.wait()
        after = make(lone.url)
        after.stage(ROWS)
        assert len(lists(lone)) == 1
        gate.open()
        held.release()
        with pytest.raises(StaleRun):
            committing.result(PATIENCE_S)
        after.commit()
    assert lone.stored("q") == ROWS


def test_what_an_attempt_left_behind_goes_with_the_next_batch(lone: Bus, make: Make) -> None:
    first = make(lone.url)
    first.stage(ROWS[:3])
    first.commit()
    lost = make(lone.url, 1)
    lost.stage(ROWS[3:6])
    second = make(lone.url, 1)
    second.stage(ROWS[3:6])
    lost.stage(ROWS[6:9])  # late, of a run that is dead
    assert len(lists(lone)) == 2
    second.commit()
    third = make(lone.url, 2)
    third.stage(ROWS[6:9])
    third.commit()
    assert lone.stored("q") == ROWS[:9]
    assert lists(lone) == []
    assert [key for key in lone("KEYS", "*") if lone("TTL", key) < 0] == []


def test_a_sink_that_writes_to_another_queue_than_before_says_so_once(
    lone: Bus, make: Make, said: Callable[[], str]
) -> None:
    for batch, queue in enumerate(("q", "q", "elsewhere", "elsewhere")):
        run = make(lone.url, batch, queue)
        run.stage(ROWS[:2])
        run.stage(ROWS[2:3])
        run.commit()
        assert said().count("wrote its last batch to 'q' and writes to queue 'elsewhere' now") == (
            batch > 1
        )


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_that_is_done_is_done_also_where_its_record_is_lost(
    lone: Bus, make: Make, batch: int
) -> None:
    first = make(lone.url, batch)
    first.stage(ROWS[:4])
    first.stage(ROWS[4:6])
    first.commit()
    lone("DEL", sink_record("s"))
    again = make(lone.url, batch)
    again.stage(ROWS[:6])
    again.commit()
    assert lone.stored("q") == ROWS[:6]


def test_other_rows_under_a_number_that_is_done_do_not_vanish_where_its_record_is_lost(
    lone: Bus, make: Make
) -> None:
    first = make(lone.url)
    first.stage(ROWS[:6])
    first.commit()
    lone("DEL", sink_record("s"))
    again = make(lone.url)
    again.stage(ROWS[:9])
    with pytest.raises(BatchChanged, match="The record of the sink is gone"):
        again.commit()
    assert lone.stored("q") == ROWS[:6]


def test_a_record_that_is_lost_in_the_middle_of_a_commit_doubles_no_rows(
    lone: Bus, make: Make
) -> None:
    with Proxy(int(lone.url.rpartition(":")[2])) as proxy, ThreadPoolExecutor() as pool:
        dead = make(proxy.url)
        dead.stage(ROWS[:30])
        gate = proxy.hold(lambda command: command.name == "commit", skip=1)
        committing = pool.submit(dead.commit)
        held = gate.wait()
        before = lone.stored("q")
        assert before
        lone("DEL", sink_record("s"))
        again = make(lone.url)
        again.stage(ROWS[:30])
        with pytest.raises(BatchChanged, match="The record of the sink is gone"):
            again.commit()
        assert before == lone.stored("q")
        gate.open()
        held.drop()
        with suppress(BusError):
            committing.result(PATIENCE_S)


def test_a_full_redis_is_relieved_of_what_dead_runs_have_staged(lone: Bus, make: Make) -> None:
    lone.attach("q")
    make(lone.url).stage(ROWS)
    lone("CONFIG", "SET", "maxmemory", used(lone))
    run = make(lone.url)
    run.stage(ROWS[:20])
    assert len(lists(lone)) == 1
    lone("CONFIG", "SET", "maxmemory", 0)
    run.commit()
    assert lone.stored("q") == ROWS[:20]


def test_lists_of_tasks_that_have_ended_live_on_while_another_task_stages(
    lone: Bus, make: Make, often: None
) -> None:
    run = make(lone.url)
    run.stage(ROWS[:5])
    [ended] = lists(lone)
    with run.staging(ROWS[5:25]):
        wait_until(lambda: len(lists(lone)) == 2, PATIENCE_S)
        lone("EXPIRE", ended, 1000)
        life = Life(lone, STAGE_TTL_S)
        wait_until(lambda: life.given_to(ended.decode()), PATIENCE_S)
    run.commit()
    assert lone.stored("q") == ROWS[:25]


@pytest.mark.parametrize("via", ["busmq", "busmq-realtime"])
@pytest.mark.usefixtures("shim_jar")
def test_a_query_that_is_ended_while_it_stages_leaves_what_its_next_run_removes(
    lone: Bus, lines: Lines, via: str
) -> None:
    lines.add(*(f"{i}:{'x' * 300_000}" for i in range(8)))
    with Proxy(int(lone.url.rpartition(":")[2])) as proxy:
        for _ in range(3):
            gate = proxy.hold(lambda command: command.name == "RPUSHX")
            query = lines.start(via, lines.frame(), {"redis.url": proxy.url, "queue": "q"})
            gate.wait()
            query.stop()
            gate.open()
            assert len(lists(lone)) <= 1
    lines.drain(via, {"redis.url": lone.url, "queue": "q"})
    assert [int(value.partition(b":")[0]) for value in lone.stored("q")] == list(range(8))
    assert lists(lone) == []
