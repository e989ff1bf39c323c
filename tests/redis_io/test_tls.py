"""TLS: own authority, client certificate, and clear errors at once when one side does not trust the
other. Both drivers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.exceptions as rx

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError, LinkLost, TlsError
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.redis_io.range_connection import RangeConnection
from busmq_spark.redis_io.translate import translate_redis_error
from busmq_spark.redis_io.urls import parse
from tests.conftest import FreshKeys
from tests.redis_io.conftest import Driver
from tests.stored import read_at
from tests.tls import Authority, TlsProxy


def to(proxy: TlsProxy, **options: object) -> RedisEndpoint:
    [endpoint] = redis_layout(
        RedisOptions(url=f"rediss://127.0.0.1:{proxy.port}", **options)
    ).endpoints  # type: ignore[arg-type]
    return endpoint


def test_a_server_of_the_own_authority_is_trusted(
    driver: Driver, plain_tls: TlsProxy, authority: Authority, fresh_keys: FreshKeys
) -> None:
    made, keys = driver(to(plain_tls, tls_ca=str(authority.file))), fresh_keys()
    made.run(queue.attach(keys, "b", ttl_s=60))
    values = [b"%d" % i * 5000 for i in range(200)]
    assert made.run(queue.push_many(keys, values)) == 200
    assert [m.value for m in made.run(read_at(keys, 0, 300))] == values


def test_ranges_are_read_through_tls(
    plain_tls: TlsProxy, authority: Authority, redis_server: EmbeddedRedis, fresh_keys: FreshKeys
) -> None:
    keys: QueueKeys = fresh_keys()
    for i in range(1, 50):
        redis_server.command("RPUSH", keys.messages, i, b"x" * 100_000)
    link = RangeConnection(to(plain_tls, tls_ca=str(authority.file)))
    link.post(command("LRANGE", keys.messages, 0, -1))
    pairs = link.fetch_values()
    assert (pairs.first, pairs.last, int(pairs.lengths.sum())) == (1, 49, 4_900_000)
    link.drop()


def test_a_client_certificate_is_shown(
    driver: Driver, mutual_tls: TlsProxy, authority: Authority
) -> None:
    certificate, key = authority.issue("client")
    made = driver(
        to(
            mutual_tls,
            tls_ca=str(authority.file),
            tls_certificate=str(certificate),
            tls_key=str(key),
        )
    )
    assert made.execute(command("PING")) == b"PONG"


def test_a_key_in_the_file_of_its_certificate_needs_no_option(
    driver: Driver, mutual_tls: TlsProxy, authority: Authority
) -> None:
    certificate, key = authority.issue("both")
    both = authority.folder / "both-in-one.pem"
    both.write_text(key.read_text() + certificate.read_text())
    assert (
        driver(to(mutual_tls, tls_ca=str(authority.file), tls_certificate=str(both))).execute(
            command("PING")
        )
        == b"PONG"
    )


def test_without_the_certificate_that_the_server_requires_the_error_says_tls(
    driver: Driver, mutual_tls: TlsProxy, authority: Authority
) -> None:
    with pytest.raises(
        TlsError, match=r"certificate required|CERTIFICATE_REQUIRED.*redis\.tls\.certificate"
    ):
        driver(to(mutual_tls, tls_ca=str(authority.file))).execute(command("PING"))


@pytest.mark.parametrize("system", [True, False], ids=["system's", "stranger"])
def test_a_server_of_another_authority_is_not_trusted_and_not_asked_again(
    driver: Driver, plain_tls: TlsProxy, stranger: Authority, system: bool
) -> None:
    with pytest.raises(TlsError, match=r"certificate verify failed.*redis\.tls\.ca") as caught:
        driver(to(plain_tls, tls_ca=None if system else str(stranger.file))).execute(
            command("PING")
        )
    assert not caught.value.retriable


def test_a_certificate_for_another_host_is_refused_unless_the_name_is_not_checked(
    driver: Driver, authority: Authority, redis_server: EmbeddedRedis
) -> None:
    with TlsProxy(redis_server.port, authority.server_context("elsewhere.example")) as proxy:
        with pytest.raises(TlsError, match=r"(?i)hostname mismatch|IP address mismatch"):
            driver(to(proxy, tls_ca=str(authority.file))).execute(command("PING"))
        assert (
            driver(to(proxy, tls_ca=str(authority.file), tls_check_hostname=False)).execute(
                command("PING")
            )
            == b"PONG"
        )


@pytest.mark.parametrize(("url", "hint"), [("rediss://h", True), ("redis://h", False)])
def test_a_handshake_without_an_answer_hints_at_a_port_without_tls(url: str, hint: bool) -> None:
    error = translate_redis_error(rx.TimeoutError("Timeout connecting to server"), parse(url)[0])
    assert isinstance(error, LinkLost)
    assert ("a port that speaks no TLS" in str(error)) == hint


# Before any connection


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"url": "redis://h", "tls_ca": "{ca}"},
            r"redis\.tls\.ca is set, but no URL in redis\.url speaks TLS; write rediss://",
        ),
        (
            {"url": "redis://h", "tls_check_hostname": False},
            r"redis\.tls\.checkHostname is set, but no URL",
        ),
        (
            {"url": "rediss://h", "tls_ca": "/no/such.pem"},
            r"redis\.tls\.ca is '/no/such\.pem', which is no file on this machine",
        ),
        (
            {"url": "rediss://h", "tls_certificate": "/no/such.pem"},
            r"redis\.tls\.certificate is '/no/such\.pem'",
        ),
        (
            {"url": "rediss://h", "tls_key": "{key}"},
            r"redis\.tls\.key is set without redis\.tls\.certificate",
        ),
        (
            {"url": "rediss://h", "tls_ca": "{key}"},
            r"redis\.tls\.ca, .* holds no certificate in PEM form",
        ),
        (
            {"url": "rediss://h", "tls_certificate": "{certificate}", "tls_key": "{other}"},
            r"both must be PEM and belong together",
        ),
        ({"url": "rediss://h", "tls_certificate": "{certificate}"}, r"private key cannot be used"),
        (
            {"url": "redis://h", "master": "blue"},
            (
                r"redis\.sentinelMaster is 'blue', but redis\.layout is direct; set"
                r" redis\.layout=sentinel"
            ),
        ),
        ({"url": "redis://h", "master": "blue", "layout": "cluster"}, r"redis\.layout is cluster"),
        (
            {"url": "unix:///tmp/s", "layout": "sentinel"},
            r"unix socket, but redis\.layout=sentinel",
        ),
        ({"url": "unix:///tmp/s", "layout": "cluster"}, r"unix socket, but redis\.layout=cluster"),
        ({"url": "redis://a,rediss://b", "layout": "cluster"}, r"mixes redis:// and rediss://"),
    ],
)
def test_a_mistake_is_an_error_before_anything_is_connected(
    authority: Authority, options: dict[str, object], reason: str
) -> None:
    certificate, key = authority.issue("checked")
    files = {
        "ca": authority.file,
        "certificate": certificate,
        "key": key,
        "other": authority.issue("other")[1],
    }
    given = {
        name: text.format(**files) if isinstance(text, str) else text
        for name, text in options.items()
    }
    with pytest.raises(ConfigError, match=reason):
        redis_layout(RedisOptions(**given))  # type: ignore[arg-type]


def test_a_key_that_is_encrypted_is_refused_instead_of_asked_for_at_the_terminal(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("locked")
    locked = tmp_path / "locked.key"
    text = key.read_text().splitlines()
    locked.write_text(
        "\n".join(
            [
                text[0],
                "Proc-Type: 4,ENCRYPTED",
                "DEK-Info: AES-128-CBC,0123456789ABCDEF0123456789ABCDEF",
                "",
                *text[1:],
            ]
        )
    )
    with pytest.raises(ConfigError, match="cannot be used"):
        redis_layout(
            RedisOptions(url="rediss://h", tls_certificate=str(certificate), tls_key=str(locked))
        )
