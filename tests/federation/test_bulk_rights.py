"""Who may do what over ``busmq.bulk.v1``, and what a peer may name: queues, never keys."""

from __future__ import annotations

import logging
import pickle
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    BusError,
    ConfigError,
    FederationRefused,
    QueueMissing,
    SinkRolledBack,
    WireError,
)
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.option_parsing import parse
from busmq_spark.options import WriteOptions
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Position, Range
from busmq_spark.spark.write.committed_batch import BatchCheck, CommittedBatchNote
from busmq_spark.store.protocol import FullQueueWait
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.writing.sink import StagedList
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR, filled
from tests.federation.bulk_site import Site, site

pytestmark = pytest.mark.redis
NEEDS = {
    "read": (
        "ack ages bytes_until counters find_times holders keep_alive lease listen marks note_times"
        " read read_many states subscribe subscriptions positions read_with_spans spans times"
        " traces"
    ),
    "write": (
        "begin commit discard forget partitions push push_from record sink_state stage"
        " subscribe_events take_commands"
    ),
    "admin": "ends trim",
    "any": "attach",
}
OF_NO_QUEUE = {"hello", "discover", "wait", "event_queues", "recorded", "renew"}
THREE = [b"1", b"2", b"3"]
SECRETS = {
    name: f"the-secret-of-{name}-{secrets.token_hex(8)}"
    for name in ("all", "reader", "writer", "other")
}
FILE = f"""
[all]
secret = "{SECRETS["all"]}"
read = ["*"]
write = ["*"]
admin = ["*"]
[reader]
secret = "{SECRETS["reader"]}"
read = ["open-*"]
deny = ["open-private-*"]
[writer]
secret = "{SECRETS["writer"]}"
write = ["open-*"]
[other]
secret = "{SECRETS["other"]}"
write = ["elsewhere-*"]
"""


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("keys") / "secrets.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    with site(redis_server.url, Keyring.load(path)) as made:
        yield made


@pytest.fixture
def as_(here: Site) -> Iterator[Callable[[str], FederationBulkStore]]:
    made: list[FederationBulkStore] = []

    def open_as(name: str) -> FederationBulkStore:
        made.append(FederationBulkStore(here.address(SECRETS[name])))
        return made[-1]

    yield open_as
    for store in made:
        store.close()


@pytest.fixture
def open_queue(direct: RedisStore, fresh: Fresh) -> Range:
    return filled(direct, fresh("open"), THREE)


def key_of(queue: str) -> str:
    return QueueKeys(queue).stage(f"batch:0:0:{secrets.token_hex(8)}")


def staged(store: FederationBulkStore, queue: str) -> StagedList:
    appender = store.appender()
    appender.stage(queue, key_of(queue), [b"4"])
    [found] = appender.finish()
    return found


def calls(store: FederationBulkStore, queue: str) -> dict[str, Callable[[], object]]:
    """Every operation on a queue."""
    part = StagedList(queue, 0, key_of(queue), ((1, 1),))
    return {
        "attach": lambda: store.attach([queue], HOUR),
        "states": lambda: store.states({queue: -1}),
        "spans": lambda: store.spans({queue: (-1, 0)}),
        "positions": lambda: store.positions([queue]),
        "marks": lambda: store.marks({queue: 1}),
        "note_times": lambda: store.note_times([queue]),
        "find_times": lambda: store.find_times({queue: -1000}),
        "times": lambda: store.times({queue: (1, 3)}),
        "ages": lambda: store.ages({queue: 1}),
        "counters": lambda: store.counters([queue]),
        "ack": lambda: store.ack({queue: Position("born", 1, "")}, ""),
        "subscribe": lambda: store.subscribe({queue: "earliest"}, "s"),
        "subscriptions": lambda: store.subscriptions([queue]),
        "lease": lambda: store.lease([queue], "", "me", {}),
        "holders": lambda: store.holders([queue], ""),
        "keep_alive": lambda: store.keep_alive([queue], "", ""),
        "traces": lambda: store.traces(queue),
        "bytes_until": lambda: store.bytes_until(queue, 1, 3, 100),
        "read": lambda: next(store.read(Range(queue, "born", 1, 3), True)),
        "read_many": lambda: next(
            store.read_many([Range(queue, "born", 1, 1), Range(queue, "born", 2, 3)], True)
        ),
        "read_with_spans": lambda: next(
            store.read_with_spans([Range(queue, "born", 1, 0)])[1], None
        ),
        "listen": lambda: store._link.call("listen", [queue]),
        "stage": lambda: staged(store, queue),
        "push": lambda: store.appender().push(queue, [b"4"], FullQueueWait(0)),
        "push_from": lambda: store.push_from(queue, "sender", [1], [b"4"]),
        "partitions": lambda: store.partitions(queue),
        "take_commands": lambda: store.take_commands(queue),
        "subscribe_events": lambda: store.subscribe_events(queue, ["a.key"], True),
        "begin": lambda: store.begin("sink", "run", [queue]),
        "record": lambda: store.record("sink", 0, [part]),
        "sink_state": lambda: store.sink_state("sink", [queue]),
        "commit": lambda: store.commit(queue, "sink", 0, [part]),
        "discard": lambda: store.discard([part]),
        "forget": lambda: store.forget("sink", [part]),
        "ends": lambda: store._link.call("ends", [queue]),
        "trim": lambda: store._link.call("trim", {queue: 9}),
    }


@pytest.mark.parametrize("name", sorted({*OPERATIONS} - OF_NO_QUEUE))
def test_an_operation_needs_its_verb_on_the_queue(
    as_: Callable[[str], FederationBulkStore],
    direct: RedisStore,
    open_queue: Range,
    fresh: Fresh,
    name: str,
) -> None:
    queue, private = open_queue.queue, filled(direct, fresh("open-private"), THREE).queue
    [needs] = [verb for verb, names in NEEDS.items() if name in names.split()]
    for who, verb in (("reader", "read"), ("writer", "write"), ("other", "")):
        may = needs == verb or (name == "attach" and verb != "")
        if may:
            try:
                calls(as_(who), queue)[name]()
            except FederationRefused:
                raise
            except BusError:
                pass  # as of a direct store: no such life, nothing staged
        else:
            with pytest.raises(FederationRefused, match=rf"{who!r} may not "):
                calls(as_(who), queue)[name]()
        if who == "reader":
            with pytest.raises(FederationRefused):
                calls(as_(who), private)[name]()
    assert [row for piece in direct.read(open_queue, True) for row in piece.values.to_pylist()] == [
        b"1",
        b"2",
        b"3",
    ]


def test_every_operation_on_a_queue_is_tried_here(
    as_: Callable[[str], FederationBulkStore],
) -> None:
    assert {*calls(as_("all"), "q")} | OF_NO_QUEUE == {*OPERATIONS}


def test_who_may_only_read_finds_what_it_may_read_and_creates_nothing(
    as_: Callable[[str], FederationBulkStore], direct: RedisStore, open_queue: Range, fresh: Fresh
) -> None:
    private, new = filled(direct, fresh("open-private"), THREE).queue, fresh("open")
    found = as_("reader").discover(lambda name: True)
    assert open_queue.queue in found
    assert private not in found
    with pytest.raises(QueueMissing):
        as_("reader").attach([new], HOUR)
    assert not as_("writer").attach([new], HOUR)[new].existed


@pytest.mark.parametrize(
    "key",
    [
        "bus:queue:{other}:messages",
        "bus:queue:{queue}:messages",
        "bus:queue:{queue}:stage:",
        "bus:queue:{queue}:stage:x:messages",
        "bus:queue:{queue}:stage:batch:0:0:0123456789abcdef:messages",
        "bus:queue:{queue}:stage:batch:0:0:0123456789abcdef\n",
        "bus:queue:{other}:stage:batch:0:0:0123456789abcdef",
        "bus:sink:sink",
        "anything",
    ],
)
def test_only_keys_of_staged_lists_of_the_queue_itself_can_be_named(
    as_: Callable[[str], FederationBulkStore],
    direct: RedisStore,
    open_queue: Range,
    fresh: Fresh,
    key: str,
) -> None:
    store, queue, other = as_("all"), open_queue.queue, filled(direct, fresh(), THREE).queue
    named = StagedList(queue, 0, key.format(queue=queue, other=other), ((1, 1),))
    appender = store.appender()
    appender.stage(queue, named.key, [b"4"])
    for attempt in (
        appender.finish,
        lambda: store.discard([named]),
        lambda: store.record("sink", 0, [named]),
        lambda: store.commit(queue, "sink", 0, [named]),
        lambda: store.forget("sink", [named]),
    ):
        with pytest.raises(WireError, match="not one of a staged list of the queue"):
            attempt()
    assert direct.states({queue: -1, other: -1})[queue].count == 3
    assert direct.states({other: -1})[other].count == 3


@pytest.mark.parametrize(
    "change",
    [
        {"server": 1},
        {"server": -1},
        {"chunks": ((1001, 1),)},
        {"chunks": ((0, 5),)},
        {"chunks": ((1, -1),)},
    ],
    ids=[
        "no such server",
        "server below 0",
        "a chunk too large",
        "an empty chunk",
        "a negative number",
    ],
)
def test_a_staged_list_that_no_sink_makes_is_refused(
    as_: Callable[[str], FederationBulkStore], open_queue: Range, change: dict[str, object]
) -> None:
    store = as_("all")
    wrong = replace(staged(store, open_queue.queue), **change)  # type: ignore[arg-type]
    with pytest.raises(WireError):
        store.record("sink", 0, [wrong])
    with pytest.raises(WireError):
        store.commit(open_queue.queue, "sink", 0, [wrong])


def test_a_commit_takes_lists_of_its_own_queue_only(
    as_: Callable[[str], FederationBulkStore], direct: RedisStore, open_queue: Range, fresh: Fresh
) -> None:
    store = as_("all")
    part = staged(store, open_queue.queue)
    with pytest.raises(WireError, match="all of the queue itself"):
        store.commit(filled(direct, fresh(), THREE).queue, "sink", 0, [part])
    with pytest.raises(WireError, match="at least one"):
        store.commit(open_queue.queue, "sink", 0, [])


@pytest.mark.parametrize("sink", ["", "x" * 201, "a\nb", "a\x00b"])
def test_a_sink_id_is_a_short_text(
    as_: Callable[[str], FederationBulkStore], open_queue: Range, sink: str
) -> None:
    with pytest.raises(WireError, match=r"a sink id|an empty name of a queue or sink"):
        as_("all").record(sink, 0, [staged(as_("all"), open_queue.queue)])


@pytest.mark.parametrize("name", ["x:messages", "x:stage:y", ":born", "a\x00"])
def test_a_subscription_cannot_be_called_like_another_key(
    as_: Callable[[str], FederationBulkStore], open_queue: Range, name: str
) -> None:
    with pytest.raises(WireError, match="a subscription whose name"):
        as_("all").lease([open_queue.queue], name, "me", {})


def test_a_wrong_secret_and_none_are_refused_and_not_repeated_to_anybody(
    here: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for secret in ("a-guess-that-is-wrong", ""):
        address = here.address(secret)
        with pytest.raises(FederationRefused, match="does not know the secret") as caught:
            FederationBulkStore(address).states({"q": 1})
        assert caught.value.details["status"] == 401
        assert (
            not secret
            or secret not in f"{caught.value} {caught.value.details} {address!r} {caplog.text}"
        )


def test_a_token_lets_in_until_it_expires(
    here: Site, open_queue: Range, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = here.keyring.sign("all", 60, {"read": ["open-*"]})
    store = FederationBulkStore(here.address(token))
    assert store.states({open_queue.queue: -1})[open_queue.queue].count == 3
    with pytest.raises(FederationRefused, match="may not push"):
        store.appender().push(open_queue.queue, [b"1"], FullQueueWait(0))
    with monkeypatch.context() as patch:
        patch.setattr("busmq_spark.federation.bulk.server.time.time", lambda: 4e9)
        patch.setattr(here.keyring, "_clock", lambda: 4e9)
        with pytest.raises(FederationRefused, match="the token has expired"):
            store.states({open_queue.queue: -1})  # on a link that was opened before
        store.close()
        with pytest.raises(FederationRefused, match="token has expired"):
            store.states({open_queue.queue: -1})
    store.close()


def test_an_address_is_checked_before_anything_is_connected() -> None:
    for url in ("http://x", "ws://", "nonsense", "wss://user:word@x/bus", "wss://x/bus?secret=a"):
        with pytest.raises(ConfigError, match=r"federation\.url") as caught:
            FederationBulkStore(FederationAddress(url, "s"))
        assert "word" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"federation\.secret"):
        FederationBulkStore(FederationAddress("ws://x/bus", "two words"))
    with pytest.raises(ConfigError, match=r"federation\.tls"):
        FederationBulkStore(FederationAddress("wss://localhost:1/bus", "s", tls_ca="/nowhere.pem"))


def test_an_address_pickles(here: Site) -> None:
    assert pickle.loads(pickle.dumps(here.address())) == here.address()


def test_a_sink_that_lost_its_rights_on_a_former_queue_is_compared_by_its_record(
    as_: Callable[[str], FederationBulkStore],
    here: Site,
    fresh: Fresh,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    sink, former = fresh("sink"), fresh("elsewhere")
    note = CommittedBatchNote(tmp_path, sink)
    note.write(3, [StagedList(former, 0, "key", ((1, 1),), 1)], BatchCheck(time.time_ns() // 10**6))
    options = parse(WriteOptions, {"redis.url": here.address(SECRETS["writer"]).url})
    for _ in range(2):
        with pytest.raises(SinkRolledBack, match="its batch 3, and Redis has no batch of it"):
            note.check(as_("writer"), options, 4)
    assert caplog.text.count("may not ask for its progress") == 1
    assert f"'writer' may not push queue '{former}'" in caplog.text
