"""Sinks, subscriptions and leases belong to the secret that made them: others neither use, see nor
end them.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Callable, Iterator

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import FederationRefused, QueueMissing, StaleBatch, WireError
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.queue.command_generators import Flow, command
from busmq_spark.queue.message import Position
from busmq_spark.queue.queue import delete
from busmq_spark.reading.reader_subscriptions import register, unsubscribe
from busmq_spark.reading.readers import read_readers
from busmq_spark.redis_io.lease_token import my_token
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.writing.sink import StagedList, attempt_name
from busmq_spark.writing.sink_runs import SinkRun
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR, filled
from tests.federation.bulk_site import Site, site
from tests.support import PATIENCE_S

pytestmark = pytest.mark.redis
GRANTS = {
    "victim": {"read": ["open-*"], "write": ["open-*"]},
    "other": {"read": ["open-*"], "write": ["open-*"]},
    "reader": {"read": ["open-*"]},
    "nobody": {"read": ["pubsub:news"]},
    "billing": {"consume": ["open-*", "subscription:billing"], "browse": ["open-*"]},
    "looker": {"browse": ["open-*"]},
    "chief": {"read": ["open-*"], "admin": ["open-*"]},
}
SECRETS = {name: f"the-secret-of-{name}-{secrets.token_hex(8)}" for name in GRANTS}
As = Callable[[str], FederationBulkStore]


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    ring = Keyring(
        {name: (SECRETS[name], Grants.parse(table, name)) for name, table in GRANTS.items()}
    )
    with site(redis_server.url, ring, PeerLimits(subscriptions=3)) as made:
        yield made


@pytest.fixture
def as_(here: Site) -> Iterator[As]:
    made: list[FederationBulkStore] = []

    def open_as(name: str) -> FederationBulkStore:
        made.append(
            FederationBulkStore(here.address(SECRETS.get(name, name), patience_s=PATIENCE_S))
        )
        return made[-1]

    yield open_as
    for store in made:
        store.close()


@pytest.fixture
def queue(direct: RedisStore, fresh: Fresh) -> str:
    return filled(direct, fresh("open"), [b"1", b"2", b"3"]).queue


def staged(
    store: FederationBulkStore | RedisStore, queue: str, query: str, batch: int, rows: int = 2
) -> list[StagedList]:
    appender = store.appender()
    appender.stage(
        queue,
        store.keys(queue).stage(attempt_name(query, str(batch), 0, secrets.token_hex(8))),
        [b"row"] * rows,
    )
    return appender.finish()


def write(
    store: FederationBulkStore | RedisStore, queue: str, sink: str, query: str, batch: int
) -> None:
    """A batch of two rows, as the writer of Spark does it."""
    parts = staged(store, queue, query, batch)
    held = store.record(sink, batch, parts, query)
    if held:
        assert store.commit(queue, sink, batch, held) is None
    store.discard([part for part in parts if part not in held])


def count(direct: RedisStore, queue: str) -> int:
    return direct.states({queue: -1})[queue].count


@pytest.mark.parametrize("who", ["nobody", "reader"])
def test_who_may_push_nowhere_has_no_sinks(as_: As, fresh: Fresh, who: str) -> None:
    sink = fresh("sink")
    for name, *arguments in (
        ("record", sink, 2**53 - 1, [], "", "", 0),
        ("recorded", sink, 0),
        ("sink_state", sink, []),
        ("renew", SinkRun(sink, 1)),
        ("forget", sink, []),
        ("discard", []),
    ):
        with pytest.raises(FederationRefused, match="may not"):
            as_(who)._link.call(name, *arguments)


def test_staged_lists_are_out_of_reach_of_other_secrets_and_of_runs_beside_the_server(
    as_: As, direct: RedisStore, queue: str, fresh: Fresh
) -> None:
    sink, key = (
        fresh("sink"),
        direct.keys(queue).stage(attempt_name("", "0", 0, secrets.token_hex(8))),
    )
    victim = as_("victim")
    appender = victim.appender()
    appender.stage(queue, key, [b"row"], victim.begin(sink, "one", [queue]))
    parts = appender.finish()
    for other in (as_("other"), direct):
        later = other.begin(sink, "two", [queue])
        other.renew(later)
        assert other.record(sink, 2**50, [], epoch=later.epoch) == ()
    assert victim.record(sink, 0, parts, epoch=1 << 50) == tuple(parts)


def test_a_sink_beside_the_server_is_out_of_reach_of_its_peers(
    as_: As, direct: RedisStore, queue: str, fresh: Fresh
) -> None:
    sink, query = fresh("sink"), str(uuid.uuid4())
    as_("other").record(sink, 0, [], query)  # knows the sink and the query, and comes first
    write(direct, queue, sink, query, 0)
    as_("other").record(sink, 2**53 - 1, [])
    write(direct, queue, sink, query, 1)
    as_("other").forget(sink, [])
    with pytest.raises(StaleBatch):
        direct.record(sink, 0, [], query)
    assert count(direct, queue) == 7


def test_two_secrets_have_two_sinks_of_one_name(
    as_: As, direct: RedisStore, queue: str, fresh: Fresh
) -> None:
    sink, query = fresh("sink"), str(uuid.uuid4())
    victim, other = as_("victim"), as_("other")
    parts = staged(victim, queue, query, 5)
    assert victim.record(sink, 5, parts, query) == tuple(parts)
    assert other.recorded(sink, 5) == ()
    other.record(sink, 9, [])
    other.forget(sink, [])
    assert victim.recorded(sink, 5) == tuple(parts)
    assert victim.commit(queue, sink, 5, parts) is None
    with pytest.raises(StaleBatch, match=f"sink {sink!r}|{sink}") as caught:
        victim.record(sink, 4, [])
    assert caught.value.details["sink"] == sink
    assert count(direct, queue) == 5


def test_a_narrowed_token_has_sinks_of_its_own(
    as_: As, here: Site, queue: str, fresh: Fresh
) -> None:
    sink = fresh("sink")
    narrow = {"write": [queue]}
    token, again, wider = (
        here.keyring.sign("victim", 600, table) for table in (narrow, narrow, {"write": ["open-*"]})
    )
    as_("victim").record(sink, 3, [])
    as_(token).record(sink, 2**53 - 1, [])
    as_("victim").record(sink, 4, [])
    as_(wider).record(sink, 1, [])
    with pytest.raises(StaleBatch):
        as_(again).record(sink, 1, [])


def test_a_subscription_is_used_by_who_registered_it(
    as_: As, direct: RedisStore, queue: str
) -> None:
    victim, reader = as_("victim"), as_("reader")
    token = my_token()
    assert victim.lease([queue], "billing", token, {}) == {queue: token}
    victim.subscribe({queue: "earliest"}, "billing")
    born = direct.states({queue: -1})[queue].born
    end = {queue: Position(born, 3, "")}
    for attempt_ in (
        lambda: reader.ack(end, "billing"),
        lambda: reader.subscribe({queue: "latest"}, "billing"),
        lambda: reader.lease([queue], "billing", "mine", {}),
        lambda: reader.keep_alive([queue], "billing", token),
    ):
        with pytest.raises(FederationRefused, match="subscription 'billing'"):
            attempt_()
    assert count(direct, queue) == 3
    assert victim.keep_alive([queue], "billing", token) == {queue: 1}
    reader.subscribe({queue: "earliest"}, "mine")
    assert reader.ack(end, "mine")[queue].status == "ok"
    assert victim.ack(end, "billing")[queue].status == "ok"
    assert count(direct, queue) == 0


def test_a_subscription_that_a_grant_names_is_used_by_all_who_have_it(
    as_: As, direct: RedisStore, queue: str
) -> None:
    as_("victim").subscribe({queue: "earliest"}, "billing")
    assert as_("billing").subscribe({queue: "latest"}, "billing") == {queue: 0}
    assert as_("chief").subscribe({queue: "latest"}, "billing") == {queue: 0}  # admin of the queue
    with pytest.raises(FederationRefused, match="consume subscription 'audit'"):
        as_("billing").subscribe({queue: "latest"}, "audit")
    assert direct.subscriptions([queue]) == {queue: {"billing": 0}}


def test_a_subscription_that_was_registered_beside_the_server_is_not_for_peers(
    as_: As, direct: RedisStore, queue: str
) -> None:
    direct.subscribe({queue: "earliest"}, "local")
    with pytest.raises(
        FederationRefused, match=r'grant it with consume = \["subscription:local"\]'
    ):
        as_("reader").subscribe({queue: "latest"}, "local")


def test_subscriptions_are_bounded_and_need_a_queue(
    as_: As, direct: RedisStore, queue: str, fresh: Fresh
) -> None:
    reader, missing = as_("reader"), fresh("open")
    for number in range(3):
        reader.subscribe({queue: "earliest"}, f"s{number}")
    with pytest.raises(FederationRefused, match="has 3 of them"):
        reader.subscribe({queue: "earliest"}, "s3")
    assert reader.subscribe({queue: "latest"}, "s2") == {queue: 0}
    with pytest.raises(QueueMissing):
        reader.subscribe({missing: "latest"}, "s")
    assert direct.subscriptions([missing]) == {missing: {}}


def test_the_holder_of_a_lease_is_shown_to_its_own_secret_only(
    as_: As, direct: RedisStore, queue: str
) -> None:
    victim, reader, token = as_("victim"), as_("reader"), my_token()
    assert victim.lease([queue], "", token, {}) == {queue: token}
    assert as_("victim").holders([queue], "") == {queue: token}
    assert token not in reader.holders([queue], "")[queue]
    stored = direct.holders([queue], "")[queue]
    for dead in (token, stored, reader.holders([queue], "")[queue]):
        assert reader.lease([queue], "", "mine", {queue: dead})[queue] != "mine"
    assert reader.keep_alive([queue], "", token) == {queue: -1}
    with pytest.raises(FederationRefused, match="another reader holds"):
        reader.ack({queue: Position(direct.states({queue: -1})[queue].born, 3, "")}, "")
    assert victim.keep_alive([queue], "", token) == {queue: 1}
    assert as_("victim").lease([queue], "", "next", {queue: token}) == {
        queue: "next"
    }  # of the same secret, known to be dead


@pytest.mark.parametrize(
    "name",
    ["lease:", "lease:x", "hand:x", "stage:x", "messages", "metadata", "owners", "a:lease:b"],
)
def test_a_subscription_cannot_be_a_key_of_a_queue_with_a_longer_name(
    as_: As, queue: str, name: str
) -> None:
    with pytest.raises(WireError, match="a subscription whose name"):
        as_("victim").lease([queue], name, "me", {})


def test_who_browses_looks_and_takes_nothing(as_: As, direct: RedisStore, queue: str) -> None:
    looker = as_("looker")
    attached = looker.attach([queue], HOUR)[queue]
    assert looker.states({queue: -1})[queue].count == 3
    assert looker.keep_alive([queue], "", "") == {queue: 1}
    for attempt_ in (
        lambda: looker.ack({queue: Position(attached.born, 3, "")}, ""),
        lambda: looker.lease([queue], "", "me", {}),
        lambda: looker.keep_alive([queue], "", "me"),
        lambda: looker.subscribe({queue: "latest"}, "s"),
    ):
        with pytest.raises(FederationRefused, match=f"'looker' may not consume queue {queue!r}"):
            attempt_()
    assert count(direct, queue) == 3


@pytest.mark.parametrize("who", ["billing", "chief"])
def test_a_shared_group_is_for_no_peer(as_: As, direct: RedisStore, queue: str, who: str) -> None:
    """It has no position that a peer could move, and no holder: an ack would drop messages that
    others have in hand.
    """
    direct.run(queue, register(direct.keys(queue), "billing", shared={"tries": 3}))
    peer, state = as_(who), direct.states({queue: -1})[queue]
    at = Position(state.born, 3, "")
    for use in (
        lambda: peer.ack({queue: at}, "billing"),
        lambda: peer.subscribe({queue: "earliest"}, "billing"),
        lambda: peer.lease([queue], "billing", my_token(), {}),
        lambda: peer.keep_alive([queue], "billing", my_token()),
    ):
        with pytest.raises(FederationRefused, match="shared group"):
            use()
    assert direct.subscriptions([queue])[queue] == {"billing": 0}
    assert count(direct, queue) == 3
    assert direct.holders([queue], "billing") == {queue: ""}


def test_a_name_that_was_given_up_beside_the_server_is_nobodys(
    as_: As, direct: RedisStore, queue: str
) -> None:
    as_("victim").subscribe({queue: "earliest"}, "mail")
    assert direct.run(queue, unsubscribe(direct.keys(queue), "mail"))
    direct.subscribe({queue: "earliest"}, "mail")
    with pytest.raises(FederationRefused, match="which another has registered"):
        as_("victim").subscribe({queue: "earliest"}, "mail")


def reborn(direct: RedisStore, queue: str) -> None:
    """The queue, made anew."""
    direct.run(queue, delete(direct.keys(queue)))
    filled(direct, queue, [b"new"])


def test_a_name_of_a_life_that_ended_is_nobodys(as_: As, direct: RedisStore, queue: str) -> None:
    as_("victim").subscribe({queue: "earliest"}, "mail")
    reborn(direct, queue)
    direct.subscribe({queue: "earliest"}, "mail")
    for who in ("victim", "other"):
        with pytest.raises(FederationRefused, match="which another has registered"):
            as_(who).subscribe({queue: "latest"}, "mail")
        with pytest.raises(FederationRefused, match="which another has registered"):
            as_(who).ack({queue: Position(direct.states({queue: -1})[queue].born, 1, "")}, "mail")
    assert count(direct, queue) == 1


def test_in_a_new_life_a_name_is_whose_registers_it_first(
    as_: As, direct: RedisStore, queue: str
) -> None:
    as_("victim").subscribe({queue: "earliest"}, "mail")
    reborn(direct, queue)
    as_("other").subscribe({queue: "earliest"}, "mail")
    with pytest.raises(FederationRefused, match="which another has registered"):
        as_("victim").subscribe({queue: "latest"}, "mail")
    assert as_("other").subscribe({queue: "latest"}, "mail") == {queue: 0}


def test_a_reader_that_is_there_when_its_queue_is_made_anew_goes_on(
    as_: As, direct: RedisStore, queue: str
) -> None:
    victim, token = as_("victim"), my_token()
    victim.lease([queue], "mail", token, {})
    victim.subscribe({queue: "earliest"}, "mail")
    reborn(direct, queue)
    assert victim.keep_alive([queue], "mail", token) == {queue: 1}
    victim.subscribe({queue: "earliest"}, "mail")
    assert (
        victim.ack({queue: Position(direct.states({queue: -1})[queue].born, 1, "")}, "mail")[
            queue
        ].status
        == "ok"
    )


def test_a_reader_beside_the_server_that_is_about_to_register_in_a_new_life_keeps_its_name(
    as_: As, direct: RedisStore, queue: str
) -> None:
    as_("victim").subscribe({queue: "earliest"}, "mail")
    reborn(direct, queue)
    direct.lease([queue], "mail", my_token(), {})
    with pytest.raises(FederationRefused, match="which another has registered"):
        as_("victim").subscribe({queue: "latest"}, "mail")


def test_owners_that_a_version_before_has_noted_without_a_life_count(
    as_: As, direct: RedisStore, queue: str
) -> None:
    def without_life() -> Flow[int]:
        return int((yield command("HDEL", direct.keys(queue).owners, ":born:mail")))

    as_("victim").subscribe({queue: "earliest"}, "mail")
    assert direct.run(queue, without_life()) == 1
    assert as_("victim").subscribe({queue: "latest"}, "mail") == {queue: 0}


def test_a_reader_of_a_peer_is_named_by_its_secret(
    direct: RedisStore, as_: As, fresh: Fresh
) -> None:
    queue = filled(direct, fresh("open"), [b"1", b"2"]).queue
    token = my_token()
    assert as_("billing").lease([queue], "billing", token, {}) == {queue: token}
    assert as_("billing").subscribe({queue: "earliest"}, "billing") == {queue: 0}
    [found] = direct._run(queue, read_readers([direct.keys(queue)]))
    assert (found.kind, found.name, found.held, found.behind) == ("federation", "billing", True, 2)
    assert found.record is not None
    assert found.record.pid == os.getpid()
    assert as_("billing").keep_alive([queue], "billing", token) == {queue: 1}
    [renewed] = direct._run(queue, read_readers([direct.keys(queue)]))
    assert renewed.records[0].seen_ms >= found.records[0].seen_ms
