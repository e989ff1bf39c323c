"""An outbox towards federation servers: once through ours and within what the secret may, at least
once through npm's.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import BusError, ConfigError, FederationRefused
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.options import BusOptions
from busmq_spark.outbox import forwarder, report
from busmq_spark.outbox.outbox import SyncOutbox
from busmq_spark.queue.keys import QueueKeys
from tests.bus.federated import SECRET
from tests.conftest import Fresh
from tests.federation.bulk_site import SECRET as BULK_SECRET
from tests.federation.bulk_site import Site, site
from tests.federation.cutting import Cutter, cutter
from tests.outbox.conftest import Place, drain, numbered
from tests.outbox.running import numbers
from tests.replicated import SOON, count, running_pair
from tests.support import FACTOR, wait_until

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "RETRY_PAUSES_S", (0.02, 0.1))


@pytest.fixture(scope="module")
def bulk(redis_server: EmbeddedRedis) -> Iterator[Site]:
    with site(redis_server.url) as made:
        yield made


@pytest.fixture
def between(bulk: Site) -> Iterator[Cutter]:
    with cutter(bulk.port) as made:
        yield made


def test_messages_events_and_commands_go_through_a_server_of_ours(
    path: Path, our_federation: str, here: Place, fresh: Fresh
) -> None:
    queue, word, into, other = fresh("orders"), fresh("k"), fresh("into"), fresh("other")
    with Bus.sync(here.settings["url"]) as bus:
        bus.subscribe([f"{word}.*"], into=other)
    with SyncOutbox(path, our_federation, federate_secret=SECRET) as outbox:
        outbox.push(queue, *range(2500))
        outbox.subscribe([f"{word}.#"], into=into)
        outbox.publish([f"{word}.signup"], 1)
        outbox.send(queue, 2)
        outbox.unsubscribe([f"{word}.#"], into=into)
        outbox.publish([f"{word}.signup", word], 3)
        drain(outbox)
    assert here.values(queue)[:2500] == numbered(2500, 0)
    assert here.run(queue, "HGET", here.keys(queue).metadata, "command") == b"1"
    assert [
        [json.loads(value)["data"] for value in here.values(each)] for each in (into, other)
    ] == [[1], [1, 3]]
    assert all(
        name.startswith(b"federated:")
        for name in here.run(queue, "HKEYS", here.keys(queue).senders)
    )


@pytest.mark.fault
def test_a_durable_server_of_ours_confirms_before_it_answers(path: Path) -> None:
    """The outbox keeps on its disk what the replica of that server does not have."""
    with running_pair() as pair:
        options = BusOptions(
            url=pair.master.url, durability="replicated", durability_timeout_s=SOON / 1000
        )
        with (
            site(options) as there,
            SyncOutbox(path, there.url, federate_secret=BULK_SECRET) as outbox,
        ):
            outbox.push("orders", "first")
            drain(outbox)
            messages = QueueKeys("orders", False).messages
            pair.between.hush()
            outbox.push("orders", "second")
            wait_until(lambda: "second" in str(pair.master.command("LRANGE", messages, "0", "-1")))
            wait_until(lambda: "BUSMQ_NOT_REPLICATED" in outbox.status().error)
            assert outbox.status().outgoing == 1
            pair.heal()
            drain(outbox)
            assert count(pair.replica, "orders") == 2


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(3 * FACTOR))
def test_through_a_server_of_ours_it_is_once_wherever_the_link_is_cut(
    path: Path, between: Cutter, here: Place, fresh: Fresh, seed: int
) -> None:
    chance, queues = Random(seed), [fresh("orders") for _ in range(3)]
    between.up = iter([chance.randrange(1, 40_000) for _ in range(20)])
    between.down = iter([chance.randrange(1, 2_000) for _ in range(20)])
    with SyncOutbox(
        path, f"ws://127.0.0.1:{between.port}/bus", federate_secret=BULK_SECRET
    ) as outbox:
        for n in range(1, 301):
            outbox.push(queues[n % 3], b"%d %s" % (n, b"x" * chance.randrange(3000)))
        drain(outbox)
    for at, queue in enumerate(queues):
        assert numbers(here.values(queue)) == [n for n in range(1, 301) if n % 3 == at]
    assert between.connections > 5


def test_what_the_secret_may_not_do_waits_and_says_so_and_the_rest_goes_on(
    path: Path, tmp_path: Path, redis_url: str, here: Place, fresh: Fresh
) -> None:
    ours, theirs, word, shown = fresh("web"), fresh("bank"), fresh("k"), secrets.token_hex(16)
    keys = tmp_path / "secrets.toml"
    keys.touch(mode=0o600)
    keys.write_text(f'[web]\nsecret = "{shown}"\nwrite = ["web-*"]\n')
    with Bus.sync(redis_url) as bus:
        bus.subscribe([word], into=ours)
        bus.subscribe([word], into=theirs)
        bus.queue(theirs).attach()
    with (
        site(redis_url, Keyring.load(keys)) as there,
        SyncOutbox(path, there.url, federate_secret=shown) as outbox,
    ):
        outbox.push(theirs, 1)
        outbox.publish([word], 2)
        outbox.push(ours, 3)
        wait_until(lambda: len(here.values(ours)) == 2)
        wait_until(
            lambda: (
                [
                    (each.queue, FederationRefused.code in each.error)
                    for each in report.read_outgoing(path)
                ]
                == [(theirs, True)]
            )
        )
        assert here.values(theirs) == []
        outbox.subscribe([f"{word}.x"], into=theirs)
        wait_until(lambda: "may not push" in report.read_status(path).error)
        assert [each.kind for each in report.read_incoming(path)] == ["subscribe"]


def test_peers_do_not_reach_each_others_senders(
    tmp_path: Path, redis_url: str, here: Place, fresh: Fresh
) -> None:
    """One who knew the sender of another, and sent a high number in its name, would make its
    messages look like repetitions.
    """
    queue, shown, keys = (
        fresh("orders"),
        {name: secrets.token_hex(16) for name in ("a", "b")},
        tmp_path / "secrets.toml",
    )
    keys.touch(mode=0o600)
    keys.write_text(
        "".join(f'[{name}]\nsecret = "{secret}"\nwrite = ["*"]\n' for name, secret in shown.items())
    )
    with Bus.sync(redis_url) as bus:
        bus.queue(queue).attach()
    with site(redis_url, Keyring.load(keys)) as there:
        for name, number in (("a", 1000), ("b", 1), ("b", 1)):
            store = FederationBulkStore(there.address(shown[name]))
            assert store.push_from(queue, "same", [number], [name.encode()]) == (1, 0)
            for sender, given in (
                ("a:b", (2,)),
                ("", (2,)),
                ("same", (0,)),
                ("same", (3, 3)),
                ("same", (2, 3, 4)),
                ("same", ()),
            ):
                with pytest.raises(BusError, match="expected"):
                    store._link.call(
                        "push_from", queue, sender, given, values=[b"x", b"y"][: max(1, len(given))]
                    )
            store.close()
    assert here.values(queue) == [b"a", b"b"]


def test_a_message_that_the_server_is_too_small_for_holds_up_its_own_queue_only(
    path: Path, redis_url: str, here: Place, fresh: Fresh
) -> None:
    large, small = fresh("large"), fresh("small")
    with (
        site(redis_url, limits=PeerLimits(message_bytes=200_000)) as there,
        SyncOutbox(path, there.url, federate_secret=BULK_SECRET) as outbox,
    ):
        outbox.push(large, b"1")
        outbox.push(large, b"x" * 300_000)
        outbox.push(large, b"3")
        outbox.push(small, *[b"x" * 900] * 500)
        wait_until(lambda: len(here.values(small)) == 500)
        wait_until(
            lambda: (
                [
                    (each.queue, "300000 bytes is over what" in each.error)
                    for each in report.read_outgoing(path)
                ]
                == [(large, True)]
            )
        )
        assert here.values(large) == [b"1"]


def test_a_server_that_is_not_there_or_knows_another_secret_is_waited_for(
    path: Path, bulk: Site, here: Place, fresh: Fresh
) -> None:
    queue = fresh("orders")
    with SyncOutbox(path, bulk.url, federate_secret="another") as outbox:
        outbox.push(queue, 1)
        wait_until(lambda: FederationRefused.code in report.read_status(path).error)
    with SyncOutbox(path, bulk.url, federate_secret=BULK_SECRET) as outbox:
        drain(outbox)
    assert here.values(queue) == [b"1"]
    with pytest.raises(ConfigError):
        SyncOutbox(path, "ws://user:password@x/bus", federate_secret="s")


@pytest.mark.peer
def test_through_a_server_of_npm_busmq_with_the_subscriptions_of_the_outbox(
    path: Path, npm_federation: str, here: Place, fresh: Fresh
) -> None:
    queue, word, into, binary = fresh("orders"), fresh("k"), fresh("into"), fresh("binary")
    with SyncOutbox(
        path, npm_federation, federate_secret=SECRET, federate_secret_in_url=True
    ) as outbox:
        outbox.push(queue, *range(300))
        outbox.subscribe([f"{word}.*"], into=into)
        outbox.publish([f"{word}.signup"], 1)
        outbox.publish(["another"], 2)
        outbox.send(into, 3)
        drain(outbox)
        outbox.push(binary, b"\xff")
        wait_until(lambda: "is no UTF-8" in report.read_status(path).error)
    assert here.values(queue) == numbered(300, 0)
    assert [json.loads(value)["data"] for value in here.values(into)] == [1, 3]
