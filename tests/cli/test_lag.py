"""lag: every reader, the worst first."""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import subscribe
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
