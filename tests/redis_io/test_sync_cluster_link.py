"""Links to a real cluster: routing, slots on the move, dead nodes. Both drivers."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis
from busmq_spark.errors import ConfigError, LinkLost, ServerRefused, Unauthorized
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io import async_link
from busmq_spark.redis_io.async_link import AsyncClusterLink
from busmq_spark.redis_io.endpoint import NoServerReachable
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds, dial_async
from busmq_spark.redis_io.sync_link import SyncClusterLink, SyncLink
from busmq_spark.redis_io.urls import RedisServerAddress, parse
from tests.conftest import Fresh
from tests.moves import Move
from tests.redis_io.conftest import Driver, absent
from tests.redis_io.fakes import CLOSE, FakeRedis
from tests.stored import read_at
from tests.support import wait_in_sync, wait_until


def seeds(group: EmbeddedCluster) -> ClusterSeeds:
    return ClusterSeeds(parse(group.urls[0]))


def stored(group: EmbeddedCluster, key: str) -> object:
    return group.owner(key).command("GET", key)


def test_a_step_is_spread_over_all_masters_and_its_replies_stand_in_order(
    driver: Driver, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    made, base = driver(seeds(cluster_servers)), fresh()
    keys = [f"{base}-{i}" for i in range(200)]
    made.execute([command("SET", key, i) for i, key in enumerate(keys)])
    assert made.execute([command("GET", key) for key in keys]) == [
        str(i).encode() for i in range(200)
    ]
    assert len({cluster_servers.owner(key).port for key in keys}) == 3


def test_a_queue_works_and_scripts_are_sent_to_nodes_that_forgot_them(
    driver: Driver, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    made = driver(seeds(cluster_servers))
    for hint in "abcd":
        keys = QueueKeys(fresh(hint), cluster=True)
        made.run(queue.attach(keys, "b", ttl_s=60))
        cluster_servers.owner(keys.metadata).command("SCRIPT", "FLUSH")
        assert made.run(queue.push_many(keys, [b"1", b"2"])) == 2
        assert [m.value for m in made.run(queue.pop(keys, reliable=False, ttl_s=60, most=9))] == [
            b"1",
            b"2",
        ]


def test_a_refused_call_does_not_disturb_the_others(
    driver: Driver, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    made, key = driver(seeds(cluster_servers)), fresh()
    with pytest.raises(ServerRefused, match="value is not an integer"):
        made.execute(
            [command("SET", key, "text"), command("INCR", key), command("SET", f"{key}-2", "set")]
        )
    assert made.execute(command("GET", f"{key}-2")) == b"set"


def test_a_slot_that_moved_is_found_and_a_call_that_is_not_idempotent_is_executed_once(
    driver: Driver, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    made, key = driver(seeds(cluster_servers)), fresh()
    made.execute(command("SET", key, 41))
    move = Move(cluster_servers, key)
    move.whole()
    assert made.execute(command("INCR", key, idempotent=False)) == 42
    assert cluster_servers.owner(key) is move.target
    assert stored(cluster_servers, key) == "42"


def test_while_a_slot_moves_each_key_is_asked_for_where_it_is(
    driver: Driver, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    made, tag = driver(seeds(cluster_servers)), fresh()
    moved, there, new = (f"{{{tag}}}{name}" for name in ("moved", "there", "new"))
    made.execute([command("SET", moved, 1), command("SET", there, 1)])
    move = Move(cluster_servers, moved)
    move.begin()
    move.migrate(moved)
    incr = [command("INCR", key, idempotent=False) for key in (moved, there, new, moved)]
    try:
        assert [made.execute(call) for call in incr] == [2, 2, 1, 3]
    finally:
        move.migrate()
        move.end()
    assert made.execute([command("GET", key) for key in (moved, there, new)]) == [b"3", b"2", b"1"]


def put_off(move: Move) -> int:
    """How often either node has answered TRYAGAIN: the old one of Redis 6.2 sends the caller on to
    the new one, that of 7.0 says it itself.
    """
    stats = (str(node.command("INFO", "errorstats")) for node in (move.source, move.target))
    return sum(
        int(count)
        for each in stats
        for count in re.findall(r"errorstat_TRYAGAIN:count=(\d+)", each)
    )


def test_a_push_waits_while_the_keys_of_its_queue_are_on_two_nodes(
    driver: Driver, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    made, keys = driver(seeds(cluster_servers)), QueueKeys(fresh(), cluster=True)
    made.run(queue.attach(keys, "b", ttl_s=60))
    made.run(queue.push(keys, b"before"))
    move = Move(cluster_servers, keys.metadata)
    move.begin()
    move.migrate(keys.messages)
    before = put_off(move)

    def finish() -> None:
        wait_until(lambda: put_off(move) > before, what="the push was told to try again")
        move.migrate()
        move.end()

    thread = threading.Thread(target=finish)
    thread.start()
    try:
        assert made.run(queue.push(keys, b"after")) == 2
    finally:
        thread.join()
    assert [m.value for m in made.run(read_at(keys, 0, 9))] == [b"before", b"after"]


def fake_cluster(*answers: bytes) -> FakeRedis:
    """A node that says it owns every slot; other commands get these answers in turn, the last for
    ever.
    """
    left = list(answers)

    def answer(_: int, words: list[bytes]) -> bytes:
        if words[:2] == [b"CLUSTER", b"SLOTS"]:
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%d\r\n" % fake.server.port
        return left.pop(0) if len(left) > 1 else left[0]

    fake = FakeRedis(answer)
    return fake


def asked(fake: FakeRedis) -> list[bytes]:
    return [words[0] for words in fake.seen if words[0] != b"CLUSTER"]


def test_a_call_that_is_not_idempotent_is_not_sent_again_when_its_reply_was_lost(
    driver: Driver,
) -> None:
    with fake_cluster(CLOSE, b":1\r\n") as fake:
        with pytest.raises(LinkLost):
            driver(ClusterSeeds((fake.server,))).execute(command("INCR", "n", idempotent=False))
        assert asked(fake) == [b"INCR"]


def test_an_idempotent_call_is_sent_again_when_its_reply_was_lost(driver: Driver) -> None:
    with fake_cluster(CLOSE, CLOSE, b"$1\r\n7\r\n") as fake:
        assert driver(ClusterSeeds((fake.server,))).execute(command("GET", "n")) == b"7"
        assert asked(fake) == [b"GET"] * 3


@pytest.mark.parametrize("code", ["CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "READONLY"])
def test_a_call_that_the_cluster_put_off_is_sent_again(driver: Driver, code: str) -> None:
    with fake_cluster(f"-{code} not now\r\n".encode(), b":5\r\n") as fake:
        assert (
            driver(ClusterSeeds((fake.server,))).execute(command("INCR", "n", idempotent=False))
            == 5
        )


def test_a_cluster_that_stays_down_is_lost_when_patience_is(driver: Driver) -> None:
    with (
        fake_cluster(b"-CLUSTERDOWN The cluster is down\r\n") as fake,
        pytest.raises(LinkLost, match="cluster is down"),
    ):
        driver(ClusterSeeds((fake.server,)), patience_s=0.2).execute(command("GET", "n"))


def test_a_cluster_of_which_no_node_answers_is_unreachable(driver: Driver) -> None:
    with pytest.raises(NoServerReachable, match="no node of the cluster answers") as caught:
        driver(ClusterSeeds((absent(), absent())), patience_s=0.2).execute(command("GET", "n"))
    assert "hidden-secret" not in str(caught.value)


def test_a_server_that_is_no_node_of_a_cluster_is_an_error_of_the_options(
    driver: Driver, redis_server: EmbeddedRedis
) -> None:
    with pytest.raises(ConfigError, match=r"no node of a cluster; leave redis\.layout at direct"):
        driver(ClusterSeeds(parse(redis_server.url))).execute(command("GET", "n"))


def test_a_cluster_that_refuses_the_password_says_so_at_once(driver: Driver) -> None:
    with EmbeddedRedis(password="right-one") as server, pytest.raises(Unauthorized):
        driver(
            ClusterSeeds(
                (absent(), RedisServerAddress("127.0.0.1", server.port, password="wrong-one"))
            )
        ).execute(command("GET", "n"))


def test_posted_calls_go_to_their_nodes_and_are_fetched_in_their_order(
    cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    link, base = SyncClusterLink(seeds(cluster_servers)), fresh()
    calls = [command("APPEND", f"{base}-{i}", "x" * i) for i in range(50)]
    assert list(link.stream(calls, depth=7)) == list(range(50))
    link.close()


def test_a_posted_call_whose_slot_moved_is_lost_and_the_next_finds_it(
    cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    link, key = SyncClusterLink(seeds(cluster_servers)), fresh()
    link.execute(command("SET", key, 1))
    Move(cluster_servers, key).whole()
    link.post(command("INCR", key))
    link.post(command("INCR", key))
    with pytest.raises(LinkLost, match="the slot is at"):
        link.fetch()
    assert link.execute(command("GET", key)) == b"1"
    link.close()


@pytest.mark.parametrize(
    "driver", ["async"], indirect=True
)  # tests/faults has the blocking link follow one
def test_a_link_follows_a_dead_master_to_its_successor(driver: Driver, fresh: Fresh) -> None:
    with EmbeddedCluster() as group:
        made, keys = driver(seeds(group), patience_s=60), [fresh() for _ in range(20)]
        made.execute([command("SET", key, "before") for key in keys])
        dead = group.owner(keys[0])
        wait_in_sync(dead)
        group.kill_master(keys[0])
        assert made.execute([command("GET", key) for key in keys]) == [b"before"] * 20
        assert made.execute(command("INCR", "n", idempotent=False)) == 1
        assert group.owner(keys[0]) is not dead


def test_tasks_that_share_a_link_survive_a_move_each_with_its_own_reply(
    cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    key = fresh()

    async def many() -> None:
        link = AsyncClusterLink(seeds(cluster_servers))
        replies = [await link.execute(command("INCR", key, idempotent=False))]
        Move(cluster_servers, key).whole()
        replies += await asyncio.gather(
            *(link.execute(command("INCR", key, idempotent=False)) for _ in range(100))
        )
        assert replies == [*range(1, 102)]
        await link.close()

    asyncio.run(many())


def test_a_node_that_lost_its_slots_while_a_task_connected_to_it_is_closed_with_the_link(
    cluster_servers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = cluster_servers.replicas[0]
    dial = dial_async

    async def connect_during_a_refresh() -> bool:
        link, connecting, refreshed = (
            AsyncClusterLink(seeds(cluster_servers)),
            asyncio.Event(),
            asyncio.Event(),
        )

        async def dial_slowly(endpoint: RedisServerAddress, reply_s: float) -> Any:
            connecting.set()
            await refreshed.wait()
            return await dial(endpoint, reply_s)

        monkeypatch.setattr(async_link, "dial_async", dial_slowly)
        attempt = asyncio.create_task(link.link_to(("127.0.0.1", replica.port)).connect())
        await connecting.wait()
        await link.refresh()
        refreshed.set()
        connection = await attempt
        await link.close()
        return connection.is_open

    assert not asyncio.run(connect_during_a_refresh())


def test_what_is_asked_of_each_master_is_asked_anew_when_one_does_not_answer(
    cluster_servers: EmbeddedCluster,
) -> None:
    link, asked = SyncClusterLink(seeds(cluster_servers)), []

    def ask(node: SyncLink) -> int:
        asked.append(node)
        if len(asked) == 2:
            raise LinkLost(url=node.endpoint.masked_url, reason="gone")
        return len(asked)

    assert link.ask_each_master(ask) == [3, 4, 5]
    link.close()
