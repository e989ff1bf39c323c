"""queues, info and embedded."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import attach, pop, push_many
from busmq_spark.reading.reader_operations import subscribe
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli.conftest import Busmq, Start, line_of
from tests.conftest import Fresh, FreshKeys
from tests.support import PATIENCE_S, gone

pytestmark = pytest.mark.redis


def test_queues_shows_everything_there_is_to_know(
    busmq: Busmq, fresh_keys: FreshKeys, link: SyncLink
) -> None:
    keys = fresh_keys()
    link.run(attach(keys, "life", ttl_s=90))
    link.run(push_many(keys, [b"1", b"2", b"3"]))
    link.run(pop(keys, reliable=True, ttl_s=90))
    link.run(subscribe([keys], "audit", [1]))
    before = link.execute(command("PTTL", keys.metadata))
    [state] = busmq("queues", keys.name, "--json").records
    after = link.execute(command("PTTL", keys.metadata))
    assert round(after / 1000, 1) <= state.pop("expires_in_s") <= round(before / 1000, 1)
    assert state.pop("server").startswith("redis://")
    assert state == {
        "queue": keys.name,
        "messages": 2,
        "kept": 0,
        "oldest_id": 2,
        "newest_id": 3,
        "last_id": 3,
        "unacked": 1,
        "ttl_s": 90,
        "maxsize": None,
        "subscriptions": {"audit": 1},
        "readers": [],
        "incarnation": "life",
    }
    done = busmq("queues")
    assert done.code == 0, done.err
    [row] = [line for line in done.text.splitlines() if keys.name in line]
    assert "2..3" in row
    assert "audit at 1" in row


DAMAGES = {
    "a counter that is no number": ("SET", "msgid", "x"),
    "a position that is no number": ("HSET", "acks", "s", "x"),
    "messages of another kind": ("SET", "messages", "x"),
    "positions of another kind": ("SET", "acks", "x"),
    "unacked messages of another kind": ("SET", "toack", "x"),
    "metadata of another kind": ("SET", "metadata", "x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_queue_is_named_and_hides_no_other(
    busmq: Busmq, fresh: Fresh, damage: str, link: SyncLink
) -> None:
    hint = fresh("damage")
    for n in range(5):
        link.run(attach(QueueKeys(f"{hint}-{n}"), "life", ttl_s=90))
    word, key, *values = DAMAGES[damage]
    link.execute(command(word, getattr(QueueKeys(f"{hint}-3"), key), *values))
    found = busmq("queues", f"{hint}-*", "--json").records
    assert [record["queue"] for record in found] == [f"{hint}-{n}" for n in range(5)]
    assert ["damaged" in record for record in found] == [False, False, False, True, False]
    text = busmq("queues", f"{hint}-*")
    assert text.code == 0
    assert sum(hint in line for line in text.text.splitlines()) == 5
    assert text.err.startswith("warning: ")
    assert f"'{hint}-3'" in text.err
    assert busmq("info", f"{hint}-3", "--json").error["code"] in text.err


def test_names_that_are_no_text_are_shown(
    busmq: Busmq, fresh_keys: FreshKeys, link: SyncLink
) -> None:
    keys = fresh_keys()
    link.run(attach(keys, "life", ttl_s=90))
    link.execute(
        [
            command("HSET", keys.metadata, "born", b"\xff\xfe"),
            command("HSET", keys.acks, b"\xffs", 1),
        ]
    )
    link.run(attach(keys, "life", ttl_s=90))
    [record] = busmq("queues", keys.name, "--json").records
    assert (record["incarnation"], record["subscriptions"]) == ("\ufffd\ufffd", {"\ufffds": 1})


def test_a_long_name_folds_no_line_of_a_table_in_a_pipe(
    busmq: Busmq, fresh: Fresh, link: SyncLink
) -> None:
    hint = fresh("long")
    names = [f"{hint}-short", f"{hint}-{'n' * 30_000}"]
    for name in names:
        link.run(attach(QueueKeys(name), "life", ttl_s=90))
    lines = [
        line.split() for line in busmq("queues", f"{hint}-*").text.splitlines() if hint in line
    ]
    assert sorted(line[0] for line in lines) == sorted(names)


def test_queues_of_several_servers_stand_in_one_list(
    busmq: Busmq, fresh: Fresh, three_servers: object, fresh_keys: FreshKeys
) -> None:
    url = ",".join(three_servers.urls)  # type: ignore[attr-defined]  # EmbeddedStandaloneServers
    hint = fresh("several")
    names = sorted(fresh(hint) for _ in range(6))
    for name in names:
        busmq("push", name, "x", url=url)
    found = busmq("queues", f"{hint}-*", "--json", url=url).records
    assert [record["queue"] for record in found] == names
    assert len({record["server"] for record in found}) > 1


def test_a_pattern_that_matches_nothing_is_no_error(busmq: Busmq, fresh: Fresh) -> None:
    done = busmq("queues", f"{fresh()}-*", "--json")
    assert (done.code, done.out) == (0, b"")


def test_info_of_a_server_names_what_endangers_messages(busmq: Busmq) -> None:
    with EmbeddedRedis(settings={"maxmemory-policy": "allkeys-lru"}) as server:
        [report] = busmq("info", "--json", url=server.url).records
        assert report["maxmemory_policy"] == "allkeys-lru"
        assert report["version"]
        assert "noeviction" in report["warnings"][0]
        text = busmq("info", url=server.url)
        assert "warning: maxmemory-policy is allkeys-lru" in text.err
        assert "warning" not in text.text


def test_embedded_serves_until_a_signal_stops_it(
    busmq: Busmq, start: Start, tmp_path: Path
) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        process = start("embedded", "--json", "--dir", str(tmp_path / "bus"), "--aof", url=None)
        server = json.loads(line_of(process))
        assert busmq("push", "kept", "x", url=server["url"]).code == 0
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, b"Traceback" in err) == (code, False)
        assert gone(server["pid"])
    with EmbeddedRedis(tmp_path / "bus", aof=True) as again:
        assert busmq("info", "kept", "--json", url=again.url).records[0]["messages"] == 2


def test_embedded_ends_with_an_error_when_its_redis_is_killed(start: Start) -> None:
    process = start("embedded", "--json", url=None)
    os.kill(json.loads(line_of(process))["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, json.loads(err)["error"]["code"]) == (1, "BUSMQ_LINK_LOST")


def test_embedded_says_when_the_port_is_taken(busmq: Busmq, redis_server: EmbeddedRedis) -> None:
    done = busmq("embedded", "--port", str(redis_server.port), "--json", url=None)
    assert (done.code, done.error["code"]) == (2, "BUSMQ_CONFIG")
    assert str(redis_server.port) in done.error["message"]
