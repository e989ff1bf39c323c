"""A batch that was planned before a crash is read again after it, and its queue lost messages
before or after the planning.

Python before Spark 4.2 plans the first batch of a process without the checkpoint. Where the batch
begins it sees when its tasks are asked for, and a crash before that leaves this to the next
process.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busmq_spark.errors import QueueExpired, QueueRecreated
from busmq_spark.queue.keys import QueueKeys
from tests.spark.conftest import Bus
from tests.spark.engine import Crash, Engine
from tests.spark.test_loss import Kind, closed, consumed, flushed, kinds
from tests.support import PATIENCE_S, wait_until

MakeEngine = Callable[..., Engine]
before_42 = pytest.mark.parametrize("before_42", [False, True])
GOING_ON = "going on from the oldest stored message"


def fill_and_read(
    bus: Bus, engine: MakeEngine, queue: str, kind: Kind, *, before_42: bool, **options: str
) -> Engine:
    """A query that has read messages 1 to 5; 6 to 10 are stored, and its process has ended."""
    bus.fill(queue, 5)
    bus.attach(f"{queue}-neighbour")  # the database does not get empty
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "ack": "none", **options}, before_42=before_42
    )
    query.step()
    bus.fill(queue, 5, first=6)
    if kind.harm in (flushed, consumed):
        bus("LTRIM", QueueKeys(queue).messages, 10, -1)  # else nothing would be missing
    query.kill()
    query.silence(bus, queue)
    return query


@kinds
@before_42
def test_messages_that_were_lost_before_the_planning_stop_each_process_that_reads_the_batch_again(
    bus: Bus, engine: MakeEngine, queue: str, kind: Kind, before_42: bool
) -> None:
    query = fill_and_read(bus, engine, queue, kind, before_42=before_42)
    kind.harm(bus, queue)
    error = (QueueExpired, QueueRecreated) if kind.harm is closed else kind.error
    if before_42:
        query.step("planned")
    for _ in range(3):
        query.kill()
        query.silence(bus, queue)
        with pytest.raises(error):
            query.step()


@kinds
@pytest.mark.only("java", reason="the batch is Python's")
def test_java_compares_a_batch_that_python_planned_without_its_start(
    bus: Bus, engine: MakeEngine, queue: str, kind: Kind
) -> None:
    python = fill_and_read(bus, Engine, queue, kind, before_42=True)
    kind.harm(bus, queue)
    python.step("planned")
    python.kill()
    python.reader.stop()
    python.silence(bus, queue)
    java = engine({"redis.url": bus.url, "subscribe": queue, "ack": "none"})
    java.planned, java.committed = python.planned, python.committed
    with pytest.raises(QueueRecreated if kind.harm is closed else kind.error):
        java.step()


@kinds
@before_42
def test_with_fail_on_data_loss_false_losses_before_the_planning_are_warned_about(
    bus: Bus,
    engine: MakeEngine,
    queue: str,
    kind: Kind,
    before_42: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = fill_and_read(bus, engine, queue, kind, before_42=before_42, failOnDataLoss="false")
    kind.harm(bus, queue)
    query.step("planned")
    query.kill()
    read_what_is_stored(bus, query, queue)
    assert [text for text in caplog.messages if GOING_ON in text]


@kinds
@pytest.mark.parametrize("crash", ["planned", "read"])
@before_42
def test_with_fail_on_data_loss_false_losses_after_the_planning_give_no_row_twice(
    bus: Bus,
    engine: MakeEngine,
    queue: str,
    kind: Kind,
    *,
    crash: Crash,
    before_42: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = fill_and_read(bus, engine, queue, kind, before_42=before_42, failOnDataLoss="false")
    query.step(crash)
    query.kill()
    query.silence(bus, queue)
    kind.harm(bus, queue)
    read_what_is_stored(bus, query, queue)
    assert [text for text in caplog.messages if GOING_ON in text or "skipped" in text]


@before_42
def test_with_fail_on_data_loss_false_a_pattern_s_queue_gone_at_a_restart_is_warned_about(
    bus: Bus, engine: MakeEngine, queue: str, before_42: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing creates it again, so no planning comes upon it."""
    bus.fill(queue, 5)
    bus.fill(f"{queue}-neighbour", 1)
    pattern = {"subscribePattern": f"{queue}.*", "failOnDataLoss": "false", "idlePollMs": "1"}
    query = engine({"redis.url": bus.url, **pattern}, before_42=before_42)
    query.drain()
    query.kill()
    query.silence(bus, queue)
    bus.fill(queue, 2, first=6)
    bus.close_queue(queue)
    bus.fill(f"{queue}-neighbour", 1, first=2)
    query.restart()
    assert [id for batch in query.drain() for _, id, _ in batch] == [2]
    [warning] = [text for text in caplog.messages if GOING_ON in text]
    assert f"[BUSMQ_QUEUE_EXPIRED] queue '{queue}'" in warning


def read_what_is_stored(bus: Bus, query: Engine, queue: str) -> None:
    """The next process reads what is stored in the queue and is not read yet, each message once,
    and then what comes.
    """
    stored = bus.stored(queue)
    rows = [value for batch in query.drain() for _, _, value in batch]
    bus.push(queue, "later")
    wait_until(
        lambda: (
            rows.extend(value for batch in query.drain() for _, _, value in batch)
            or b"later" in rows
        ),
        PATIENCE_S,
    )
    assert rows == [*stored, b"later"]
