"""subscribe, unsubscribe, subscriptions."""

from __future__ import annotations

import pytest

from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import push_many
from busmq_spark.reading.reader_operations import CumulativeAckRequest, ack_to, states
from busmq_spark.reading.reader_subscriptions import ABANDONED_AFTER_S
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli.conftest import Busmq
from tests.conftest import Fresh

pytestmark = pytest.mark.redis


@pytest.fixture
def keys(fresh: Fresh) -> QueueKeys:
    return QueueKeys(fresh("orders"))


def ack(link: SyncLink, keys: QueueKeys, name: str, last: int) -> None:
    [state] = link.run(states([(keys, -1)]))
    assert (
        link.run(ack_to([CumulativeAckRequest(keys, last, state.born, "")], name))[0].status == "ok"
    )


def test_a_subscription_registered_before_keeps_what_another_acks(
    busmq: Busmq, keys: QueueKeys, link: SyncLink
) -> None:
    for name in ("first", "audit"):
        done = busmq("subscribe", keys.name, name)  # creates the queue
        assert (
            f"Subscription {name} of queue {keys.name} begins after id 0: 0 messages to read."
            in done.text
        )
    link.run(push_many(keys, [b"x"] * 5))
    ack(link, keys, "first", 4)
    found = busmq("subscriptions", keys.name, "--json").records
    assert [
        (each["subscription"], each["acked"], each["behind"], each["holds_back"], each["abandoned"])
        for each in found
    ] == [
        ("audit", 0, 5, 4, False),
        ("first", 4, 1, 0, False),
    ]
    again = busmq("subscribe", keys.name, "audit", "--start", "latest", "--json").records
    assert again == [
        {"queue": keys.name, "subscription": "audit", "created": False, "acked": 0, "behind": 5}
    ]
    assert busmq("unsubscribe", keys.name, "audit", "--yes", "--json").records == [
        {"queue": keys.name, "subscription": "audit", "dropped": 4}
    ]
    assert link.run(states([(keys, -1)]))[0].count == 1


def test_a_late_one_says_what_is_gone(busmq: Busmq, keys: QueueKeys, link: SyncLink) -> None:
    busmq("subscribe", keys.name, "first")
    link.run(push_many(keys, [b"x"] * 5))
    ack(link, keys, "first", 4)
    late = busmq("subscribe", keys.name, "late")
    assert "begins after id 4: 1 message to read" in late.text
    assert "warning: 4 messages (ids 1..4) had left the queue before" in late.err
    assert busmq("subscribe", keys.name, "at-2", "--start", "5", "--json").records[0]["acked"] == 5


def test_an_abandoned_subscription_is_warned_about_with_its_age_and_the_remedy(
    busmq: Busmq, keys: QueueKeys, link: SyncLink
) -> None:
    for name in ("here", "away"):
        busmq("subscribe", keys.name, name)
    link.run(push_many(keys, [b"x"] * 5))
    ack(link, keys, "here", 5)
    since = int(link.execute(command("HGET", keys.acks, ":at:away")))
    link.execute(command("HSET", keys.acks, ":at:away", since - 3 * ABANDONED_AFTER_S))
    for words in (("subscriptions", keys.name), ("info", keys.name)):
        err = " ".join(busmq(*words).err.split())
        assert (
            f"5 messages of queue {keys.name} stay stored for subscription away, which was last"
            " here 3 d" in err
        )
        assert f"busmq unsubscribe {keys.name} away" in err
        assert "subscription here" not in err


def test_what_makes_no_sense_is_refused(busmq: Busmq, keys: QueueKeys, link: SyncLink) -> None:
    assert busmq("subscribe", keys.name, ":born", "--json").error["code"] == "BUSMQ_CONFIG"
    assert link.execute(command("EXISTS", keys.metadata)) == 0
    assert busmq("unsubscribe", keys.name, "audit", "--json").error["code"] == "BUSMQ_QUEUE_MISSING"
    busmq("subscribe", keys.name, "here")
    assert "it has here" in busmq("unsubscribe", keys.name, "audit", "--json").error["message"]
    assert (
        "expected earliest, latest"
        in busmq("subscribe", keys.name, "audit", "--start", "yesterday", "--json").error["message"]
    )
    assert (
        "up to 0"
        in busmq("subscribe", keys.name, "audit", "--start", "7", "--json").error["message"]
    )
    link.execute(command("SET", keys.lease("here"), "a-reader", "PX", 600_000))
    assert busmq("unsubscribe", keys.name, "here", "--json").error["code"] == "BUSMQ_QUEUE_BUSY"
