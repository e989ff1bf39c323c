"""Each check of the bus, red and green, on every layout; and outboxes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.doctor import bus, findings, gather
from busmq_spark.doctor.bus import check_bus, check_outboxes
from busmq_spark.doctor.findings import Finding
from busmq_spark.doctor.gather import read_bus, read_outbox
from busmq_spark.groups.dead_letter import push_letters
from busmq_spark.mirror.settings import MirroredQueueStatus, encode_report
from busmq_spark.options import RedisOptions
from busmq_spark.outbox.outbox import SyncOutbox
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, mirror_report
from busmq_spark.queue.queue import attach, push_many
from busmq_spark.reading.reader_operations import subscribe
from busmq_spark.redis_io.layout import Link, redis_layout, sync_links
from busmq_spark.writing.mirror import MirrorOf
from busmq_spark.writing.sink import attempt_name
from tests.conftest import Fresh
from tests.layouts import LAYOUTS, servers_of

pytestmark = pytest.mark.redis
DAY_S = 24 * 3600
ODD_NAME = "odd\x1b[31m\n'name' "
"""A name that a terminal must not get as it is, and that a shell has to quote."""


@pytest.fixture(params=LAYOUTS)
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Link]]:
    """Servers that other tests use, too: their findings must not push ours out."""
    monkeypatch.setattr(findings, "MAX_FINDINGS_PER_CODE", 100_000)
    made = sync_links(
        redis_layout(RedisOptions(**servers_of(request.param, request.getfixturevalue))), 5
    )
    yield made
    for link in made:
        link.close()


def found_in(links: list[Link], name: str) -> dict[str, Finding]:
    """The findings about the queues whose name begins so."""
    return {
        each.code: each
        for facts in read_bus(links)
        for each in check_bus(facts)
        if each.where.startswith(name) and each.level != "ok"
    }


def make(link: Link, name: str, messages: int = 3, **options: int) -> QueueKeys:
    keys = QueueKeys(name, link.cluster)
    link.run(attach(keys, "life", ttl_s=options.pop("ttl_s", 30 * DAY_S), **options))
    link.run(push_many(keys, [b"x" * 1000] * messages))
    return keys


def test_a_queue_near_its_maxsize_is_found(links: list[Link], fresh: Fresh) -> None:
    name, link = fresh(ODD_NAME), links[-1]
    keys = make(link, name, 7, maxsize=10)
    assert found_in(links, name) == {}
    link.run(push_many(keys, [b"x"]))
    found = found_in(links, name)["queue-nearly-full"]
    assert (found.level, found.found) == ("warning", "8 of at most 10 messages (80%)")
    link.run(push_many(keys, [b"x", b"x"]))
    assert found_in(links, name)["queue-nearly-full"].level == "failure"


def test_a_queue_that_expires_is_found_until_a_client_uses_it(
    links: list[Link], fresh: Fresh
) -> None:
    name, link = fresh(), links[-1]
    keys = make(link, name)
    link.execute([command("EXPIRE", key, 3 * 3600) for key in keys.peer_keys])
    found = found_in(links, name)["queue-expires"]
    assert (found.level, found.found[:22]) == ("warning", "3 messages expire in 1")
    link.run(push_many(keys, [b"x"]))
    assert found_in(links, name) == {}
    short = make(link, fresh("short"), ttl_s=60)  # in use: it has its whole ttl left
    assert found_in(links, short.name) == {}


def test_a_damaged_queue_is_found_and_hides_no_other(links: list[Link], fresh: Fresh) -> None:
    hint, link = fresh(), links[-1]
    damages = {
        "msgid": ("SET", "x", "its last id is 'x'"),
        "messages": ("SET", "x", "WRONGTYPE"),
        "acks": ("SET", "x", "WRONGTYPE"),
        "toack": ("SET", "x", "WRONGTYPE"),
        "metadata": ("SET", "x", "WRONGTYPE"),
    }
    for key, (word, value, _) in damages.items():
        keys = make(link, f"{hint}-{key}")
        link.execute(command(word, getattr(keys, key), value))
    odd = make(link, f"{hint}-odd")
    link.execute(command("RPUSH", odd.messages, "7"))
    full = make(link, f"{hint}-full", 3, maxsize=3)
    for key, (*_, text) in damages.items():
        found = found_in(links, f"{hint}-{key}")["queue-damaged"]
        assert (found.level, text in found.found) == ("failure", True), found
    assert "odd number" in found_in(links, odd.name)["queue-damaged"].found
    assert set(found_in(links, full.name)) == {"queue-nearly-full"}


def test_an_abandoned_subscription_is_found_with_its_bytes(links: list[Link], fresh: Fresh) -> None:
    name, link = fresh(), links[-1]
    keys = make(link, name, 100)
    link.run(subscribe([keys], "old 'audit'", [10]))
    assert found_in(links, name) == {}
    two_days_ago = int(time.time()) - 2 * DAY_S
    link.execute(command("HSET", keys.acks, ":at:old 'audit'", two_days_ago))
    found = found_in(links, name)["subscription-abandoned"]
    assert found.level == "warning"
    assert found.found.startswith("90 messages (0.1 MB) stay stored for subscription")
    assert "unused for 48 hours" in found.found
    link.execute(command("SET", keys.lease("old 'audit'"), "token|elsewhere|1", "PX", 60_000))
    assert found_in(links, name) == {}  # a query reads with it


def test_staged_lists_without_a_run_are_found(links: list[Link], fresh: Fresh) -> None:
    name, link = fresh(), links[-1]
    keys = make(link, name)
    for n, ttl_s in enumerate((3500, 1000, 900)):
        key = keys.stage(attempt_name("", "7", n, "0123456789abcdef"))
        link.execute([command("RPUSH", key, "row"), command("EXPIRE", key, ttl_s)])
    found = found_in(links, name)["staged-rows"]
    assert (found.level, found.found[:15]) == ("warning", "2 staged lists ")
    for n in (1, 2):
        link.execute(
            command("EXPIRE", keys.stage(attempt_name("", "7", n, "0123456789abcdef")), 3500)
        )
    assert found_in(links, name) == {}


def test_old_dead_letters_are_found(links: list[Link], fresh: Fresh) -> None:
    name, link = fresh(), links[-1]
    keys = QueueKeys(name, link.cluster)
    link.run(attach(keys, "life", ttl_s=30 * DAY_S))
    link.run(push_letters(keys, [b"letter"]))
    assert found_in(links, name) == {}
    clock = link.execute(command("HGET", keys.metadata, "clock")).decode()
    ms, _, id = clock.partition(":")
    link.execute(command("HSET", keys.metadata, "clock", f"{int(ms) - 3 * DAY_S * 1000}:{id}"))
    found = found_in(links, name)["dead-letters"]
    assert (found.level, found.found) == (
        "warning",
        "1 dead letters; the oldest is 72 hours old",
    )


def test_a_damaged_clock_hides_no_other_queue(links: list[Link], fresh: Fresh) -> None:
    hint, link = fresh(), links[-1]
    for name in (f"{hint}-broken", f"{hint}-fine"):
        keys = QueueKeys(name, link.cluster)
        link.run(attach(keys, "life", ttl_s=30 * DAY_S))
        link.run(push_letters(keys, [b"letter"]))
        ms, _, id = link.execute(command("HGET", keys.metadata, "clock")).decode().partition(":")
        link.execute(command("HSET", keys.metadata, "clock", f"{int(ms) - 3 * DAY_S * 1000}:{id}"))
    broken = QueueKeys(f"{hint}-broken", link.cluster)
    link.execute([command("DEL", broken.clock), command("SET", broken.clock, "x")])
    assert set(found_in(links, f"{hint}-fine")) == {"dead-letters"}
    assert found_in(links, broken.name) == {}
    link.execute(command("DEL", broken.clock))


def test_a_key_that_a_walk_finds_twice_counts_once(
    links: list[Link], fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCAN may return a key more than once."""
    name, link = fresh(), links[-1]
    keys = make(link, name, 3, maxsize=3)
    stage = keys.stage(attempt_name("", "7", 0, "0123456789abcdef"))
    link.execute([command("RPUSH", stage, "row"), command("EXPIRE", stage, 900)])
    walk = gather._walk

    def walk_twice(*arguments: Any, **options: Any) -> None:
        for _ in range(2):
            walk(*arguments, **options)

    monkeypatch.setattr(gather, "_walk", walk_twice)
    found = [each for facts in read_bus(links) for each in check_bus(facts) if each.where == name]
    assert [each.code for each in found] == ["queue-nearly-full", "staged-rows"]
    assert found[1].found.startswith("1 staged lists")


def test_a_mirror_that_nothing_copies_or_that_stopped_is_found(
    links: list[Link], fresh: Fresh
) -> None:
    name, link = fresh(), links[-1]
    origin = f"wss://***@{name}/bus"
    keys = make(link, name)
    link.execute(command("HSET", keys.metadata, "mirror_of", MirrorOf(origin).to_json()))
    found = found_in(links, name)["mirror-stopped"]
    assert (found.level, found.found) == ("warning", f"no process copies it from {origin}")
    report = mirror_report(name)
    home = links[0]  # one process reports for the queues of all servers

    def report_that(error: str | None) -> None:
        queue = MirroredQueueStatus(name, "life", 3, 1, 0.0, 3, 0, None)
        text = encode_report(origin, [name], None, [queue])
        said = f'"{error}"' if error else "null"
        home.execute(command("SET", report, text.replace("0.0, null", f"0.0, {said}"), "EX", 60))

    for odd in (b"[" * 100_000, b'{"odd": {"q": [1e999, 0, null]}}'):
        home.execute(command("SET", report, odd, "EX", 60))
        assert found_in(links, name)["mirror-stopped"].found == found.found
    report_that(None)
    assert found_in(links, name) == {}
    report_that("another life")
    found = found_in(links, name)["mirror-stopped"]
    assert (found.level, found.found) == ("failure", "another life")
    home.execute(command("DEL", report))


def test_an_outbox_is_looked_at_by_its_path(
    tmp_path: Path, redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out box.db"
    with SyncOutbox(path, redis_url) as outbox:
        outbox.push(fresh(), "hello")
        outbox.wait_drained(60)
        [fine] = check_outboxes([read_outbox(path)])
        assert (fine.level, fine.found) == ("ok", "0 messages wait")
    with SyncOutbox(path, "redis://127.0.0.1:1") as outbox:
        outbox.push(fresh(), "hello")
    monkeypatch.setattr(bus, "OUTBOX_WAITS_S", 0)
    [waits] = check_outboxes([read_outbox(path)])
    assert (waits.level, waits.found[:16]) in {
        ("warning", "1 messages wait,"),
        ("failure", "1 messages wait,"),  # its forwarder had the time to fail
    }
    assert waits.fix == f"busmq outbox drain '{path}'"
    [none] = check_outboxes([read_outbox(tmp_path / "none.db")])
    assert (none.level, "BUSMQ_OUTBOX" in none.found) == ("failure", True), none
