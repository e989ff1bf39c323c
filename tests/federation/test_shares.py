"""What queues remember of peers is shared out by secret: one that takes all it can leaves the
others their places.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import FederationRefused, WireError
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.message import Position
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.writing.sink import StagedList, attempt_name
from busmq_spark.writing.sink_runs import SinkRun
from tests.conftest import Fresh
from tests.federation.bulk_queues import filled
from tests.federation.bulk_site import Site, site
from tests.support import PATIENCE_S

pytestmark = pytest.mark.redis
RIGHTS = {"read": ["open-*"], "write": ["open-*"]}
GRANTS = {
    "greedy": RIGHTS,
    "other": RIGHTS,
    "pusher": {"push": ["open-*"]},
    "chief": {**RIGHTS, "admin": ["open-*"]},
}
SECRETS = {name: f"the-secret-of-{name}-{secrets.token_hex(8)}" for name in GRANTS}
LIMITS = PeerLimits(
    subscriptions=6,
    subscriptions_per_secret=3,
    senders_per_secret=3,
    sinks_per_secret=3,
    staged_lists_per_secret=3,
)
As = Callable[[str], FederationBulkStore]


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    ring = Keyring(
        {name: (SECRETS[name], Grants.parse(table, name)) for name, table in GRANTS.items()}
    )
    with site(redis_server.url, ring, LIMITS) as made:
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
def token(here: Site) -> str:
    """A narrowed one of the greedy secret, for which it counts."""
    return here.keyring.sign("greedy", 600, RIGHTS)


@pytest.fixture
def queue(direct: RedisStore, fresh: Fresh) -> str:
    return filled(direct, fresh("open"), [b"1", b"2", b"3"]).queue


def staged(
    store: FederationBulkStore | RedisStore, queue: str, run: SinkRun | None = None
) -> list[StagedList]:
    appender = store.appender()
    appender.stage(
        queue,
        store.keys(queue).stage(attempt_name("", "0", 0, secrets.token_hex(8))),
        [b"row"],
        run,
    )
    return appender.finish()


def count(direct: RedisStore, key: str, hash_command: str) -> int:
    return int(direct._links[0].execute(command(hash_command, key)))


def test_places_in_subscriptions(as_: As, token: str, direct: RedisStore, queue: str) -> None:
    greedy = as_("greedy")
    for number in range(2):
        greedy.subscribe({queue: "earliest"}, f"s{number}")
    as_(token).subscribe({queue: "earliest"}, "of-a-token")
    for who, name in (("greedy", "s2"), (token, "s3")):
        with pytest.raises(
            FederationRefused, match=r"all it may have of them \(limit subscriptions_per_secret\)"
        ):
            as_(who).subscribe({queue: "earliest"}, name)
        with pytest.raises(FederationRefused, match="limit subscriptions_per_secret"):
            as_(who).lease([queue], name, "me", {})
    as_("other").subscribe({queue: "earliest"}, "audit")
    direct.subscribe({queue: "earliest"}, "local")
    assert greedy.subscribe({queue: "latest"}, "s1") == {queue: 0}


def test_names_that_are_leased_and_never_registered_are_bounded_and_give_their_place_back(
    as_: As, direct: RedisStore, queue: str
) -> None:
    greedy = as_("greedy")
    for number in range(3):
        greedy.lease([queue], f"s{number}", "me", {})
    with pytest.raises(FederationRefused, match="limit subscriptions_per_secret"):
        greedy.lease([queue], "s3", "me", {})
    direct._links[0].execute(command("DEL", direct.keys(queue).lease("s0")))  # its time is over
    greedy.lease([queue], "s3", "me", {})
    assert count(direct, direct.keys(queue).owners, "HLEN") == 2 * 3


def test_senders(as_: As, token: str, direct: RedisStore, queue: str) -> None:
    greedy, senders = as_("greedy"), direct.keys(queue).senders
    for number in range(3):
        assert greedy.push_from(queue, f"s{number}", [1], [b"x"]) == (1, 0)
    for who in ("greedy", token):
        with pytest.raises(FederationRefused, match="limit senders_per_secret"):
            as_(who).push_from(queue, "s3", [1], [b"x"])
    assert greedy.push_from(queue, "s2", [2], [b"x"]) == (1, 0)
    assert as_("other").push_from(queue, "s0", [1], [b"x"]) == (1, 0)
    assert direct.push_from(queue, "s0", [1], [b"x"]) == (1, 0)
    direct._links[0].execute(
        command("HSET", senders, "federated:greedy:s0", "1:1000")
    )  # heard of last in 1970
    assert as_("greedy").push_from(queue, "s3", [1], [b"x"]) == (1, 0)
    assert count(direct, senders, "HLEN") == 5


def test_sinks(as_: As, token: str, direct: RedisStore, queue: str) -> None:
    def write(who: str, sink: str) -> None:
        store = as_(who)
        store.commit(queue, sink, 0, store.record(sink, 0, staged(store, queue)))

    for number in range(3):
        write("greedy", f"s{number}")
    for who in ("greedy", token):
        with pytest.raises(FederationRefused, match="limit sinks_per_secret"):
            write(who, "s3")
    write("other", "s0")
    as_("greedy").forget("s0", as_("greedy").recorded("s0", 0))
    write("greedy", "s3")
    assert count(direct, direct.keys(queue).sinks, "HLEN") == 4


def test_staged_lists(as_: As, token: str, direct: RedisStore, queue: str) -> None:
    greedy = as_("greedy")
    parts = [
        *staged(greedy, queue),
        *staged(greedy, queue, SinkRun("sink", 1)),
        *staged(as_(token), queue),
    ]
    for who in ("greedy", token):
        with pytest.raises(FederationRefused, match="limit staged_lists_per_secret"):
            staged(as_(who), queue)
    staged(as_("other"), queue)
    greedy.discard(parts[:1])
    staged(greedy, queue)


def test_a_staged_list_is_used_by_who_staged_it(
    as_: As, token: str, direct: RedisStore, queue: str
) -> None:
    greedy, other = as_("greedy"), as_("other")
    theirs, local, by_token = (
        staged(greedy, queue),
        staged(direct, queue),
        staged(as_(token), queue),
    )
    for parts in (theirs, local, by_token):
        for use in (
            lambda p=parts: other.discard(p),
            lambda p=parts: other.record("sink", 0, p),
            lambda p=parts: other.commit(queue, "sink", 0, p),
            lambda p=parts: other._link.call(
                "stage", queue, p[0].key, 1, SinkRun("", 0), values=[b"x"]
            ),
            lambda p=parts: other._link.call(
                "stage", queue, p[0].key, 0, SinkRun("", 0), values=[b"x"]
            ),
        ):
            with pytest.raises(FederationRefused, match="that another has staged"):
                use()
    with pytest.raises(FederationRefused):
        greedy.discard(by_token)
    held = greedy.record("sink", 0, theirs)
    assert as_("greedy").commit(queue, "sink", 0, held) is None  # on another connection
    as_("greedy").discard(theirs)
    assert direct.states({queue: -1})[queue].count == 4


def test_lists_that_an_older_server_has_staged_and_recorded_are_committed(
    as_: As, direct: RedisStore, queue: str
) -> None:
    parts = staged(direct, queue)  # noted nowhere
    direct.record("federated:greedy:sink", 7, parts)
    greedy = as_("greedy")
    assert greedy.recorded("sink", 7) == tuple(parts)
    assert greedy.commit(queue, "sink", 7, greedy.recorded("sink", 7)) is None
    assert direct.states({queue: -1})[queue].count == 4


def test_subscriptions_and_positions_of_others_are_not_shown(
    as_: As, direct: RedisStore, queue: str
) -> None:
    as_("other").subscribe({queue: "earliest"}, "billing")
    direct.subscribe({queue: "earliest"}, "local")
    greedy = as_("greedy")
    greedy.subscribe({queue: "earliest"}, "mine")
    assert greedy.subscriptions([queue]) == {queue: {"mine": 0}}
    assert [*greedy.positions([queue])[queue][1]] == ["mine"]
    assert {*as_("chief").subscriptions([queue])[queue]} == {"billing", "local", "mine"}
    with pytest.raises(FederationRefused, match="subscription 'billing'"):
        greedy.holders([queue], "billing")
    assert greedy.holders([queue], "new") == {queue: ""}
    assert direct.subscriptions([queue])[queue].keys() == {"billing", "local", "mine"}


def test_who_only_pushes_does_not_make_a_queue_one_of_commands(
    as_: As, direct: RedisStore, queue: str
) -> None:
    with pytest.raises(FederationRefused, match="may not create queue"):
        as_("pusher").take_commands(queue)
    assert not direct._links[0].execute(command("HEXISTS", direct.keys(queue).metadata, "command"))
    as_("other").take_commands(queue)


@pytest.mark.parametrize("start", [-1, -(2**40)])
def test_a_subscription_begins_at_no_id_below_0(as_: As, queue: str, start: int) -> None:
    with pytest.raises(WireError, match="begins below 0"):
        as_("greedy").subscribe({queue: start}, "s")


def test_a_reader_that_is_refused_moves_nothing(as_: As, direct: RedisStore, queue: str) -> None:
    as_("other").attach([queue], QueueCreateOptions(False, 60, 0))
    as_("other").subscribe({queue: "earliest"}, "billing")
    born = direct.states({queue: -1})[queue].born
    with pytest.raises(FederationRefused):
        as_("greedy").ack({queue: Position(born, 3, "")}, "billing")
    assert direct.subscriptions([queue])[queue] == {"billing": 0}
