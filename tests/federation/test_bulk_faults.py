"""Broken links between a federated store and its server: nothing is lost, repeated or out of order,
whatever is cut and when.
"""

from __future__ import annotations

import random
import secrets
import select
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import FederationLost, LinkLost, WireError
from busmq_spark.federation.bulk import client as bulk_socket
from busmq_spark.federation.bulk.row_frames import RangeReadFrameProducer
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.queue.message import Range
from busmq_spark.store.protocol import FullQueueWait
from busmq_spark.store.redis_store import RedisStore
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR, filled, read
from tests.federation.bulk_site import Site, site
from tests.federation.cutting import Cutter, cutter
from tests.support import PATIENCE_S, lasting_port, wait_until

SEED = 20_261_122

pytestmark = [pytest.mark.redis, pytest.mark.fault]


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    with site(redis_server.url) as made:
        yield made


@pytest.fixture
def proxy(here: Site) -> Iterator[Cutter]:
    with cutter(here.port) as made:
        yield made


@pytest.fixture
def store(here: Site, proxy: Cutter) -> Iterator[FederationBulkStore]:
    """Patient: a link that lives for less than a call needs fails many times in a row, by chance,
    which is not what is tested.
    """
    made = FederationBulkStore(here.address(port=proxy.port, patience_s=PATIENCE_S))
    yield made
    made.close()


def short_lives(least: int, most: int) -> Iterator[int]:
    """After how many bytes (``most`` excluded) each connection is cut, without end; the same in
    every run.
    """
    chance = random.Random(SEED + most)
    return iter(lambda: chance.randrange(least, most), None)


def staged_key(store: FederationBulkStore, queue: str) -> str:
    return store.keys(queue).stage(f"batch:0:0:{secrets.token_hex(8)}")


def test_a_range_comes_whole_and_in_order_wherever_the_link_is_cut(
    store: FederationBulkStore, direct: RedisStore, proxy: Cutter, fresh: Fresh
) -> None:
    values = [b"%d" % i + b"x" * (i % 300) for i in range(6000)]
    part = filled(direct, fresh(), values)
    for at in (0, 1, 130, 250, 400, 1_000, 70_000, 200_001, 500_000, 900_000):
        store.close()
        proxy.down, before = iter((at, at)), proxy.connections
        assert read(store, part) == list(enumerate(values, 1))
        assert proxy.connections >= before + 2


def test_a_range_comes_whole_although_no_link_lives_for_long(
    store: FederationBulkStore, direct: RedisStore, proxy: Cutter, fresh: Fresh
) -> None:
    values = [b"%d" % i + b"x" * (i % 300) for i in range(30_000)]
    part = filled(direct, fresh(), values)
    proxy.down = short_lives(0, 700_000)
    assert read(store, part) == list(enumerate(values, 1))
    assert proxy.connections > 10


def test_staged_commits_lose_and_repeat_nothing_although_no_link_lives_for_long(
    store: FederationBulkStore, direct: RedisStore, proxy: Cutter, fresh: Fresh
) -> None:
    queue, sink = fresh(), fresh("sink")
    part = filled(direct, queue, [b"before"])
    store.keys(queue)
    proxy.up, proxy.down = short_lives(0, 600_000), short_lives(200, 2_000)
    proxy.cut()
    expected = [b"before"]
    for batch in range(6):
        rows = [b"%d/%d" % (batch, i) + b"x" * 100 for i in range(7_000)]
        appender, key = store.appender(), staged_key(store, queue)
        for at in range(0, len(rows), 1_500):
            appender.stage(queue, key, rows[at : at + 1_500])
        lists = appender.finish()
        assert store.record(sink, batch, lists) == tuple(lists)
        assert store.commit(queue, sink, batch, lists) is None
        expected += rows
    assert proxy.connections > 10
    assert [value for _, value in read(direct, part._replace(last=len(expected)))] == expected
    assert direct.states({queue: -1})[queue].count == len(expected)


def test_at_least_once_pushes_lose_nothing_and_keep_their_order(
    store: FederationBulkStore, direct: RedisStore, proxy: Cutter, fresh: Fresh
) -> None:
    queue = fresh()
    part = filled(direct, queue, [b"0"])
    store.keys(queue)
    proxy.up, proxy.down = (
        short_lives(0, 500_000),
        short_lives(200, 1_000),
    )  # a piece needs 215,000 and 290 of them
    proxy.cut()
    store.appender().push(
        queue, [b"%d" % i + b" " * 100 for i in range(1, 20_000)], FullQueueWait(0)
    )
    given = direct.states({queue: -1})[queue].last_id
    numbers = [int(value) for _, value in read(direct, part._replace(last=given))]
    firsts = {number: place for place, number in reversed(list(enumerate(numbers)))}
    assert [firsts[number] for number in range(20_000)] == sorted(firsts.values())
    assert proxy.connections > 5


def test_a_slow_link_only_takes_longer(
    store: FederationBulkStore, direct: RedisStore, proxy: Cutter, fresh: Fresh
) -> None:
    part = filled(direct, fresh(), [b"%d" % i for i in range(3000)])
    proxy.delay_s = 0.02
    assert len(read(store, part)) == 3000
    assert proxy.connections == 1


def test_a_link_that_goes_silent_is_noticed_and_replaced(
    store: FederationBulkStore,
    direct: RedisStore,
    proxy: Cutter,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_socket, "PING_AFTER_SILENCE_S", 1.0)
    values = [b"%d" % i + b"x" * 1000 for i in range(20_000)]
    part = filled(direct, fresh(), values)
    rows = store.read(part, True)
    found = len(next(rows).values)
    dial = bulk_socket._dial

    def dial_patiently(*arguments: Any) -> Any:
        monkeypatch.undo()
        return dial(*arguments)

    monkeypatch.setattr(bulk_socket, "_dial", dial_patiently)
    proxy.hush()
    for piece in rows:
        assert piece.first == found + 1
        found += len(piece.values)
    assert found == 20_000
    assert proxy.connections == 2


def test_a_server_that_is_restarted_elsewhere_on_the_same_address_is_found_again(
    redis_server: EmbeddedRedis, direct: RedisStore, fresh: Fresh
) -> None:
    part = filled(direct, fresh(), [b"%d" % i + b"x" * 1000 for i in range(30_000)])
    first = Site(redis_server.url, port=lasting_port()).start()
    store = FederationBulkStore(first.address())
    rows = store.read(part, True)
    found = [next(rows).first]
    first.stop()
    second = Site(redis_server.url, port=first.port).start()
    found += [piece.first for piece in rows]
    assert found == sorted(set(found))
    assert store.states({part.queue: -1})[part.queue].count == 30_000
    store.close()
    second.stop()


def test_a_server_that_stays_away_is_an_error_that_says_where(here: Site) -> None:
    port = lasting_port()
    store = FederationBulkStore(here.address(port=port, patience_s=0.3))
    with pytest.raises(
        FederationLost, match=rf"cannot reach the federation server at ws://127\.0\.0\.1:{port}/bus"
    ) as caught:
        store.states({"q": -1})
    assert isinstance(caught.value, LinkLost)
    assert caught.value.retriable
    with pytest.raises(FederationLost):
        next(store.read(Range("q", "born", 1, 5), True))


def test_a_link_that_broke_between_calls_is_replaced_before_anything_is_sent(
    store: FederationBulkStore, proxy: Cutter, here: Site, fresh: Fresh
) -> None:
    queue = fresh()
    store.attach([queue], HOUR)
    proxy.cut()
    assert store._link._socket is not None
    arrived, _, _ = select.select(
        [store._link._socket._socket], [], [], PATIENCE_S
    )  # before it has, the push below might be repeated
    assert arrived
    store.appender().push(queue, [b"1"], FullQueueWait(0))
    assert store.states({queue: -1})[queue].last_id == 1


def test_a_read_ends_at_the_server_when_the_client_goes_away(
    here: Site, direct: RedisStore, proxy: Cutter, store: FederationBulkStore, fresh: Fresh
) -> None:
    part = filled(direct, fresh(), [b"x" * 1000] * 50_000)
    before = here.call(lambda: set(here.connections))
    rows = store.read(part, True)
    next(rows)
    [ours] = here.call(lambda: here.connections - before)
    proxy.cut()
    wait_until(
        lambda: here.call(lambda: ours not in here.connections), what="the server has given it up"
    )
    assert sum(len(piece.values) for piece in rows) > 0  # and the client goes on, on a new one


def test_frames_of_a_read_that_was_left_are_not_taken_for_those_of_the_next(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    one = filled(direct, fresh(), [b"1" * 1000] * 20_000)
    two = filled(direct, fresh(), [b"2" * 1000] * 20_000)
    left, kept = store.read(one, True), store.read(two, True)
    next(left)
    next(kept)
    left.close()  # type: ignore[attr-defined]  # a generator
    assert {value for piece in kept for value in piece.values.to_pylist()} == {b"2" * 1000}


def test_a_server_that_skips_or_repeats_ids_is_refused(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = filled(direct, fresh(), [b"1"] * 3000)
    plain = RangeReadFrameProducer.next_frame
    monkeypatch.setattr(
        RangeReadFrameProducer,
        "next_frame",
        lambda bodies: (
            (body := plain(bodies)) and replace(body, head={"first": body.head["first"] + 1})
        ),
    )
    with pytest.raises(WireError, match=r"rows from id 2; expected ids 1\.\.3000"):
        read(store, part)
