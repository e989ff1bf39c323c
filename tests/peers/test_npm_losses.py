"""Which losses the source on a server of npm busmq reports, and what it does not report as one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busmq_spark.errors import (
    BusError,
    IdsReissued,
    QueueExpired,
    QueueFlushed,
    QueueRecreated,
    RedisRolledBack,
)
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.npm_servers import npm_queue
from busmq_spark.federation.npm_servers.npm_queue import RemoteNpmQueue
from busmq_spark.federation.npm_servers.store import FederationNpmStore
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Position, Range
from busmq_spark.store.protocol import QueueCreateOptions
from tests.conftest import Fresh
from tests.peers.queries import SECRET, Queries, gather, settle, upto
from tests.support import wait_until


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
@pytest.mark.parametrize(
    ("trouble", "ack", "error"), LOSSES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_loss_is_reported_as_far_as_the_wire_shows_it(
    queries: Queries,
    fresh: Fresh,
    trouble: Callable[[Queries, str], None],
    ack: str,
    error: type[BusError],
    anew: bool,
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


def test_another_message_with_the_last_id_that_was_read_is_seen_when_the_query_looks_again(
    queries: Queries, fresh: Fresh
) -> None:
    queries.fill(queue := fresh(), 1, 10)
    query = queries.query(queue, ack="none")
    assert gather(query, 10) == upto(10)
    queries("RPOP", QueueKeys(queue).messages, 2)
    queries("SET", QueueKeys(queue).msgid, 9)
    queries.server.peer.push(queue, "another")
    queries.restart(query)
    with pytest.raises(IdsReissued):
        query.step()


def test_with_fail_on_data_loss_off_it_goes_on_from_what_is_stored(
    queries: Queries, fresh: Fresh
) -> None:
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


def test_messages_that_go_while_a_planned_batch_is_read_are_a_loss_or_skipped(
    queries: Queries, fresh: Fresh
) -> None:
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


def test_a_queue_that_is_filled_anew_before_a_planned_batch_is_read_is_recognized(
    queries: Queries, fresh: Fresh
) -> None:
    queries.fill(queue := fresh(), 1, 30)
    query = queries.query(queue, onUnavailable="fail")
    assert query.step("planned") is None
    recreated(queries, queue)
    queries.fill(queue, 13, 40)
    with pytest.raises(QueueExpired):  # the new life has no name yet
        query.step()


def test_an_incarnation_that_ends_while_its_messages_are_read_is_reported(
    queries: Queries, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries.fill(queue := fresh(), 1, 30)
    query = queries.query(queue, onUnavailable="fail")
    assert query.step("planned") is None
    peek = RemoteNpmQueue.peek

    async def peek_late(
        line: RemoteNpmQueue, position: int, most: int = 1
    ) -> list[tuple[int, str]]:
        if most > 1:
            monkeypatch.undo()
            recreated(queries, queue)
            queries.fill(queue, 13, 40)
        return await peek(line, position, most)

    monkeypatch.setattr(RemoteNpmQueue, "peek", peek_late)
    with pytest.raises(QueueExpired, match=r"ids 1\.\.30"):
        query.step()


def test_an_older_checkpoint_on_an_empty_queue_is_a_loss_since_the_ack_left_a_mark(
    queries: Queries, fresh: Fresh
) -> None:
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


def test_a_removal_that_was_cut_short_or_took_too_much_removes_nothing_that_was_not_read(
    queries: Queries, fresh: Fresh
) -> None:
    queries.fill(queue := fresh(), 1, 20)
    query = queries.query(queue)
    assert gather(query, 20) == upto(20)
    queries.fill(queue, 21, 30)
    queries.server.peer.consume(
        queue, reliable=True, max=25
    )  # as a removal would do that took 5 too many and died
    queries.server.peer.received(queue, 25)
    assert (queries.ids(queue, "toack"), queries.ids(queue)) == (upto(25), upto(30, 26))
    store = FederationNpmStore(
        FederationAddress(f"ws://127.0.0.1:{queries.port}/bus", SECRET, secret_in_url=True)
    )
    try:
        born = queries.fields(queue)["born"]
        assert store.ack({queue: Position(born, 20)}, "")[queue].status == "ok"
    finally:
        store.close()
    assert (queries.ids(queue, "toack"), queries.ids(queue)) == ([], upto(30, 21))
    assert gather(query, 10) == upto(30, 21)


@pytest.mark.parametrize("planned", [False, True])
def test_what_a_removal_took_whose_reply_was_lost_is_put_back_before_it_counts_as_lost(
    queries: Queries, fresh: Fresh, planned: bool
) -> None:
    queries.fill(queue := fresh(), 1, 20)
    query = queries.query(queue, onUnavailable="fail")
    assert gather(query, 20) == upto(20)
    settle(query, lambda: queries.ids(queue) == [])
    queries.fill(queue, 21, 30)
    if planned:
        wait_until(lambda: query.step("planned") is None and len(query.planned) > query.committed)
    queries.server.peer.consume(queue, reliable=True, max=5)
    queries.server.peer.received(queue, 5)
    assert gather(query, 10) == upto(30, 21)
    assert queries.ids(queue, "toack") == []


def test_a_query_that_removes_nothing_leaves_alone_what_a_reliable_consumer_holds(
    queries: Queries, fresh: Fresh
) -> None:
    queries.fill(queue := fresh(), 1, 20)
    query = queries.query(queue, ack="none")
    assert gather(query, 20) == upto(20)
    queries.fill(queue, 21, 30)
    queries.server.peer.consume(queue, reliable=True, max=25)
    queries.server.peer.received(queue, 25)
    with pytest.raises(QueueFlushed):
        query.step()
    assert queries.ids(queue, "toack") == upto(25)


def test_a_look_behind_the_end_ends_there(
    queries: Queries, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumption that finds nothing waits for pushes, without a word."""
    monkeypatch.setattr(npm_queue, "ANSWER_TIMEOUT_S", 1000.0)
    queries.fill(queue := fresh(), 1, 10)
    store = FederationNpmStore(
        FederationAddress(f"ws://127.0.0.1:{queries.port}/bus", SECRET, secret_in_url=True)
    )
    try:
        born = store.attach([queue], QueueCreateOptions(allowed=False, ttl_s=600))[queue].born
        read = [
            (rows.first, len(rows.values))
            for rows in store.read(Range(queue, born, 1, 50), fail_on_data_loss=False)
        ]
        assert read == [(1, 10)]
    finally:
        store.close()
