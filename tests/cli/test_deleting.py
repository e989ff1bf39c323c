"""Commands that delete messages: they ask with the number, ``--dry-run`` deletes nothing, and each
deletion is in the log.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from busmq_spark.groups.dead_letter import make_dead_letter, push_letters
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.outbox.outbox import SyncOutbox
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import attach, push_many
from busmq_spark.queue.retention import parse_limits, set_retention
from busmq_spark.reading.reader_operations import (
    CumulativeAckRequest,
    ack_to,
    states,
    subscribe,
)
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli.conftest import Busmq
from tests.conftest import Fresh

pytestmark = pytest.mark.redis
Made = tuple[list[str], str, Callable[[], int]]
"""The command without ``--yes``, the number in its question, and a count of what is there."""


def stored(link: SyncLink, keys: QueueKeys) -> Callable[[], int]:
    def count() -> int:
        [state] = link.run(states([(keys, -1)]))
        return state.count

    return count


def a_subscription(link: SyncLink, name: str, _: Path) -> Made:
    keys = QueueKeys(name)
    link.run(attach(keys, "life", ttl_s=900))
    link.run(push_many(keys, [b"v"] * 5))
    for subscription in ("done", "audit"):
        link.run(subscribe([keys], subscription, [0]))
    for subscription, last in (("done", 5), ("audit", 2)):
        link.run(ack_to([CumulativeAckRequest(keys, last, "life", "")], subscription))
    return ["unsubscribe", name, "audit"], "3 messages", stored(link, keys)


def dead_letters(link: SyncLink, name: str, _: Path) -> Made:
    keys = QueueKeys(name)
    link.run(attach(keys, "life", ttl_s=900))
    letter = make_dead_letter("orders", "g", LeasedMessage(7, b"v", 3, 1, "t"), "why", 2)
    link.run(push_letters(keys, [letter, letter]))
    return ["dead", "purge", name], "2 dead letters", stored(link, keys)


def kept_messages(link: SyncLink, name: str, _: Path) -> Made:
    keys = QueueKeys(name)
    link.run(attach(keys, "life", ttl_s=900))
    link.run(set_retention(keys, parse_limits(None, 100, None)))
    link.run(push_many(keys, [b"v"] * 4))
    link.run(subscribe([keys], "s", [0]))
    link.run(ack_to([CumulativeAckRequest(keys, 4, "life", "")], "s"))
    return ["retain", name, "--off"], "4 acknowledged messages", stored(link, keys)


def an_outbox(_: SyncLink, name: str, folder: Path) -> Made:
    path = folder / "out.db"
    with SyncOutbox(path, "redis://127.0.0.1:1") as outbox:
        outbox.push(name, "v")

    def count() -> int:
        from busmq_spark.outbox.report import read_status

        return read_status(path).outgoing

    return ["outbox", "purge", str(path)], "1 message", count


def one_of_an_outbox(link: SyncLink, name: str, folder: Path) -> Made:
    [*_, path], number, count = an_outbox(link, name, folder)
    return ["outbox", "remove", path, "1"], number, count


MAKERS = (a_subscription, dead_letters, kept_messages, an_outbox, one_of_an_outbox)


@pytest.mark.parametrize("make", MAKERS)
def test_a_command_that_deletes_asks_and_is_logged(
    make: Callable[[SyncLink, str, Path], Made],
    busmq: Busmq,
    fresh: Fresh,
    link: SyncLink,
    tmp_path: Path,
) -> None:
    words, number, count = make(link, fresh("odd\x1b[1m"), tmp_path)
    before = count()
    asked = busmq(*words)
    assert (asked.code, number in asked.err, "Add --yes" in asked.err) == (2, True, True), asked
    dry = busmq(*words, "--dry-run")
    assert (dry.code, dry.out, number in dry.err) == (0, b"", True), dry
    assert busmq(*words, "--dry-run", "--yes").code == 0  # the careful one wins
    assert count() == before > 0
    done = busmq(*words, "--yes")
    assert done.code == 0
    [line] = [line for line in done.err.splitlines() if line.startswith("audit: ")]
    assert line.startswith(f"audit: {getpass.getuser()} on ")
    assert number.split()[0] in line.rpartition(": ")[2]
    assert "\x1b" not in done.err + done.text
    assert count() == 0 if words[0] != "unsubscribe" else count() < before


def test_the_audit_record_of_a_program_is_json(busmq: Busmq, fresh: Fresh, link: SyncLink) -> None:
    name = fresh()
    words, *_ = a_subscription(link, name, Path())
    done = busmq(*words, "--yes", "--json")
    assert done.records == [{"queue": name, "subscription": "audit", "dropped": 3}]
    notes = [json.loads(line) for line in done.err.splitlines()]
    assert [note["note"].startswith("audit: ") for note in notes] == [True]


def test_nothing_is_asked_where_no_message_goes(busmq: Busmq, fresh: Fresh, link: SyncLink) -> None:
    name = fresh()
    keys = QueueKeys(name)
    link.run(attach(keys, "life", ttl_s=900))
    link.run(push_many(keys, [b"v"]))
    link.run(subscribe([keys], "audit", [0]))
    dry = busmq("unsubscribe", name, "audit", "--dry-run")
    assert (dry.code, "forget subscription 'audit'" in dry.err) == (0, True)
    assert busmq("unsubscribe", name, "audit").code == 0  # the last one: its messages stay
    assert stored(link, keys)() == 1
