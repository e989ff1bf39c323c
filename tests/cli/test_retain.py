"""retain: what a queue keeps, as a person sets and sees it."""

from __future__ import annotations

import pytest

from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import CumulativeAckRequest, ack_to, subscribe
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli.conftest import Busmq
from tests.conftest import Fresh

pytestmark = pytest.mark.redis


def acked(link: SyncLink, keys: QueueKeys, last: int) -> None:
    born = link.execute(command("HGET", keys.metadata, "born")).decode()
    link.run(ack_to([CumulativeAckRequest(keys, last, born, "")], "s"))


def test_what_is_kept_is_set_shown_and_ended(busmq: Busmq, link: SyncLink, fresh: Fresh) -> None:
    queue = fresh("kept")
    keys = QueueKeys(queue)
    assert (
        busmq("retain", queue, "--age", "7d", "--bytes", "10g").text
        == f"Queue {queue} keeps what is younger than 7 d and the newest 10.0 GB: 0 acknowledged"
        " messages; 0 messages to read.\n"
    )
    assert "keeps nothing" in busmq("retain", queue, "--off").text
    busmq("push", queue, "a", "b", "c")
    link.run(subscribe([keys], "s", ["earliest"]))
    assert busmq("retain", queue, "--messages", "3", "--json").records[0]["waiting"] == 3
    acked(link, keys, 2)
    busmq("push", queue, "d")
    link.execute(command("HSET", keys.metadata, "lets", "0:0"))  # a second later
    acked(link, keys, 2)
    assert busmq("retain", queue, "--json").records == [
        {
            "queue": queue,
            "retained": True,
            "age_s": None,
            "messages": 3,
            "bytes": None,
            "kept": 1,
            "waiting": 2,
            "oldest_id": 2,
        }
    ]
    assert (
        "the newest 3 messages: 1 acknowledged message from id 2 on; 2 messages to read"
        in busmq("retain", queue).text
    )
    [found] = busmq("queues", queue, "--json").records
    assert (found["messages"], found["kept"], found["oldest_id"]) == (2, 1, 2)
    assert "2 (+1 kept)" in busmq("queues", queue).text
    assert "1 acknowledged message, as busmq retain says" in busmq("info", queue).text
    assert [each["behind"] for each in busmq("lag", queue, "--json").records] == [2]
    busmq("retain", queue, "--off", "--yes")
    assert [each["id"] for each in busmq("peek", queue, "--json").records] == [3, 4]


def test_a_queue_with_a_short_ttl_is_warned_about(
    busmq: Busmq, link: SyncLink, fresh: Fresh
) -> None:
    queue = fresh("kept")
    link.execute(command("HSET", QueueKeys(queue).metadata, "ttl", "30"))
    assert "lives for 30 s only" in busmq("retain", queue, "--age", "1h").err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--age", "soon"), "age is 'soon'"),
        (("--messages", "0"), "messages is 0"),
        (("--age", "1h", "--off"), "give one of the two"),
    ],
)
def test_what_makes_no_sense_is_refused(
    busmq: Busmq, fresh: Fresh, options: tuple[str, ...], says: str
) -> None:
    done = busmq("retain", fresh("kept"), *options)
    assert (done.code, says in done.err) == (2, True)


def test_a_queue_that_does_not_exist_is_not_made_to_look_at_it(busmq: Busmq, fresh: Fresh) -> None:
    for options in ((), ("--off",)):
        assert busmq("retain", fresh("none"), *options).code == 1
