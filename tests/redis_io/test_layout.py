"""From options to servers: every layout, whose credentials are whose, and no secret in sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from busmq_spark.errors import ConfigError
from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.layout import async_links, redis_layout, sync_links
from busmq_spark.redis_io.moving_endpoints import SentinelMaster
from busmq_spark.redis_io.urls import DefaultCredentials, RedisServerAddress, TlsFiles
from tests.tls import Authority


def test_direct_servers_are_the_endpoints_in_their_order() -> None:
    found = redis_layout(RedisOptions(url="redis://b,redis://a:7"))
    assert found.endpoints == (RedisServerAddress("b", 6379), RedisServerAddress("a", 7))
    assert not found.cluster


def test_credentials_of_the_options_are_for_urls_without_any() -> None:
    first, second = redis_layout(
        RedisOptions(url="redis://a,redis://:own@b", user="u", password="p")
    ).servers
    assert (first.user, first.password) == ("u", "p")
    assert (second.user, second.password) == (None, "own")


def test_sentinels_are_one_endpoint_and_the_credentials_are_the_masters() -> None:
    found = redis_layout(
        RedisOptions(
            url="redis://s1,redis://:sentinels@s2:7",
            user="u",
            password="p",
            layout="sentinel",
            master="blue",
        )
    )
    assert found.endpoints == (
        SentinelMaster(
            (RedisServerAddress("s1", 26379), RedisServerAddress("s2", 7, password="sentinels")),
            "blue",
            DefaultCredentials("u", "p"),
        ),
    )
    assert not found.cluster


def test_nodes_of_a_cluster_are_seeds_with_the_credentials_of_the_options() -> None:
    found = redis_layout(
        RedisOptions(url="redis://a:1,redis://b:2", password="p", layout="cluster")
    )
    assert found.cluster
    assert [server.password for server in found.servers] == ["p", "p"]


@pytest.mark.parametrize("layout", ["direct", "sentinel", "cluster"])
def test_what_to_trust_reaches_every_server(layout: str, tmp_path: Path) -> None:
    own = Authority.in_(tmp_path)
    certificate, key = map(str, own.issue("client"))
    tls = {
        "tls_ca": str(own.file),
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_check_hostname": False,
    }
    found = redis_layout(RedisOptions(url="rediss://a,rediss://b", layout=layout, **tls))
    trust = TlsFiles(str(own.file), certificate, key, check_hostname=False)
    assert {server.trust for server in found.servers} == {trust}
    assert found.login.trust == trust
    assert all(server.tls for server in found.servers)


@pytest.mark.parametrize("layout", ["direct", "sentinel", "cluster"])
def test_no_secret_shows(layout: str) -> None:
    found = redis_layout(
        RedisOptions(url="redis://x:hunter2@a", user="hunter3", password="hunter4", layout=layout)
    )
    shown = (
        repr(found)
        + found.masked_url
        + "".join(endpoint.masked_url + repr(endpoint) for endpoint in found.endpoints)
    )
    assert "hunter" not in shown
    assert "***@a" in found.masked_url


def test_a_url_that_is_none_is_an_error_of_the_options() -> None:
    with pytest.raises(ConfigError, match=r"redis\.url"):
        redis_layout(RedisOptions(url="http://a", layout="sentinel"))


@pytest.mark.parametrize(
    ("layout", "links"),
    [
        ("direct", ["SyncLink", "SyncLink"]),
        ("sentinel", ["SyncLink"]),
        ("cluster", ["SyncClusterLink"]),
    ],
)
def test_there_is_a_link_for_each_place_a_queue_may_be(layout: str, links: list[str]) -> None:
    found = redis_layout(RedisOptions(url="redis://a,redis://b", layout=layout))
    assert [type(link).__name__ for link in sync_links(found)] == links
    assert [type(link).__name__ for link in async_links(found)] == [
        f"Async{name.removeprefix('Sync')}" for name in links
    ]
    assert [link.endpoint for link in sync_links(found)] == list(found.endpoints)
