"""Which queues a query reads and who else may: creation, discovery, leases, subscriptions,
keep-alive.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import QueueBusy, QueueExpired, QueueMissing, ServerFull
from busmq_spark.options import WEEK_S
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_subscriptions import register
from busmq_spark.spark.read import acquisition, reader_threads
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus, MakeBus
from tests.spark.engine import Engine, Row
from tests.support import Life, wait_until

MakeEngine = Callable[..., Engine]


def ids(batches: list[list[Row]]) -> list[int]:
    return [id for rows in batches for _, id, _ in rows]


def names(batches: list[list[Row]]) -> list[str]:
    return [name for rows in batches for name, _, _ in rows]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquisition, "STOPPING_READER_GRACE_S", 0.0)
    monkeypatch.setattr(reader_threads, "DISCOVERY_INTERVAL_S", 0.02)


# Creation


def test_a_named_queue_that_does_not_exist_is_created_to_live_a_week(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    query, life = engine({"redis.url": bus.url, "subscribe": queue}), Life(bus, WEEK_S)
    assert query.step() == []
    keys = QueueKeys(queue)
    assert bus("HGET", keys.metadata, "ttl") == str(WEEK_S).encode()
    assert life.given_to(keys.metadata)
    bus.fill(queue, 2)
    assert ids(query.drain()) == [1, 2]


def test_an_existing_queue_keeps_its_own_ttl_and_a_short_one_is_warned_about(
    bus: Bus, engine: MakeEngine, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus.push(queue, "1", ttl_s=30)
    engine({"redis.url": bus.url, "subscribe": queue, "ttl": "2d"}).step()
    assert bus("HGET", QueueKeys(queue).metadata, "ttl") == b"30"
    [warning] = [text for text in caplog.messages if "keeps its own ttl" in text]
    assert f"'{queue}' keeps its own ttl of 30 s" in warning


def test_a_queue_with_a_long_ttl_and_one_that_is_created_are_not_warned_about(
    bus: Bus, engine: MakeEngine, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = fresh("a"), fresh("b")
    bus.push(a, "1", ttl_s=3600)
    engine({"redis.url": bus.url, "subscribe": f"{a},{b}", "ttl": "60s"}).step()
    assert caplog.messages == []


def test_without_create_queue_a_missing_queue_is_an_error_and_stays_missing(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    query = engine({"redis.url": bus.url, "subscribe": queue, "createQueue": "false"})
    with pytest.raises(
        QueueMissing, match=f"queue '{queue}' does not exist and may not be created here"
    ):
        query.step()
    assert bus("EXISTS", QueueKeys(queue).metadata) == 0


def test_a_queue_whose_name_has_commas_is_named_in_a_json_list(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.push(f"{queue},{queue}", "1")
    query = engine({"redis.url": bus.url, "subscribe": json.dumps([f"{queue},{queue}"])})
    assert names(query.drain()) == [f"{queue},{queue}"]
    assert bus("EXISTS", QueueKeys(queue).metadata) == 0


# Discovery


def test_a_pattern_must_match_the_whole_name_and_creates_nothing(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    base = fresh("orders")
    for name in (f"{base}-1", f"{base}-2", f"{base}-x", f"not-{base}-1", f"{base}-11"):
        bus.push(name, "1")
    query = engine({"redis.url": bus.url, "subscribePattern": rf"{base}-\d"})
    assert names(query.drain()) == [f"{base}-1", f"{base}-2"]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_queue_that_appears_while_the_query_runs_is_read_from_its_first_message(
    bus: Bus, engine: MakeEngine, fresh: Fresh, starting: str
) -> None:
    base = fresh("orders")
    query = engine(
        {"redis.url": bus.url, "subscribePattern": f"{base}-.", "startingOffsets": starting}
    )
    assert query.drain() == []
    bus.fill(f"{base}-1", 2)
    bus.fill(f"{base}-2", 3)
    found: list[list[Row]] = []
    wait_until(lambda: found.extend(query.drain()) or len(ids(found)) == 5, PATIENCE_S)
    assert sorted(row for rows in found for row in rows) == [
        (f"{base}-{q}", id, f"{base}-{q}:{id}".encode())
        for q, id in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    ]


def test_a_queue_that_was_found_by_a_pattern_and_expired_is_missed_at_the_next_start(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    base = fresh("orders")
    bus.fill(f"{base}-1", 2)
    bus.fill(f"{base}-2", 2)
    for ack in ("commit", "none"):
        query = engine({"redis.url": bus.url, "subscribePattern": f"{base}-.", "ack": ack})
        query.drain()
        query.kill()
        bus.close_queue(f"{base}-2")
        query.restart()
        with pytest.raises(QueueExpired, match=f"queue '{base}-2'"):
            query.step()
        query.kill()
        bus.fill(f"{base}-2", 2)


def test_with_fail_on_data_loss_false_a_queue_of_a_pattern_may_come_and_go(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    base = fresh("orders")
    bus.fill(f"{base}-1", 2)
    bus.fill(f"{base}-2", 2)
    query = engine(
        {
            "redis.url": bus.url,
            "subscribePattern": f"{base}-.",
            "failOnDataLoss": "false",
            "idlePollMs": "1",
        }
    )
    query.drain()
    bus.close_queue(f"{base}-2")
    wait_until(lambda: query.drain() == [] and query.positions() == {f"{base}-1": 2}, PATIENCE_S)
    bus.fill(f"{base}-2", 1)
    found: list[list[Row]] = []
    wait_until(lambda: found.extend(query.drain()) or found, PATIENCE_S)
    assert (names(found), ids(found)) == ([f"{base}-2"], [1])


def test_queues_of_several_servers_are_found_and_read(  # type: ignore[no-untyped-def]
    three_servers, engine: MakeEngine, fresh: Fresh, bus_of
) -> None:
    base = fresh("orders")
    for number, url in enumerate(three_servers.urls):
        bus_of(url).fill(f"{base}-{number}", 2)
    query = engine({"redis.url": ",".join(three_servers.urls), "subscribePattern": f"{base}-."})
    assert sorted(names(query.drain())) == sorted(f"{base}-{n}" for n in (0, 0, 1, 1, 2, 2))
    query.step()
    assert [bus_of(url).ids(f"{base}-{n}") for n, url in enumerate(three_servers.urls)] == [
        [],
        [],
        [],
    ]


# Who else reads


def test_a_second_query_on_a_queue_is_refused(bus: Bus, engine: MakeEngine, queue: str) -> None:
    bus.fill(queue, 2)
    first = engine({"redis.url": bus.url, "subscribe": queue})
    first.step()
    with pytest.raises(
        QueueBusy,
        match=(
            r"is read by another query \(query(?: '.*')?, process \d+ of this machine.*\)\."
            r" Stop that query, or give each query"
        ),
    ):
        engine({"redis.url": bus.url, "subscribe": queue}).step()
    bus.fill(queue, 1, first=3)
    assert ids(first.drain()) == [3]


def test_a_second_query_that_removes_nothing_is_welcome(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 2)
    first = engine({"redis.url": bus.url, "subscribe": queue})
    second = engine({"redis.url": bus.url, "subscribe": queue, "ack": "none"})
    assert ids(second.drain()) == [1, 2]
    assert ids(first.drain()) == [1, 2]


def test_a_query_that_lost_its_lease_while_it_was_cut_off_stops(
    bus: Bus, engine: MakeEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = engine(
        {"redis.url": bus.url, "subscribe": queue, "ttl": "6s"}
    )  # a short ttl has the keep-alive thread look often
    first.step()
    bus("SET", QueueKeys(queue).lease(""), "somebody else")

    def refused() -> bool:
        try:
            first.step()
        except QueueBusy:
            return True
        return False

    wait_until(refused, PATIENCE_S)


def test_two_subscriptions_each_read_everything_and_a_message_leaves_when_both_have_acked_it(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 4)
    a = engine(
        {
            "redis.url": bus.url,
            "subscribe": queue,
            "subscription": "a",
            "maxMessagesPerTrigger": "2",
        }
    )
    b = engine({"redis.url": bus.url, "subscribe": queue, "subscription": "b"})
    b.step()
    assert ids(a.drain()) == [1, 2, 3, 4]
    assert bus.ids(queue) == [1, 2, 3, 4]
    assert ids(b.drain()) == []
    assert bus.ids(queue) == []
    bus.fill(queue, 2, first=5)
    assert ids(b.drain()) == [5, 6]
    assert bus.ids(queue) == [5, 6]
    assert ids(a.drain()) == [5, 6]
    assert bus.ids(queue) == []


def test_a_subscription_keeps_its_messages_while_its_query_is_down(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    a = engine({"redis.url": bus.url, "subscribe": queue, "subscription": "a"})
    b = engine({"redis.url": bus.url, "subscribe": queue, "subscription": "b"})
    a.step()
    b.step()
    a.kill()
    bus.fill(queue, 3)
    b.drain()
    assert bus.ids(queue) == [1, 2, 3]
    a.restart()
    assert ids(a.drain()) == [1, 2, 3]
    assert bus.ids(queue) == []


def test_the_same_subscription_twice_is_refused(bus: Bus, engine: MakeEngine, queue: str) -> None:
    engine({"redis.url": bus.url, "subscribe": queue, "subscription": "a"}).step()
    with pytest.raises(QueueBusy, match="is read by another query as subscription 'a'"):
        engine({"redis.url": bus.url, "subscribe": queue, "subscription": "a"}).step()


def test_the_name_of_a_shared_group_is_refused(bus: Bus, engine: MakeEngine, queue: str) -> None:
    bus.fill(queue, 2)
    bus.link.run(register(QueueKeys(queue), "mail", shared={"lease_ms": 1000}))
    with pytest.raises(
        QueueBusy,
        match=(
            r"has a group 'mail', which is shared\. Choose another name, or drop that group first"
        ),
    ):
        engine({"redis.url": bus.url, "subscribe": queue, "subscription": "mail"}).step()
    assert bus.ids(queue) == [1, 2]


def test_a_reader_without_subscription_is_refused_where_others_have_one(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    engine({"redis.url": bus.url, "subscribe": queue, "subscription": "a"}).step()
    with pytest.raises(
        QueueBusy,
        match=(
            r"has the subscriptions a\. A reader without one would wait for them or lose messages"
            r" to them.*busmq unsubscribe"
        ),
    ):
        engine({"redis.url": bus.url, "subscribe": queue}).step()


def test_a_subscription_is_refused_where_a_query_without_one_runs(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    first = engine({"redis.url": bus.url, "subscribe": queue})
    first.step()
    with pytest.raises(QueueBusy, match="is read by a query without a subscription"):
        engine({"redis.url": bus.url, "subscribe": queue, "subscription": "a"}).step()
    assert bus("EXISTS", QueueKeys(queue).acks) == 0
    first.kill()
    bus.fill(queue, 1)
    assert ids(engine({"redis.url": bus.url, "subscribe": queue, "subscription": "a"}).drain()) == [
        1
    ]


@pytest.mark.needs("limits")
def test_a_subscription_on_a_queue_that_began_a_new_life_drops_nothing_of_it(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    """Its old position, taken into the new life, would count new messages as acked."""
    bus.fill(queue, 50)
    a = engine(
        {"redis.url": bus.url, "subscribe": queue, "subscription": "a", "failOnDataLoss": "false"}
    )
    b = engine(
        {"redis.url": bus.url, "subscribe": queue, "subscription": "b", "failOnDataLoss": "false"}
    )
    a.drain()
    b.drain()
    a.kill()
    b.kill()
    bus.close_queue(queue)
    bus.fill(queue, 3)
    b.restart()
    a.restart()
    a.reader.latestOffset(
        a.planned[-1], a.reader.getDefaultReadLimit()
    )  # attached, nothing read yet
    assert ids(b.drain()) == [1, 2, 3]
    assert bus.ids(queue) == [1, 2, 3]
    assert ids(a.drain()) == [1, 2, 3]
    assert bus.ids(queue) == []


# Keep-alive


def test_a_queue_with_a_short_ttl_is_touched_while_a_query_idles(
    bus: Bus, engine: MakeEngine, fresh: Fresh
) -> None:
    kept = fresh("kept")
    bus.push(kept, "1", ttl_s=10)
    query = engine({"redis.url": bus.url, "subscribe": kept})
    query.step()
    left = dict.fromkeys(
        (QueueKeys(kept).metadata, QueueKeys(kept).messages, QueueKeys(kept).msgid), 0
    )

    def touched() -> bool:
        """Whether each has been given a longer life than it had left."""
        for key, before in list(left.items()):
            left[key] = bus("PTTL", key)
            assert left[key] > 0, f"{key} is gone, or has no end"
            if 0 < before < left[key]:
                del left[key]
        return not left

    wait_until(touched, PATIENCE_S)
    assert bus.ids(kept) == [1]


def test_a_subscription_that_is_added_while_a_batch_waits_keeps_the_messages_of_that_batch(
    bus: Bus, engine: MakeEngine, queue: str
) -> None:
    bus.fill(queue, 5)
    query = engine({"redis.url": bus.url, "subscribe": queue, "ack": "none"})
    query.step()
    bus.fill(queue, 5, first=6)
    query.step(crash="planned")
    query.restart(subscription="late", ack="commit")
    assert ids([query.step() or []]) == [6, 7, 8, 9, 10]
    assert bus("HGET", QueueKeys(queue).acks, "late") == b"5"


def test_the_keep_alive_ends_with_the_reader(bus: Bus, engine: MakeEngine, queue: str) -> None:
    query = engine({"redis.url": bus.url, "subscribe": queue, "ttl": "6s"})
    query.step()
    query.kill()
    wait_until(lambda: not bus("EXISTS", QueueKeys(queue).metadata), PATIENCE_S)


# A Redis that is full


@pytest.mark.parametrize("options", [{}, {"subscription": "s"}], ids=["alone", "subscription"])
def test_a_redis_that_is_full_can_be_drained_and_then_takes_messages_again(
    bus_of: MakeBus, engine: MakeEngine, options: dict[str, str]
) -> None:
    with EmbeddedRedis(maxmemory="6mb") as server:
        bus = bus_of(server)
        with pytest.raises(ServerFull, match="drain"):
            bus.push("q", *[b"x" * 100_000] * 200)
        stored = bus.ids("q")
        query = engine(
            {
                "redis.url": bus.url,
                "subscribe": "q",
                "maxMessagesPerTrigger": len(stored) // 3,
                **options,
            }
        )
        assert ids(query.drain()) == stored
        assert query.step() is None
        bus.push("q", "more")
        assert ids(query.drain()) == [stored[-1] + 1]
        query.kill()
