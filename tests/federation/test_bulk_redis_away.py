"""The Redis behind a live federation server is unreachable for a while: clients wait for it, as
they do for one of their own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from busmq_spark.errors import LinkLost
from busmq_spark.federation.bulk import server as bulk_server
from busmq_spark.federation.bulk import store_executor
from busmq_spark.federation.bulk.server import make_error_frame
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.queue.message import Range
from busmq_spark.store.protocol import FullQueueWait
from busmq_spark.store.redis_store import RedisStore
from tests.conftest import Fresh
from tests.federation.bulk_queues import filled
from tests.federation.bulk_site import Site, site
from tests.federation.cutting import Cutter
from tests.support import PATIENCE_S, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.fault]


@pytest.fixture(scope="module")
def here(wire: Cutter) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_executor, "PEER_PATIENCE_S", 0.05)
        with site(f"redis://127.0.0.1:{wire.port}") as made:
            yield made


@pytest.fixture
def store(here: Site) -> Iterator[FederationBulkStore]:
    made = FederationBulkStore(here.address(patience_s=60.0))
    yield made
    made.close()


@pytest.fixture
def part(direct: RedisStore, fresh: Fresh) -> Range:
    return filled(direct, fresh(), [b"%d" % i for i in range(1, 1001)])


class Refusals:
    """How often a server of the test has reported that its Redis is unreachable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return make_error_frame(*arguments)

        monkeypatch.setattr(bulk_server, "make_error_frame", counted)


def while_away(wire: Cutter, refusals: Refusals, ask: Callable[[], Any]) -> Any:
    """The result of a call made while Redis is unreachable; Redis is back after some refusals."""
    found: list[Any] = []
    target, wire.target = wire.target, 1
    wire.cut()
    asking = threading.Thread(target=lambda: found.append(ask()))
    before = refusals.count
    asking.start()
    try:
        wait_until(
            lambda: refusals.count >= before + 2, PATIENCE_S, "the server says so again and again"
        )
    finally:
        wire.target = target
    asking.join(PATIENCE_S)
    assert found, "it failed"
    return found[0]


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Refusals:
    return Refusals(monkeypatch)


def test_a_call_waits(
    wire: Cutter, store: FederationBulkStore, part: Range, here: Site, refusals: Refusals
) -> None:
    store.keys(part.queue)
    before = here.call(lambda: set(here.connections))
    assert list(while_away(wire, refusals, lambda: store.counters([part.queue]))) == [b"1000"]
    assert here.call(lambda: set(here.connections)) == before  # on the link it had


def test_a_read_goes_on(
    wire: Cutter, store: FederationBulkStore, part: Range, refusals: Refusals
) -> None:
    found = while_away(
        wire,
        refusals,
        lambda: [value for rows in store.read(part, True) for value in rows.values.to_pylist()],
    )
    assert found == [b"%d" % i for i in range(1, 1001)]


def test_what_is_staged_meanwhile_is_there_once_and_in_order(
    wire: Cutter,
    store: FederationBulkStore,
    direct: RedisStore,
    part: Range,
    fresh: Fresh,
    refusals: Refusals,
) -> None:
    rows = [b"%d" % i for i in range(40_000)]
    key = store.keys(part.queue).stage(f"batch:0:0:{secrets.token_hex(8)}")

    def stage() -> Any:
        appender = store.appender()
        for at in range(0, len(rows), 5_000):
            appender.stage(part.queue, key, rows[at : at + 5_000])
        return appender.finish()

    lists, sink = while_away(wire, refusals, stage), fresh("sink")
    assert direct.record(sink, 0, lists) == tuple(lists)
    assert direct.commit(part.queue, sink, 0, lists) is None
    found = direct.read(part._replace(first=1001, last=41_000), True)
    assert [value for piece in found for value in piece.values.to_pylist()] == rows


def test_at_least_once_waits(
    wire: Cutter, store: FederationBulkStore, direct: RedisStore, part: Range, refusals: Refusals
) -> None:
    while_away(
        wire,
        refusals,
        lambda: (store.appender().push(part.queue, [b"new"], FullQueueWait(0)), True)[1],
    )
    assert direct.states({part.queue: -1})[part.queue].count >= 1001


def test_not_for_ever(
    wire: Cutter, here: Site, part: Range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busmq_spark.federation.bulk.client.FAILOVER_PATIENCE_S", 0.1)
    store = FederationBulkStore(here.address(patience_s=0.1))
    store.keys(part.queue)
    target, wire.target = wire.target, 1
    try:
        wire.cut()
        with pytest.raises(LinkLost, match="the federation server cannot reach its Redis"):
            store.counters([part.queue])
    finally:
        wire.target = target
        store.close()


def test_what_is_subscribed_meanwhile_is_notified_once_redis_is_back(
    wire: Cutter,
    store: FederationBulkStore,
    direct: RedisStore,
    part: Range,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_executor, "CONFIRM_TIMEOUT_S", 0.1)
    ask = store._link.call
    target, wire.target = wire.target, 1
    try:
        wire.cut()
        ask("listen", [part.queue])
        while ask("wait", 1):
            pass
    finally:
        wire.target = target
    assert ask("wait", 60_000)
    while ask("wait", 1):
        pass
    direct.push(part.queue, [b"1"])
    assert ask("wait", 60_000)


def test_a_push_listener_tries_again_when_redis_was_down(
    store: FederationBulkStore, part: Range, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = RedisStore.locate, []

    def away(self: RedisStore, queues: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise LinkLost(url="", reason="away")
        return plain(self, queues)

    monkeypatch.setattr(RedisStore, "locate", away)
    notified = threading.Event()
    [listener] = store.push_listeners(notified)
    listener.listen([part.queue])
    wait_until(notified.is_set, what="the listener notifies")
    listener.stop()
