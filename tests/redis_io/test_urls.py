"""URLs to servers, and no secret in anything a person or a log gets to see."""

from __future__ import annotations

import pickle

import pytest
import redis.exceptions as rx
from hypothesis import assume, example, given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError
from busmq_spark.redis_io.translate import translate_redis_error
from busmq_spark.redis_io.urls import DefaultCredentials, RedisServerAddress, parse
from tests.redis_io.url_table import BAD, GOOD


def test_a_plain_url_has_the_default_port() -> None:
    assert parse("redis://example.com") == (RedisServerAddress("example.com", 6379),)


@pytest.mark.parametrize(("urls", "servers"), GOOD)
def test_a_url_is_understood(
    urls: str, servers: list[tuple[str, int, bool, str | None, str | None]]
) -> None:
    assert [
        (each.host, each.port, each.tls, each.user, each.password) for each in parse(urls)
    ] == servers


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("unix:///var/run/redis.sock", RedisServerAddress("", 0, path="/var/run/redis.sock")),
        (
            "unix://me:secret@/run/my%20redis.sock",
            RedisServerAddress("", 0, path="/run/my redis.sock", user="me", password="secret"),
        ),
        ("unix:///run/a@b%3Fc%23d", RedisServerAddress("", 0, path="/run/a@b?c#d")),
    ],
)
def test_a_unix_socket_is_understood(url: str, server: RedisServerAddress) -> None:
    assert parse(url) == (server,)


def test_a_password_given_apart_is_for_urls_that_have_none() -> None:
    assert [
        server.password
        for server in parse(
            "redis://a,redis://:own@b,unix:///c", DefaultCredentials(password="apart")
        )
    ] == [
        "apart",
        "own",
        "apart",
    ]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        *BAD,
        ("unix://", "no path"),
        ("unix:///", "no path"),
        ("unix:/run/redis.sock", "scheme"),
        ("unix://here/redis.sock", "has a host"),
        ("unix://:pa@/ss@/redis.sock", "percent-encode"),
        ("unix:///run/redis.sock?db=5", "a query"),
        ("unix:///run/redis.sock#x", "a fragment"),
        ("unix:///run/redis.sock%00", "its path has a line break or another control character"),
        ("unix:///run/100%.sock", "percent-encoded UTF-8"),
        ("unix:///run/" + "a" * 103, "longer than the 107 bytes"),
        ("unix:///run/s,unix:///run/s", "names the server of URL 1 again"),
    ],
)
def test_a_bad_url_is_refused_with_its_reason(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(url)


def test_a_bad_url_among_several_is_named_by_its_place() -> None:
    with pytest.raises(ConfigError, match=r"URL 2 of 3"):
        parse("redis://a,http://b,redis://c")


def test_a_masked_url_shows_the_address_and_that_there_are_credentials() -> None:
    assert RedisServerAddress("h", 1, user="me", password="secret").masked_url == "redis://***@h:1"
    assert RedisServerAddress("h", 1).masked_url == "redis://h:1"
    assert (
        RedisServerAddress("::1", 1, tls=True, password="secret").masked_url
        == "rediss://***@[::1]:1"
    )
    assert (
        RedisServerAddress("", 0, path="/run/s", password="secret").masked_url
        == "unix://***@/run/s"
    )


def test_a_server_travels_with_its_password_though_it_never_shows_it() -> None:
    server = RedisServerAddress("h", 1, user="me", password="secret")
    assert pickle.loads(pickle.dumps(server)) == server


# No character of the frame around it, so that finding it means it leaked; but everything that
# breaks URLs.
secrets = st.text(st.sampled_from("QZ@:/?#,[]%é😀 "), min_size=1).map(
    lambda middle: f"XQ{middle}QX"
)
frames = st.sampled_from(
    [
        "redis://:{}@h:1",
        "redis://me:{}@h:1",
        "redis://{}@h:1",
        "rediss://me:{}@h",
        "unix://:{}@/s",
        "redis://:{}",
        "redis://me:{}",
        "{}@h:1",
        ":{}@h",
    ]
)


@given(
    secrets,
    frames,
    st.sampled_from(["{}", "redis://a,{}", "{},redis://b:2", "redis://a,{},nonsense"]),
)
@example("XQ,QX", "redis://:{}@h:1", "{}")
@example("XQ:QX", "{}@h:1", "{}")
@example("XQ#Q@ZQX", "redis://:{}@h:1", "{}")
def test_a_password_never_shows_however_it_breaks_its_url(
    secret: str, frame: str, around: str
) -> None:
    assume("@" not in secret or frame.count("@"))  # redis://:a@b is a good URL, of the host b
    try:
        servers = parse(around.format(frame.format(secret)))
    except ConfigError as error:
        shown = str(error) + repr(error)
    else:
        shown = " ".join(f"{server.masked_url} {server!r}" for server in servers if server.password)
        shown += "".join(server.host for server in servers)
        assert [server.password for server in servers if server.password] or frame in (
            "redis://:{}",
            "redis://me:{}",
        )
    assert "xq" not in shown.lower()
    assert "qx" not in shown.lower()


@pytest.mark.parametrize(
    "said",
    [
        "unknown command 'AUTH', with args beginning with: 'XQsecretQX' ",
        "unknown command `AUTH`, with args beginning with: `me`, `XQsecretQX`, ",
        "unknown command `EVALSHA`, with args beginning with: `a row of somebody's`, ",
        "Error 111 connecting to redis://:XQsecretQX@h:1. Connection refused.",
    ],
)
def test_what_redis_echoes_of_a_command_is_not_repeated(said: str) -> None:
    error = translate_redis_error(
        rx.ResponseError(said), RedisServerAddress("h", 1, password="XQsecretQX")
    )
    assert "XQsecretQX" not in str(error) + repr(error.details)
    assert "a row of somebody" not in str(error) + repr(error.details)
