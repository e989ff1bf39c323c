"""publish, send, and events list | subscribe | unsubscribe | forget."""

from __future__ import annotations

import json

import pytest

from busmq_spark import Event
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli.conftest import Busmq
from tests.conftest import Fresh
from tests.stored import read_at

pytestmark = pytest.mark.redis


def test_an_event_goes_where_it_is_subscribed_to(
    busmq: Busmq, link: SyncLink, fresh: Fresh
) -> None:
    word, queue = fresh("k"), fresh("emails")
    assert (
        "2 patterns of them new"
        in busmq("events", "subscribe", f"{word}.*", f"{word}.a.#", "--into", queue).text
    )
    assert busmq("events", "subscribe", f"{word}.*", "--into", queue, "--json").records == [
        {"queue": queue, "patterns": [f"{word}.*"], "new": 0}
    ]
    [receipt] = busmq(
        "publish", f"{word}.a", '{"user": 7}', "--require", "1", "--subject", "7", "--json"
    ).records
    assert receipt["destinations"] == [queue]
    assert queue in busmq("publish", f"{word}.b", "not JSON", "--id", "mine", "--type", "t").text
    events = [Event.decode(message.value) for message in link.run(read_at(QueueKeys(queue), 0, 9))]
    assert [(each.id, each.type, each.subject, each.data) for each in events] == [
        (receipt["id"], f"{word}.a", "7", {"user": 7}),
        ("mine", "t", None, "not JSON"),
    ]
    found = busmq("events", "list", "--key", f"{word}.b", "--json").records
    assert found == [{"pattern": f"{word}.*", "queue": queue}]
    assert queue in busmq("events", "list").text
    assert (
        "1 subscription of queue"
        in busmq("events", "unsubscribe", f"{word}.*", "--into", queue).text
    )
    assert busmq("events", "forget", queue, "--json").records == [{"queue": queue, "ended": 1}]
    nobody = busmq("publish", f"{word}.a")
    assert (nobody.code, f"busmq events subscribe {word}.a --into QUEUE" in nobody.err) == (0, True)


def test_a_command_goes_to_its_queue(busmq: Busmq, link: SyncLink, fresh: Fresh) -> None:
    queue = fresh("invoices")
    [receipt] = busmq("send", queue, "[8]", "--json").records
    [message] = link.run(read_at(QueueKeys(queue), 0, 9))
    event = Event.decode(message.value)
    assert (event.id, event.type, event.data) == (receipt["id"], queue, [8])
    busmq("subscribe", queue, "one")
    refused = busmq("subscribe", queue, "two", "--json")
    assert (refused.code, refused.error["code"]) == (1, "BUSMQ_QUEUE_BUSY")
    assert "has group 'one'" in refused.error["message"]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["publish", "a.*"], 2, "BUSMQ_CONFIG"),
        (["publish", "nobody.is.here", "--require", "1"], 1, "BUSMQ_TOO_FEW_DESTINATIONS"),
        (["events", "subscribe", "a.#.b", "--into", "q"], 2, "BUSMQ_CONFIG"),
        (["events", "subscribe", "a", "--into", ""], 2, "BUSMQ_CONFIG"),
        (["events", "list", "--key", "#"], 2, "BUSMQ_CONFIG"),
        (["publish", "a", "--id", ""], 1, "BUSMQ_MESSAGE_REFUSED"),
    ],
)
def test_what_makes_no_sense_is_one_line_that_says_so(
    busmq: Busmq, words: list[str], code: int, error: str
) -> None:
    done = busmq(*words, "--json")
    assert (done.code, done.error["code"], done.out) == (code, error, b"")
    assert "Traceback" not in done.err
    assert json.loads(done.err)
