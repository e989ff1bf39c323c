"""The doors of a server: addresses behind proxies, crowds of handshakes, who sees names at
/metrics, and for whom a token is.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from busmq_spark.errors import ConfigError
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.client.socket import make_federation_target
from busmq_spark.federation.gate.handshake import client_address, parse_networks
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.federation.serve.server import FederationServer
from tests.federation.conftest import Serve
from tests.federation.raw import Raw, all_closed, request
from tests.federation.tools import SECRET

PROXIES = parse_networks(["127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"])


@pytest.mark.parametrize(
    ("hops", "address"),
    [
        ("9.9.9.9", "9.9.9.9"),
        ("9.9.9.9:1000", "9.9.9.9"),
        (" 9.9.9.9:1000 ", "9.9.9.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%eth0]:5", "fe80::1"),
        ("9.9.9.9, 10.1.2.3:55", "9.9.9.9"),
        ("8.8.8.8, 9.9.9.9:1", "9.9.9.9"),
        ("9.9.9.9, [fd00::5]:80, 10.1.1.1", "9.9.9.9"),
        ("evil, 9.9.9.9", "9.9.9.9"),
        ("9.9.9.9, unknown", "127.0.0.1"),
        ("9.9.9.9, unknown, 10.1.1.1:7", "10.1.1.1"),
        ("9.9.9.9, _hidden", "127.0.0.1"),
        ("", "127.0.0.1"),
        (",", "127.0.0.1"),
        ("1.2.3.4:notaport", "127.0.0.1"),
        ("999.1.1.1:5", "127.0.0.1"),
        ("12:34", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("9.9.9.9, ::ffff:10.0.0.1", "9.9.9.9"),
    ],
)
def test_the_client_behind_proxies_is_an_address_without_a_port(hops: str, address: str) -> None:
    assert client_address("127.0.0.1", [("X-Forwarded-For", hops)], PROXIES) == address
    assert client_address("7.7.7.7", [("X-Forwarded-For", hops)], PROXIES) == "7.7.7.7", (
        "a stranger may say what it likes"
    )


async def test_ports_that_a_proxy_adds_do_not_evade_the_limit_of_an_address(
    federation: Serve,
) -> None:
    async with (
        federation(limits=PeerLimits(connections_per_address=3), proxies=["127.0.0.1"]) as (
            _,
            server,
        ),
        all_closed(),
    ):
        forms = ("9.9.9.9:1000", "9.9.9.9:1001", "9.9.9.9", "9.9.9.9:1", "[::ffff:9.9.9.9]:77")
        seen = []
        for form in forms:
            raw = await Raw.dial(server.port)
            seen.append(
                (await raw.ask(request(f"/bus?secret={SECRET}", f"X-Forwarded-For: junk, {form}")))[
                    0
                ]
            )
        assert seen == [101, 101, 101, 503, 503]


def dialled(port: int, data: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.sendall(data)
    return made


async def test_a_crowd_of_handshakes_does_not_end_those_whose_request_is_there(
    federation: Serve,
) -> None:
    """The loop does not run while they connect, as when a crowd comes at once."""
    async with (
        federation(limits=PeerLimits(handshakes=20), proxies=["127.0.0.1"]) as (_, server),
        all_closed(),
    ):
        head = request(f"/bus?secret={SECRET}", "X-Forwarded-For: 9.9.9.9")
        good = [dialled(server.port, head) for _ in range(8)]
        slow = [dialled(server.port, b"GET /bus HTTP/1.1\r\nHost: x\r\n") for _ in range(30)]
        for each in good:
            each.setblocking(False)
            raw = Raw(*await asyncio.open_connection(sock=each))
            assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        for each in slow:
            each.close()


async def test_slow_handshakes_behind_a_proxy_count_for_their_client(federation: Serve) -> None:
    async with (
        federation(limits=PeerLimits(handshakes=6, handshake_s=600.0), proxies=["127.0.0.1"]) as (
            _,
            server,
        ),
        all_closed(),
    ):
        patient = await Raw.dial(server.port)
        patient.send(b"GET /bus HTTP/1.1\r\nX-Forwarded-For: 9.9.9.9\r\n")
        for _ in range(30):
            raw = await Raw.dial(server.port)
            raw.send(b"GET /bus HTTP/1.1\r\nX-Forwarded-For: 6.6.6.6:7\r\n")
        slow = [await Raw.dial(server.port) for _ in range(3)]
        await slow[-1].ask(request("/livez"))  # what came before has been read
        patient.send(request("/").partition(b"\r\n")[2])
        assert (await patient.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 "), (
            "it was not ended"
        )


async def test_names_of_secrets_are_shown_at_metrics_to_one_secret_only(federation: Serve) -> None:
    names = ("prometheus", "payments", "audit")
    ring = Keyring({name: (f"{name}-0123456789abcdef", Grants.all_allowed()) for name in names})
    async with federation(ring, metrics_secret="prometheus") as (_, server), all_closed():
        await Raw.open(server.port, "/bus?secret=payments-0123456789abcdef")
        await Raw.open(server.port, "/bus?secret=audit-0123456789abcdef")

        async def metrics(*lines: str) -> tuple[int, str]:
            status, _, body = await (await Raw.dial(server.port)).ask(request("/metrics", *lines))
            return status, body.decode()

        status, text = await metrics()
        assert status == 200
        assert "busmq_federation_secret_sockets 2.0\n" in text
        assert [name for name in names if name in text] == []
        assert (await metrics("Authorization: Bearer payments-0123456789abcdef"))[0] == 401
        assert (await metrics("Authorization: Bearer wrong"))[0] == 401
        status, text = await metrics("Authorization: Bearer prometheus-0123456789abcdef")
        assert (status, 'busmq_federation_secret_sockets{secret="payments"} 1' in text) == (
            200,
            True,
        )
    async with federation(ring) as (_, server), all_closed():
        status, _, body = await (await Raw.dial(server.port)).ask(
            request("/metrics", "Authorization: Bearer prometheus-0123456789abcdef")
        )
        assert (status, b"payments" in body) == (200, False)
        with pytest.raises(ConfigError, match="'nobody'; expected the name of a secret"):
            FederationServer(server._bus, ring, metrics_secret="nobody")


async def test_a_token_opens_servers_of_its_audience_only(federation: Serve) -> None:
    ring = Keyring.single(SECRET)
    tokens = {name: ring.sign("all", 600, audience=name) for name in ("eu", "us", None)}

    async def let_in(audience: str | None) -> list[str | None]:
        async with federation(ring, audience=audience) as (_, server), all_closed():
            found = []
            for name, token in tokens.items():
                raw = await Raw.dial(server.port)
                if (await raw.ask(request("/bus", f"Authorization: Bearer {token}")))[0] == 101:
                    found.append(name)
            return found

    assert [await let_in(name) for name in ("eu", "us", None)] == [["eu"], ["us"], [None]]
    for wrong in ("", "a b", "é", "x" * 201):
        with pytest.raises(ConfigError, match="the audience is"):
            ring.sign("all", 600, audience=wrong)


BAD_ENDS = {
    "line break": ("{}\n", "{}\r\n", "\n{}"),
    "byte-order mark": ("\ufeff{}", "{}\ufeff"),
    "blank": (" {}", "{} ", "\u00a0{}", "{}\u2028"),
    "control character": ("\t{}", "{}\x00"),
    "quotes around it": ('"{}"', "'{}'", "`{}`"),
}


@pytest.mark.parametrize(
    ("what", "form"), [(what, form) for what, forms in BAD_ENDS.items() for form in forms]
)
@pytest.mark.parametrize("in_url", [False, True])
def test_a_secret_that_a_file_or_shell_has_changed_is_refused_on_both_sides(
    what: str, form: str, in_url: bool
) -> None:
    secret = form.format("sixteen-characters-or-more")
    for load in (
        lambda: Keyring.single(secret),
        lambda: FederationAddress("ws://h/bus", secret, secret_in_url=in_url).parse_url(),
        lambda: make_federation_target("ws://h/bus", secret, secret_in_url=in_url),
    ):
        with pytest.raises(ConfigError, match=f"expected no {what}") as caught:
            load()
        assert "sixteen" not in str(caught.value)


@pytest.mark.parametrize(
    "secret", ["with a space inside it", "ünïcödé-sécrét-日本-secret", "tab\tinside-the-secret-xx"]
)
def test_a_secret_that_no_header_carries_is_refused_on_both_sides(secret: str) -> None:
    for load in (
        lambda: Keyring.single(secret),
        lambda: make_federation_target("ws://h/bus", secret),
    ):
        with pytest.raises(ConfigError, match="no HTTP header can carry"):
            load()


TEXT = '[spark]\nsecret = "sixteen-characters-or-more"\nread = ["orders-*"]\n'


@pytest.mark.parametrize(
    ("data", "mode", "found"),
    [
        (TEXT.replace("\n", "\r\n").encode(), 0o600, ""),
        (b"\xef\xbb\xbf" + TEXT.encode(), 0o600, ""),
        (TEXT.encode(), 0o440, ""),
        (TEXT.encode("utf-16"), 0o600, "is not UTF-8 text but UTF-16; save it as UTF-8"),
        (TEXT.encode("utf-16-be"), 0o600, "is not TOML"),
        (
            b"# f\xfcr Spark\n" + TEXT.encode(),
            0o600,
            "is not UTF-8 text: byte 0xfc in line 1; save it as UTF-8",
        ),
        (TEXT.encode(), 0o644, "chmod o-rwx"),
        (TEXT.encode(), 0o444, "defaultMode: 0440"),
        (TEXT.encode(), 0o460, "chmod g-w"),
        (TEXT.encode(), 0o660, "chmod g-w"),
    ],
)
def test_a_file_of_secrets_is_obeyed_or_says_what_is_wrong(
    tmp_path: Path, data: bytes, mode: int, found: str
) -> None:
    path = tmp_path / "secrets.toml"
    path.write_bytes(data)
    path.chmod(mode)
    if not found:
        assert Keyring.load(path).names == ("spark",)
        return
    with pytest.raises(ConfigError, match=found):
        Keyring.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_a_file_of_secrets_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secrets.toml"
    path.write_text(TEXT)
    path.chmod(0o440)
    os.chown(path, 12345, 0)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        Keyring.load(path)
