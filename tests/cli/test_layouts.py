"""The command on sentinels, on a cluster, as an ACL user and over TLS: named by options or by the
environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis, EmbeddedSentinel
from tests.cli.conftest import Busmq, Start, line_of
from tests.conftest import Fresh
from tests.tls import Authority, TlsProxy

pytestmark = pytest.mark.redis


def words(group: Any, layout: str) -> list[str]:
    return ["--redis", ",".join(group.urls), "--layout", layout]


@pytest.mark.parametrize("layout", ["sentinel", "cluster"])
def test_messages_go_in_and_come_out_on_every_layout(
    busmq: Busmq, start: Start, request: pytest.FixtureRequest, fresh: Fresh, layout: str
) -> None:
    where = words(request.getfixturevalue(f"{layout}_servers"), layout)
    queue = fresh()
    assert busmq("push", queue, "one", "two", *where).code == 0
    assert [record["value"] for record in busmq("peek", queue, *where, "--json").records] == [
        "one",
        "two",
    ]
    assert {
        record["queue"]: record["messages"] for record in busmq("queues", *where, "--json").records
    }[queue] == 2
    assert busmq("info", queue, *where, "--json").records[0]["messages"] == 2
    tail = start("tail", queue, "--raw", *where)
    assert [line_of(tail), line_of(tail)] == [b"one\n", b"two\n"]
    busmq("push", queue, "three", *where)
    assert line_of(tail) == b"three\n"


def test_the_servers_of_a_cluster_are_its_masters(
    busmq: Busmq, cluster_servers: EmbeddedCluster, fresh: Fresh
) -> None:
    where = words(cluster_servers, "cluster")
    busmq("push", fresh(), "x", *where)
    found = busmq("info", *where, "--json").records
    assert {record["server"].rpartition(":")[2] for record in found} == {
        str(node.port) for node in cluster_servers.masters
    }
    assert sum(record["queues"] for record in found) >= 1
    plain = busmq("info", "--redis", cluster_servers.urls[0])
    assert "name its nodes with --layout cluster" in plain.err + plain.text


def test_the_environment_says_the_layout_too(
    busmq: Busmq, sentinel_servers: EmbeddedSentinel, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSMQ_REDIS_LAYOUT", "Sentinel")
    monkeypatch.setenv("BUSMQ_SENTINEL_MASTER", sentinel_servers.name)
    queue = fresh()
    assert busmq("push", queue, "x", url=sentinel_servers.urls[0]).code == 0
    assert sentinel_servers.master.command("LLEN", f"bus:queue:{queue}:messages") == 2


def test_a_master_that_the_sentinels_do_not_know_is_a_wrong_option(
    busmq: Busmq, sentinel_servers: EmbeddedSentinel
) -> None:
    done = busmq("queues", *words(sentinel_servers, "sentinel"), "--sentinel-master", "blue")
    assert done.code == 2
    assert "know no master 'blue'" in done.err


def test_a_user_with_its_own_password_and_tls(
    busmq: Busmq, tmp_path: Path, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.in_(tmp_path)
    certificate, key = authority.issue("client")
    monkeypatch.setenv("BUSMQ_REDIS_PASSWORD", "hunter2")
    with (
        EmbeddedRedis() as server,
        TlsProxy(server.port, authority.server_context("127.0.0.1", ask_client=True)) as proxy,
    ):
        server.command(
            "ACL", "SETUSER", "me", "on", ">hunter2", "~bus:*", "resetchannels", "&bus:*", "+@all"
        )
        server.command("ACL", "SETUSER", "default", "off")
        url = f"rediss://127.0.0.1:{proxy.port}"
        trust = [
            "--tls-ca",
            str(authority.file),
            "--tls-cert",
            str(certificate),
            "--tls-key",
            str(key),
        ]
        assert busmq("push", fresh(), "x", "--redis", url, "--user", "me", *trust).code == 0
        refused = busmq("push", fresh(), "x", "--redis", url, "--user", "me", *trust[:2])
        assert refused.code == 1
        assert "hunter2" not in refused.err + os.fsdecode(refused.out)
        assert "BUSMQ_TLS" in refused.err or "BUSMQ_LINK_LOST" in refused.err
        assert (
            "BUSMQ_UNAUTHORIZED"
            in busmq("push", fresh(), "x", "--redis", url, "--user", "you", *trust).err
        )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--layout", "ring"], "--layout is 'ring'; expected one of direct, sentinel, cluster"),
        (["--sentinel-master", "blue"], "set redis.layout=sentinel"),
        (["--tls-ca", "/no/such.pem"], "write rediss://"),
    ],
)
def test_a_wrong_mixture_is_exit_code_2(busmq: Busmq, arguments: list[str], reason: str) -> None:
    done = busmq("queues", *arguments)
    assert done.code == 2
    assert reason in done.err
