"""A call that outlives its connection: its client repeats it on a new one, and must not meet the
old one there.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.errors import StateError
from busmq_spark.federation.bulk import store_executor
from busmq_spark.federation.bulk.client import FederationBulkClient
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Range
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR
from tests.federation.bulk_site import Site, site
from tests.federation.cutting import Cutter
from tests.support import PATIENCE_S, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.fault]


@pytest.fixture(scope="module")
def here(wire: Cutter) -> Iterator[Site]:
    with site(f"redis://127.0.0.1:{wire.port}") as made:
        yield made


@pytest.fixture
def queue(direct: RedisStore, fresh: Fresh) -> str:
    name = fresh()
    direct.attach([name], HOUR)
    return name


class Held:
    """Pushes of ``b"old"`` wait at the server until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way, self.go_on, self.ended = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._push = RedisStore.push
        held = self._held

        def push(store: RedisStore, queue: str, values: list[bytes]) -> Any:
            return held(store, queue, values)

        monkeypatch.setattr(RedisStore, "push", push)

    def _held(self, store: RedisStore, queue: str, values: list[bytes]) -> Any:
        if values != [b"old"]:
            return self._push(store, queue, values)
        self.under_way.set()
        assert self.go_on.wait(PATIENCE_S)
        try:
            return self._push(store, queue, values)
        finally:
            self.ended.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.go_on.set()


def stored(direct: RedisStore, queue: str) -> int:
    return direct.states({queue: -1})[queue].count


def test_nothing_is_sent_to_redis_for_a_connection_that_is_gone(
    here: Site, direct: RedisStore, queue: str, held: Held
) -> None:
    link = FederationBulkClient(here.address())
    link.send_call("push", queue, values=[b"old"])
    assert held.under_way.wait(PATIENCE_S)
    link.drop_connection()
    wait_until(
        lambda: not here.call(lambda: here.connections),
        what="the server knows that the client is gone",
    )
    held.go_on.set()
    assert held.ended.wait(PATIENCE_S)
    wait_until(
        lambda: not here.call(lambda: len(here.bulk.clients)), what="the executor is forgotten"
    )
    assert stored(direct, queue) == 0


def test_a_call_that_waits_for_redis_is_not_sent_once_its_connection_is_gone(
    here: Site, wire: Cutter, direct: RedisStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_executor, "PEER_PATIENCE_S", 2 * PATIENCE_S)
    link = FederationBulkClient(here.address())
    link.call("counters", (queue,))
    before = wire.connections
    target, wire.target = wire.target, 1
    try:
        wire.cut()
        link.send_call("push", queue, values=[b"old"])
        wait_until(
            lambda: here.call(
                lambda: any(
                    not executor.is_idle for executor, _ in here.bulk.clients._executors.values()
                )
            ),
            what="the server tries",
        )
        link.drop_connection()
        wait_until(
            lambda: not here.call(lambda: len(here.bulk.clients)),
            PATIENCE_S,
            "it gives up, long before its patience is over",
        )
    finally:
        wire.target = target
    assert wire.connections == before
    assert stored(direct, queue) == 0


@pytest.mark.parametrize("known", [True, False], ids=["it knows", "half open"])
def test_a_client_that_comes_back_is_answered_once_its_old_call_has_ended(
    here: Site, direct: RedisStore, queue: str, held: Held, *, known: bool
) -> None:
    link = FederationBulkClient(here.address())
    link.send_call("push", queue, values=[b"old"])
    assert held.under_way.wait(PATIENCE_S)
    socket = link._socket
    if known:
        link.drop_connection()
        wait_until(
            lambda: not here.call(lambda: here.connections),
            what="the server knows that the client is gone",
        )
    link._inbox.clear()
    link._socket = None
    answered = threading.Event()
    again = threading.Thread(
        target=lambda: (link.call("push", queue, values=[b"new"]), answered.set())
    )
    again.start()
    assert not answered.wait(0.3)
    held.go_on.set()
    again.join(PATIENCE_S)
    assert answered.is_set()
    assert held.ended.is_set()
    assert [
        value
        for piece in direct.read(piece_of(direct, queue), True)
        for value in piece.values.to_pylist()
    ] == [b"new"]
    assert socket is not None
    socket.close()
    link.drop_connection()


def piece_of(direct: RedisStore, queue: str) -> Range:
    state = direct.states({queue: -1})[queue]
    return Range(queue, state.born, 1, state.count)


def test_clients_of_the_same_secret_do_not_wait_for_each_other(
    here: Site, queue: str, held: Held
) -> None:
    one, other = FederationBulkClient(here.address()), FederationBulkClient(here.address())
    one.send_call("push", queue, values=[b"old"])
    assert held.under_way.wait(PATIENCE_S)
    assert other.call("push", queue, values=[b"new"]) == (1, 0)
    held.go_on.set()
    one.drop_connection()
    other.drop_connection()


@pytest.mark.parametrize("layout", ["redis_url", "cluster_servers"])
def test_a_link_that_was_stopped_sends_nothing(
    request: pytest.FixtureRequest, layout: str, fresh: Fresh
) -> None:
    found = request.getfixturevalue(layout)
    url = found if isinstance(found, str) else ",".join(found.urls)
    store, queue = (
        open_store(RedisOptions(url=url, layout="direct" if isinstance(found, str) else "cluster")),
        fresh(),
    )
    store.attach([queue], HOUR)
    store.stop()
    for ask in (
        lambda: store.push(queue, [b"1"]),
        lambda: store.stage_at(queue, secrets.token_hex(4), 0, [b"1"]),
        lambda: store.discover(bool),
    ):
        with pytest.raises(StateError, match="no longer ours"):
            ask()
    store.close()
