"""What is in Redis and no program of the bus has written: typed errors that say where, and no query
that stands still.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busmq_spark.errors import BusError, QueueBusy, QueueDamaged
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.spark.read import acquisition
from tests.spark.conftest import Bus
from tests.spark.engine import Engine

MakeEngine = Callable[..., Engine]


@pytest.mark.parametrize("value", ["orders", "1.5", "-7", "1e308", ""])
def test_a_counter_that_is_no_id(bus: Bus, engine: MakeEngine, queue: str, value: str) -> None:
    bus.fill(queue, 3)
    bus("SET", QueueKeys(queue).msgid, value)
    with pytest.raises(
        QueueDamaged,
        match=f"queue '{queue}': its last id is '{value}'; expected a whole number from 0 on",
    ):
        engine({"redis.url": bus.url, "subscribe": queue}).step()


@pytest.mark.parametrize("place", [0, 4])
def test_an_id_in_the_list_that_is_none(
    bus: Bus, engine: MakeEngine, queue: str, place: int
) -> None:
    bus.fill(queue, 3)
    bus("LSET", QueueKeys(queue).messages, place, -5)
    with pytest.raises(
        QueueDamaged, match=f"queue '{queue}': its (oldest|newest) stored id is '-5'"
    ):
        engine({"redis.url": bus.url, "subscribe": queue}).step()


def test_a_position_of_a_subscription_that_is_no_id(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 3)
    bus("HSET", QueueKeys(queue).acks, "other", "x")
    with pytest.raises(QueueDamaged, match="its acked id of a subscription is 'x'"):
        engine({"redis.url": bus.url, "subscribe": queue, "subscription": "s"}).step()


@pytest.mark.parametrize("key", ["msgid", "acks", "messages"])
def test_a_key_of_another_kind(bus: Bus, engine: MakeEngine, queue: str, key: str) -> None:
    bus.fill(queue, 3)
    name = getattr(QueueKeys(queue), key)
    bus("DEL", name)
    bus("SADD", name, "x")
    with pytest.raises(BusError, match=r"WRONGTYPE|wrong kind"):
        engine({"redis.url": bus.url, "subscribe": queue, "subscription": "s"}).step()


def test_a_second_driver_on_a_copy_of_the_checkpoint_names_who_reads(
    bus: Bus, engine: MakeEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has read on meanwhile: for the copy its messages are gone, yet nothing is lost."""
    monkeypatch.setattr(acquisition, "STOPPING_READER_GRACE_S", 0.0)
    bus.fill(queue, 6)
    options = {
        "redis.url": bus.url,
        "subscribe": queue,
        "maxMessagesPerTrigger": "2",
        "idlePollMs": "1",
    }
    first, copy = engine(options), engine(options)
    first.step()
    copy.planned, copy.committed = list(first.planned), first.committed
    assert len(first.drain()) == 2
    assert bus.ids(queue) == []
    with pytest.raises(
        QueueBusy,
        match=(
            rf"queue '{queue}' is read by another query \(query(?: '.*')?, process \d+ of this"
            r" machine.*\)\. Stop that query"
        ),
    ):
        copy.step()
