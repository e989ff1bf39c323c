"""Several servers as one: independent, behind sentinels, as a cluster."""

from __future__ import annotations

from contextlib import suppress

import pytest

from busmq_spark.embedded import (
    EmbeddedCluster,
    EmbeddedRedis,
    EmbeddedSentinel,
    EmbeddedStandaloneServers,
)
from busmq_spark.embedded.server import Reply
from busmq_spark.errors import LinkLost
from tests.support import gone, wait_in_sync, wait_until

pytestmark = pytest.mark.redis


def test_a_direct_group_is_several_servers_that_share_nothing() -> None:
    with EmbeddedStandaloneServers(3) as group:
        assert len(set(group.urls)) == 3
        group.servers[0].command("SET", "key", "value")
        assert [each.command("GET", "key") for each in group.servers] == ["value", None, None]
        pids = [each.pid for each in group.servers]
    assert all(gone(pid) for pid in pids)


def test_a_group_that_cannot_start_stops_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = EmbeddedRedis.start
    started: list[int] = []

    def second_fails(self: EmbeddedRedis) -> EmbeddedRedis:
        if started:
            raise LinkLost(url="redis://127.0.0.1", reason="broken on purpose")
        started.append(start(self).pid)
        return self

    monkeypatch.setattr(EmbeddedRedis, "start", second_fails)
    with pytest.raises(LinkLost, match="on purpose"):
        EmbeddedStandaloneServers(2).start()
    assert gone(started[0])


def role(server: EmbeddedRedis) -> Reply:
    """None when it hung up: a Sentinel that changes a role disconnects everybody, and may do so
    under the question.
    """
    with suppress(ConnectionError):
        answer = server.command("ROLE")
        assert isinstance(answer, list)
        return answer[0]
    return None


@pytest.mark.fault
def test_sentinels_make_a_replica_master_when_the_master_dies() -> None:
    with EmbeddedSentinel(password='se "cret') as group:
        assert len(set(group.urls)) == 3
        group.master.command("SET", "key", "value")
        wait_in_sync(group.master)
        old = group.kill_master()
        group.wait_healthy()
        assert group.master is not old
        assert group.master.command("GET", "key") == "value"
        old.restart()
        wait_until(lambda: role(old) == "slave", what="the old master is a replica")
        group.wait_healthy()
        assert group.replicas == [old]


@pytest.mark.fault
def test_a_cluster_serves_keys_on_every_master_and_survives_the_loss_of_one() -> None:
    with EmbeddedCluster() as group:
        assert (len(group.masters), len(group.replicas), len(set(group.urls))) == (3, 3, 6)
        keys = [f"key{number}" for number in range(50)]
        for key in keys:
            assert group.owner(key).command("SET", key, f"value of {key}") == "OK"
        assert {group.owner(key).port for key in keys} == {each.port for each in group.masters}
        for master in group.masters:
            wait_in_sync(master)
        lost = group.kill_master("key0")
        group.wait_healthy()
        assert lost not in group.masters
        assert len(group.masters) == 3
        assert [group.owner(key).command("GET", key) for key in keys] == [
            f"value of {key}" for key in keys
        ]


@pytest.mark.fault
def test_the_owner_of_a_key_is_found_when_the_node_asked_does_not_know_it_yet() -> None:
    """As for a moment during a fail-over: the next message of the owner says what it owns."""
    with EmbeddedCluster(replicas=0) as group:
        asked, owner = group.nodes[0], group.nodes[1]
        key = next(key for key in map(str, range(1000)) if group.owner(key) is owner)
        for _ in range(5):  # the message may come between the two calls
            assert (
                asked.command("CLUSTER", "DELSLOTS", asked.command("CLUSTER", "KEYSLOT", key))
                == "OK"
            )
            assert group.owner(key) is owner
            group.wait_healthy()
