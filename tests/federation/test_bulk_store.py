"""What a store answers, asked of Redis itself and of a federation server in front of it: a reader
or writer must not see which it has.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    BatchChanged,
    DataLoss,
    QueueFull,
    QueueMissing,
    QueueRecreated,
    StagingLost,
    StaleBatch,
)
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Position, Range
from busmq_spark.spark.read.tasks import fetch_times
from busmq_spark.store.protocol import PushListeners, QueueCreateOptions
from busmq_spark.store.redis_push_listeners import RedisPushListeners
from busmq_spark.store.redis_store import RedisStore, open_store
from busmq_spark.writing.sink import CommitStoppedAtMaxsize, StagedList
from busmq_spark.writing.sink_rollback import SinkState, lists_digest
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR, NEVER, Store, filled, read
from tests.federation.bulk_site import Site, site
from tests.support import wait_until

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    with site(redis_server.url) as made:
        yield made


@pytest.fixture(params=["redis", "federated"])
def store(request: pytest.FixtureRequest, redis_url: str, here: Site) -> Iterator[Store]:
    made: Store = (
        open_store(RedisOptions(url=redis_url))
        if request.param == "redis"
        else FederationBulkStore(here.address())
    )
    yield made
    made.close()


def attempt(query: str = "batch", batch: int = 0) -> str:
    return f"{query}:{batch}:0:{secrets.token_hex(8)}"


def staged(store: Store, queue: str, values: list[bytes], batch: int = 0) -> StagedList:
    appender = store.appender()
    appender.stage(queue, store.keys(queue).stage(attempt(batch=batch)), values)
    [found] = appender.finish()
    return found


def test_a_range_is_read_in_order_and_whole(store: Store, fresh: Fresh) -> None:
    values = [b"%d" % i for i in range(5000)]
    part = filled(store, fresh(), values)
    assert read(store, part) == list(enumerate(values, 1))
    assert read(store, part._replace(first=17, last=4711)) == list(enumerate(values, 1))[16:4711]


def test_times_and_ages_are_those_of_the_queue(
    store: Store, fresh: Fresh, direct: RedisStore
) -> None:
    parts = [filled(store, fresh(), [b"x"] * 3) for _ in range(3)]
    wanted = {part.queue: (1, 3) for part in parts}
    found = fetch_times(store, parts)
    assert found == fetch_times(direct, parts)
    assert set(found) == set(wanted)
    assert [(times.born, [id for _, id in times.pairs]) for times in found.values()] == [
        (part.born, [0, 3]) for part in parts
    ]
    ages = dict(store.ages({part.queue: 3 for part in parts} | {"no-such-queue": 1}))
    assert ages.pop("no-such-queue") == -1
    assert all(age >= 0 for age in ages.values())


def test_values_of_every_kind_come_through(store: Store, fresh: Fresh) -> None:
    values = [b"", b"\x00\xff", b"x" * 3_000_000, "ü€".encode(), b"y" * 70_000]
    assert read(store, filled(store, fresh(), values)) == list(enumerate(values, 1))


def test_a_range_of_another_incarnation_or_with_missing_messages_is_an_error(
    store: Store, direct: RedisStore, fresh: Fresh
) -> None:
    part = filled(store, fresh(), [b"%d" % i for i in range(100)])
    with pytest.raises(QueueRecreated):
        read(store, part._replace(born="another"))
    direct.ack({part.queue: Position(part.born, 40, "")}, "")
    with pytest.raises(DataLoss, match=r"oldest stored id 41"):
        read(store, part)
    assert [id for id, _ in read(store, part, strict=False)] == list(range(41, 101))
    assert read(store, part._replace(born="another"), strict=False) == []


def test_a_read_that_is_left_half_way_does_not_disturb_the_next(store: Store, fresh: Fresh) -> None:
    part = filled(store, fresh(), [b"x" * 1000] * 20_000)
    for _ in range(3):
        pieces = store.read(part, True)
        assert next(pieces).first == 1
        pieces.close()  # type: ignore[attr-defined]  # a generator
    pieces = store.read(part, True)
    next(pieces)
    assert store.states({part.queue: -1})[part.queue].count == 20_000
    assert sum(len(piece.values) for piece in pieces) < 20_000
    assert len(read(store, part)) == 20_000


def test_states_marks_and_counters_are_those_of_redis(
    store: Store, direct: RedisStore, fresh: Fresh
) -> None:
    names = [fresh(), fresh("ü/ :"), fresh()]
    for name in names[:2]:
        filled(store, name, [b"1", b"2", b"3"])
    wanted = {names[0]: 2, names[1]: 9, names[2]: -1}
    assert store.states(wanted) == direct.states(wanted)
    assert not store.states(wanted)[names[2]].exists
    assert store.marks({names[0]: 1}) == direct.marks({names[0]: 1}) != {names[0]: ""}
    assert list(store.counters(names)) == list(direct.counters(names)) == [b"3", b"3", None]
    assert store.bytes_until(names[0], 1, 3, 2) == (2, 2)
    assert [*store.states({})] == [*store.counters([])] == []


def test_attach_creates_adopts_or_misses(store: Store, fresh: Fresh) -> None:
    queue = fresh()
    with pytest.raises(QueueMissing):
        store.attach([queue], QueueCreateOptions(allowed=False, ttl_s=60))
    made = store.attach([queue], QueueCreateOptions(allowed=True, ttl_s=60, maxsize=5))[queue]
    assert (made.existed, made.ttl_s, made.maxsize) == (False, 60, 5)
    assert store.attach([queue], HOUR)[queue] == replace(made, existed=True)
    assert queue in store.discover(lambda name: name == queue)


def test_acks_subscriptions_and_leases_are_those_of_redis(
    store: Store, direct: RedisStore, fresh: Fresh
) -> None:
    part = filled(store, fresh(), [b"%d" % i for i in range(10)])
    queue = part.queue
    assert store.subscribe({queue: "earliest"}, "audit") == {queue: 0}
    assert store.subscriptions([queue]) == {queue: {"audit": 0}} == direct.subscriptions([queue])
    mark = store.marks({queue: 4})[queue]
    assert store.ack({queue: Position(part.born, 4, mark)}, "audit")[queue].status == "ok"
    assert store.ack({queue: Position("another", 4, "")}, "audit")[queue].status == "recreated"
    assert store.subscriptions([queue]) == {queue: {"audit": 4}}
    assert store.lease([queue], "audit", "me", {}) == {queue: "me"}
    assert direct.lease([queue], "audit", "you", {})[queue].endswith("me")
    assert store.holders([queue], "audit") == {queue: "me"}
    assert store.keep_alive([queue], "audit", "me") == {queue: 1}
    assert store.keep_alive([queue], "audit", "you") == {queue: -1}
    assert store.lease([queue], "audit", "you", {queue: "me"}) == {queue: "you"}
    assert store.traces(queue) == direct.traces(queue)


def test_a_staged_batch_becomes_visible_once_however_often_it_is_committed(
    store: Store, direct: RedisStore, fresh: Fresh
) -> None:
    part, sink = filled(store, fresh(), [b"before"]), fresh("sink")
    values = [b"%d" % i for i in range(2500)]
    one, two = staged(store, part.queue, values), staged(store, part.queue, [b"last"])
    assert (one.rows, one.chunks, two.rows) == (2500, ((1000, 2), (500, 1)), 1)
    assert direct.states({part.queue: -1})[part.queue].count == 1
    assert store.record(sink, 0, [one, two], "query") == (one, two) == store.recorded(sink, 0)
    digest = lists_digest([one, two])
    assert store.sink_state(sink, [part.queue]) == SinkState(0, digest, 0, ("",))
    for _ in range(3):
        assert store.commit(part.queue, sink, 0, [one, two]) is None
    [progress] = store.sink_state(sink, [part.queue]).progress
    assert progress.startswith("0:done")
    assert [value for _, value in read(store, part._replace(last=2502))] == [
        b"before",
        *values,
        b"last",
    ]
    assert store.recorded(sink, 1) == ()
    store.forget(sink, [one, two])
    assert store.recorded(sink, 0) == ()
    assert store.sink_state(sink, []) == SinkState(-1, "", 0, ())


def test_a_batch_that_was_recorded_before_stays_what_it_was(store: Store, fresh: Fresh) -> None:
    queue, sink = filled(store, fresh(), [b"0"]).queue, fresh("sink")
    first, second = staged(store, queue, [b"1"]), staged(store, queue, [b"2"])
    assert store.record(sink, 5, [first], "q", "same:offsets") == (first,)
    assert store.record(sink, 5, [second], "q", "same:offsets") == (first,)
    with pytest.raises(
        BatchChanged,
        match="recorded with other offsets than it has now: recorded up to offsets; now up to more",
    ):
        store.record(sink, 5, [second], "q", "other:more")
    with pytest.raises(StaleBatch, match="batch 4 was offered but batch 5"):
        store.record(sink, 4, [second])


def test_staged_rows_that_are_gone_are_noticed_before_the_commit(
    store: Store, fresh: Fresh
) -> None:
    queue = filled(store, fresh(), [b"0"]).queue
    found = staged(store, queue, [b"1", b"2"])
    store.discard([found])
    with pytest.raises(StagingLost, match="staged 2 rows"):
        store.record(fresh("sink"), 0, [found])


def test_a_full_queue_says_how_many_are_left(store: Store, fresh: Fresh) -> None:
    queue, sink = fresh(), fresh("sink")
    filled(store, queue, [b"1", b"2"], QueueCreateOptions(allowed=True, ttl_s=60, maxsize=4))
    with pytest.raises(QueueFull, match="maxsize of 4 messages; 1 rows are not stored"):
        store.appender().push(queue, [b"3", b"4", b"5"], NEVER)
    found = staged(store, queue, [b"6"])
    store.record(sink, 0, [found])
    assert store.commit(queue, sink, 0, [found]) == CommitStoppedAtMaxsize(queue, 4, 1)
    store.truncate([queue])
    assert store.commit(queue, sink, 0, [found]) is None


def test_what_is_pushed_while_a_queue_is_emptied_stays(
    store: Store, direct: RedisStore, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled(store, fresh(), [b"old"] * 3).queue
    ends = RedisStore.ends
    monkeypatch.setattr(RedisStore, "ends", lambda *a: (ends(*a), direct.push(queue, [b"new"]))[0])
    store.truncate([queue, fresh()])
    assert (state := store.states({queue: -1})[queue]).count == 1
    assert read(store, Range(queue, state.born, 4, 4)) == [(4, b"new")]


def test_what_a_task_staged_in_vain_is_taken_back(
    store: Store, direct: RedisStore, fresh: Fresh
) -> None:
    queue = filled(store, fresh(), [b"0"]).queue
    appender, key = store.appender(), store.keys(queue).stage(attempt())
    appender.stage(queue, key, [b"x" * 100] * 30_000)
    appender.discard()
    with pytest.raises(StagingLost):
        direct.record(fresh("sink"), 0, [StagedList(queue, 0, key, ((1000, 30),))])


def test_a_push_wakes_an_idle_reader(store: Store, direct: RedisStore, fresh: Fresh) -> None:
    queue, other, notified = (
        filled(store, fresh(), [b"0"]).queue,
        filled(store, fresh(), [b"0"]).queue,
        threading.Event(),
    )
    listener: PushListeners = (
        store.push_listeners(notified)[0]
        if isinstance(store, FederationBulkStore)
        else RedisPushListeners(store, notified)
    )
    listener.listen([queue])
    wait_until(notified.is_set, what="the listener listens")
    for _ in range(3):
        notified.clear()
        direct.push(queue, [b"1"])
        wait_until(notified.is_set, what="the listener notifies")

    def wakes_for_another() -> bool:
        notified.clear()
        direct.push(other, [b"1"])
        return notified.wait(0.2)

    assert not all(wakes_for_another() for _ in range(5))  # what comes late is from those before
    listener.stop()
