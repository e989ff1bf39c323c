"""What one peer of ``busmq.bulk.v1`` may cost, and the ways a store gets there: credit, deadlines,
TLS, several servers, a real federation server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.errors import (
    FederationLost,
    FederationRefused,
    MessageRefused,
    TlsError,
    WireError,
)
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.client import BulkWebSocket
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame
from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.federation.bulk.server import MAX_UNANSWERED_CALLS
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.store.protocol import FullQueueWait
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR, filled
from tests.federation.bulk_site import SECRET, Site, site
from tests.federation.conftest import Serve
from tests.federation.cutting import cutter
from tests.support import PATIENCE_S, wait_until
from tests.tls import Authority, TlsProxy

pytestmark = pytest.mark.redis
MIB = 1024 * 1024
LIMITS = PeerLimits(message_bytes=MIB)
ENOUGH = 2**40


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    with site(redis_server.url, limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def strict(redis_server: EmbeddedRedis) -> Iterator[Site]:
    """A server with a short send time-out."""
    with site(redis_server.url, limits=PeerLimits(send_s=0.3)) as made:
        yield made


@pytest.fixture
def peer(here: Site) -> Iterator[Peer]:
    made = Peer(here)
    yield made
    made.socket.close()


class Peer:
    """A client that keeps to nothing."""

    def __init__(self, here: Site) -> None:
        before = here.call(lambda: set(here.connections))
        self.socket = BulkWebSocket(here.address())
        wait_until(
            lambda: here.call(lambda: here.connections - before),
            what="the server has the connection",
        )
        [self.at_server] = here.call(lambda: here.connections - before)

    def call(self, id: int, name: str, *arguments: Any) -> None:
        self.send(
            BulkProtocolFrame(
                BulkFrameKind.CALL,
                id,
                {"op": name, "args": OPERATIONS[name].arguments.encode(arguments)},
            )
        )

    def send(self, frame: BulkProtocolFrame) -> None:
        self.socket.send(frame.encode())

    def next(self) -> BulkProtocolFrame:
        return frames.decode_frame(self.socket.receive())


class CountingSemaphore(asyncio.Semaphore):
    """Lets one in, and counts who has asked."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = 0

    async def acquire(self) -> Any:
        self.asked += 1
        return await super().acquire()


def count(store: RedisStore | FederationBulkStore, part: Range) -> int:
    return sum(len(piece.values) for piece in store.read(part, True))


# -- rows and credit -------------------------------------------------------------------------------


def test_without_credit_nothing_is_sent(peer: Peer, direct: RedisStore, fresh: Fresh) -> None:
    part = filled(direct, fresh(), [b"x" * 1000] * 20_000)
    peer.call(1, "read", part, True, 1)
    assert [peer.next().kind, peer.next().kind] == [BulkFrameKind.SCHEMA, BulkFrameKind.ROWS]
    for id in range(2, 30):
        peer.call(id, "counters", (part.queue,))
        assert (frame := peer.next()).id == id, f"{frame.kind.name} came without credit"
    peer.send(BulkProtocolFrame(BulkFrameKind.CREDIT, 1, 2 * MIB))
    assert peer.next().kind is BulkFrameKind.ROWS
    peer.send(BulkProtocolFrame(BulkFrameKind.CREDIT, 1, ENOUGH))
    while (frame := peer.next()).kind is BulkFrameKind.ROWS:
        pass
    assert frame.kind is BulkFrameKind.END


def test_a_cancelled_read_sends_nothing_more_and_makes_room_for_another(
    peer: Peer, direct: RedisStore, fresh: Fresh
) -> None:
    part = filled(direct, fresh(), [b"x" * 1000] * 20_000)
    for id in range(1, 40, 2):
        peer.call(id, "read", part, True, 1)
        while (frame := peer.next()).kind is not BulkFrameKind.ROWS or frame.id != id:
            assert frame.kind is BulkFrameKind.SCHEMA
        peer.send(BulkProtocolFrame(BulkFrameKind.CANCEL, id))
        peer.call(id + 1, "counters", (part.queue,))
        assert peer.next().id == id + 1


def test_reads_at_once_are_counted(peer: Peer, direct: RedisStore, fresh: Fresh) -> None:
    part = filled(direct, fresh(), [b"x" * 1000] * 20_000)
    for id in range(1, 10):
        peer.call(id, "read", part, True, 1)
    came = [peer.next() for _ in range(13)]
    assert sorted(frame.id for frame in came if frame.kind is BulkFrameKind.ERROR) == [
        5,
        6,
        7,
        8,
        9,
    ]


@pytest.mark.parametrize("credit", [1, ENOUGH], ids=["gives no credit", "never reads"])
def test_a_peer_that_holds_a_read_up_is_cut_off(
    strict: Site, direct: RedisStore, fresh: Fresh, credit: int
) -> None:
    part, peer = filled(direct, fresh(), [b"x" * 10_000] * 3_000), Peer(strict)
    peer.call(1, "read", part, True, credit)
    wait_until(
        lambda: strict.call(lambda: peer.at_server not in strict.connections), what="it is cut off"
    )
    peer.socket.close()


def test_a_peer_that_reads_slowly_is_not(redis_url: str, direct: RedisStore, fresh: Fresh) -> None:
    part = filled(direct, fresh(), [b"x" * 10_000] * 1_000)
    with site(redis_url, limits=PeerLimits(send_s=2.0)) as strict, cutter(strict.port) as proxy:
        proxy.bytes_per_s = 2.5e6  # so that the read takes twice as long as a peer may stand still
        slow = FederationBulkStore(strict.address(port=proxy.port))
        assert count(slow, part) == 1_000
        assert proxy.connections == 1
        slow.close()


def test_a_reader_that_was_cut_off_since_it_was_busy_goes_on_where_it_was(
    strict: Site, direct: RedisStore, fresh: Fresh
) -> None:
    part, store = (
        filled(direct, fresh(), [b"%d" % i + b"x" * 10_000 for i in range(5_000)]),
        FederationBulkStore(strict.address()),
    )
    before = strict.call(lambda: set(strict.connections))
    found: list[bytes] = []
    for piece in store.read(part, True):
        if not found:
            wait_until(
                lambda: strict.call(lambda: strict.connections <= before), what="it is cut off"
            )
        found += [value.rstrip(b"x") for value in piece.values.to_pylist()]
    assert found == [b"%d" % i for i in range(5_000)]
    store.close()


def test_reads_wait_in_line_when_too_many_are_under_way(
    here: Site,
    direct: RedisStore,
    store: FederationBulkStore,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part, peer = filled(direct, fresh(), [b"x" * 1000] * 20_000), Peer(here)
    semaphore = here.call(CountingSemaphore)
    monkeypatch.setattr(here.bulk, "reads", [semaphore])
    peer.call(1, "read", part, True, 1)
    assert [peer.next().kind, peer.next().kind] == [BulkFrameKind.SCHEMA, BulkFrameKind.ROWS]
    waiting = threading.Thread(target=lambda: done.append(count(store, part)))
    done: list[int] = []
    waiting.start()
    wait_until(lambda: semaphore.asked == 2, what="it stands in line")
    assert not done
    peer.send(BulkProtocolFrame(BulkFrameKind.CANCEL, 1))
    waiting.join(PATIENCE_S)
    assert done == [20_000]
    peer.socket.close()


def test_nothing_is_left_at_the_server_of_a_peer_that_is_gone(
    here: Site, redis_url: str, link: SyncLink, direct: RedisStore, fresh: Fresh
) -> None:
    part = filled(direct, fresh(), [b"x" * 1000] * 20_000)
    before = int(
        link.execute(command("INFO", "clients")).split(b"connected_clients:")[1].split()[0]
    )
    peers = [Peer(here) for _ in range(8)]
    for peer in peers:
        peer.call(1, "read", part, True, 1)
        peer.call(2, "wait", 60_000)
        peer.call(3, "counters", (part.queue,))
        assert {peer.next().kind for _ in range(3)} == {
            BulkFrameKind.SCHEMA,
            BulkFrameKind.ROWS,
            BulkFrameKind.REPLY,
        }
    for peer in peers:
        peer.socket.close()

    def clients() -> int:
        return int(
            link.execute(command("INFO", "clients")).split(b"connected_clients:")[1].split()[0]
        )

    wait_until(lambda: clients() <= before, what="its connections to Redis are closed")


def test_a_value_larger_than_a_message_to_the_server_is_refused_by_the_client(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    part = filled(direct, fresh(), [b"y" * 3 * MIB])
    with pytest.raises(MessageRefused, match="over what the federation server takes"):
        store.appender().push(part.queue, [b"x" * MIB], FullQueueWait(0))
    store.appender().push(part.queue, [b"x" * (MIB - 100_000)], FullQueueWait(0))
    [first, second] = [
        value
        for piece in store.read(Range(part.queue, part.born, 1, 2), True)
        for value in piece.values.to_pylist()
    ]
    assert (len(first), len(second)) == (
        3 * MIB,
        MIB - 100_000,
    )  # what is stored is read, however long


# -- calls -----------------------------------------------------------------------------------------


def test_calls_are_answered_in_their_order_however_many_come(
    peer: Peer, direct: RedisStore, fresh: Fresh
) -> None:
    queue = filled(direct, fresh(), [b"1"]).queue
    for id in range(1, 5 * MAX_UNANSWERED_CALLS):
        peer.call(id, "counters", (queue,))
    assert [peer.next().id for _ in range(1, 5 * MAX_UNANSWERED_CALLS)] == [
        *range(1, 5 * MAX_UNANSWERED_CALLS)
    ]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x09" + bytes(20),
        BulkProtocolFrame(BulkFrameKind.REPLY, 1, 1).encode(),
        BulkProtocolFrame(BulkFrameKind.CREDIT, 1, -5).encode(),
        BulkProtocolFrame(BulkFrameKind.CREDIT, 1, "much").encode(),
    ],
    ids=["empty", "no such frame", "a reply", "credit below 0", "no number"],
)
def test_a_client_that_breaks_the_rules_is_cut_off_and_no_other(
    peer: Peer, store: FederationBulkStore, message: bytes, fresh: Fresh
) -> None:
    peer.socket.send(message)
    with pytest.raises(FederationLost, match="code 1008"):
        peer.next()
    assert store.states({fresh(): -1})


@pytest.mark.parametrize(
    "head",
    [
        None,
        {"op": "hello"},
        {"op": "close", "args": []},
        {"op": "_link", "args": []},
        {"op": ["read"], "args": []},
        {"op": "states", "args": [{}, 1]},
        {"op": "read", "args": []},
        {"op": "states", "args": [{"": 1}]},
        {"op": "discover", "args": [], "more": 1},
    ],
)
def test_a_call_that_is_none_is_answered_with_an_error(peer: Peer, head: Any) -> None:
    peer.send(BulkProtocolFrame(BulkFrameKind.CALL, 7, head))
    frame = peer.next()
    assert (frame.kind, frame.id, frame.head["code"]) == (
        BulkFrameKind.ERROR,
        7,
        WireError.code,
    )
    peer.call(8, "hello", 1, "peer")
    assert peer.next().kind is BulkFrameKind.REPLY


def test_a_body_where_none_belongs_is_an_error(peer: Peer, fresh: Fresh) -> None:
    peer.send(
        BulkProtocolFrame(BulkFrameKind.CALL, 1, {"op": "states", "args": [{fresh(): 1}]}, b"more")
    )
    assert peer.next().kind is BulkFrameKind.ERROR


def test_a_wait_ends_by_itself_and_one_at_a_time(peer: Peer) -> None:
    peer.call(1, "wait", 300)
    assert ((ended := peer.next()).id, ended.head) == (1, False)
    peer.call(2, "wait", 60_000)
    peer.call(3, "wait", 60_000)
    assert ((refused := peer.next()).kind, refused.id) == (BulkFrameKind.ERROR, 3)


def test_a_listener_notifies_again_after_its_link_broke(
    here: Site, direct: RedisStore, fresh: Fresh
) -> None:
    queue, notified = filled(direct, fresh(), [b"1"]).queue, threading.Event()
    with cutter(here.port) as proxy:
        [listener] = FederationBulkStore(here.address(port=proxy.port)).push_listeners(notified)
        listener.listen([queue])
        for _ in range(2):
            wait_until(notified.is_set, what="it listens")
            notified.clear()
            direct.push(queue, [b"2"])
            wait_until(notified.is_set, what="it notifies")
            time.sleep(0.01)  # the same push may ring twice
            notified.clear()
            proxy.cut()
        listener.stop()


# -- ways there ------------------------------------------------------------------------------------


@contextmanager
def tls(port: int, authority: Authority, host: str) -> Iterator[TlsProxy]:
    with TlsProxy(port, authority.server_context(host)) as proxy:
        yield proxy


def test_tls_trusts_the_authority_that_it_is_given(
    here: Site, direct: RedisStore, tmp_path: Path, fresh: Fresh
) -> None:
    ours, theirs = Authority.in_(tmp_path / "ours"), Authority.in_(tmp_path / "theirs")
    with tls(here.port, ours, "localhost") as proxy:
        named, numbered = (f"wss://{host}:{proxy.port}/bus" for host in ("localhost", "127.0.0.1"))
        store = FederationBulkStore(FederationAddress(named, SECRET, tls_ca=str(ours.file)))
        for _ in range(3):
            queue = fresh()
            assert not store.states({queue: -1})[queue].exists
        part = filled(direct, queue, [b"x" * 1000] * 5_000)
        assert count(store, part) == 5_000
        store.close()
        for address in (
            FederationAddress(named, SECRET, tls_ca=str(theirs.file)),
            FederationAddress(named, SECRET),
            FederationAddress(numbered, SECRET, tls_ca=str(ours.file)),
        ):
            with pytest.raises(TlsError, match=r"certificate.*federation\.tls\.ca"):
                FederationBulkStore(address).states({"q": -1})
        store = FederationBulkStore(
            FederationAddress(numbered, SECRET, tls_ca=str(ours.file), tls_check_hostname=False)
        )
        assert store.discover(lambda _: False) == []
        store.close()


@pytest.mark.parametrize("layout", ["three servers", "cluster"])
def test_which_server_has_a_queue_is_the_other_sides_business(
    request: pytest.FixtureRequest, fresh: Fresh, layout: str
) -> None:
    if layout == "cluster":
        group: EmbeddedCluster = request.getfixturevalue("cluster_servers")
        options = RedisOptions(url=",".join(group.urls), layout="cluster")
    else:
        three: EmbeddedStandaloneServers = request.getfixturevalue("three_servers")
        options = RedisOptions(url=",".join(three.urls))
    with site(options) as there:
        store, direct = FederationBulkStore(there.address()), open_store(options)
        names = [fresh() for _ in range(8)]
        store.attach(names, HOUR)
        appender, sink = store.appender(), fresh("sink")
        for queue in names:
            appender.stage(
                queue, store.keys(queue).stage("batch:0:0:0123456789abcdef"), [queue.encode(), b"2"]
            )
        lists = appender.finish()
        assert store.record(sink, 0, lists) == tuple(lists)
        for part in lists:
            assert store.commit(part.queue, sink, 0, [part]) is None
        assert store.states(dict.fromkeys(names, 1)) == direct.states(dict.fromkeys(names, 1))
        for queue in names:
            born = store.states({queue: -1})[queue].born
            assert next(store.read(Range(queue, born, 1, 2), True)).values.to_pylist() == [
                queue.encode(),
                b"2",
            ]
        store.close()
        direct.close()


async def test_a_federation_server_serves_bulk_beside_busmqs_own_protocol(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (bus, server), bus.queue(fresh()) as queue:
        await queue.push_many([b"1", b"2"])
        await asyncio.to_thread(talk, server.url, queue.name)
        text = server.metrics.text()
        assert "busmq_bulk_rows_total 2.0\n" in text
        assert 'busmq_bulk_calls_total{operation="states"} 2.0\n' in text


def talk(url: str, queue: str) -> None:
    secret = "correct-horse-battery"
    store = FederationBulkStore(FederationAddress(url, secret))
    assert store.states({queue: -1})[queue].count == 2
    assert store.attach([queue], HOUR)[queue].existed
    born = store.states({queue: -1})[queue].born
    assert next(store.read(Range(queue, born, 1, 2), True)).values.to_pylist() == [b"1", b"2"]
    store.close()
    refused: list[tuple[FederationAddress, int]] = [
        (FederationAddress(url, "another-secret-than-that"), 401),
        (FederationAddress(url + "/other", secret), 404),
    ]
    for address, status in refused:
        with pytest.raises(FederationRefused) as caught:
            FederationBulkStore(address).states({queue: -1})
        assert caught.value.details["status"] == status
