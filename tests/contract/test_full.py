"""A Redis at ``maxmemory`` that evicts nothing takes no messages, and can be drained: only what
stores more is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from busmq_spark.errors import ServerFull
from busmq_spark.groups import job, shared_group
from busmq_spark.groups.shared_group import LeasedMessage, SettleRequest
from busmq_spark.queue import queue, retention
from busmq_spark.queue.command_generators import Flow, command
from busmq_spark.queue.keys import JobKeys, QueueKeys
from busmq_spark.reading import reader_operations, reader_subscriptions
from busmq_spark.reading.reader_operations import AckResult, CumulativeAckRequest
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.sync_link import SyncClusterLink
from busmq_spark.routing import event_routing
from tests.conftest import FreshKeys
from tests.contract.conftest import Born, Run
from tests.stored import read_at

ME = "me"


@pytest.fixture
def full(link: Link) -> Iterator[Callable[[], None]]:
    """From the call on every server is beyond its memory, until the end of the test."""

    def limit(size: int) -> None:
        for node in link.master_links if isinstance(link, SyncClusterLink) else [link]:
            node.execute(command("CONFIG", "SET", "maxmemory", size))

    yield lambda: limit(1)
    limit(0)


@pytest.fixture
def stored(born: Born, link: Link, full: Callable[[], None]) -> QueueKeys:
    """A queue of the messages 1 to 20 in a Redis that is full."""
    keys, _ = born()
    link.run(queue.push_many(keys, [b"%d" % n for n in range(1, 21)]))
    full()
    return keys


def ids(messages: Any) -> list[int]:
    return [message.id for message in messages]


def test_a_push_is_refused_and_says_that_draining_helps(run: Run, stored: QueueKeys) -> None:
    with pytest.raises(ServerFull, match="drain"):
        run(queue.push(stored, b"more"))
    assert run(queue.count(stored)) == 20


def test_a_source_starts_reads_and_acks(run: Run, stored: QueueKeys) -> None:
    life = run(queue.attach(stored, "new", ttl_s=60, create=False)).born
    assert run(reader_operations.lease([stored], "", ME, 60_000, [""])) == [ME]
    assert run(reader_operations.lease([stored], "", ME, 60_000, [""])) == [ME]  # it is there now
    assert run(reader_operations.lease([stored], "", "next", 60_000, [ME])) == ["next"]
    assert ids(run(queue.read_after(stored, 0, 0, 3))) == [1, 2, 3]
    assert run(reader_operations.keep_alive([stored], "", "next", 60_000)) == [1]
    assert run(reader_operations.ack_to([CumulativeAckRequest(stored, 15, life, "")])) == [
        AckResult("ok", "15")
    ]
    assert run(reader_operations.release(stored, "", "next"))
    assert run(queue.count(stored)) == 5


def test_a_reader_that_says_again_how_a_queue_is_capped_attaches(
    run: Run, born: Born, full: Callable[[], None]
) -> None:
    keys, _ = born()
    run(queue.set_cap(keys, "5"))
    full()
    run(queue.set_cap(keys, "5"))
    with pytest.raises(ServerFull):
        run(queue.set_cap(keys, "6"))


def test_a_source_with_a_subscription_starts_and_acks(run: Run, stored: QueueKeys) -> None:
    life = run(queue.attach(stored, "new", ttl_s=60)).born
    for _ in range(2):
        assert run(reader_operations.subscribe([stored], "s", ["earliest"])) == [0]
    assert run(reader_operations.keep_alive([stored], "s", ME, 60_000)) == [1]
    assert run(reader_operations.ack_to([CumulativeAckRequest(stored, 15, life, "")], "s")) == [
        AckResult("ok", "15")
    ]
    assert run(reader_operations.subscriptions([stored])) == [{"s": 15}]
    assert run(reader_operations.release(stored, "s", ME))
    assert run(reader_subscriptions.unsubscribe(stored, "s"))


def test_what_is_kept_is_moved_past_and_let_go(
    run: Run, link: Link, born: Born, full: Callable[[], None]
) -> None:
    keys, attached = born()
    link.run(queue.push_many(keys, [b"%d" % n for n in range(1, 21)]))
    link.run(retention.set_retention(keys, retention.parse_limits("7d", None, None)))
    full()
    assert run(reader_operations.ack_to([CumulativeAckRequest(keys, 15, attached.born, "")])) == [
        AckResult("ok", "0")
    ]
    assert run(reader_operations.keep_alive([keys])) == [1]
    found = run(retention.set_retention(keys, retention.parse_limits("7d", 10, "1g")))
    assert found is not None
    assert (found.waiting, found.kept) == (5, 5)
    assert run(reader_operations.subscribe([keys], "s", ["earliest"])) == [10]
    assert (
        run(reader_operations.ack_to([CumulativeAckRequest(keys, 20, attached.born, "")], "s"))[
            0
        ].status
        == "ok"
    )
    assert run(retention.set_retention(keys, retention.parse_limits(None, None, None))) is None
    assert run(read_at(keys, 0)) == []


def test_a_queue_that_keeps_nothing_yet_can_be_told_to(run: Run, stored: QueueKeys) -> None:
    assert run(retention.set_retention(stored, retention.parse_limits(None, 10, None))) is not None


def test_groups_are_made_read_and_settled(run: Run, stored: QueueKeys) -> None:
    life = run(queue.attach(stored, "new", ttl_s=60)).born
    assert (
        run(reader_subscriptions.register(stored, "g", shared={"lease_ms": 60_000, "limit": 0}))
        == 0
    )
    held = run(shared_group.lease(stored, "g", "t", 5)).deliveries
    actions: list[shared_group.Action] = ["ack", "retry", "extend", "release", "ack"]
    delays = [0, 1000, 1000, 0, 0]
    settlements = [
        SettleRequest(each.id, "t", action, ms)
        for each, action, ms in zip(held, actions, delays, strict=True)
    ]
    assert run(shared_group.settle(stored, "g", life, settlements)) == [1] * 5
    assert ids(run(shared_group.lease(stored, "g", "u", 2)).deliveries) == [4, 6]
    assert run(reader_subscriptions.unsubscribe(stored, "g"))
    run(reader_operations.subscribe([stored], "o", ["latest"]))
    assert run(reader_subscriptions.seek(stored, "o", 7)) == 7


def test_a_source_starts_also_when_one_of_its_queues_does_not_exist_yet(
    run: Run, fresh_keys: FreshKeys, full: Callable[[], None]
) -> None:
    keys = fresh_keys()
    full()
    assert not run(queue.attach(keys, "life", ttl_s=60)).existed
    assert run(queue.attach(keys, "later", ttl_s=60)).born == "life"


def test_a_queue_of_npm_busmq_is_adopted(
    run: Run, link: Link, fresh_keys: FreshKeys, full: Callable[[], None]
) -> None:
    keys = fresh_keys()
    link.execute(command("HSET", keys.metadata, "ttl", "60"))
    full()
    assert run(queue.attach(keys, "life", ttl_s=60, create=False)).born == "life"


@pytest.mark.parametrize("token", ["", ME])
def test_a_consumer_takes_gives_back_and_acks(run: Run, stored: QueueKeys, token: str) -> None:
    record = stored.toack if token else stored.in_flight("one")
    if token:
        run(reader_operations.lease([stored], "", token, 60_000, [""]))

    def take(after: int) -> Flow[Any]:
        return queue.take(stored, record, after, most=5, ttl_s=60, token=token)

    assert ids(run(take(0))) == [1, 2, 3, 4, 5]
    assert ids(run(take(0))) == [1, 2, 3, 4, 5]  # again: its reply was lost
    assert ids(run(take(5))) == [6, 7, 8, 9, 10]
    assert run(queue.give_back(stored, record, 8, ttl_s=60, token=token)) == 2
    run(queue.ack(stored, 3, ttl_s=60, restore=True))
    assert run(queue.count(stored)) == (17 if token else 12)


@pytest.mark.parametrize("reliable", [False, True])
def test_a_consumer_of_the_simple_kind_pops_and_acks(
    run: Run, stored: QueueKeys, reliable: bool
) -> None:
    assert ids(run(queue.pop(stored, reliable=reliable, ttl_s=60, most=5))) == [1, 2, 3, 4, 5]
    run(queue.ack(stored, 3, ttl_s=60))
    run(queue.touch(stored, 60))
    run(queue.trim(stored, 10))
    assert run(queue.flush(stored))


def test_nothing_is_published_and_subscriptions_of_events_can_end(
    run: Run, stored: QueueKeys
) -> None:
    with pytest.raises(ServerFull):
        run(event_routing.deliver_event(stored, b"event", "born"))
    with pytest.raises(ServerFull):
        run(event_routing.send_command(stored, b"command", "born"))
    with pytest.raises(ServerFull):
        run(event_routing.subscribe(["a.*"], stored.name, "v"))
    assert run(event_routing.unsubscribe(["a.*"], stored.name, "v")) == 0
    assert run(event_routing.forget_queue(stored.name, "v")) == 0
    assert run(queue.count(stored)) == 20


def test_a_job_is_read_and_its_outcome_written(
    run: Run, link: Link, fresh_keys: FreshKeys, full: Callable[[], None]
) -> None:
    keys = JobKeys(fresh_keys().name, isinstance(link, SyncClusterLink))
    run(job.save_fields([(keys, {"a": (b"j1", 60_000)})]))
    full()
    work = job.LeasedJob(LeasedMessage(1, b"", 1, 1, "t", 1), keys, "", "g", "life", "")
    assert run(job.begin_work([work], 60)) == [("ok", b"")]
    assert run(job.load_fields(keys, ["a"], ["a"], "t")) == [b"j1"]
    with pytest.raises(ServerFull):
        run(
            job.write_outcomes(
                [(work, None)], "q", 60, [{"a": (b"j2", 60_000), "b": (b"j3", 60_000)}]
            )
        )
    assert run(job.read_fields_of([keys], ["a", "b"])) == [[None, None]]
    [(answer, _)] = run(job.write_outcomes([(work, None)], "q", 60))
    assert answer == "ok", "without the fields, and none was written with them"
