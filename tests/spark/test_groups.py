"""A query and a program in one group of a queue, in both engines: each goes on where the other
stopped, and neither reads while the other does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busmq_spark.bus.bus import Bus as MessageBus
from busmq_spark.errors import CheckpointOlder, QueueBusy
from tests.spark.conftest import Bus
from tests.spark.engine import Engine

MakeEngine = Callable[..., Engine]


def program(bus: Bus, queue: str, *, most: int) -> list[int]:
    """What a program reads and acks in the group ``billing``."""
    with (
        MessageBus.sync(bus.url) as message_bus,
        message_bus.queue(queue) as there,
        there.group("billing") as group,
    ):
        batch = next(group.batches(most))
        group.ack(batch)
        return [each.id for each in batch]


@pytest.mark.needs("limits")
def test_a_query_goes_on_where_a_program_stopped_and_the_other_way_round(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 9)
    assert program(bus, queue, most=3) == [1, 2, 3]
    query = engine(
        {
            "redis.url": bus.url,
            "subscribe": queue,
            "subscription": "billing",
            "maxMessagesPerTrigger": "2",
        }
    )
    assert [id for _, id, *_ in query.step()] == [4, 5]
    assert [id for _, id, *_ in query.step()] == [6, 7]  # planning it has acked the batch before
    query.kill()
    assert program(bus, queue, most=9) == [6, 7, 8, 9]
    query.restart()
    with pytest.raises(CheckpointOlder):
        query.drain()


def test_a_program_reads_nothing_while_a_query_does(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 3)
    query = engine({"redis.url": bus.url, "subscribe": queue, "subscription": "billing"})
    query.step()
    with (
        MessageBus.sync(bus.url) as message_bus,
        message_bus.queue(queue) as there,
        there.group("billing") as group,
    ):
        assert not group.holds
        [found] = there.groups()
        assert (found.subscription.name, found.shared, bool(found.subscription.reader)) == (
            "billing",
            False,
            True,
        )
        with pytest.raises(QueueBusy, match="is read as group 'billing'"):
            group.seek("earliest")


def test_a_query_waits_for_no_program(bus: Bus, engine: MakeEngine, queue: str) -> None:
    bus.fill(queue, 3)
    with (
        MessageBus.sync(bus.url) as message_bus,
        message_bus.queue(queue) as there,
        there.group("billing") as group,
    ):
        next(group.batches())
        with pytest.raises(QueueBusy, match="is read by another query as subscription 'billing'"):
            engine({"redis.url": bus.url, "subscribe": queue, "subscription": "billing"}).step()


def test_a_query_with_a_second_subscription_is_refused_a_queue_of_commands(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    with MessageBus.sync(bus.url) as message_bus:
        message_bus.send(queue, "x", id="c1")
        query = engine({"redis.url": bus.url, "subscribe": queue, "subscription": "billing"})
        assert [id for _, id, *_ in query.step()] == [1]
        refused = (
            r"takes commands, which are for one group, and has group 'billing'. Read as that group,"
            r" or drop it first \(busmq unsubscribe\)"
        )
        with pytest.raises(QueueBusy, match=refused):
            engine({"redis.url": bus.url, "subscribe": queue, "subscription": "audit"}).step()
        with message_bus.queue(queue) as there, pytest.raises(QueueBusy, match=refused):
            there.subscribe("audit")


def test_a_query_reads_a_topic_as_a_group_of_it_where_its_members_stopped_and_not_beside_them(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    options = {"redis.url": bus.url, "topic": queue, "subscription": "agg"}
    with MessageBus.sync(bus.url) as message_bus, message_bus.topic(queue, partitions=1) as topic:
        topic.push_many(["a", "b", "c"])
        with topic.group("agg") as member:
            member.ack(next(member.batches(most=2)))
            with pytest.raises(QueueBusy, match="is read by another query as subscription 'agg'"):
                engine(options).step()
        query = engine(options)
        assert [value for rows in query.drain() for _, _, value in rows] == [b"c"]
