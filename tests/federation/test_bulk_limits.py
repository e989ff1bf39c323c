"""What one call may cost a server, and what a client does that goes beyond it or meets a server out
of order.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.errors import (
    FederationLost,
    LinkLost,
    MessageRefused,
    RemoteError,
    WireError,
)
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk import store as federated
from busmq_spark.federation.bulk.client import BulkWebSocket
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame
from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.federation.bulk.rpc_handler import BulkRpcHandler
from busmq_spark.federation.bulk.server import (
    MAX_READS_IN_ALL,
    MAX_READS_PER_CONNECTION,
    SMALL_HEAD_BYTES,
)
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.bulk.store_executor import StoreExecutor, StoreThreadPool
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import PerSecretQuota
from busmq_spark.federation.gate.rights import ANYONE, Grants
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.store.protocol import FullQueueWait
from busmq_spark.store.redis_store import RedisStore, open_store
from busmq_spark.writing.sink import StagedList
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR, NEVER
from tests.federation.bulk_site import Site, site
from tests.support import PATIENCE_S, wait_until

pytestmark = pytest.mark.redis
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    with site(redis_server.url, limits=PeerLimits(message_bytes=8 * MIB)) as made:
        yield made


def call(id: int, name: str, *arguments: Any) -> bytes:
    return BulkProtocolFrame(
        BulkFrameKind.CALL, id, {"op": name, "args": OPERATIONS[name].arguments.encode(arguments)}
    ).encode()


def test_a_large_head_is_taken_apart_and_checked_beside_the_loop(
    here: Site, store: FederationBulkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = here.call(threading.get_ident)
    seen: dict[str, set[int]] = {"decode": set(), "check": set(), "reply": set()}
    decode, check, encode = (
        frames.decode_frame,
        type(OPERATIONS["states"]).decode_arguments,
        BulkProtocolFrame.encode,
    )

    def decoding(message: Any) -> Any:
        if len(message) > SMALL_HEAD_BYTES:
            seen["decode"].add(threading.get_ident())
        return decode(message)

    def checking(self: Any, head: Any) -> Any:
        seen["check"].add(threading.get_ident())
        return check(self, head)

    def encoding(self: BulkProtocolFrame) -> bytes:
        if self.kind is BulkFrameKind.REPLY and len(self.head) > 500:
            seen["reply"].add(threading.get_ident())
        return encode(self)

    store.keys("q")
    monkeypatch.setattr(frames, "decode_frame", decoding)
    monkeypatch.setattr(type(OPERATIONS["states"]), "decode_arguments", checking)
    monkeypatch.setattr(BulkProtocolFrame, "encode", encoding)
    assert len(store.states({f"{i}-{'x' * 100}": -1 for i in range(1000)})) == 1000
    assert all(seen.values())
    assert loop not in set.union(*seen.values())


def test_a_head_that_is_too_long_is_refused_unread(here: Site) -> None:
    socket = BulkWebSocket(here.address())
    socket.send(call(1, "counters", ["x" * 1000] * 5000))
    with pytest.raises(FederationLost, match="code 1008"):
        socket.receive()
    socket.close()


def test_questions_about_many_queues_are_cut_into_calls(
    store: FederationBulkStore, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federated, "QUEUES_PER_CALL", 10)
    plain, most = BulkRpcHandler.run_call, []

    def doing(self: BulkRpcHandler, name: str, arguments: Any, body: Any) -> Any:
        most.append(
            max(len(argument) for argument in arguments if isinstance(argument, dict | tuple))
        )
        return plain(self, name, arguments, body)

    monkeypatch.setattr(BulkRpcHandler, "run_call", doing)
    queues = [fresh() for _ in range(25)]
    assert {*store.attach(queues, HOUR)} == {*queues}
    assert {*store.states(dict.fromkeys(queues, -1))} == {*queues}
    assert len(store.counters(queues)) == 25
    assert store.lease(queues, "", "me", dict.fromkeys(queues, "")) == dict.fromkeys(queues, "me")
    assert store.holders(queues, "") == dict.fromkeys(queues, "me")
    store.discard(
        [
            StagedList(q, 0, store.keys(q).stage(f"batch:0:0:{secrets.token_hex(8)}"), ((1, 1),))
            for q in queues
        ]
    )
    assert max(most) == 10
    assert len(most) == 6 * 3


def test_a_call_that_the_server_would_not_take_is_refused_by_the_client(
    store: FederationBulkStore, fresh: Fresh
) -> None:
    lists = [
        StagedList("q", 0, store.keys("q").stage(f"batch:0:0:{i:016x}") + "x" * 1000, ((1, 1),))
        for i in range(5000)
    ]
    with pytest.raises(
        MessageRefused,
        match=r"a call 'record' of \d+ bytes is over what the federation server takes",
    ):
        store.record("sink", 0, lists)
    assert store.counters([fresh()]) == [None]


def test_the_first_retry_is_logged(
    store: FederationBulkStore,
    here: Site,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.keys("q")
    plain, lost = BulkWebSocket.receive, []

    def receive(self: BulkWebSocket) -> memoryview:
        if not lost:
            lost.append(1)
            raise FederationLost(url="there", reason="of the test")
        return plain(self)

    monkeypatch.setattr(BulkWebSocket, "receive", receive)
    with caplog.at_level(logging.WARNING, "busmq_spark"):
        store.counters(["q"])
    assert [record.message for record in caplog.records if "trying again" in record.message] == [
        f"{FederationLost(url='there', reason='of the test')}; trying again"
    ]


def test_reads_that_are_cancelled_before_they_begin_give_their_place_back(
    here: Site, store: FederationBulkStore, fresh: Fresh
) -> None:
    queue = fresh()
    part = Range(queue, store.attach([queue], HOUR)[queue].born, 1, 1)
    store.appender().push(queue, [b"1"], NEVER)
    socket, session = BulkWebSocket(here.address()), []
    here.call(lambda: session.extend(here.connections))
    for id in range(1, 3 * MAX_READS_PER_CONNECTION):
        socket.send(call(id, "read", part, True, MIB))
        socket.send(BulkProtocolFrame(BulkFrameKind.CANCEL, id).encode())
    socket.send(call(99, "counters", (queue,)))
    while frames.decode_frame(socket.receive()).id != 99:
        pass
    socket.send(call(100, "read", part, True, MIB))
    while (frame := frames.decode_frame(socket.receive())).id != 100:
        pass
    assert frame.kind is BulkFrameKind.SCHEMA
    socket.close()


def test_a_queue_without_a_name_is_none(store: FederationBulkStore) -> None:
    for ask in (
        lambda: store.attach([""], HOUR),
        lambda: store.states({"": 1}),
        lambda: store.traces(""),
    ):
        with pytest.raises(WireError, match="an empty name of a queue"):
            ask()


def test_an_unexpected_exception_is_an_error_of_the_call_alone(
    store: FederationBulkStore,
    here: Site,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.keys("q")
    before = here.call(lambda: set(here.connections))
    monkeypatch.setattr(RedisStore, "traces", lambda *_: 1 // 0)
    monkeypatch.setattr(RedisStore, "read", lambda *_: 1 // 0)
    with pytest.raises(RemoteError, match=r"BUSMQ_INTERNAL.*the server's log says how"):
        store.traces("q")
    with pytest.raises(RemoteError, match="BUSMQ_INTERNAL"):
        next(store.read(Range(fresh(), "", 1, 2), True))
    assert "ZeroDivisionError" in caplog.text
    assert store.counters([fresh()]) == [None]
    assert here.call(lambda: set(here.connections)) == before


def test_a_server_that_speaks_nonsense_is_not_listened_to_any_longer(
    store: FederationBulkStore, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keys("q")
    with monkeypatch.context() as patch:
        patch.setattr(BulkWebSocket, "receive", lambda _: memoryview(b"nonsense"))
        with pytest.raises(WireError):
            store.counters(["q"])
    assert store._link._socket is None
    assert store.counters([fresh()]) == [None]


async def test_calls_that_wait_for_a_redis_in_vain_leave_threads_to_others(redis_url: str) -> None:
    pool, silent = StoreThreadPool(threads=4, doubtful=2), threading.Event()
    where = redis_layout(RedisOptions(url=redis_url))

    def away() -> None:
        raise LinkLost(url="", reason="away")

    executors = [
        StoreExecutor(where, pool, ANYONE, PeerLimits(), PerSecretQuota(PeerLimits()))
        for _ in range(6)
    ]
    for executor in executors:
        with pytest.raises(LinkLost):
            await executor.run_in_thread(away)
    waiting = [
        asyncio.create_task(executor.run_in_thread(silent.wait, 2 * PATIENCE_S))
        for executor in executors
    ]
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                await asyncio.sleep(0)
            assert (
                await StoreExecutor(
                    where, pool, ANYONE, PeerLimits(), PerSecretQuota(PeerLimits())
                ).run_in_thread(lambda: 7)
                == 7
            )
    finally:
        silent.set()
        assert await asyncio.gather(*waiting) == [True] * 6
        for executor in executors:
            executor.close()
        pool.shutdown()


def test_one_secret_does_not_take_all_places_of_readers(redis_url: str, fresh: Fresh) -> None:
    keyring = Keyring(
        {
            name: (f"{name}-" + "s" * 40, Grants.all_allowed())
            for name in ("greedy", "second", "other")
        }
    )
    with site(redis_url, keyring) as there:
        store = FederationBulkStore(there.address("other-" + "s" * 40))
        queue = fresh()
        part = Range(queue, store.attach([queue], HOUR)[queue].born, 1, 20_000)
        store.appender().push(queue, [b"x" * 1000] * 20_000, FullQueueWait(0))
        greedy = [
            BulkWebSocket(there.address(f"{name}-" + "s" * 40))
            for name in ("greedy", "second")
            for _ in range(MAX_READS_IN_ALL // 2)
        ]
        for socket in greedy:
            socket.send(call(1, "read", part, True, 1))
        assert frames.decode_frame(greedy[0].receive()).kind is BulkFrameKind.SCHEMA
        assert sum(len(rows.values) for rows in store.read(part, True)) == 20_000
        assert (
            len(there.call(lambda: set(there.connections))) == MAX_READS_IN_ALL + 1
        )  # none of them was cut off for that
        for socket in greedy:
            socket.close()
        store.close()


def test_readers_of_a_redis_that_is_silent_hold_up_no_readers_of_another(
    three_servers: EmbeddedStandaloneServers, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, silent = RedisOptions(url=",".join(three_servers.urls)), threading.Event()
    direct, parts = open_store(options), dict[int, Range]()
    while len(parts) < 2:
        queue = fresh()
        born = direct.attach([queue], HOUR)[queue].born
        direct.push(queue, [b"1"])
        parts[direct.locate([queue])[queue]] = Range(queue, born, 1, 1)
    stuck, sound = parts.values()
    plain, under_way, ended = RedisStore.read, list[int](), list[bool]()

    def read(self: RedisStore, part: Range, strict: bool) -> Any:
        if part.queue == stuck.queue:
            under_way.append(1)
            ended.append(silent.wait(PATIENCE_S))
        yield from plain(self, part, strict)

    monkeypatch.setattr(RedisStore, "read", read)
    with site(options) as there:
        store, sockets = (
            FederationBulkStore(there.address()),
            [BulkWebSocket(there.address()) for _ in range(MAX_READS_IN_ALL)],
        )
        for socket in sockets:
            socket.send(call(1, "read", stuck, True, MIB))
        wait_until(lambda: under_way, what="some are under way")
        for _ in range(2):
            assert [rows.values.to_pylist() for rows in store.read(sound, True)] == [[b"1"]]
            monkeypatch.setattr(
                RedisStore,
                "locate",
                lambda *_: pytest.fail("all are asked again where the queue is"),
            )
        assert not ended
        silent.set()
        for socket in sockets:
            socket.close()
        store.close()
    direct.close()
