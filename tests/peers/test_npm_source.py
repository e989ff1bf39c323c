"""The streaming source over the federated queues of a server of npm busmq: no bulk protocol, only busmq's own wire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from busmq_spark.core.keys import QueueKeys
from busmq_spark.errors import (
    BusError,
    ConfigError,
    FederationRefused,
    IdsReissued,
    MessageRefused,
    QueueBusy,
    QueueExpired,
    QueueFlushed,
    QueueFull,
    QueueRecreated,
    RedisRolledBack,
)
from busmq_spark.federation.bulk_socket import FederationAddress
from busmq_spark.federation.plain_store import PlainStore
from busmq_spark.options import WriteOptions, parse
from busmq_spark.spark import lease, reader, stores
from busmq_spark.spark.sink_schema import SinkColumns
from busmq_spark.spark.writer import TaskWriter
from busmq_spark.store import line
from busmq_spark.store.position import Position
from tests.conftest import Fresh
from tests.federation.cutting import cutter
from tests.federation.far import quick
from tests.peers.npm import Npm
from tests.peers.queries import SECRET, Queries, gather, settle


@pytest.fixture(scope="module")
def server(npm: None, redis_url: str) -> Iterator[Npm]:
    made = Npm(redis_url, SECRET)
    yield made
    assert made.peer.call("federateSockets") is not None, "it lives"
    assert made.peer.errors == []
    made.peer.kill()


@pytest.fixture
def queries(server: Npm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queries]:
    monkeypatch.setattr(line, "PROBE_S", (0.02, 0.1))
    monkeypatch.setattr(lease, "GRACE_S", 0.5)
    monkeypatch.setattr(reader, "LINK_POLL_S", 0.02)
    monkeypatch.setattr(stores, "_SHARED", {})
    quick(monkeypatch)
    made = Queries(server)
    yield made
    made.close()


def upto(last: int, first: int = 1) -> list[int]:
    return list(range(first, last + 1))


def test_messages_come_in_order_go_on_from_the_checkpoint_and_leave_the_queue_when_their_batch_is_done(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 300)
    query = queries.query(queue)
    assert gather(query, 300) == upto(300)
    assert queries.ids(queue) == upto(300), "the batch is not committed yet"
    queries.fill(queue, 301, 400)
    assert gather(query, 100) == upto(400, 301)
    assert queries.ids(queue) == upto(400, 301)
    queries.restart(query)
    settle(query, lambda: queries.ids(queue) == [])
    queries.fill(queue, 401, 450)
    queries.restart(query)
    assert gather(query, 50) == upto(450, 401)
    settle(query, lambda: queries.ids(queue) == [] == queries.ids(queue, "toack"))


def test_a_batch_that_was_planned_or_read_before_a_crash_is_the_same_after_it(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 20)
    query = queries.query(queue)
    assert query.step("planned") is None
    queries.fill(queue, 21, 30)
    queries.restart(query)
    assert [row[1] for row in query.step("read") or []] == upto(20)
    queries.restart(query)
    assert gather(query, 30) == upto(30)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_queue_that_is_empty_does_not_say_its_last_id_and_enters_with_its_next_message(queries: Queries, fresh: Fresh, starting: str) -> None:
    queries.fill(queue := fresh(), 1, 7)
    queries.take(queue, 7)
    query = queries.query(queue, startingOffsets=starting)
    assert query.step() == []
    assert query.step() is None
    queries.restart(query)
    queries.fill(queue, 8, 9)
    assert gather(query, 2) == [8, 9]
    queries.fill(queue, 10, 11)
    assert gather(query, 2) == [10, 11]


def test_latest_leaves_out_what_is_stored(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 5)
    query = queries.query(queue, startingOffsets="latest")
    assert query.step() == []
    queries.fill(queue, 6, 8)
    assert gather(query, 3) == [6, 7, 8]


def test_a_queue_that_is_missing_is_created(queries: Queries, fresh: Fresh) -> None:
    query = queries.query(queue := fresh(), ttl="77s")
    assert query.step() == []
    assert queries.fields(queue)["ttl"] == "77"
    queries.fill(queue, 1, 3)
    assert gather(query, 3) == [1, 2, 3]


def test_several_queues_several_tasks_and_caps(queries: Queries, fresh: Fresh) -> None:
    a, b = fresh("a"), fresh("b")
    for queue in (a, b):
        queries.fill(queue, 1, 100)
    query = queries.query(f"{a},{b}", minPartitions="5", maxMessagesPerTrigger="60", maxBytesPerTrigger="2000", ack="none", onUnavailable="fail")
    rows = query.step() or []
    assert len(query.tasks) > 2
    assert 50 < len(rows) <= 60
    assert sum(len(row[2]) for row in rows) <= 2000
    while (more := query.step()) is not None:
        rows += more
    assert sorted(row[:2] for row in rows) == sorted((queue, id) for queue in (a, b) for id in upto(100))
    assert queries.ids(a) == upto(100)


def consumed(queries: Queries, queue: str) -> None:
    queries.fill(queue, 11, 16)
    queries.take(queue, 3)


def consumed_to_the_end(queries: Queries, queue: str) -> None:
    queries.fill(queue, 11, 16)
    queries.take(queue, 6)
    queries.fill(queue, 17, 17)


def flushed(queries: Queries, queue: str) -> None:
    queries.fill(queue, 11, 16)
    queries.server.peer.flush(queue)
    queries.fill(queue, 17, 17)


def closed(queries: Queries, queue: str) -> None:
    queries.server.peer.close(queue)


def recreated(queries: Queries, queue: str) -> None:
    queries.server.peer.close(queue)
    queries.server.peer.attach(queue, ttl=600)
    queries.fill(queue, 1, 12)


def rolled_back(queries: Queries, queue: str) -> None:
    queries("SET", QueueKeys(queue).msgid, 6)
    queries.fill(queue, 7, 9)


def reissued(queries: Queries, queue: str) -> None:
    """The last two pushes are lost, and three others get their ids."""
    queries("RPOP", QueueKeys(queue).messages, 4)
    queries("SET", QueueKeys(queue).msgid, 8)
    queries.server.peer.push_all(queue, ["x", "y", "z"])


LOSSES = [
    (consumed, "commit", QueueFlushed),
    (consumed_to_the_end, "commit", QueueFlushed),
    (flushed, "commit", QueueFlushed),
    (closed, "commit", QueueExpired),
    (recreated, "commit", QueueRecreated),
    (recreated, "none", QueueRecreated),
    (rolled_back, "commit", RedisRolledBack),
    (reissued, "none", IdsReissued),
]


@pytest.mark.parametrize("anew", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(("trouble", "ack", "error"), LOSSES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_loss_is_told_as_far_as_the_wire_shows_it(
    queries: Queries, fresh: Fresh, trouble: Callable[[Queries, str], None], ack: str, error: type[BusError], anew: bool
) -> None:
    queries.fill(queue := fresh(), 1, 10)
    query = queries.query(queue, ack=ack)
    assert gather(query, 10) == upto(10)
    settle(query, lambda: queries.ids(queue) == ([] if ack == "commit" else upto(10)))
    trouble(queries, queue)
    if anew:
        queries.restart(query)
    with pytest.raises(error, match=f"dc/{queue}"):
        settle(query, lambda: False)


def test_with_fail_on_data_loss_off_it_goes_on_from_what_is_stored(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 10)
    query = queries.query(queue, failOnDataLoss="false")
    assert gather(query, 10) == upto(10)
    settle(query, lambda: queries.ids(queue) == [])
    consumed(queries, queue)
    assert gather(query, 3) == [14, 15, 16]
    closed(queries, queue)
    queries.server.peer.attach(queue, ttl=600)
    queries.fill(queue, 1, 4)
    assert gather(query, 4) == [1, 2, 3, 4]


def test_messages_that_go_while_a_planned_batch_is_read_are_a_loss_or_skipped(queries: Queries, fresh: Fresh) -> None:
    for strict in ("true", "false"):
        queries.fill(queue := fresh(), 1, 30)
        query = queries.query(queue, failOnDataLoss=strict, onUnavailable="fail")
        assert query.step("planned") is None
        queries.take(queue, 10)
        if strict == "true":
            with pytest.raises(QueueFlushed, match="next stored id 11"):
                query.step()
        else:
            assert gather(query, 20) == upto(30, 11)


def test_a_queue_that_is_closed_and_filled_anew_before_a_planned_batch_is_read_is_told_by_its_life(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 30)
    query = queries.query(queue, onUnavailable="fail")
    assert query.step("planned") is None
    recreated(queries, queue)
    queries.fill(queue, 13, 40)
    with pytest.raises(QueueExpired):  # the new life has no name yet
        query.step()


def test_an_older_checkpoint_on_an_empty_queue_is_a_loss_since_the_ack_left_a_mark(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 10)
    query = queries.query(queue)
    assert gather(query, 10) == upto(10)
    older = list(query.planned)
    queries.fill(queue, 11, 20)
    assert gather(query, 10) == upto(20, 11)
    settle(query, lambda: queries.ids(queue) == [])
    query.planned, query.committed = older, len(older)
    queries.restart(query)
    with pytest.raises(QueueFlushed, match="nothing stored after id 20"):
        query.step()


def test_a_second_query_is_refused_and_one_that_died_is_replaced(queries: Queries, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    queries.fill(queue := fresh(), 1, 3)
    first, second = queries.query(queue), queries.query(queue)
    assert gather(first, 3) == [1, 2, 3]
    with pytest.raises(QueueBusy, match=f"dc/{queue}"):
        second.step()
    monkeypatch.setattr(lease, "is_dead", lambda _: True)
    assert gather(second, 3) == [1, 2, 3]
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("options", "match"),
    [({"subscribePattern": "a.*"}, "link 'dc': .*it cannot list its queues"), ({"subscription": "s"}, "link 'dc': .*it keeps no subscriptions")],
)
def test_what_the_wire_cannot_do_is_refused_with_the_reason(queries: Queries, fresh: Fresh, options: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        queries.query(fresh(), **options).step()


def test_links_that_are_cut_and_a_server_that_dies_lose_repeat_and_reorder_nothing(queries: Queries, fresh: Fresh, redis_url: str) -> None:
    server = Npm(redis_url, SECRET)
    own = Queries(server)
    try:
        with cutter(server.port) as link:
            own.port = link.port
            own.fill(queue := fresh(), 1, 2000)
            link.down = iter([500 + 7919 * i % 30_000 for i in range(12)])
            query = own.query(queue, maxMessagesPerTrigger="700")
            assert gather(query, 700) == upto(700)
            death = threading.Thread(target=server.restart)
            death.start()
            assert gather(query, 1300) == upto(2000, 701)
            death.join()
            settle(query, lambda: own.ids(queue) == [] == own.ids(queue, "toack"))
            assert link.connections > 5
    finally:
        own.close()
        server.peer.kill()


def test_a_removal_that_was_cut_short_or_took_too_much_removes_nothing_that_was_not_read(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 20)
    query = queries.query(queue)
    assert gather(query, 20) == upto(20)
    queries.fill(queue, 21, 30)
    queries.server.peer.consume(queue, reliable=True, max=25)  # as a removal would do that took 5 too many and died
    queries.server.peer.received(queue, 25)
    assert (queries.ids(queue, "toack"), queries.ids(queue)) == (upto(25), upto(30, 26))
    store = PlainStore(FederationAddress(f"ws://127.0.0.1:{queries.port}/bus", SECRET))
    try:
        born = queries.fields(queue)["born"]
        assert store.ack({queue: Position(born, 20)}, "")[queue].status == "ok"
    finally:
        store.close()
    assert (queries.ids(queue, "toack"), queries.ids(queue)) == ([], upto(30, 21))
    assert gather(query, 10) == upto(30, 21)


@pytest.mark.parametrize("planned", [False, True])
def test_what_a_removal_took_that_nobody_heard_of_any_more_is_put_back_before_it_counts_as_lost(
    queries: Queries, fresh: Fresh, planned: bool
) -> None:
    queries.fill(queue := fresh(), 1, 20)
    query = queries.query(queue, onUnavailable="fail")
    assert gather(query, 20) == upto(20)
    settle(query, lambda: queries.ids(queue) == [])
    queries.fill(queue, 21, 30)
    if planned:
        assert query.step("planned") is None
    queries.server.peer.consume(queue, reliable=True, max=5)
    queries.server.peer.received(queue, 5)
    assert gather(query, 10) == upto(30, 21)
    assert queries.ids(queue, "toack") == []


def test_a_query_that_removes_nothing_leaves_alone_what_a_reliable_consumer_holds(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 20)
    query = queries.query(queue, ack="none")
    assert gather(query, 20) == upto(20)
    queries.fill(queue, 21, 30)
    queries.server.peer.consume(queue, reliable=True, max=25)
    queries.server.peer.received(queue, 25)
    with pytest.raises(QueueFlushed):
        query.step()
    assert queries.ids(queue, "toack") == upto(25)


def test_a_list_with_holes_is_found_through(queries: Queries, fresh: Fresh) -> None:
    """What consumers put back may leave holes behind: positions and ids part."""
    queries.fill(queue := fresh(), 1, 40)
    for id in (*upto(9, 3), 15, 31):
        queries("LREM", QueueKeys(queue).messages, 1, id)
        queries("LREM", QueueKeys(queue).messages, 1, f"{queue}:{id}")
    left = [id for id in upto(40) if id not in (*upto(9, 3), 15, 31)]
    query = queries.query(queue, failOnDataLoss="false", maxMessagesPerTrigger="12")
    assert gather(query, len(left)) == left
    settle(query, lambda: queries.ids(queue) == [])


def writer(queries: Queries, queue: str, **options: str) -> TaskWriter:
    where = {"federation.url": f"dc=ws://127.0.0.1:{queries.port}/bus", "federation.secret": SECRET, "queue": queue}
    return TaskWriter(parse(WriteOptions, {**where, **options}), SinkColumns("value", None, queue))


def test_a_sink_writes_in_order_at_least_once_and_never_pretends_more(queries: Queries, fresh: Fresh) -> None:
    queue, values = fresh(), [f"é {i}".encode() for i in range(1, 1201)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    with pytest.raises(ConfigError, match="set delivery=at-least-once"):
        writer(queries, queue).write(iter([batch]))
    writer(queries, queue, delivery="at-least-once").write(iter([batch, batch]))
    assert queries("LRANGE", QueueKeys(queue).messages, 0, -1)[1::2] == values * 2
    with pytest.raises(MessageRefused, match="no UTF-8 at byte 1"):
        writer(queries, queue, delivery="at-least-once").write(iter([pa.record_batch({"value": pa.array([b"a\xff"], pa.binary())})]))


def test_a_sink_keeps_to_the_maxsize_of_its_queue(queries: Queries, fresh: Fresh) -> None:
    batch = pa.record_batch({"value": pa.array([b"1", b"2", b"3", b"4"], pa.binary())})
    queue, once = fresh(), {"delivery": "at-least-once", "maxsize": "3", "onFull": "fail"}
    with pytest.raises(QueueFull):
        writer(queries, queue, **once).write(iter([batch]))
    assert queries.ids(queue) == [1, 2, 3]


def test_what_a_server_of_npm_answers_to_a_wrong_secret_names_the_link_and_not_the_secret(queries: Queries, fresh: Fresh) -> None:
    with pytest.raises(FederationRefused, match=r"link 'dc': it does not know the secret") as failed:
        queries.query(fresh(), **{"federation.dc.secret": "another-secret"}).step()
    assert "another-secret" not in str(failed.value)
