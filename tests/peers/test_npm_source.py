"""The streaming source and the sink over the federated queues of a server of npm busmq: no bulk
protocol, only busmq's own wire.
"""

from __future__ import annotations

import threading
from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, TimestampType

from busmq_spark.errors import (
    ConfigError,
    FederationRefused,
    MessageRefused,
    QueueBusy,
    QueueFull,
    UnreadBacklog,
)
from busmq_spark.federation.npm_servers import npm_queue
from busmq_spark.federation.npm_servers.store import FederationNpmStore
from busmq_spark.option_parsing import parse
from busmq_spark.options import WriteOptions
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark.read import acquisition, planning
from busmq_spark.spark.write.sink_columns import SinkColumns
from busmq_spark.spark.write.tasks import TaskWriter
from tests.conftest import Fresh
from tests.federation.cutting import cutter
from tests.peers.npm import Npm
from tests.peers.queries import SECRET, Queries, gather, settle, upto
from tests.spark.links import LINKED
from tests.support import wait_until


def test_messages_come_in_order_from_the_checkpoint_and_leave_when_their_batch_is_done(
    queries: Queries, fresh: Fresh
) -> None:
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


def test_a_batch_that_was_planned_or_read_before_a_crash_is_the_same_after_it(
    queries: Queries, fresh: Fresh
) -> None:
    queries.fill(queue := fresh(), 1, 20)
    query = queries.query(queue)
    assert query.step("planned") is None
    queries.fill(queue, 21, 30)
    queries.restart(query)
    assert [row[1] for row in query.step("read") or []] == upto(20)
    queries.restart(query)
    assert gather(query, 30) == upto(30)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_queue_that_is_empty_does_not_say_its_last_id_and_enters_with_its_next_message(
    queries: Queries, fresh: Fresh, starting: str
) -> None:
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


def test_an_empty_queue_that_has_not_entered_is_asked_about_as_seldom_as_any_other(
    queries: Queries, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries.fill(queue := fresh(), 1, 1)
    queries.take(queue, 1)
    query = queries.query(queue)
    assert query.step() == []
    assert query.step() is None
    monkeypatch.setattr(planning, "LINK_POLL_S", 1000.0)
    assert [query.step() for _ in range(3)] == [None] * 3
    asked: list[object] = []
    monkeypatch.setattr(FederationNpmStore, "states", lambda *args: asked.append(args))
    assert [query.step() for _ in range(10)] == [None] * 10
    assert asked == []


def test_latest_leaves_out_what_is_stored(queries: Queries, fresh: Fresh) -> None:
    queries.fill(queue := fresh(), 1, 5)
    with pytest.raises(UnreadBacklog, match="holds 5 unread messages up to id 5"):
        queries.query(queue, startingOffsets="latest").step()
    query = queries.query(queue, startingOffsets="latest", discardBacklog="true")
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
    query = queries.query(
        f"{a},{b}",
        minPartitions="5",
        maxMessagesPerTrigger="60",
        maxBytesPerTrigger="2000",
        ack="none",
        onUnavailable="fail",
    )
    rows = query.step() or []
    assert len(query.tasks) > 2
    assert 50 < len(rows) <= 60
    assert sum(len(row[2]) for row in rows) <= 2000
    while (more := query.step()) is not None:
        rows += more
    assert sorted(row[:2] for row in rows) == sorted(
        (queue, id) for queue in (a, b) for id in upto(100)
    )
    assert queries.ids(a) == upto(100)


def test_a_queue_lives_as_long_as_a_query_holds_it(queries: Queries, fresh: Fresh) -> None:
    query = queries.query(queue := fresh(), ttl="4s")
    assert query.step() == []
    left: list[int] = []

    def touched() -> bool:
        left.append(queries("PTTL", QueueKeys(queue).metadata))
        assert left[-1] > 0
        return sum(after > before for before, after in pairwise(left)) >= 2

    wait_until(touched)
    query.kill()
    wait_until(lambda: not queries("EXISTS", QueueKeys(queue).metadata))


def test_a_second_query_is_refused_and_one_that_died_is_replaced(
    queries: Queries, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries.fill(queue := fresh(), 1, 3)
    first, second = queries.query(queue), queries.query(queue)
    assert gather(first, 3) == [1, 2, 3]
    with pytest.raises(QueueBusy, match=f"dc/{queue}"):
        second.step()
    monkeypatch.setattr(acquisition, "is_dead", lambda _: True)
    assert gather(second, 3) == [1, 2, 3]
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"subscribePattern": "a.*"}, "link 'dc': .*it cannot list its queues"),
        ({"subscription": "s"}, "link 'dc': .*it keeps no subscriptions"),
    ],
)
def test_what_the_wire_cannot_do_is_refused_with_the_reason(
    queries: Queries, fresh: Fresh, options: dict[str, str], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        queries.query(fresh(), **options).step()


def test_links_that_are_cut_and_a_server_that_dies_lose_repeat_and_reorder_nothing(
    queries: Queries, fresh: Fresh, redis_url: str
) -> None:
    server = Npm(redis_url, SECRET)
    own = Queries(server)
    try:
        with cutter(server.port) as link:
            own.port = link.port
            own.fill(queue := fresh(), 1, 2000)
            link.down = iter([500 + 7919 * i % 30_000 for i in range(8)])
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


def test_a_link_that_falls_silent_is_given_up_and_what_it_was_removing_is_neither_lost_nor_repeated(
    queries: Queries, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npm_queue, "ANSWER_TIMEOUT_S", 2.0)
    with cutter(queries.server.port) as link:
        queries.port = link.port
        queries.fill(queue := fresh(), 1, 1000)
        query = queries.query(queue, maxMessagesPerTrigger="400")
        assert gather(query, 400) == upto(400)
        link.hush()
        assert gather(query, 400) == upto(800, 401)
        silence = threading.Timer(0.05, link.hush)  # in the middle of the ack, perhaps
        silence.start()
        assert gather(query, 200) == upto(1000, 801)
        silence.join()
        settle(query, lambda: queries.ids(queue) == [] == queries.ids(queue, "toack"))


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
    link = {
        "federation.url": f"dc=ws://127.0.0.1:{queries.port}/bus",
        "federation.secret": SECRET,
        "federation.secretInUrl": "true",
    }
    where = {**link, "queue": queue}
    return TaskWriter(
        parse(WriteOptions, {**where, **options}), SinkColumns("value", None, queue), new_token()
    )


def test_a_sink_writes_in_order_at_least_once_and_never_pretends_more(
    queries: Queries, fresh: Fresh
) -> None:
    queue, values = fresh(), [f"é {i}".encode() for i in range(1, 1201)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    with pytest.raises(ConfigError, match="set delivery=at-least-once"):
        writer(queries, queue).write(iter([batch]))
    writer(queries, queue, delivery="at-least-once").write(iter([batch, batch]))
    assert queries("LRANGE", QueueKeys(queue).messages, 0, -1)[1::2] == values * 2
    with pytest.raises(MessageRefused, match="no UTF-8 at byte 1"):
        writer(queries, queue, delivery="at-least-once").write(
            iter([pa.record_batch({"value": pa.array([b"a\xff"], pa.binary())})])
        )


def test_a_sink_keeps_to_the_maxsize_of_its_queue(queries: Queries, fresh: Fresh) -> None:
    batch = pa.record_batch({"value": pa.array([b"1", b"2", b"3", b"4"], pa.binary())})
    queue, once = fresh(), {"delivery": "at-least-once", "maxsize": "3", "onFull": "fail"}
    with pytest.raises(QueueFull):
        writer(queries, queue, **once).write(iter([batch]))
    assert queries.ids(queue) == [1, 2, 3]


def test_what_a_server_of_npm_answers_to_a_wrong_secret_names_the_link_and_not_the_secret(
    queries: Queries, fresh: Fresh
) -> None:
    with pytest.raises(
        FederationRefused, match=r"link 'dc': it does not know the secret"
    ) as failed:
        queries.query(fresh(), **{"federation.dc.secret": "another-secret"}).step()
    assert "another-secret" not in str(failed.value)


def test_queues_behind_it_have_no_clock_so_timestamps_are_null(
    queries: Queries, fresh: Fresh
) -> None:
    queries.fill(queue := fresh(), 1, 3)
    query = queries.query(queue, ack="none")
    query._schema = StructType([*LINKED.fields]).add("timestamp", TimestampType())
    query.reader = query._new_reader()
    rows = [row for batch in query.drain() for row in batch]
    assert [(row[1], row[-1]) for row in rows] == [(1, None), (2, None), (3, None)]
