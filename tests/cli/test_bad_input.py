"""Bad input of each command: one error with its code on stderr, a defined exit code, no
traceback.
"""

from __future__ import annotations

import os
import pty
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from typer.main import get_command

from busmq_spark.cli_app import app
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.environment import VARIABLES
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import push_many
from busmq_spark.queue.retention import parse_limits, set_retention
from busmq_spark.reading.reader_operations import CumulativeAckRequest, ack_to, states
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli import forked
from tests.cli.conftest import COMMAND, Busmq, environment
from tests.conftest import Fresh

pytestmark = pytest.mark.redis

ABSENT = "/nowhere/at/all"
BAD: list[tuple[str, ...]] = [
    *(
        (*command, "--redis", url)
        for command in (
            ("queues",),
            ("info",),
            ("push", "q", "x"),
            ("events", "list"),
            ("dead", "list", "q"),
            ("mirror", "status"),
        )
        for url in (
            "redis://h/5",
            "redis://h?db=5",
            "redis://h\n",
            " redis://h",
            "",
            "http://h",
            "redis://h,redis://h",
            "redis://h:0",
        )
    ),
    *(
        ("info", flag, "")
        for flag in (
            "--layout",
            "--sentinel-master",
            "--user",
            "--tls-ca",
            "--tls-cert",
            "--tls-key",
        )
    ),
    *(("info", flag, ABSENT) for flag in ("--layout", "--tls-ca", "--tls-cert", "--tls-key")),
    ("info", "--tls-ca", "/tmp"),
    ("info", "--user", " x"),
    ("push",),
    ("push", "", "x"),
    ("push", "q", "--file", ABSENT),
    ("push", "q", "--file", "/tmp"),
    ("push", "q", "x", "--ttl", "-1"),
    ("push", "q", "x", "--ttl", "forever"),
    ("push", "q", "x", "--durability", "fast"),
    ("push", "q", "x", "--durability", "replicated", "--replicas", "0"),
    ("push", "q", "x", "--replicas", "1"),
    ("push", "q", "x", "--durability-timeout", "0s"),
    ("push", "q", "x", "--maxsize", "-1"),
    ("push", "q", "x", "--nonsense"),
    ("tail", ""),
    ("tail", "q", "--from", "yesterday"),
    ("peek", ""),
    ("peek", "q", "--ids", "5..x"),
    ("peek", "q", "--first", "-1"),
    ("info", ""),
    ("groups", ""),
    ("lag", "--nonsense"),
    ("topics", " t"),
    ("topics", "t", "--partitions", "0"),
    ("topics", "t", "--partitions", "1001"),
    ("topics", "t", "--partitions", "NaN"),
    ("subscribe", "q", ""),
    ("subscribe", "q", " s"),
    ("subscribe", "q", ":s"),
    ("subscribe", "q", "s\n"),
    ("subscribe", "q", "s", "--start", "yesterday"),
    ("unsubscribe", "q", "nobody"),
    ("unsubscribe", "", "s"),
    ("subscriptions", ""),
    ("retain", "q", "--age", "-1"),
    ("retain", "q", "--age", ""),
    ("retain", "q", "--messages", "-5"),
    ("retain", "q", "--bytes", "many"),
    ("retain", "q", "--age", "1d", "--off"),
    ("dead", "list", ""),
    ("dead", "show", "q", "-1"),
    ("dead", "show", "q", "x"),
    ("dead", "replay", ""),
    ("dead", "purge", ""),
    ("events", "subscribe", "a..b", "--into", "q"),
    ("events", "subscribe", "a", "--into", ""),
    ("events", "unsubscribe", "", "--into", "q"),
    ("events", "forget", ""),
    ("publish", ""),
    ("send", "", "x"),
    ("outbox", "status", ABSENT),
    ("outbox", "status", "/tmp"),
    ("outbox", "status", ""),
    ("outbox", "drain", ABSENT),
    ("outbox", "drain", "/tmp", "--timeout", "soon"),
    ("outbox", "unlock", "/tmp"),
    ("outbox", "keys", ABSENT),
    ("outbox", "subscribers", ABSENT),
    ("outbox", "incoming", ABSENT),
    ("outbox", "outgoing", ABSENT),
    ("mirror", "--from", "redis://h/5", "q"),
    ("mirror", "--from", "", "q"),
    ("mirror", "--from", "wss://h?x", "q"),
    ("mirror", "promote", "nobody-*"),
    ("mirror", "promote", "q", "--to", "redis://h/5"),
    ("serve", "--secrets", ABSENT),
    ("serve", "--secrets", "/tmp"),
    ("serve", "--port", "-1"),
    ("serve", "--port", "70000"),
    ("token", "--secrets", ABSENT, "name"),
    ("token", "--secrets", "/tmp", "name"),
    ("embedded", "--port", "-1"),
    ("embedded", "--port", "70000"),
    ("nonsense",),
]


@pytest.mark.parametrize("line", BAD, ids=" ".join)
def test_bad_input_is_one_error_without_a_traceback(busmq: Busmq, line: tuple[str, ...]) -> None:
    done = busmq(*line)
    assert done.code in (1, 2), done
    assert done.err.count("error: ") == 1, done.err
    assert "[BUSMQ_" in done.err


def test_each_command_is_registered_once() -> None:
    names = [
        each.name or each.callback.__name__ for each in app.registered_commands if each.callback
    ]
    groups = [group.name for group in app.registered_groups]
    assert [name for name, times in Counter([*names, *groups]).items() if times > 1] == []
    # Of a group
    assert set(get_command(app).commands) == {*names, *groups}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_variable_that_ends_with_a_line_break_is_refused(
    redis_url: str, name: str, end: str
) -> None:
    code, _, err = forked.run(["queues"], b"", {**environment(redis_url), name: f"x{end}"})
    assert code == 2
    assert f"the environment variable {name} ends with a line break" in err.decode()


def test_a_misspelt_variable_is_warned_about_and_others_are_not(redis_url: str) -> None:
    more = {
        "BUSMQ_REDIS_PASWORD": "x",
        "BUSMQ_SOAK_FACTOR": "2",
        "BUSMQ_TESTS_JAVA_ARCHIVE": "x",
        "BUSMQ_MINE": "1",
    }
    code, _, err = forked.run(["queues"], b"", {**environment(redis_url), **more})
    assert code == 0
    assert (
        "BUSMQ_REDIS_PASWORD is not one of busmq's; did you mean BUSMQ_REDIS_PASSWORD?"
        in err.decode()
    )
    assert not any(name in err.decode() for name in ("SOAK", "JAVA", "MINE"))


# -- deleting


@pytest.fixture
def kept(link: SyncLink, fresh: Fresh, busmq: Busmq) -> QueueKeys:
    """A queue of five messages, four of which only the subscription ``audit`` has not read."""
    keys = QueueKeys(fresh("orders"))
    for name in ("first", "audit"):
        busmq("subscribe", keys.name, name)
    link.run(push_many(keys, [b"x"] * 5))
    ack(link, keys, "first")
    return keys


def ack(link: SyncLink, keys: QueueKeys, name: str) -> None:
    [state] = link.run(states([(keys, -1)]))
    link.run(ack_to([CumulativeAckRequest(keys, 4, state.born, "")], name))


def count(link: SyncLink, keys: QueueKeys) -> int:
    return link.run(states([(keys, -1)]))[0].count


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_unsubscribe_deletes_nothing_unasked(
    busmq: Busmq, link: SyncLink, kept: QueueKeys, json: list[str]
) -> None:
    done = busmq("unsubscribe", kept.name, "audit", *json)
    assert done.code == 2
    assert "delete 4 messages" in done.err
    assert "Add --yes to do so" in done.err
    assert count(link, kept) == 5
    assert busmq("unsubscribe", kept.name, "audit", "--yes", *json).code == 0
    assert count(link, kept) == 1


def test_unsubscribe_counts_the_messages_that_it_did_not_begin_with(
    busmq: Busmq, link: SyncLink, fresh: Fresh
) -> None:
    """Messages before the start of every subscription stay stored until one acknowledges."""
    keys = QueueKeys(fresh("orders"))
    busmq("push", keys.name, *["x"] * 6)
    for name, start in (("audit", "2"), ("other", "5")):
        busmq("subscribe", keys.name, name, "--start", start)
    assert count(link, keys) == 6
    done = busmq("unsubscribe", keys.name, "audit")
    assert (done.code, count(link, keys)) == (2, 6)
    assert "delete 5 messages" in done.err
    assert busmq("unsubscribe", keys.name, "audit", "--yes", "--json").records[0]["dropped"] == 5
    assert count(link, keys) == 1


def test_unsubscribe_does_not_ask_where_nothing_is_deleted(
    busmq: Busmq, link: SyncLink, fresh: Fresh
) -> None:
    keys = QueueKeys(fresh("orders"))
    for name in ("only", "other"):
        busmq("subscribe", keys.name, name)
    link.run(push_many(keys, [b"x"] * 3))
    for name in ("only", "other"):
        assert busmq("unsubscribe", keys.name, name).code == 0
    assert count(link, keys) == 3


def test_unsubscribe_does_not_ask_for_messages_that_the_queue_keeps(
    busmq: Busmq, link: SyncLink, kept: QueueKeys
) -> None:
    link.run(set_retention(kept, parse_limits(None, 100, None)))
    ack(link, kept, "audit")
    assert busmq("unsubscribe", kept.name, "audit").code == 0
    assert count(link, kept) == 5


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 1), (b"n\n", 130, 5)])
def test_unsubscribe_asks_a_person(
    redis_url: str, link: SyncLink, kept: QueueKeys, answer: bytes, code: int, left: int
) -> None:
    here, there = pty.openpty()
    os.write(here, answer)
    line = [*COMMAND, "unsubscribe", kept.name, "audit"]
    done = subprocess.run(
        line, stdin=there, capture_output=True, env=environment(redis_url), check=False, timeout=60
    )
    os.close(here)
    os.close(there)
    assert b"delete 4 messages" in done.stderr
    assert (done.returncode, count(link, kept)) == (code, left)


def test_retain_deletes_nothing_unasked(busmq: Busmq, link: SyncLink, kept: QueueKeys) -> None:
    link.run(set_retention(kept, parse_limits(None, 100, None)))
    ack(link, kept, "audit")
    for line in (["--off"], ["--messages", "2"], ["--age", "1d"]):
        done = busmq("retain", kept.name, *line)
        assert (done.code, count(link, kept)) == (2, 5)
        assert "4 acknowledged messages" in done.err
    assert busmq("retain", kept.name, "--messages", "200").code == 0
    assert busmq("retain", kept.name, "--off", "--yes").code == 0
    assert count(link, kept) == 1


def test_a_first_rule_deletes_nothing_unasked(busmq: Busmq, link: SyncLink, fresh: Fresh) -> None:
    keys = QueueKeys(fresh("orders"))
    busmq("push", keys.name, *["x"] * 6)
    assert busmq("retain", keys.name, "--off").code == 0
    busmq("subscribe", keys.name, "late", "--start", "5")
    done = busmq("retain", keys.name, "--messages", "2")
    assert (done.code, count(link, keys)) == (2, 6)
    assert "up to 5 acknowledged messages" in done.err
    assert busmq("retain", keys.name, "--messages", "2", "--yes").code == 0
    assert count(link, keys) == 2


# -- info


def test_info_on_a_full_redis_warns_and_says_so_with_its_exit_code(busmq: Busmq) -> None:
    with EmbeddedRedis(maxmemory="4mb") as server:
        assert busmq("info", url=server.url).code == 0
        full = False
        for number in range(100):
            try:
                server.command("SET", f"filling-{number}", "x" * 100_000)
            except RuntimeError as refused:
                full = "OOM" in str(refused)
                break
        assert full
        done = busmq("info", url=server.url)
        assert done.code == 3
        assert "warning: memory is full" in done.err
        assert "Raise maxmemory" in done.err
        [record] = busmq("info", "--json", url=server.url).records
        assert record["full"] is True


def test_info_on_a_redis_that_evicts_warns_and_says_so_with_its_exit_code(busmq: Busmq) -> None:
    with EmbeddedRedis(maxmemory="50mb") as server:
        server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        done = busmq("info", url=server.url)
        assert done.code == 3
        assert "maxmemory-policy is allkeys-lru" in done.err


def test_info_tolerates_a_redis_that_refuses_info(busmq: Busmq) -> None:
    with EmbeddedRedis(settings={"rename-command": 'INFO ""'}) as server:
        done = busmq("info", url=server.url)
        assert done.code == 0
        assert "refuses the command INFO" in done.err


def test_a_folder_where_a_file_is_expected_is_named(busmq: Busmq, tmp_path: Path) -> None:
    assert str(tmp_path) in busmq("serve", "--secrets", str(tmp_path)).err
