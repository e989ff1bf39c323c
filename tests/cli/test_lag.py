"""lag: every reader, the worst first."""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.embedded.server import EmbeddedRedis
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import keep_alive, lease, subscribe
from busmq_spark.reading.reader_record import Announcement, ReaderRecord, id_of, lease_field
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli.conftest import Busmq
from tests.clocks import HOUR, pass_by
from tests.conftest import Fresh

pytestmark = pytest.mark.redis


@pytest.fixture
def hint(fresh: Fresh, link: SyncLink) -> str:
    """Three queues: one with messages of two hours ago and two readers, one of an hour ago and
    none, one that is read to its end.
    """
    name = fresh("lag")

    def redis(*words: str | int) -> Any:
        return link.execute(command(*words))

    for queue, rows, ms in (("a", 3, 2 * HOUR), ("b", 9, HOUR), ("c", 1, HOUR)):
        keys = QueueKeys(f"{name}-{queue}")
        link.run(flows.attach(keys, "life", ttl_s=600))
        link.run(flows.push_many(keys, [b"v"] * rows))
        pass_by(redis, keys, ms)
    link.run(subscribe([QueueKeys(f"{name}-a")], "slow", [0]))
    link.run(subscribe([QueueKeys(f"{name}-a")], "quick", [2]))
    link.run(subscribe([QueueKeys(f"{name}-c")], "idle", ["latest"]))
    return name


def test_the_worst_reader_comes_first(busmq: Busmq, hint: str) -> None:
    found = busmq("lag", f"{hint}-*", "--json").records
    assert [
        (
            each["queue"][-1],
            each["reader"],
            each["kind"],
            each["behind"],
            each["behind_s"] // 3600,
            each["read"],
        )
        for each in found
    ] == [
        ("a", "slow", "ordered", 3, 2, False),
        ("a", "quick", "ordered", 1, 2, False),
        ("b", None, "consumer", 9, 1, False),
        ("c", "idle", "ordered", 0, 0, False),
    ]
    table = busmq("lag", f"{hint}-*").text.splitlines()
    assert [line.split()[:2] for line in table if hint in line] == [
        [f"{hint}-a", "slow"],
        [f"{hint}-a", "quick"],
        [f"{hint}-b", "-"],
        [f"{hint}-c", "idle"],
    ]
    assert "2 h" in table[3]


def test_queues_may_be_named(busmq: Busmq, hint: str) -> None:
    found = busmq("lag", f"{hint}-b", f"{hint}-c", "--json").records
    assert [each["queue"] for each in found] == [f"{hint}-b", f"{hint}-c"]
    gone = busmq("lag", f"{hint}-b", f"{hint}-x", "--json")
    assert (gone.code, gone.error["code"], gone.out) == (1, "BUSMQ_QUEUE_MISSING", b"")
    assert f"There is no reader of {hint}-x*" in busmq("lag", f"{hint}-x*").err
    assert busmq("lag", url=None).code == 2


def test_a_damaged_queue_is_named_and_hides_no_other(
    busmq: Busmq, hint: str, link: SyncLink
) -> None:
    link.execute(command("HSET", QueueKeys(f"{hint}-a").acks, "slow", "x"))
    done = busmq("lag", f"{hint}-*")
    assert done.code == 0
    assert f"warning: [BUSMQ_QUEUE_DAMAGED] queue '{hint}-a'" in done.err
    assert [line.split()[0] for line in done.text.splitlines() if hint in line] == [
        f"{hint}-b",
        f"{hint}-c",
    ]


def test_it_counts_over_several_servers(busmq: Busmq, fresh: Fresh, three_servers: Any) -> None:
    url = ",".join(three_servers.urls)
    hint = fresh("far")
    for n in range(6):
        busmq("push", f"{hint}-{n}", *["x"] * (n + 1), url=url)
    found = busmq("lag", f"{hint}-*", "--json", url=url).records
    assert sorted(each["behind"] for each in found) == [1, 2, 3, 4, 5, 6]


TOKEN = "ab12|far|7.1"


def announce(link: SyncLink, queue: str, reader: str, **facts: Any) -> None:
    """A reader on another machine holds the lease."""
    record = ReaderRecord(kind="query", id=id_of(TOKEN), host="web-7", pid=7, **facts)
    said = Announcement(lease_field(reader), record.encode())
    link.run(lease([QueueKeys(queue)], reader, TOKEN, 60_000, [""], said))


def set_back(link: SyncLink, queue: str, reader: str, ms: int) -> None:
    """As if the position had not moved for so long."""
    keys = QueueKeys(queue)
    value = link.execute(command("HGET", keys.readers, lease_field(reader)))
    seen, hold, moved, rest = value.decode().split(":", 3)
    older = f"{seen}:{hold}:{int(moved) - ms}:{rest}"
    link.execute(command("HSET", keys.readers, lease_field(reader), older))


def row(text: str, queue: str, reader: str) -> str:
    [found] = [line for line in text.splitlines() if line.split()[:2] == [queue, reader]]
    return found


def test_a_reader_is_named_with_its_state(busmq: Busmq, hint: str, link: SyncLink) -> None:
    announce(link, f"{hint}-a", "slow", name="to-lake", app="app-1", ui="http://web-7:4040")
    done = busmq("lag", f"{hint}-*")
    found = row(done.text, f"{hint}-a", "slow")
    assert " query " in found
    assert " ok " in found
    assert "query 'to-lake', process 7 on web-7, application app-1, http://web-7:4040" in found
    assert " gone " in row(done.text, f"{hint}-a", "quick")
    set_back(link, f"{hint}-a", "slow", 61_000)
    assert " stuck " in row(busmq("lag", f"{hint}-*").text, f"{hint}-a", "slow")
    assert " ok " in row(busmq("lag", f"{hint}-*", "--stuck-after", "5m").text, f"{hint}-a", "slow")
    [each] = [e for e in busmq("lag", f"{hint}-a", "--json").records if e["reader"] == "slow"]
    assert (each["state"], each["position"], each["newest_id"]) == ("stuck", 0, 3)
    assert (each["read"], each["name"], each["unmoved_s"] >= 61) == (True, "to-lake", True)
    assert each["records"][0]["host"] == "web-7"


def test_the_check_has_one_line_and_the_exit_code_of_nagios(
    busmq: Busmq, hint: str, link: SyncLink
) -> None:
    announce(link, f"{hint}-a", "slow", name="to-lake")
    announce(link, f"{hint}-a", "quick")
    good = busmq("lag", f"{hint}-*", "--check", "--max-lag", "100", "--max-age", "3h")
    assert (good.code, good.err) == (0, "")
    assert good.text.startswith("OK: 4 readers, at most 9 messages and 2 h behind")
    warned = busmq("lag", f"{hint}-*", "--check", "--max-lag", "10")
    assert (warned.code, warned.text.count("\n")) == (1, 1)
    assert warned.text.startswith(f"WARNING: queue '{hint}-b': the reader without a name is gone")
    late = busmq("lag", f"{hint}-*", "--check", "--max-age", "90m")
    assert (late.code, late.text.count("\n")) == (2, 1)
    assert late.text.startswith(
        f"CRITICAL: queue '{hint}-a': reader 'slow' is ok (query 'to-lake',"
    )
    set_back(link, f"{hint}-a", "quick", 61_000)
    stuck = busmq("lag", f"{hint}-*", "--check")
    assert (stuck.code, "reader 'quick' is stuck" in stuck.text) == (2, True)
    [said] = busmq("lag", f"{hint}-*", "--check", "--json").records
    assert (said["code"], said["status"]) == (2, "CRITICAL")
    link.execute(command("DEL", QueueKeys(f"{hint}-a").lease("slow")))
    gone = busmq("lag", f"{hint}-a", "--check", "--stuck-after", "1h")
    assert (gone.code, "reader 'slow' is gone; 3 messages wait" in gone.text) == (1, True)


def test_a_redis_that_is_away_is_critical(busmq: Busmq) -> None:
    done = busmq("lag", "--check", url="redis://127.0.0.1:1")
    assert (done.code, done.text.count("\n"), done.err) == (2, 1, "")
    assert done.text.startswith("CRITICAL: [BUSMQ_LINK_LOST]")


def test_limits_and_times_are_checked(busmq: Busmq, hint: str) -> None:
    for words, problem in (
        (("--max-lag", "5"), "are limits of --check"),
        (("--check", "--max-age", "soon"), "--max-age is 'soon'"),
        (("--stuck-after", ""), "--stuck-after is ''"),
        (("--check", "--watch"), "--watch and --check"),
    ):
        done = busmq("lag", hint, *words)
        assert done.code in (1, 2)
        assert problem in done.err
        assert "Traceback" not in done.err


def test_odd_names_damage_and_wrong_clocks_stay_in_their_row(
    busmq: Busmq, hint: str, link: SyncLink
) -> None:
    long, odd = f"{hint}-a-{'x' * 300}", f"{hint}-a-\x1b[31m\nred"
    for queue in (long, odd):
        link.run(flows.attach(QueueKeys(queue), "life", ttl_s=600))
        link.run(flows.push_many(QueueKeys(queue), [b"v"]))
    an_hour_ahead = int(link.execute(command("TIME"))[0]) * 1000 + HOUR
    announce(link, long, "", name="\x1b[31mred", at=an_hour_ahead, error="no\x07disk")
    announce(link, odd, "")
    link.execute(command("HSET", QueueKeys(odd).readers, lease_field(""), "damaged"))
    done = busmq("lag", f"{hint}-a-*")
    assert done.code == 0
    assert "\x1b" not in done.text + done.err
    assert "\x07" not in done.text + done.err
    assert max(map(len, done.text.splitlines())) < 300
    assert "its clock is 1 h ahead of that of Redis" in done.err.replace("59 min 59 s", "1 h")
    assert "its last error is no disk" in done.err
    assert "its record is damaged" in done.err


def test_a_read_only_server_still_lists_readers(busmq: Busmq, fresh: Fresh) -> None:
    name = fresh("replica")
    with EmbeddedRedis() as server:
        assert busmq("push", name, "a", url=server.url).code == 0
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        [found] = busmq("lag", name, "--json", url=server.url).records
        assert (found["queue"], found["behind"]) == (name, 1)


def test_an_old_renewal_without_a_record_shows_by_its_lease(
    busmq: Busmq, hint: str, link: SyncLink
) -> None:
    keys = QueueKeys(f"{hint}-a")
    link.run(lease([keys], "slow", TOKEN, 60_000, [""]))
    assert link.run(keep_alive([keys], "slow", TOKEN, 60_000)) == [1]
    found = row(busmq("lag", f"{hint}-a").text, f"{hint}-a", "slow")
    assert "process 7 of machine far" in found
    assert " ordered " in found


def test_tail_reliable_holds_the_lease_and_names_itself(
    busmq: Busmq, hint: str, link: SyncLink
) -> None:
    done = busmq("tail", f"{hint}-b", "--reliable", "--count", "2")
    assert (done.code, len(done.text.splitlines())) == (0, 2)
    [found] = busmq("lag", f"{hint}-b", "--json").records
    assert (found["kind"], found["state"], found["read"], found["behind"]) == (
        "tail",
        "gone",
        False,
        7,
    )
    announce(link, f"{hint}-b", "", name="other")
    busy = busmq("tail", f"{hint}-b", "--reliable", "--count", "2")
    assert (busy.code, "BUSMQ_QUEUE_BUSY" in busy.err) == (1, True)
    assert "is being read (query 'other', process 7 on web-7; its lease is renewed" in busy.err
    link.execute(command("DEL", QueueKeys(f"{hint}-b").readers))
    link.execute(command("SET", QueueKeys(f"{hint}-b").readers, "a string"))
    busy = busmq("tail", f"{hint}-b", "--consume", "--count", "2")
    assert (busy.code, "BUSMQ_QUEUE_BUSY" in busy.err) == (1, True)
    assert "is being read (process 7 of machine far; its lease is renewed" in busy.err


def test_a_number_beyond_all_clocks_is_no_time_of_a_record(
    busmq: Busmq, hint: str, link: SyncLink
) -> None:
    announce(link, f"{hint}-a", "slow", name="to-lake")
    keys, field = QueueKeys(f"{hint}-a"), lease_field("slow")
    value = link.execute(command("HGET", keys.readers, field)).decode()
    numbers = '{"at":' + "9" * 400 + ',"planned":[1,' + "9" * 400 + "],"
    link.execute(command("HSET", keys.readers, field, value.replace("{", numbers, 1)))
    done = busmq("lag", f"{hint}-*")
    assert (done.code, "Traceback" in done.err) == (0, False)
    assert "query 'to-lake'" in row(done.text, f"{hint}-a", "slow")


def test_the_check_warns_of_an_age_that_is_not_known(
    busmq: Busmq, fresh: Fresh, link: SyncLink
) -> None:
    keys = QueueKeys(fresh("lag"))
    link.run(flows.attach(keys, "life", ttl_s=600))
    link.run(flows.push_many(keys, [b"v"] * 3))
    link.execute(command("DEL", keys.clock))
    done = busmq("lag", keys.name, "--check", "--max-age", "5m")
    assert (done.code, done.text.count("\n")) == (1, 1)
    assert "3 messages wait, the oldest of unknown age" in done.text
