"""Events over federation: who may subscribe a queue to which, whose the rows are, and what they
cost those who publish.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    BusError,
    ConfigError,
    FederationRefused,
    OutboxWaits,
    PublishIncomplete,
    QueueMissing,
    TooFewDestinations,
    WireError,
)
from busmq_spark.federation.bulk.operations import MAX_EVENT_KEYS_PER_CALL
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.federation.serve.server import FederationServer
from busmq_spark.options import RedisOptions
from busmq_spark.outbox.outbox import SyncOutbox
from busmq_spark.outbox.target_bus import RedisOutboxTarget
from busmq_spark.queue.keys import EVENT_SUBSCRIPTIONS_KEY
from busmq_spark.queue.message import Position, Range
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.routing.event_routing import read_subscribers, subscribe_as_peer
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore
from tests.conftest import Fresh
from tests.federation.bulk_site import Site, site
from tests.support import PATIENCE_S

pytestmark = pytest.mark.redis
GRANTS: dict[str, dict[str, list[str]]] = {
    "mallory": {"read": ["mine*"], "write": ["mine*"]},
    "taker": {
        "read": ["mine*"],
        "write": ["mine*"],
        "events": ["pay.*", "log.#"],
        "deny": ["event:pay.secret"],
    },
    "second": {"read": ["mine*"], "write": ["mine*"], "events": ["#"]},
    "pusher": {"push": ["mine*"], "events": ["#"]},
    "everything": {"read": ["*"], "write": ["*"], "admin": ["*"]},
}
SECRETS = {name: f"the-secret-of-{name}-{secrets.token_hex(8)}" for name in GRANTS}
LIMITS = PeerLimits(event_patterns_per_secret=5, event_pattern_words=4)
As = Callable[[str], FederationBulkStore]


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    ring = Keyring(
        {name: (SECRETS[name], Grants.parse(table, name)) for name, table in GRANTS.items()}
    )
    with site(redis_server.url, ring, LIMITS) as made:
        yield made


@pytest.fixture
def as_(here: Site, redis_server: EmbeddedRedis) -> Iterator[As]:
    made: list[FederationBulkStore] = []

    def open_as(name: str) -> FederationBulkStore:
        made.append(
            FederationBulkStore(here.address(SECRETS.get(name, name), patience_s=PATIENCE_S))
        )
        return made[-1]

    yield open_as
    for store in made:
        store.close()
    redis_server.command("DEL", EVENT_SUBSCRIPTIONS_KEY)


@pytest.fixture
def bus(redis_url: str) -> Iterator[Any]:
    with Bus.sync(redis_url) as made:
        yield made


def full(store: Any, queue: str) -> str:
    """A queue that holds as many as it may."""
    store.attach([queue], QueueCreateOptions(True, 3600, 1))
    store._link.call("push", queue, values=[b"x"])
    return queue


# -- the right -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "pattern", "allowed"),
    [
        ("mallory", "#", False),
        ("mallory", "pay.done", False),
        ("everything", "pay.done", False),
        ("taker", "pay.done", True),
        ("taker", "log.a.b", True),
        ("taker", "log.#", True),
        ("taker", "log", True),
        ("taker", "pay.*", False),
        ("taker", "pay.secret", False),
        ("taker", "pay.#", False),
        ("taker", "*.done", False),
        ("taker", "#", False),
        ("second", "#", True),
    ],
)
def test_a_pattern_needs_one_that_covers_it_and_deny_wins(
    as_: As, fresh: Fresh, who: str, pattern: str, *, allowed: bool
) -> None:
    queue = fresh("mine")
    if allowed:
        as_(who).subscribe_events(queue, [pattern], False)
    else:
        with pytest.raises(FederationRefused, match=f"{who!r} may not take events"):
            as_(who).subscribe_events(queue, [pattern], False)


def test_one_pattern_that_is_not_granted_refuses_the_whole_call(
    as_: As, direct: RedisStore, fresh: Fresh
) -> None:
    with pytest.raises(FederationRefused, match=r"'pay\.secret'"):
        as_("taker").subscribe_events(fresh("mine"), ["pay.done", "pay.secret"], False)
    assert direct.event_subscriptions() == []


def test_the_queue_needs_push_and_where_it_is_not_there_create(
    as_: As, direct: RedisStore, fresh: Fresh
) -> None:
    queue, other = fresh("mine"), fresh("other")
    with pytest.raises(FederationRefused, match="may not push queue"):
        as_("second").subscribe_events(other, ["a"], False)
    with pytest.raises(QueueMissing):
        as_("pusher").subscribe_events(queue, ["a"], False)
    assert not direct.states({queue: -1})[queue].exists
    as_("second").subscribe_events(queue, ["a"], False)
    as_("pusher").subscribe_events(queue, ["b"], False)
    assert direct.event_subscriptions() == [("a", queue), ("b", queue)]


def test_a_token_takes_what_it_and_its_secret_both_may(as_: As, here: Site, fresh: Fresh) -> None:
    queue = fresh("mine")
    narrow, none = (
        here.keyring.sign("second", 600, table)
        for table in ({"write": ["*"], "events": ["pay.*"]}, {"write": ["*"]})
    )
    as_(narrow).subscribe_events(queue, ["pay.done"], False)
    for token, pattern in ((narrow, "log"), (none, "pay.done")):
        with pytest.raises(FederationRefused, match="may not take events"):
            as_(token).subscribe_events(queue, [pattern], False)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"events": ["a.#.b"]}, "the pattern is 'a.#.b'"),
        ({"events": "#"}, "events is not a list of patterns"),
        ({"events": ["event:a"]}, "the pattern is|is of events"),
        ({"write": ["event:a"]}, "is of events; expected it under deny"),
        ({"deny": ["event:"]}, "the pattern is ''"),
        ({"deny": ["events:a"]}, "did you mean 'event:'"),
        ({"event": ["a"]}, "did you mean 'events'"),
    ],
)
def test_a_setting_that_is_wrong_is_named(table: dict[str, Any], text: str) -> None:
    if table == {"events": ["event:a"]}:
        assert Grants.parse(table, "[x]").events == ("event:a",)  # words may have a colon
        return
    with pytest.raises(ConfigError, match=text):
        Grants.parse(table, "[x]")


# -- whose rows ------------------------------------------------------------------------------------


def test_a_peer_ends_its_own_rows_only(
    as_: As, bus: Any, direct: RedisStore, here: Site, fresh: Fresh
) -> None:
    queue = fresh("mine")
    bus.subscribe(["pay.*"], into=queue)
    as_("second").subscribe_events(queue, ["log.#", "pay.*"], False)
    token = here.keyring.sign("second", 600, {"write": ["*"], "events": ["#"]})
    for other in ("taker", "pusher", "everything", token):
        as_(other).subscribe_events(queue, ["pay.*", "log.#"], True)
    assert direct.event_subscriptions() == [("log.#", queue), ("pay.*", queue)]
    as_("second").subscribe_events(queue, ["log.#", "pay.*"], True)
    assert direct.event_subscriptions() == [("pay.*", queue)]  # which the program has made, too
    as_("second").subscribe_events(queue, ["log.#"], False)
    assert bus.unsubscribe(["log.#", "pay.*"], into=queue) == 2
    assert direct.event_subscriptions() == []


def test_two_peers_have_a_row_each(as_: As, direct: RedisStore, fresh: Fresh) -> None:
    queue = fresh("mine")
    for who in ("taker", "second"):
        as_(who).subscribe_events(queue, ["pay.done"], False)
    as_("taker").subscribe_events(queue, ["pay.done"], True)
    assert direct.event_subscriptions() == [("pay.done", queue)]
    as_("second").subscribe_events(queue, ["pay.done"], True)
    assert direct.event_subscriptions() == []


def test_rows_of_a_secret_are_bounded_its_tokens_counted_and_others_have_places(
    as_: As, here: Site, direct: RedisStore, fresh: Fresh
) -> None:
    queue = fresh("mine")
    second = as_("second")
    second.subscribe_events(queue, ["a", "b", "c"], False)
    for token in (here.keyring.sign("second", 600, {"write": ["*"], "events": ["#"]}), "second"):
        with pytest.raises(FederationRefused, match=r"limit event_patterns_per_secret"):
            as_(token).subscribe_events(queue, ["x", "y", "z"], False)
    second.subscribe_events(queue, ["a", "b", "c", "d", "e"], False)
    with pytest.raises(FederationRefused, match=r"limit event_patterns_per_secret"):
        second.subscribe_events(queue, ["f"], False)
    second.subscribe_events(queue, ["a"], False)  # which it has
    as_("pusher").subscribe_events(queue, ["f"], False)
    second.subscribe_events(queue, ["a"], True)
    second.subscribe_events(queue, ["g"], False)
    assert [pattern for pattern, _ in direct.event_subscriptions()] == [
        "b",
        "c",
        "d",
        "e",
        "f",
        "g",
    ]


def test_rows_that_a_program_has_ended_give_their_place_back(
    as_: As, direct: RedisStore, redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    queue, second = fresh("mine"), as_("second")
    second.subscribe_events(queue, ["a", "b", "c", "d", "e"], False)
    direct.subscribe_events(queue, ["a"], True)
    second.subscribe_events(queue, ["f"], False)
    redis_server.command(
        "HDEL", EVENT_SUBSCRIPTIONS_KEY, f"b {queue}"
    )  # as one of a version before does
    second.subscribe_events(queue, ["g"], False)
    assert [pattern for pattern, _ in direct.event_subscriptions()] == ["c", "d", "e", "f", "g"]


@pytest.mark.parametrize(
    ("patterns", "error"),
    [
        (["a.b.c.d.e"], FederationRefused),
        (["x" * 256], BusError),
        (["a b"], ConfigError),
        ([], ConfigError),
        (["a"] * 1001, WireError),
    ],
)
def test_a_pattern_is_short(
    as_: As, direct: RedisStore, fresh: Fresh, patterns: list[str], error: type[BusError]
) -> None:
    with pytest.raises(error):
        as_("second")._link.call("subscribe_events", fresh("mine"), patterns, False)
    assert direct.event_subscriptions() == []


def test_rows_of_versions_before_are_those_of_programs(
    as_: As, bus: Any, redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    queue = fresh("mine")
    redis_server.command("HSET", EVENT_SUBSCRIPTIONS_KEY, f"pay.* {queue}", "1", ":version", "old")
    assert (bus.publish(["pay.done"])).destinations == (queue,)
    as_("second").subscribe_events(queue, ["pay.*"], True)
    assert bus.subscriptions() == [("pay.*", queue)]
    redis_server.command(
        "HSET", EVENT_SUBSCRIPTIONS_KEY, f"log {queue}", "1", ":version", "older still"
    )  # which notes no change
    assert (bus.publish(["log"])).destinations == (queue,)


# -- what it costs publishers ----------------------------------------------------------------------


def test_a_full_queue_of_a_peer_fails_no_publisher(as_: As, bus: Any, fresh: Fresh) -> None:
    own, theirs, key = fresh("mine"), fresh("mine-full"), fresh("k")
    second = as_("second")
    bus.subscribe([key], into=own)
    second.subscribe_events(full(second, theirs), ["#"], False)
    receipt = bus.publish([key], {})
    assert receipt.destinations == (own,)
    assert "[BUSMQ_QUEUE_FULL]" in receipt.missed[theirs]
    assert (bus.publish([key], {}, require=1)).destinations == (own,)
    with pytest.raises(PublishIncomplete, match="BUSMQ_QUEUE_FULL"):
        bus.publish([key], {}, require=2)
    with pytest.raises(TooFewDestinations):
        bus.publish([key], {}, require=3)
    bus.subscribe([key], into=theirs)  # now a program wants it there
    with pytest.raises(PublishIncomplete):
        bus.publish([key], {})


def test_a_full_queue_is_of_programs_only_for_the_events_that_they_want_there(
    as_: As, bus: Any, fresh: Fresh
) -> None:
    queue, second = fresh("mine"), as_("second")
    bus.subscribe(["pay.*"], into=full(second, queue))
    second.subscribe_events(queue, ["#"], False)
    assert [*(bus.publish(["log.x"], {})).missed] == [queue]
    with pytest.raises(PublishIncomplete):
        bus.publish(["pay.x"], {})


def test_the_rows_of_a_peer_end_with_their_queue(
    as_: As, bus: Any, direct: RedisStore, fresh: Fresh
) -> None:
    own, theirs, second = fresh("mine"), fresh("mine"), as_("second")
    bus.subscribe(["a"], into=own)
    second.subscribe_events(theirs, ["#", "a"], False)
    with bus.queue(theirs) as queue:
        queue.delete()
    receipt = bus.publish(["a"], {})
    assert (receipt.destinations, [*receipt.missed]) == ((own,), [theirs])
    assert direct.event_subscriptions() == [("a", own)]
    assert not direct.states({theirs: -1})[theirs].exists
    assert (bus.publish(["a"], {})).missed == {}
    second.subscribe_events(theirs, ["a"], False)
    assert (bus.publish(["a"], {})).destinations == tuple(sorted((own, theirs)))


def test_an_outbox_and_peers_send_nothing_to_a_queue_of_another_peer_that_takes_nothing(
    as_: As, direct: RedisStore, redis_url: str, fresh: Fresh
) -> None:
    second, taker = as_("second"), as_("taker")
    closed, open_, own = fresh("mine"), fresh("mine"), fresh("mine")
    second.subscribe_events(full(second, closed), ["#"], False)
    second.subscribe_events(open_, ["#"], False)
    taker.subscribe_events(full(taker, own), ["log.#"], False)
    direct.subscribe_events(own, ["pay.#"], False)
    target = RedisOutboxTarget(redis_layout(RedisOptions(url=redis_url)))
    assert target.route([["pay.done"], ["log.x"], ["other"]], [])[0] == [
        sorted([open_, own]),
        [open_],
        [open_],
    ]
    assert (
        taker.event_queues([["pay.done"], ["log.x"]]) == [tuple(sorted([open_, own]))] * 2
    )  # its own counts
    assert as_("mallory").event_queues([["log.x"]]) == [(open_,)]
    target.close()


def test_an_outbox_is_drained_although_a_queue_of_a_peer_gets_full_on_the_way(
    as_: As, direct: RedisStore, redis_url: str, fresh: Fresh, tmp_path: Path
) -> None:
    second, own, theirs = as_("second"), fresh("mine"), fresh("mine")
    direct.subscribe_events(own, ["a.#"], False)
    second.attach([theirs], QueueCreateOptions(True, 3600, 3))
    second.subscribe_events(theirs, ["a.#"], False)
    with SyncOutbox(tmp_path / "outbox.db", redis_url) as outbox:
        for n in range(10):
            outbox.publish(["a.b"], n)
        outbox.wait_drained(PATIENCE_S)
        states = direct.states({own: -1, theirs: -1})
        assert (states[own].count, states[theirs].count) == (10, 3)
        outbox.push(theirs, "named")  # which is no event: it waits for room
        with pytest.raises(OutboxWaits, match="BUSMQ_QUEUE_FULL"):
            outbox.wait_drained(2)
        second._link.call("ack", {theirs: Position(states[theirs].born, 1, "")}, "")
        outbox.wait_drained(PATIENCE_S)
    assert direct.states({theirs: -1})[theirs].newest == 4


def test_keys_of_events_in_one_call_are_bounded_before_any_is_looked_at(
    as_: As, fresh: Fresh
) -> None:
    mallory = as_("mallory")
    with pytest.raises(WireError, match=f"at most {MAX_EVENT_KEYS_PER_CALL}"):
        mallory._link.call("event_queues", [["a"] * 100] * (MAX_EVENT_KEYS_PER_CALL // 100 + 1))
    assert mallory.event_queues([["a"] * 100] * (MAX_EVENT_KEYS_PER_CALL // 100 + 1)) == [()] * (
        MAX_EVENT_KEYS_PER_CALL // 100 + 1
    )


def test_a_publisher_reads_changes_and_not_the_table(
    as_: As, bus: Any, redis_server: EmbeddedRedis, direct: RedisStore, fresh: Fresh
) -> None:
    own, theirs = fresh("mine"), fresh("mine")
    bus.subscribe(["k"], into=own)
    flow = subscribe_as_peer([f"far.{n}" for n in range(3000)], theirs, "v", "many", 3000)
    assert direct._link_of_subscription_table().run(flow)
    bus.publish(["k"])
    redis_server.command("CONFIG", "RESETSTAT")
    second = as_("second")
    second.attach([theirs], QueueCreateOptions(True, 3600, 0))
    for n in range(20):
        second.subscribe_events(theirs, [f"near.{n % 3}"], bool(n % 2))
        assert (bus.publish(["k"])).destinations == (own,)
    assert (bus.publish(["near.1"])).destinations == ()
    second.subscribe_events(theirs, ["near.1"], False)
    assert (bus.publish(["near.1"])).destinations == (theirs,)
    assert "cmdstat_hgetall" not in str(redis_server.command("INFO", "commandstats"))


def test_more_changes_than_are_kept_are_no_loss(
    bus: Any, direct: RedisStore, redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    queue = fresh("mine")
    for n in (0, 1, 511, 512, 513, 600):
        bus.publish(["k"])
        for i in range(n):
            direct.subscribe_events(queue, [f"k{i}"], n % 2 == 0)
        direct.subscribe_events(queue, [f"k.{n}"], False)
        assert (bus.publish([f"k.{n}"])).destinations == (queue,)
        assert bus.subscriptions() == direct.event_subscriptions()
        assert (bus.publish(["k0"])).destinations == (
            (queue,) if ("k0", queue) in bus.subscriptions() else ()
        )
    redis_server.command("DEL", EVENT_SUBSCRIPTIONS_KEY)


def test_what_a_peer_was_granted_it_gets(
    as_: As, direct: RedisStore, fresh: Fresh, redis_url: str
) -> None:
    queue, taker = fresh("mine"), as_("taker")
    taker.subscribe_events(queue, ["pay.*"][:0] or ["pay.done"], False)
    with Bus.sync(redis_url) as bus:
        for key in ("pay.secret", "pay.done", "other"):
            bus.publish([key], key)
    state = taker.states({queue: -1})[queue]
    found = [
        value
        for piece in taker.read(Range(queue, state.born, 1, state.newest), True)
        for value in piece.values.to_pylist()
    ]
    assert [b'"pay.done"' in value for value in found] == [True]


async def test_rows_end_when_their_secret_has_lost_the_right(redis_url: str, fresh: Fresh) -> None:
    queue = fresh("mine")
    rows = [
        ("a", "kept"),
        ("pay.done", "kept"),
        ("pay.done", "narrowed~1"),
        ("log.x", "lost"),
        ("a", "gone"),
        ("a", "elsewhere"),
    ]
    write = {"write": ["mine*"]}
    before = Keyring(
        {
            name: (SECRETS["second"] + name, Grants.parse(write | {"events": ["#"]}, name))
            for name in ("kept", "lost", "gone")
        }
    )
    after = Keyring(
        {
            "kept": (
                SECRETS["second"] + "kept",
                Grants.parse(write | {"events": ["pay.*"]}, "kept"),
            ),
            "lost": (SECRETS["second"] + "lost", Grants.parse(write, "lost")),
        }
    )

    async def owners(bus: Bus) -> set[tuple[str, str]]:
        table = await bus._run_at_table(read_subscribers())
        return {
            (pattern, owner)
            for (pattern, into), found in table.owners_of_rows.items()
            if into == queue
            for owner in found
        }

    async with Bus(redis_url) as bus:
        await bus.subscribe(["b"], into=queue)
        for n, (pattern, owner) in enumerate(rows):
            assert await bus._run_at_table(subscribe_as_peer([pattern], queue, f"v{n}", owner, 9))
        async with FederationServer(bus, before) as server:
            assert server._revoking is not None
            await server._revoking
            assert await owners(bus) == {*rows, ("b", "")}
            server.reload(after)
            await server._revoking
            assert await owners(bus) == {
                ("b", ""),
                ("pay.done", "kept"),
                ("pay.done", "narrowed~1"),
                ("a", "elsewhere"),
            }
        await bus.forget(queue)
