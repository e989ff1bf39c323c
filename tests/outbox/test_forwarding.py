"""What an outbox forwards: everything, once, in order, on every layout; and what it keeps while it
cannot.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from busmq_spark import Outbox
from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError, MessageRefused, OutboxWaits, QueueBusy, StateError
from busmq_spark.outbox import forwarder, report, sql
from busmq_spark.outbox.outbox import SyncOutbox
from busmq_spark.outbox.target_opener import lane_of
from busmq_spark.queue.message import CHUNK_MESSAGES
from busmq_spark.routing.cloud_event import Event
from tests.conftest import Fresh
from tests.faults.test_acl import rights
from tests.outbox.conftest import Place, drain, numbered
from tests.support import PATIENCE_S, lasting_port, wait_until

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "RETRY_PAUSES_S", (0.02, 0.1))


def test_messages_of_many_calls_are_in_their_queues_in_order(
    anywhere: Place, path: Path, fresh: Fresh
) -> None:
    queues = [fresh("orders") for _ in range(5)]
    with anywhere.outbox(path) as outbox:
        numbers = [outbox.push(queue, n).number for n in range(20) for queue in queues]
        assert (
            outbox.push(queues[0], *range(20, 2 * CHUNK_MESSAGES + 500)).number
            == numbers[-1] + 2 * CHUNK_MESSAGES + 480
        )
        drain(outbox)
        assert numbers == [*range(1, 101)]
    assert anywhere.values(queues[0]) == numbered(2 * CHUNK_MESSAGES + 500, 0)
    for queue in queues[1:]:
        assert anywhere.values(queue) == numbered(20, 0)


def test_events_go_to_subscribed_queues_commands_to_one_and_messages_keep_their_place(
    anywhere: Place, path: Path, fresh: Fresh
) -> None:
    word, emails, audit = fresh("k"), fresh("emails"), fresh("audit")
    with anywhere.outbox(path) as outbox:
        outbox.subscribe(f"{word}.*", into=emails)
        outbox.subscribe([f"{word}.#"], into=audit)
        outbox.push(emails, "before")
        signup = outbox.publish([f"{word}.signup"], {"user": 7}, subject="7")
        outbox.push(emails, "between")
        command = outbox.send(emails, {"order": 8})
        outbox.unsubscribe(f"{word}.*", into=emails)
        later = outbox.publish_many([f"{word}.signup", f"{word}.x"], [1, 2])
        outbox.push(emails, "last")
        drain(outbox)
    found = [
        Event.decode(value) if value.startswith(b"{") else value
        for value in anywhere.values(emails)
    ]
    assert [each.id if isinstance(each, Event) else each for each in found] == [
        b"before",
        *signup.ids,
        b"between",
        *command.ids,
        b"last",
    ]
    [event, sent] = [each for each in found if isinstance(each, Event)]
    assert (event.type, event.subject, event.data, sent.type, sent.data) == (
        f"{word}.signup",
        "7",
        {"user": 7},
        emails,
        {"order": 8},
    )
    audited = [Event.decode(value) for value in anywhere.values(audit)]
    assert [each.id for each in audited] == [*signup.ids, *later.ids]
    assert [each.data for each in audited] == [{"user": 7}, 1, 2]
    assert audited[1].extensions == {"keys": f"{word}.signup {word}.x"}
    assert anywhere.run(emails, "HGET", anywhere.keys(emails).metadata, "command") == b"1"


def test_an_event_that_nobody_is_subscribed_to_goes_nowhere(
    opened: SyncOutbox, path: Path, fresh: Fresh
) -> None:
    opened.publish([fresh("k")], 1)
    drain(opened)
    assert report.read_status(path).incoming == report.read_status(path).outgoing == 0


def test_what_a_queue_takes_as_a_command_needs_a_queue_with_one_group(
    opened: SyncOutbox, here: Place, path: Path, fresh: Fresh
) -> None:
    """It waits until that is so, and holds up its own queue only; what came before it is there."""
    queue, other = fresh("cmd"), fresh("other")
    with Bus.sync(here.settings["url"]) as bus, bus.queue(queue) as asked:
        asked.subscribe("one")
        asked.subscribe("two")
        opened.push(queue, "before")
        opened.send(queue, 1)
        opened.push(other, "free")
        wait_until(lambda: here.values(queue) == [b"before"] and here.values(other) == [b"free"])
        wait_until(lambda: any(QueueBusy.code in each.error for each in report.read_outgoing(path)))
        asked.unsubscribe("two")
        drain(opened)
    assert len(here.values(queue)) == 2
    assert report.read_outgoing(path) == []


def test_what_is_no_message_no_key_and_no_queue_is_refused_before_it_is_stored(
    opened: SyncOutbox, path: Path
) -> None:
    cases: list[tuple[type[Exception], Any]] = [
        (MessageRefused, lambda: opened.push("q", "good", object())),
        (ConfigError, lambda: opened.push("")),
        (ConfigError, lambda: opened.push("q")),
        (ConfigError, lambda: opened.publish("a.*")),
        (ConfigError, lambda: opened.publish("")),
        (ConfigError, lambda: opened.publish(["a.*"])),
        (ConfigError, lambda: opened.publish(["a"], 1, colour="red")),  # type: ignore[call-arg]
        (ConfigError, lambda: opened.publish_many(["a"], [])),
        (MessageRefused, lambda: opened.publish(["a"], object())),
        (ConfigError, lambda: opened.send("", 1)),
        (ConfigError, lambda: opened.subscribe(["a.#.b"], into="q")),
        (ConfigError, lambda: opened.subscribe([], into="q")),
    ]
    for expected, call in cases:
        with pytest.raises(expected):
            call()
    assert report.read_status(path).incoming == report.read_status(path).outgoing == 0


def test_a_bad_address_or_setting_is_an_error_before_anything_is_made(path: Path) -> None:
    for to, settings in (
        ("http://x", {}),
        ("redis://x", {"layuot": "cluster"}),
        ("ws://u:p@x/bus", {"federate_secret": "s"}),
    ):
        with pytest.raises(ConfigError):
            SyncOutbox(path, to, **settings)
    assert not path.exists()


def test_an_outbox_that_is_not_open_says_so(path: Path, here: Place) -> None:
    outbox = here.outbox(path)
    for _ in range(2):
        with pytest.raises(StateError):
            outbox.push("q", 1)
        with outbox:
            outbox.push("q", 1)
            with pytest.raises(StateError, match="open already"):
                outbox.__enter__()


async def test_the_asyncio_calls_are_the_same_and_those_made_together_share_an_fsync(
    here: Place, path: Path, fresh: Fresh
) -> None:
    queue, word, into = fresh("orders"), fresh("k"), fresh("into")
    async with Outbox(path, to=here.settings["url"]) as outbox:
        await outbox.subscribe([word], into=into)
        kept = await asyncio.gather(*(outbox.push(queue, n) for n in range(500)))
        assert [each.number for each in kept] == [*range(2, 502)]
        await outbox.publish([word], 1)
        await outbox.publish_many([word], [2, 3])
        await outbox.send(into, 4)
        await outbox.unsubscribe([word], into=into)
        await outbox.wait_drained(PATIENCE_S)
    assert here.values(queue) == numbered(500, 0)
    assert [json.loads(value)["data"] for value in here.values(into)] == [1, 2, 3, 4]


def test_a_publisher_started_before_redis_delivers_when_it_comes_and_says_what_it_waits_for(
    path: Path, fresh: Fresh
) -> None:
    port, queue, word, into = lasting_port(), fresh("orders"), fresh("k"), fresh("into")
    with SyncOutbox(path, f"redis://127.0.0.1:{port}") as outbox:
        outbox.push(queue, 1, 2)
        outbox.subscribe([word], into=into)
        outbox.publish([word], 3)
        with pytest.raises(OutboxWaits, match="still has 4 messages to forward") as waits:
            outbox.wait_drained(0)
        assert waits.value.retriable
        wait_until(lambda: f"127.0.0.1:{port}" in report.read_status(path).error)
        wait_until(
            lambda: [each.failing_s is not None for each in report.read_outgoing(path)] == [True],
            what="its queue counts as failing",
        )
        [each] = report.read_outgoing(path)
        assert (each.queue, each.messages) == (queue, 2)
        with EmbeddedRedis(port=port) as server:
            drain(outbox)
            there = Place({"url": server.url})
            assert there.values(queue) == [b"1", b"2"]
            assert len(there.values(into)) == 1
        assert report.read_status(path).error == ""


def test_a_full_queue_takes_what_fits_then_the_rest_and_holds_up_no_other(
    opened: SyncOutbox, here: Place, path: Path, fresh: Fresh
) -> None:
    small, large = fresh("small"), fresh("large")
    with Bus.sync(here.settings["url"]) as bus:
        queue = bus.queue(small)
        queue.attach(maxsize=3)
        opened.push(small, *range(8))
        opened.push(large, *range(8))
        wait_until(lambda: len(here.values(large)) == 8 and len(here.values(small)) == 3)
        wait_until(
            lambda: any(
                "holds its maxsize of 3" in each.error for each in report.read_outgoing(path)
            )
        )
        got = [message.value for message in queue.consume(max=8)]
        drain(opened)
        assert got == numbered(8, 0)


def test_the_next_chunk_of_a_backlog_is_read_ahead_and_used_if_the_last_was_taken_whole(
    path: Path, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue takes a part of each."""
    queue, got, count, read, next_chunk = (
        fresh("orders"),
        [],
        5 * CHUNK_MESSAGES,
        [],
        sql.next_chunk,
    )

    def noted(*about: Any) -> sql.OutboxChunk | None:
        read.append(threading.current_thread().name)
        return next_chunk(*about)

    with SyncOutbox(path, f"redis://127.0.0.1:{lasting_port()}") as outbox:
        outbox.push(queue, *range(count))
    monkeypatch.setattr(sql, "next_chunk", noted)
    with Bus.sync(here.settings["url"]) as bus:
        asked = bus.queue(queue)
        asked.attach(maxsize=CHUNK_MESSAGES + 300)
        with here.outbox(path) as outbox:
            while len(got) < count:
                got += [message.value for message in asked.consume(max=min(700, count - len(got)))]
            drain(outbox)
    assert got == numbered(count, 0)
    assert any(name.startswith("busmq-outbox-reader") for name in read)


def test_a_full_redis_keeps_messages_waiting_and_gets_each_once(path: Path, fresh: Fresh) -> None:
    queue = fresh("orders")
    with EmbeddedRedis(maxmemory="8mb") as server, SyncOutbox(path, server.url) as outbox:
        there = Place({"url": server.url})
        outbox.push(queue, *[b"%5d" % n + b"x" * 10_000 for n in range(2000)])
        wait_until(lambda: "out of memory" in report.read_status(path).error)
        server.command("CONFIG", "SET", "maxmemory", "0")
        drain(outbox)
        assert [int(value[:5]) for value in there.values(queue)] == [*range(2000)]


def test_a_queue_that_ends_is_made_anew_and_gets_what_no_life_of_it_had(
    opened: SyncOutbox, here: Place, fresh: Fresh
) -> None:
    queue = fresh("orders")
    opened.push(queue, 1, 2)
    drain(opened)
    with Bus.sync(here.settings["url"]) as bus, bus.queue(queue) as asked:
        asked.delete()
    opened.push(queue, 3)
    opened.send(queue, 4)
    drain(opened)
    assert [
        json.loads(value) if value == b"3" else json.loads(value)["data"]
        for value in here.values(queue)
    ] == [3, 4]


def test_a_server_that_is_down_holds_up_its_own_queues_only(
    path: Path, three_servers: Any, fresh: Fresh
) -> None:
    """Of three servers one is paused: a packet to it is neither refused nor answered."""
    place = Place({"url": ",".join(three_servers.urls)})
    queues: dict[int, str] = {}
    while len(queues) < 3:
        name = fresh("orders")
        queues.setdefault(lane_of(name, 3), name)
    with place.outbox(path) as outbox:
        for queue in queues.values():
            outbox.push(queue, 1)
        drain(outbox)
        three_servers.servers[0].pause()
        try:
            for queue in queues.values():
                outbox.push(queue, 2)
            for index in (1, 2):
                wait_until(
                    lambda index=index: (
                        there(three_servers.urls[index], queues[index]) == [b"1", b"2"]
                    )
                )
        finally:
            three_servers.servers[0].resume()
        drain(outbox)
    assert there(three_servers.urls[0], queues[0]) == [b"1", b"2"]


def there(url: str, queue: str) -> list[bytes]:
    return Place({"url": url}).values(queue)


def test_what_a_closed_outbox_keeps_is_forwarded_when_it_is_opened_again(
    here: Place, path: Path, fresh: Fresh
) -> None:
    queue, word, into = fresh("orders"), fresh("k"), fresh("into")
    nowhere = f"redis://127.0.0.1:{lasting_port()}"
    for n in range(5):
        with SyncOutbox(path, nowhere) as outbox:
            outbox.push(queue, 2 * n, 2 * n + 1)
            outbox.publish([word], n)
    with Bus.sync(here.settings["url"]) as bus:
        bus.subscribe([word], into=into)
    with here.outbox(path) as outbox:
        outbox.push(queue, 10)
        drain(outbox)
    assert here.values(queue) == numbered(11, 0)
    assert [json.loads(value)["data"] for value in here.values(into)] == [*range(5)]


def test_of_a_copy_of_the_store_nothing_old_comes_twice_and_nothing_new_is_lost(
    here: Place, path: Path, fresh: Fresh
) -> None:
    """A backup, or the image of a machine: both number new messages alike."""
    queue = fresh("orders")
    with SyncOutbox(path, f"redis://127.0.0.1:{lasting_port()}") as outbox:
        outbox.push(queue, "a", "b")
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    for store, value in ((path, "new"), (copy, "new in the copy")):
        with here.outbox(store) as outbox:
            outbox.push(queue, value)
            drain(outbox)
    assert here.values(queue) == [b"a", b"b", b"new", b"new in the copy"]


@pytest.mark.parametrize("more", [["+hrandfield"], []], ids=["all", "without hrandfield"])
def test_the_rights_of_the_page_are_enough_for_an_outbox(
    path: Path, fresh: Fresh, more: list[str]
) -> None:
    queue, word, into = fresh("orders"), fresh("k"), fresh("into")
    with EmbeddedRedis() as server:
        server.command("ACL", "SETUSER", "spark", "reset", "on", ">secret", *rights(), *more)
        for n in range(3):
            with SyncOutbox(path, server.url, user="spark", password="secret") as outbox:
                outbox.push(queue, n)
                outbox.subscribe([word], into=into)
                outbox.publish([word], n)
                outbox.send(into, n)
                outbox.unsubscribe([word], into=into)
                drain(outbox)
                assert outbox.status().error == ""
        there = Place({"url": server.url})
        assert (there.values(queue), len(there.values(into))) == (numbered(3, 0), 6)


def test_a_forwarder_that_cannot_read_its_store_says_so_once_and_goes_on_when_it_can(
    here: Place,
    path: Path,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, failed, waiting = fresh("orders"), [], sql.waiting_destinations

    def unreadable(connection: sqlite3.Connection) -> list[sql.OutboxDestinationQueue]:
        if len(failed) < 4:
            failed.append(connection)
            raise sqlite3.DatabaseError("disk I/O error")
        return waiting(connection)

    monkeypatch.setattr(sql, "waiting_destinations", unreadable)
    with here.outbox(path) as outbox:
        outbox.push(queue, 1, 2)
        drain(outbox)
    assert here.values(queue) == [b"1", b"2"]
    assert len(failed) == 4
    assert (
        len(
            [
                record
                for record in caplog.records
                if "forwards nothing for now" in record.message and record.levelname == "ERROR"
            ]
        )
        == 1
    )
