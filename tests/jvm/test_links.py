"""The Java module's links do what the Python ones do: what is sent again and what never, which
server is asked, and what an error says.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from busmq_spark.embedded import (
    EmbeddedCluster,
    EmbeddedRedis,
    EmbeddedSentinel,
    EmbeddedStandaloneServers,
)
from busmq_spark.queue import scripts
from busmq_spark.queue.keys import QueueKeys, server_index
from busmq_spark.redis_io import queue_location
from busmq_spark.redis_io.urls import RedisServerAddress
from tests.conftest import Fresh, link_to
from tests.faults.test_acl import rights
from tests.jvm.probe import Links, Probe, Refused, call
from tests.moves import Move
from tests.redis_io.conftest import absent
from tests.redis_io.fakes import CLOSE, FakeRedis, says
from tests.support import wait_in_sync, wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.redis]

ONCE = call("INCR", "n", idempotent=False)
AGAIN = call("GET", "n")
SILENCE = b""
MASTER = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"
REPLICA = b"*5\r\n$5\r\nslave\r\n$1\r\na\r\n:1\r\n$9\r\nconnected\r\n:0\r\n"


def url(server: RedisServerAddress) -> str:
    return f"redis://127.0.0.1:{server.port}"


def push(keys: QueueKeys, *values: str) -> dict[str, object]:
    return call(
        *keys.peer_keys,
        keys.clock,
        keys.available,
        *values,
        script="push",
        keys=5,
        idempotent=False,
    )


# What is sent again


@pytest.mark.parametrize("lost", [CLOSE, SILENCE], ids=["closed", "half-open"])
def test_an_idempotent_call_whose_reply_was_lost_is_sent_again(asker: Probe, lost: bytes) -> None:
    with FakeRedis(says(lost, b"$1\r\n7\r\n")) as fake:
        assert asker.open(url(fake.server)).run_all([AGAIN]) == ["7"]
        assert len(fake.seen) == 2


@pytest.mark.parametrize("lost", [CLOSE, SILENCE], ids=["closed", "half-open"])
def test_a_call_that_is_not_idempotent_is_sent_once_when_its_reply_was_lost(
    asker: Probe, lost: bytes
) -> None:
    with FakeRedis(says(lost, b":1\r\n")) as fake:
        with pytest.raises(Refused, match="BUSMQ_LINK_LOST"):
            asker.open(url(fake.server)).run_all([ONCE])
        assert len(fake.seen) == 1


def test_a_step_with_one_call_that_is_not_idempotent_is_not_sent_again_as_a_whole(
    probe: Probe,
) -> None:
    with FakeRedis(says(b"$1\r\n7\r\n", CLOSE, b":1\r\n")) as fake:
        with pytest.raises(Refused, match="BUSMQ_LINK_LOST"):
            probe.open(url(fake.server)).run_all([AGAIN, ONCE])
        assert len(fake.seen) == 2


def test_a_script_that_redis_does_not_know_is_sent_with_its_text_even_if_not_idempotent(
    probe: Probe,
) -> None:
    with FakeRedis(
        says(b"-NOSCRIPT No matching script. Please use EVAL.\r\n", b"*2\r\n:1\r\n:1\r\n")
    ) as fake:
        assert probe.open(url(fake.server)).run_all([push(QueueKeys("q"), "v")]) == [[1, 1]]
        assert [words[0] for words in fake.seen] == [b"EVALSHA", b"EVAL"]
        assert fake.seen[0][1].decode() == scripts.load("push").digest
        assert fake.seen[1][1].decode() == scripts.load("push").text


def test_replies_stand_where_their_calls_stood_when_some_scripts_were_unknown(probe: Probe) -> None:
    unknown = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
    seek = call("a", "b", script="seek", keys=2)
    with FakeRedis(says(b"+first\r\n", unknown, b"+third\r\n", b"+second\r\n")) as fake:
        assert probe.open(url(fake.server)).run_all([call("PING"), seek, ONCE]) == [
            "first",
            "second",
            "third",
        ]
        assert len(fake.seen) == 4


def test_calls_behind_an_unknown_script_are_sent_again_in_their_order_where_all_are_idempotent(
    probe: Probe,
) -> None:
    unknown = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
    seek = call("a", "b", script="seek", keys=2)
    with FakeRedis(
        says(b"+first\r\n", unknown, b"+early\r\n", b"+second\r\n", b"+third\r\n")
    ) as fake:
        assert probe.open(url(fake.server)).run_all([call("PING"), seek, call("PING")]) == [
            "first",
            "second",
            "third",
        ]
        assert len(fake.seen) == 5


def test_pushes_of_one_step_travel_with_their_script_so_that_a_forgotten_one_cannot_reorder_them(
    probe: Probe,
) -> None:
    with FakeRedis(says(b"*2\r\n:1\r\n:1\r\n")) as fake:
        probe.open(url(fake.server)).run_all([push(QueueKeys("q"), "a"), push(QueueKeys("q"), "b")])
        assert [words[0] for words in fake.seen] == [b"EVAL", b"EVAL"]


def test_a_redis_that_was_restarted_is_found_before_a_push_is_sent(probe: Probe) -> None:
    with EmbeddedRedis() as server:
        links = probe.open(server.url)
        assert links.run_all([ONCE]) == [1]
        server.kill()
        server.restart()
        probe.ask(
            "await", pause(probe, links), ms=50
        )  # the connection is not asked about again so soon after its last call
        assert probe.answer() is False
        assert links.run_all([ONCE]) == [1]


def pause(probe: Probe, links: Links) -> str:
    links.listen()
    return links.name


# What errors say


def test_a_server_that_is_away_is_lost_when_patience_is_and_no_secret_shows(
    impatient: Probe,
) -> None:
    with pytest.raises(Refused) as caught:
        impatient.open(f"redis://:hidden-secret@127.0.0.1:{absent().port}").run_all([AGAIN])
    assert caught.value.code == "BUSMQ_LINK_LOST"
    assert "redis://***@127.0.0.1:" in str(caught.value)
    assert "hidden-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "password",
    [
        {"redis_password": "wrong-secret"},
        {"redis_password": "wrong-secret", "redis_username": "some-user"},
        {},
    ],
)
def test_a_wrong_or_missing_password_is_unauthorized_at_once_and_not_shown(
    probe: Probe, password: dict[str, str]
) -> None:
    with EmbeddedRedis(password="right-secret") as server:
        links = probe.open(f"redis://127.0.0.1:{server.port}", **password)
        with pytest.raises(Refused) as caught:
            links.run_all([call("SET", "a", 1)])
        assert caught.value.code == "BUSMQ_UNAUTHORIZED"
        assert "-secret" not in str(caught.value) + links.shown
        assert "some-user" not in str(caught.value) + links.shown


@pytest.mark.parametrize("user", ["user", "username"])
def test_words_of_redis_that_look_like_the_user_stay_whole(
    probe: Probe, redis_server: EmbeddedRedis, user: str
) -> None:
    with pytest.raises(Refused, match="invalid username-password pair or user is disabled"):
        probe.open(f"redis://{user}:word-of-mine@127.0.0.1:{redis_server.port}").run_all([AGAIN])


def test_the_right_password_is_taken_from_the_url(probe: Probe) -> None:
    with EmbeddedRedis(password="right@,secret+%") as server:
        assert probe.open(server.url).run_all([call("PING")]) == ["PONG"]


def test_a_user_without_the_right_to_run_a_script_is_unauthorized(probe: Probe) -> None:
    with EmbeddedRedis() as server:
        server.command("ACL", "SETUSER", "reader", "on", ">reader-secret", "~*", "+@all", "-rpush")
        server.command("HSET", QueueKeys("q").metadata, "ttl", 60)
        links = probe.open(
            f"redis://127.0.0.1:{server.port}",
            redis_username="reader",
            redis_password="reader-secret",
        )
        with pytest.raises(Refused, match="BUSMQ_UNAUTHORIZED"):
            links.run_all([push(QueueKeys("q"), "v")])


def test_the_rights_of_the_page_are_enough_and_without_subscribe_only_notifications_are_missing(
    probe: Probe,
) -> None:
    with EmbeddedRedis() as server:
        for missing, rings in (("+ping", True), ("-subscribe", False)):
            server.command("ACL", "SETUSER", "spark", "reset", "on", ">secret", *rights(), missing)
            links, keys = (
                probe.open(
                    f"redis://127.0.0.1:{server.port}",
                    redis_username="spark",
                    redis_password="secret",
                ),
                QueueKeys("q"),
            )
            links.run_all(
                [
                    call("HSET", keys.metadata, "ttl", 60),
                    push(keys, "v"),
                    call("LRANGE", keys.messages, 0, -1),
                ]
            )
            assert links.discover() == {"q": 0}
            links.listen(q=0)
            assert links.rings(10_000 if rings else 50) is rings
            server.command("CLIENT", "KILL", "USER", "spark")


def test_a_server_out_of_memory_is_full(probe: Probe) -> None:
    with EmbeddedRedis() as server:
        server.command("HSET", QueueKeys("q").metadata, "ttl", 60)
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Refused, match=r"BUSMQ_SERVER_FULL.*Nothing of this call was stored"):
            probe.open(server.url).run_all([push(QueueKeys("q"), "v")])


# Several servers


def test_a_queue_is_where_it_exists_else_where_its_name_hashes_to(
    probe: Probe, three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    links = probe.open(",".join(three_servers.urls))
    names = [fresh() for _ in range(6)]
    strange = QueueKeys(names[0])
    elsewhere = (server_index(strange.metadata, 3) + 1) % 3
    three_servers.servers[elsewhere].command("HSET", strange.metadata, "ttl", 60)
    expected = {name: server_index(QueueKeys(name).metadata, 3) for name in names}
    assert links.locate(*names) == {**expected, names[0]: elsewhere}
    assert links.discover()[names[0]] == elsewhere


@pytest.mark.parametrize("with_home", [True, False])
def test_of_two_servers_that_have_a_queue_its_hash_decides(
    probe: Probe, three_servers: EmbeddedStandaloneServers, fresh: Fresh, with_home: bool
) -> None:
    keys = next(
        keys
        for keys in (QueueKeys(fresh()) for _ in range(100))
        if server_index(keys.metadata, 3) == 2
    )
    for server in [1, 2] if with_home else [0, 1]:
        three_servers.servers[server].command("HSET", keys.metadata, "ttl", 60)
    expected = 2 if with_home else 0
    java, python = (
        probe.open(",".join(three_servers.urls)),
        [link_to(url) for url in three_servers.urls],
    )
    assert java.locate(keys.name)[keys.name] == java.discover()[keys.name] == expected
    assert (
        queue_location.locate([keys], python)[0]
        == dict(queue_location.discover_queues(python))[keys.name]
        == expected
    )
    for link in python:
        link.close()


def test_while_one_of_several_servers_is_away_no_place_is_guessed(
    impatient: Probe, redis_server: EmbeddedRedis
) -> None:
    with pytest.raises(Refused, match="BUSMQ_LINK_LOST"):
        impatient.open(f"{redis_server.url},redis://127.0.0.1:{absent().port}").locate("q")


# Sentinel


def test_a_server_that_is_not_master_any_more_is_not_used(probe: Probe) -> None:
    def answer(_: int, words: list[bytes]) -> bytes:
        if words[0] == b"SENTINEL":
            port = str(fake.server.port).encode()
            return b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port)
        return (
            roles.pop(0)
            if words[0] == b"ROLE"
            else (
                b":1\r\n"
                if said.pop()
                else b"-READONLY You can't write against a read only replica.\r\n"
            )
        )

    roles, said = [REPLICA, MASTER, MASTER], [True, False]
    fake = FakeRedis(answer)
    with fake:
        links = probe.open(url(fake.server), redis_layout="sentinel", redis_sentinelMaster="blue")
        assert links.run_all([ONCE]) == [1]
        assert [words[0] for words in fake.seen] == [
            b"SENTINEL",
            b"ROLE",
            b"SENTINEL",
            b"ROLE",
            b"INCR",
            b"SENTINEL",
            b"ROLE",
            b"INCR",
        ]
        assert fake.seen[0][2] == b"blue"


def test_a_name_that_no_sentinel_knows_is_an_error_of_the_options(probe: Probe) -> None:
    with FakeRedis(says(b"*-1\r\n")) as fake:
        links = probe.open(
            f"{url(fake.server)},redis://127.0.0.1:{absent().port}",
            redis_layout="sentinel",
            redis_sentinelMaster="blue",
        )
        with pytest.raises(Refused, match=r"BUSMQ_CONFIG.*no master 'blue'.*redis\.sentinelMaster"):
            links.run_all([AGAIN])


@pytest.mark.slow
def test_a_link_and_its_push_listener_follow_the_master_through_a_failover(probe: Probe) -> None:
    with EmbeddedSentinel(password="right") as group:
        links = probe.open(
            ",".join(group.urls),
            redis_layout="sentinel",
            redis_sentinelMaster=group.name,
            redis_password="right",
        )
        links.run_all([call("SET", "a", "before")])
        assert links.run("WAIT", 1, 10_000) == 1
        links.listen(q=0)
        assert links.rings(10_000)
        dead = group.kill_master()
        assert links.run_all([call("GET", "a"), call("SET", "a", "after")]) == ["before", "OK"]
        assert group.master is not dead
        assert links.rings(30_000), "a subscription that is back rings"
        group.master.command("PUBLISH", QueueKeys("q").available, "x")
        assert links.rings(30_000)


# Cluster


@pytest.fixture
def clustered(probe: Probe, cluster_servers: EmbeddedCluster) -> Iterator[Links]:
    links = probe.open(cluster_servers.urls[0], redis_layout="cluster")
    yield links
    probe("close", links.name)


def test_a_step_is_spread_over_all_masters_and_its_replies_stand_in_order(
    clustered: Links, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    keys = [f"{fresh()}-{i}" for i in range(100)]
    clustered.run_all([call("SET", key, i) for i, key in enumerate(keys)])
    assert clustered.run_all([call("GET", key) for key in keys]) == [str(i) for i in range(100)]
    assert len({cluster_servers.owner(key).port for key in keys}) == 3


def test_queues_of_all_nodes_are_discovered_and_scripts_are_sent_to_nodes_that_forgot_them(
    clustered: Links, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    names = [fresh(hint) for hint in "abcd"]
    for name in names:
        keys = QueueKeys(name, cluster=True)
        clustered.run_all([call("HSET", keys.metadata, "ttl", 60)])
        cluster_servers.owner(keys.metadata).command("SCRIPT", "FLUSH")
        assert clustered.run_all([push(keys, "1", "2")]) == [[1, 2]]
    assert set(names) <= set(clustered.discover())


def test_a_slot_that_moved_is_found_and_a_call_that_is_not_idempotent_is_executed_once(
    clustered: Links, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    key = fresh()
    clustered.run_all([call("SET", key, 41)])
    move = Move(cluster_servers, key)
    move.whole()
    assert clustered.run_all([call("INCR", key, idempotent=False)]) == [42]
    assert cluster_servers.owner(key) is move.target


def test_while_a_slot_moves_each_key_is_asked_for_where_it_is(
    clustered: Links, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    tag = fresh()
    moved, there, new = (f"{{{tag}}}{name}" for name in ("moved", "there", "new"))
    clustered.run_all([call("SET", moved, 1), call("SET", there, 1)])
    move = Move(cluster_servers, moved)
    move.begin()
    move.migrate(moved)
    try:
        assert [
            clustered.run("INCR", key, idempotent=False) for key in (moved, there, new, moved)
        ] == [2, 2, 1, 3]
    finally:
        move.migrate()
        move.end()
    assert clustered.run_all([call("GET", key) for key in (moved, there, new)]) == ["3", "2", "1"]


def test_a_push_waits_while_the_keys_of_its_queue_are_on_two_nodes(
    clustered: Links, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    keys = QueueKeys(fresh(), cluster=True)
    clustered.run_all([call("HSET", keys.metadata, "ttl", 60), push(keys, "before")])
    move = Move(cluster_servers, keys.metadata)
    move.begin()
    move.migrate(keys.messages)

    def told() -> bool:
        return "errorstat_TRYAGAIN" in str(move.target.command("INFO", "errorstats"))

    move.target.command("CONFIG", "RESETSTAT")
    clustered.ask_all([push(keys, "after")])
    wait_until(told, what="the push was told to try again")
    move.migrate()
    move.end()
    assert clustered.probe.answer() == [[2, 1]]


def test_a_server_that_is_no_node_of_a_cluster_is_an_error_of_the_options(
    probe: Probe, redis_server: EmbeddedRedis
) -> None:
    with pytest.raises(Refused, match=r"no node of a cluster; leave redis\.layout at direct"):
        probe.open(redis_server.url, redis_layout="cluster").run_all([AGAIN])


# PushListeners


def test_a_push_is_signalled_at_once_and_one_to_another_queue_is_not(
    probe: Probe, redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    links, name = probe.open(redis_server.url), fresh()
    links.listen(**{name: 0})
    assert links.rings(10_000), "a subscription that is new rings"
    redis_server.command("PUBLISH", QueueKeys(fresh()).available, "x")
    assert not links.rings(20)
    probe.ask("await", links.name, ms=30_000)
    redis_server.command("PUBLISH", QueueKeys(name).available, "x")
    assert probe.answer() is True


def test_a_push_listener_signals_again_after_redis_was_down(probe: Probe) -> None:
    with EmbeddedRedis() as server:
        links = probe.open(server.url)
        links.listen(q=0)
        assert links.rings(10_000)
        server.kill()
        server.restart()
        assert links.rings(30_000)
        server.command("PUBLISH", QueueKeys("q").available, "x")
        assert links.rings(30_000)


def test_an_idle_push_listener_keeps_its_connection(probe: Probe) -> None:
    with EmbeddedRedis() as server:
        links = probe.open(server.url)
        links.listen(q=0)
        assert links.rings(10_000)

        def pings() -> int:
            said = [
                line
                for line in str(server.command("INFO", "commandstats")).splitlines()
                if line.startswith("cmdstat_ping:")
            ]
            return int(said[0].split("calls=")[1].split(",")[0]) if said else 0

        def listener() -> str:
            return next(
                word
                for word in str(server.command("CLIENT", "LIST", "TYPE", "pubsub")).split()
                if word.startswith("id=")
            )

        first, before = listener(), pings()
        wait_until(
            lambda: pings() >= before + 7,
            what="it was in silence for more than twice as long as a link may be",
        )
        assert listener() == first


def test_readers_share_one_subscription_to_a_server(probe: Probe) -> None:
    with EmbeddedRedis() as server:
        probes = [probe.open(server.url) for _ in range(5)]
        for links in probes:
            links.listen(q=0)
        assert probes[0].rings(10_000)
        assert (
            len(str(server.command("CLIENT", "LIST", "TYPE", "pubsub")).strip().splitlines()) == 1
        )
        server.command("PUBLISH", QueueKeys("q").available, "x")
        assert all(links.rings(10_000) for links in probes)


@pytest.mark.slow
def test_a_failover_of_a_cluster_is_waited_for(probe: Probe, fresh: Fresh) -> None:
    with EmbeddedCluster() as group:
        links, keys = (
            probe.open(group.urls[0], redis_layout="cluster"),
            [fresh() for _ in range(20)],
        )
        links.run_all([call("SET", key, "before") for key in keys])
        dead = group.owner(keys[0])
        wait_in_sync(dead)
        group.kill_master(keys[0])
        assert links.run_all([call("GET", key) for key in keys]) == ["before"] * 20
        assert group.owner(keys[0]) is not dead
