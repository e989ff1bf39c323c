"""groups, and dead list | show | replay | purge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from busmq_spark.groups import dead_letter, shared_group
from busmq_spark.groups.shared_group import LeasedMessage, SettleRequest
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import chunks
from busmq_spark.reading.reader_operations import states
from busmq_spark.reading.reader_subscriptions import register
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.routing.cloud_event import Event
from tests.cli.conftest import Busmq
from tests.conftest import Fresh
from tests.stored import read_at

pytestmark = pytest.mark.redis


@pytest.fixture
def keys(fresh: Fresh) -> QueueKeys:
    return QueueKeys(fresh("mail"))


def give_up(
    link: SyncLink, keys: QueueKeys, values: Sequence[bytes], *, dead: str = ""
) -> QueueKeys:
    """Dead letters of so many messages of a queue."""
    to = QueueKeys(dead or f"{keys.name}.dead")
    link.run(flows.attach(to, new_token(), ttl_s=600))
    letters = [
        dead_letter.make_dead_letter(
            keys.name, "send", LeasedMessage(n, value, 3, 1000 * n, "t"), f"error {n}", 5000
        )
        for n, value in enumerate(values, 1)
    ]
    assert sum(link.run(dead_letter.push_letters(to, part))[1] for part in chunks(letters)) == len(
        values
    )
    return to


def values_of(link: SyncLink, keys: QueueKeys) -> list[bytes]:
    return [message.value for message in link.run(read_at(keys, 0, 10_000))]


def test_groups_of_both_kinds_are_listed_with_what_is_left(
    busmq: Busmq, keys: QueueKeys, link: SyncLink
) -> None:
    busmq("subscribe", keys.name, "audit")
    link.run(register(keys, "send", shared={"lease_ms": 60_000, "limit": 0}))
    link.run(flows.push_many(keys, [b"x"] * 9))
    leased = link.run(shared_group.lease(keys, "send", "t", 5)).deliveries
    born = link.run(states([(keys, -1)]))[0].born
    link.run(
        shared_group.settle(
            keys,
            "send",
            born,
            [
                SettleRequest(leased[0].id, "t", "ack"),
                SettleRequest(leased[1].id, "t", "retry", 60_000),
            ],
        )
    )
    found = {each["subscription"]: each for each in busmq("groups", keys.name, "--json").records}
    assert {
        name: (
            each["kind"],
            each["acked"],
            each["unread"],
            each.get("in_flight"),
            each.get("waiting"),
        )
        for name, each in found.items()
    } == {
        "audit": ("ordered", 0, 9, None, None),
        "send": ("shared", 1, 4, 3, 1),
    }
    assert all(each["behind_s"] is not None for each in found.values())
    link.run(shared_group.pause(keys, "send", paused=True))
    text = busmq("groups", keys.name).text
    assert "paused" in text
    assert "in flight" in text


def test_a_queue_without_groups_says_how_to_make_one(busmq: Busmq, keys: QueueKeys) -> None:
    busmq("push", keys.name, "a")
    done = busmq("groups", keys.name)
    assert done.text == ""
    assert (
        f"queue {keys.name} has no groups. Register one with: busmq subscribe {keys.name} NAME"
        in done.err
    )
    assert busmq("groups", "no-such-queue", "--json").error["code"] == "BUSMQ_QUEUE_MISSING"


def test_dead_letters_are_listed_and_shown(busmq: Busmq, keys: QueueKeys, link: SyncLink) -> None:
    dead = give_up(link, keys, [b"one", b"\xff\x00", b"three"])
    found = busmq("dead", "list", dead.name, "--json").records
    assert [
        (each["id"], each["queue"], each["originalid"], each["group"], each["tries"], each["error"])
        for each in found
    ] == [(n, keys.name, n, "send", 3, f"error {n}") for n in (1, 2, 3)]
    assert [each.get("value") for each in found] == ["one", None, "three"]
    done = busmq("dead", "list", dead.name, "--first", "1")
    assert "error 1" in done.text
    assert "2 more dead letters; --first N shows more" in done.err
    assert busmq("dead", "show", dead.name, "2").out == b"\xff\x00"
    assert busmq("dead", "show", dead.name, "9", "--redis", link.endpoint.masked_url).code == 1


def test_replay_puts_originals_back_once(busmq: Busmq, keys: QueueKeys, link: SyncLink) -> None:
    dead = give_up(link, keys, [b"%d" % n for n in range(2500)])
    kept = link.execute(command("LRANGE", dead.messages, 0, -1))
    assert busmq("dead", "replay", dead.name, "--most", "2", "--yes", "--json").records == [
        {"queue": dead.name, "replayed": {keys.name: 2}}
    ]
    assert (values_of(link, keys), len(values_of(link, dead))) == ([b"0", b"1"], 2498)
    link.execute(
        command("DEL", dead.messages)
    )  # as if a command had been killed before it removed what it has put back
    link.execute(command("RPUSH", dead.messages, *kept[:4000]))
    link.execute(command("RPUSH", dead.messages, *kept[4000:]))
    assert (
        f"2,500 messages put back into queue {keys.name}."
        in busmq("dead", "replay", dead.name, "--yes").text
    )
    assert values_of(link, keys) == [b"%d" % n for n in range(2500)]
    assert values_of(link, dead) == []
    assert "holds no dead letters" in busmq("dead", "replay", dead.name, "--yes").text


def test_replay_into_a_queue_that_gets_full_keeps_the_rest(
    busmq: Busmq, keys: QueueKeys, link: SyncLink
) -> None:
    dead = give_up(link, keys, [b"a", b"b", b"c"])
    link.run(flows.attach(keys, new_token(), ttl_s=600, maxsize=2))
    assert busmq("dead", "replay", dead.name, "--yes", "--json").error["code"] == "BUSMQ_QUEUE_FULL"
    assert (values_of(link, keys), len(values_of(link, dead))) == ([b"a", b"b"], 1)
    link.run(flows.flush(keys))
    busmq("dead", "replay", dead.name, "--yes")
    assert (values_of(link, keys), values_of(link, dead)) == ([b"c"], [])


def test_what_a_query_read_over_a_link_is_not_put_back_into_another_server(
    busmq: Busmq, keys: QueueKeys, link: SyncLink
) -> None:
    dead = give_up(link, keys, [b"mine"])
    event = Event.decode(
        dead_letter.make_dead_letter(
            keys.name, "spark", LeasedMessage(1, b"theirs", 1, 1000, ""), "no JSON", 5000
        )
    )
    link.run(
        flows.push_many(
            dead, [replace(event, extensions={**event.extensions, "link": "eu"}).encode()]
        )
    )
    assert [each.get("link") for each in busmq("dead", "list", dead.name, "--json").records] == [
        None,
        "eu",
    ]
    refused = busmq("dead", "replay", dead.name, "--yes")
    assert refused.code == 2
    assert (
        f"1 letter of group 'spark' of queue '{keys.name}' of link 'eu', not of record: refused"
        in refused.err
    )
    assert (values_of(link, keys), len(values_of(link, dead))) == ([], 2)
    busmq("dead", "replay", dead.name, "--most", "1", "--yes")
    assert values_of(link, keys) == [b"mine"]
    busmq("dead", "replay", dead.name, "--to", keys.name, "--yes")
    assert (values_of(link, keys), values_of(link, dead)) == ([b"mine", b"theirs"], [])


def test_what_is_no_dead_letter_stays(busmq: Busmq, keys: QueueKeys, link: SyncLink) -> None:
    busmq("push", keys.name, "an order")
    for words in (("list",), ("replay",), ("purge", "--yes"), ("show",)):
        failed = busmq(
            "dead",
            words[0],
            keys.name,
            *words[1:],
            *(("1",) if words[0] == "show" else ()),
            *(() if words[0] == "show" else ("--json",)),
        )
        assert failed.code == 1
        assert (
            f"message 1 of queue '{keys.name}': a message that begins with b'an order' is no dead"
            " letter" in failed.err
        )
    assert values_of(link, keys) == [b"an order"]


def test_purge_asks_first(busmq: Busmq, keys: QueueKeys, link: SyncLink) -> None:
    dead = give_up(link, keys, [b"a", b"b"])
    refused = busmq("dead", "purge", dead.name)
    assert (
        refused.code,
        "this would delete 2 dead letters" in refused.err,
        "Add --yes" in refused.err,
    ) == (2, True, True)
    assert busmq("dead", "purge", dead.name, "--yes", "--json").records == [
        {"queue": dead.name, "purged": 2}
    ]
    assert values_of(link, dead) == []
