"""``busmq doctor`` as a user runs it."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pytest

from busmq_spark.doctor.findings import CHECKS
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import attach, push_many
from busmq_spark.reading.reader_operations import subscribe
from busmq_spark.redis_io.optional_commands import parse_info
from tests.cli.conftest import Busmq
from tests.conftest import link_to

pytestmark = pytest.mark.redis
FAST = ("--gap", "0")
QUIET = {"slowlog-log-slower-than": "-1"}
"""On a busy machine any command may take long."""
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_the_exit_code_is_that_of_the_worst_finding(busmq: Busmq) -> None:
    with EmbeddedRedis(aof=True, settings=QUIET) as server:
        link = link_to(server.url)
        fine = busmq("doctor", *FAST, url=server.url)
        assert (fine.code, fine.err) == (0, "")
        assert fine.text.startswith("0 failures, 0 warnings, 0 not made, ")
        link.execute(command("CONFIG", "SET", "appendonly", "no"))
        warned = busmq("doctor", *FAST, url=server.url)
        assert warned.code == 1
        head, found, why, fix, _ = warned.text.splitlines()
        assert head.split() == ["warning", "redis-persistence", server.url]
        assert found.strip() == "the append-only file is off"
        assert why.strip() == f"why: {CHECKS['redis-persistence'].why}"
        assert fix.strip() == "fix: redis-cli CONFIG SET appendonly yes"
        link.execute(command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"))
        failed = busmq("doctor", *FAST, "--json", url=server.url)
        assert failed.code == 2
        assert failed.records[0]["code"] == "redis-eviction"
        assert {record["level"] for record in failed.records} == {"ok", "warning", "failure"}
        skipped = ("--skip", "redis-eviction", "--skip", "redis-persistence")
        assert busmq("doctor", *FAST, *skipped, url=server.url).code == 0
        away = server.url
        link.close()
    gone = busmq("doctor", *FAST, url=away)
    assert gone.code == 2
    assert gone.text.startswith("failure redis-reach")


def test_names_are_escaped_and_quoted_and_passwords_are_masked(busmq: Busmq) -> None:
    with EmbeddedRedis(aof=True, password="topsecret", settings=QUIET) as server:
        url = f"redis://:topsecret@127.0.0.1:{server.port}"
        link = link_to(url)
        keys = QueueKeys("odd\x1b[31m\n'name'")
        link.run(attach(keys, "life", ttl_s=9_000_000))
        link.run(push_many(keys, [b"1", b"2"]))
        link.run(subscribe([keys], "a  b", [0]))
        two_days_ago = int(time.time()) - 2 * 86_400
        link.execute(command("HSET", keys.acks, ":at:a  b", two_days_ago))
        done = busmq("doctor", *FAST, url=url)
        link.close()
    assert done.code == 1
    assert "\x1b" not in done.text
    assert "odd\\e[31m\\n'name'" in done.text
    [fix] = [line for line in done.text.splitlines() if "busmq unsubscribe" in line]
    assert fix.endswith(" 'a  b'")  # blanks are part of a name
    assert "topsecret" not in done.text + done.err


def test_the_list_names_each_check_without_a_server(busmq: Busmq) -> None:
    records = busmq("doctor", "--list", "--json", url=None).records
    assert [record["code"] for record in records] == [*CHECKS]
    text = busmq("doctor", "--list", url=None)
    assert (text.code, text.text.count("\n")) == (0, 2 * len(CHECKS))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--skip", "redis-evict"), "--skip is 'redis-evict'; expected a code"),
        (("--gap", "-1"), "'--gap'"),
        (("--gap", "inf"), "'--gap'"),
        ((), "no Redis is named"),
    ],
)
def test_a_bad_argument_is_one_line(busmq: Busmq, arguments: tuple[str, ...], text: str) -> None:
    done = busmq("doctor", *arguments, url=None)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert text in done.err


def commands_of(section: str) -> list[list[str]]:
    """The commands of a section of the page."""
    text = PAGE.read_text("utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def test_the_commands_of_the_page_drop_what_fills_redis(busmq: Busmq) -> None:
    full, abandoned = (
        commands_of("See a full Redis coming"),
        commands_of("Drop an abandoned subscription"),
    )
    with EmbeddedRedis(aof=True, settings=QUIET) as server:
        link = link_to(server.url)
        keys = QueueKeys("orders")
        link.run(attach(keys, "life", ttl_s=9_000_000))
        link.run(push_many(keys, [b"x" * 10_000] * 300))
        link.run(subscribe([keys], "audit", [0]))
        two_days_ago = int(time.time()) - 2 * 86_400
        link.execute(command("HSET", keys.acks, ":at:audit", two_days_ago))
        used = int(parse_info(link.execute(command("INFO")))["used_memory"])
        link.execute(command("CONFIG", "SET", "maxmemory", int(used / 0.85)))
        codes = {}
        for words in [*full, *abandoned]:
            done = busmq(*(word if word != "10" else "0" for word in words), url=server.url)
            codes[" ".join(words)] = done.code
            if words[0] == "doctor":
                wanted = "redis-memory" if words == full[0] else "subscription-abandoned"
                assert wanted in done.text
        assert codes.pop("doctor") == codes.pop("doctor --gap 10") == 1
        assert set(codes.values()) == {0}
        last = busmq("doctor", *FAST, url=server.url)
        assert "subscription-abandoned" not in last.text
        link.close()
