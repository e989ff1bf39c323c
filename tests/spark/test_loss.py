"""Messages that go while a query has still to read them: the query says which queue, which ids, and
what happened to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    CheckpointOlder,
    ConsumedElsewhere,
    DataLoss,
    IdsReissued,
    QueueExpired,
    QueueFlushed,
    QueueMissing,
    QueueRecreated,
    RedisRolledBack,
)
from busmq_spark.queue import queue as core
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.skipping import skip
from tests.spark.conftest import Bus, MakeBus
from tests.spark.engine import Engine, Row
from tests.support import PATIENCE_S, wait_until

MakeEngine = Callable[..., Engine]
Harm = Callable[[Bus, str], None]


def closed(bus: Bus, queue: str) -> None:
    bus.close_queue(queue)


def flushed(bus: Bus, queue: str) -> None:
    bus("DEL", QueueKeys(queue).messages)


def consumed(bus: Bus, queue: str) -> None:
    bus.link.run(core.pop(QueueKeys(queue), reliable=True, ttl_s=60, most=3))


def recreated(bus: Bus, queue: str) -> None:
    bus.close_queue(queue)
    bus.push(queue, "new 1", "new 2")


def recreated_as_long(bus: Bus, queue: str) -> None:
    bus.close_queue(queue)
    bus.push(queue, *(f"new {i}" for i in range(1, 6)))


def recreated_longer(bus: Bus, queue: str) -> None:
    bus.close_queue(queue)
    bus.push(queue, *(f"new {i}" for i in range(1, 31)))


def recreated_by_a_peer(bus: Bus, queue: str) -> None:
    bus.close_queue(queue)
    bus(
        "HSET",
        QueueKeys(queue).metadata,
        "ttl",
        60,
        "source",
        "local",
        "discover",
        "false",
        "maxsize",
        0,
    )
    bus.link.run(core.push(QueueKeys(queue), b"new 1"))


def rolled_back(bus: Bus, queue: str) -> None:
    keys = QueueKeys(queue)
    bus("SET", keys.msgid, 2)
    bus("LTRIM", keys.messages, 0, 3)


def reissued_below_what_is_read(bus: Bus, queue: str) -> None:
    rolled_back(bus, queue)
    bus.push(queue, "other 3")


def reissued_as_far_as_it_is_read(bus: Bus, queue: str) -> None:
    rolled_back(bus, queue)
    bus.push(queue, *(f"other {i}" for i in range(3, 6)))


def reissued(bus: Bus, queue: str) -> None:
    rolled_back(bus, queue)
    bus.push(queue, *(f"other {i}" for i in range(3, 12)))


@pytest.fixture
def query(bus: Bus, engine: MakeEngine, queue: str) -> Iterator[Engine]:
    """A query that has read messages 1 to 5 of 5 and whose batch is in the commit log, but whose
    ack has not happened yet.
    """
    bus.fill(queue, 5)
    made = engine({"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1"})
    assert len(made.step() or []) == 5
    assert bus.ids(queue) == [1, 2, 3, 4, 5]
    return made


def until_error(query: Engine) -> list[Row]:
    """Rows up to the error, which a running query meets at its next polls."""
    wait_until(lambda: query.step() and False, PATIENCE_S, "the query fails")
    raise AssertionError


@dataclass(frozen=True)
class Kind:
    """What another client does to the queue, and the query's error for it."""

    harm: Harm
    error: type[DataLoss]
    cause: str


KINDS = [
    (closed, QueueExpired, "it expired or was closed"),
    (flushed, QueueFlushed, "its messages were deleted before they were read"),
    (consumed, ConsumedElsewhere, "another consumer took messages before they were read"),
    (recreated, QueueRecreated, "removed and created again, so its ids began again at 1"),
    (recreated_as_long, QueueRecreated, "removed and created again, so its ids began again at 1"),
    (recreated_longer, QueueRecreated, "removed and created again, so its ids began again at 1"),
    (recreated_by_a_peer, QueueRecreated, "removed and created again, so its ids began again at 1"),
    (rolled_back, RedisRolledBack, "Redis is older than the checkpoint"),
    (reissued_below_what_is_read, RedisRolledBack, "Redis is older than the checkpoint"),
    (reissued_as_far_as_it_is_read, IdsReissued, "now belong to other messages"),
    (reissued, IdsReissued, "now belong to other messages"),
]
kinds = pytest.mark.parametrize(
    "kind", [Kind(*kind) for kind in KINDS], ids=[harm.__name__ for harm, _, _ in KINDS]
)


@kinds
@pytest.mark.parametrize("before_42", [False, True])
def test_a_query_that_is_started_again_says_what_happened_meanwhile(
    bus: Bus, engine: MakeEngine, queue: str, kind: Kind, before_42: bool
) -> None:
    harm, error, cause = kind.harm, kind.error, kind.cause
    bus.fill(queue, 5)
    bus.attach(f"{queue}-neighbour")  # the database does not get empty
    query = engine({"redis.url": bus.url, "subscribe": queue}, before_42=before_42)
    query.step()
    if harm in (flushed, consumed):
        bus.fill(queue, 5, first=6)  # else nothing would be missing
        bus("LTRIM", QueueKeys(queue).messages, 10, -1)
    query.kill()
    query.silence(bus, queue)
    harm(bus, queue)
    if before_42:
        bus.push(queue, "one more")  # 4.0 passes the start to the reader only with a batch
        error, cause = (QueueRecreated, "created again") if harm is closed else (error, cause)
    query.restart()
    with pytest.raises(error, match=cause) as failed:
        until_error(query)
    assert failed.value.details["queue"] == queue
    assert failed.value.details["expected"]
    assert failed.value.details["found"]
    assert "failOnDataLoss=false" in str(failed.value)


@kinds
def test_a_running_query_says_it_too(bus: Bus, engine: MakeEngine, queue: str, kind: Kind) -> None:
    harm, error, cause = kind.harm, kind.error, kind.cause
    bus.fill(queue, 5)
    query = engine({"redis.url": bus.url, "subscribe": queue, "maxMessagesPerTrigger": "5"})
    query.step()
    bus.fill(queue, 5, first=6)
    if harm in (flushed, consumed):
        bus("LTRIM", QueueKeys(queue).messages, 10, -1)
    harm(bus, queue)
    with pytest.raises(error, match=cause):
        until_error(query)


@kinds
@pytest.mark.parametrize("before_42", [False, True])
def test_with_fail_on_data_loss_false_a_query_goes_on_from_the_oldest_message_and_counts(
    bus: Bus,
    engine: MakeEngine,
    queue: str,
    caplog: pytest.LogCaptureFixture,
    kind: Kind,
    before_42: bool,
) -> None:
    harm, cause = kind.harm, kind.cause
    bus.fill(queue, 5)
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "failOnDataLoss": "false"}, before_42=before_42
    )
    query.step()
    bus.fill(queue, 5, first=6)
    if harm in (flushed, consumed):
        bus("LTRIM", QueueKeys(queue).messages, 10, -1)
    query.kill()
    query.silence(bus, queue)
    harm(bus, queue)
    left = bus.stored(queue)
    query.restart()
    assert [value for batch in query.drain() for _, _, value in batch] == left
    bus.push(queue, "later")
    later: list[bytes] = []  # at once when the query is notified by then, else with its next poll
    wait_until(
        lambda: later.extend(value for batch in query.drain() for _, _, value in batch) or later,
        PATIENCE_S,
    )
    assert later == [b"later"]
    lost = query.planned[-1]["queues"][queue].get("lost")
    assert lost == (
        None if before_42 else {flushed: 5, consumed: 3}.get(harm, 1)
    )  # there the batch was in the checkpoint before
    [warning] = [
        text for text in caplog.messages if "going on from the oldest stored message" in text
    ]
    assert (
        "created again" if harm is closed else cause
    ) in warning  # by the query itself, before it looks


def test_a_skipped_id_is_read_in_a_later_life_of_its_queue(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 5)
    assert bus.link.run(skip(QueueKeys(queue), "", 3))[0] == "ok"
    options = {"subscribe": queue, "failOnDataLoss": "false", "idlePollMs": "1"}
    query = engine({"redis.url": bus.url, **options})
    assert [id for _, id, _ in query.step() or []] == [1, 2, 4, 5]
    recreated_as_long(bus, queue)
    found: list[int] = []
    wait_until(
        lambda: found.extend(id for batch in query.drain() for _, id, _ in batch) or 5 in found,
        PATIENCE_S,
    )
    assert found == [1, 2, 3, 4, 5]


def test_messages_that_go_between_planning_and_reading_fail_the_task(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 5)
    query = engine({"redis.url": bus.url, "subscribe": queue})
    query.step("planned")
    bus("LTRIM", QueueKeys(queue).messages, 4, -1)
    with pytest.raises(QueueFlushed, match=r"expected ids 1\.\.5, found oldest stored id 3"):
        query.step()


def test_a_replay_does_not_take_another_life_of_the_queue_for_its_own(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 5)
    query = engine({"redis.url": bus.url, "subscribe": queue})
    query.step("planned")
    query.kill()
    bus.close_queue(queue)
    bus.fill(queue, 9)
    query.restart()
    with pytest.raises(QueueRecreated, match="began again at 1"):
        query.step()


def test_with_fail_on_data_loss_false_a_task_reads_what_is_left_of_its_range(
    bus: Bus, engine: MakeEngine, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus.fill(queue, 5)
    query = engine({"redis.url": bus.url, "subscribe": queue, "failOnDataLoss": "false"})
    query.step("planned")
    bus("LTRIM", QueueKeys(queue).messages, 4, -1)
    assert [id for _, id, _ in query.step() or []] == [3, 4, 5]
    assert "ids 1..2 are gone and were skipped" in caplog.text


def test_a_start_that_is_gone_is_a_loss(bus: Bus, engine: MakeEngine, queue: str) -> None:
    bus.fill(queue, 5)
    bus("LTRIM", QueueKeys(queue).messages, 6, -1)
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "startingOffsets": f'{{"{queue}": 1}}'}
    )
    with pytest.raises(
        QueueFlushed,
        match="expected ids from 2 on, as startingOffsets says, found oldest stored id 4",
    ):
        query.step()


def test_an_ack_is_refused_when_the_message_is_another_one(
    query: Engine, bus: Bus, queue: str
) -> None:
    bus("LSET", QueueKeys(queue).messages, 9, "not what was read")
    with pytest.raises(IdsReissued):
        until_error(query)
    assert bus.ids(queue) == [1, 2, 3, 4, 5]


def test_everything_read_and_acked_is_no_loss_when_messages_are_deleted(
    query: Engine, bus: Bus, queue: str
) -> None:
    query.step()
    assert bus.ids(queue) == []
    bus("DEL", QueueKeys(queue).messages)
    query.restart()
    assert not query.step()  # no batch, or before Spark 4.2 in Python one without rows


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_named_queue_that_may_not_be_created_is_missed(
    bus: Bus, engine: MakeEngine, queue: str, strict: str
) -> None:
    bus.fill(queue, 5)
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "createQueue": "false", "failOnDataLoss": strict}
    )
    query.step()
    query.step()
    bus.close_queue(queue)
    with pytest.raises(QueueExpired if strict == "true" else QueueMissing):
        until_error(query)


def test_holes_in_the_ids_of_a_queue_that_two_kinds_of_consumers_left_are_read_around(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.leave_holes(queue)
    query = engine({"redis.url": bus.url, "subscribe": queue, "failOnDataLoss": "false"})
    assert [id for batch in query.drain() for _, id, _ in batch] == [1, 2, 3, 6, 7]
    bus.fill(queue, 2, first=8)
    assert [id for batch in query.drain() for _, id, _ in batch] == [8, 9]


def test_holes_are_a_loss_unless_that_is_allowed(bus: Bus, engine: MakeEngine, queue: str) -> None:
    keys = QueueKeys(queue)
    bus.fill(queue, 5)
    bus.link.run(core.pop(keys, reliable=True, ttl_s=60, most=2))
    bus.link.run(core.pop(keys, most=1))
    bus.link.run(core.ack(keys, 0, ttl_s=60, restore=True))
    query = engine({"redis.url": bus.url, "subscribe": queue})
    with pytest.raises(DataLoss, match=r"expected ids 3\.\.5, found oldest stored id 4"):
        query.step()


def test_an_empty_database_is_distinguished_from_an_expired_queue(
    bus_of: MakeBus, engine: MakeEngine
) -> None:
    with EmbeddedRedis() as server:
        bus = bus_of(server)
        bus.fill("q", 5)
        query = engine({"redis.url": bus.url, "subscribe": "q"})
        query.step()
        bus("FLUSHALL")
        with pytest.raises(QueueFlushed):
            until_error(query)
        query.kill()


@pytest.mark.parametrize("before_42", [False, True])
@pytest.mark.parametrize("own", [{}, {"subscription": "s"}], ids=["alone", "subscription"])
def test_a_checkpoint_that_is_older_than_what_its_query_has_acknowledged_is_named(
    bus: Bus,
    engine: MakeEngine,
    queue: str,
    own: dict[str, str],
    before_42: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = engine(
        {"redis.url": bus.url, "subscribe": queue, "idlePollMs": "1", **own}, before_42=before_42
    )
    bus.fill(queue, 5)
    query.drain()
    backup = query.planned[:1]
    bus.fill(queue, 5, first=6)
    query.drain()
    assert bus.ids(queue) == []
    query.planned, query.committed = list(backup), 1
    query.kill()
    query.silence(bus, queue)
    bus.fill(queue, 2, first=11)
    for _ in range(2):
        with pytest.raises(
            CheckpointOlder,
            match=(
                r"older than what was acknowledged .*; expected ids from 6 on, found oldest stored"
                r" id 11\."
            ),
        ):
            query.step()
        query.restart()
    query.restart(failOnDataLoss="false")
    assert [id for batch in query.drain() for _, id, _ in batch] == [11, 12]
    assert [text for text in caplog.messages if "older than what was acknowledged" in text]
    wait_until(lambda: query.step() is None and bus.ids(queue) == [], PATIENCE_S)
    bus.fill(queue, 2, first=13)
    bus("LTRIM", QueueKeys(queue).messages, 2, -1)
    query.kill()
    query.silence(bus, queue)
    query.restart(failOnDataLoss="true")
    with pytest.raises(QueueFlushed, match="expected ids from 13 on, found oldest stored id 14"):
        query.step()
