"""Who is let in: the outcomes seen at a live Node server, Node's decoding, and what is stricter
here.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError
from busmq_spark.federation.gate.handshake import (
    BULK_SUBPROTOCOL,
    HandshakeAcceptance,
    HandshakeRefusal,
    WebSocketHandshakePolicy,
    decide_handshake,
    page_path,
    query_parameters,
    split_target,
    unescape_percent,
)
from busmq_spark.federation.gate.keyring import Keyring

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "handshake.json").read_text("utf-8"))
SECRET = "a-secret-of-some-length"
POLICY = WebSocketHandshakePolicy(Keyring.single(SECRET))
OFFER = ("Sec-WebSocket-Protocol", BULK_SUBPROTOCOL)
BEARER = ("Authorization", f"Bearer {SECRET}")


def status(
    target: str, *headers: tuple[str, str], policy: WebSocketHandshakePolicy = POLICY
) -> int:
    found = decide_handshake(target, headers, policy)
    return 101 if isinstance(found, HandshakeAcceptance) else found.status


@pytest.mark.parametrize("case", GOLDEN["vectors"], ids=lambda case: case["target"])
def test_outcomes_are_those_of_a_node_server(case: dict[str, Any]) -> None:
    policy = WebSocketHandshakePolicy(
        Keyring.single(case.get("server_secret", "notsosecret"), shortest=1, also_in_url_only=True),
        path="/",
    )
    expected = 404 if case["outcome"].startswith("no response") else int(case["outcome"])
    assert status(case["target"], policy=policy) == expected


def test_a_refusal_is_the_bytes_of_a_node_server() -> None:
    found = decide_handshake("/bus?secret=no", (), POLICY)
    assert isinstance(found, HandshakeRefusal)
    head = [
        f"HTTP/1.1 {found.status} {found.phrase}",
        *(f"{name}: {value}" for name, value in found.headers),
        "",
        "",
    ]
    assert "\r\n".join(head).encode() + found.body == bytes.fromhex(GOLDEN["response_401_hex"])


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/bu",
        "/bus/",
        "/bus/x",
        "//bus",
        "/BUS",
        "/%62us",
        "bus",
        "",
        "http://host/bus",
        "/bus;x",
        "/./bus",
        "*",
    ],
)
def test_only_the_exact_path_is_served(path: str) -> None:
    assert status(f"{path}?secret={SECRET}") == 404


def test_both_pages_need_no_secret_and_are_found_at_their_own_path_only() -> None:
    assert [
        page_path(target)
        for target in ("/healthz", "/metrics?x=1", "/bus", "/healthz/", "/Metrics")
    ] == [
        "/healthz",
        "/metrics",
        None,
        None,
        None,
    ]


@given(st.text(st.characters(codec="latin-1"), max_size=30))
def test_whatever_is_no_secret_is_refused(text: str) -> None:
    for headers in ((), (OFFER,)):
        assert status(f"/bus?secret={text}", *headers) == 401
        assert status("/bus", ("Authorization", text), *headers) == 401
        assert status("/bus", ("Authorization", f"Bearer {text}"), *headers) == 401


def test_bulk_looks_at_the_header_and_never_at_the_url() -> None:
    assert decide_handshake("/bus", (OFFER, BEARER), POLICY) == HandshakeAcceptance(
        POLICY.keyring.identify(SECRET), BULK_SUBPROTOCOL
    )  # type: ignore[arg-type]  # it is one
    assert status(f"/bus?secret={SECRET}", OFFER) == 401
    assert status("/bus?secret=wrong", OFFER, BEARER) == 101
    assert (
        status(
            "/bus",
            ("Sec-WebSocket-Protocol", f"chat, {BULK_SUBPROTOCOL}"),
            ("AUTHORIZATION", f"bearer  {SECRET}"),
        )
        == 101
    )


def test_busmqs_own_protocol_takes_the_header_only_when_the_url_names_no_secret() -> None:
    assert decide_handshake("/bus", (BEARER,), POLICY) == HandshakeAcceptance(
        POLICY.keyring.identify(SECRET), "busmq"
    )  # type: ignore[arg-type]  # it is one
    assert status("/bus?secret=wrong", BEARER) == 401
    assert status(f"/bus?secret={SECRET}&secret={SECRET}", BEARER) == 401


def test_a_repeated_header_is_refused() -> None:
    assert status("/bus", OFFER, BEARER, BEARER) == 401


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        f"Basic {SECRET}",
        f"Bearer{SECRET}",
        "Bearer",
        "Bearer ",
        f"Bearer {SECRET} x",
        f"Bearer {SECRET}x",
        f"Bearer {SECRET[:-1]}",
    ],
)
def test_other_authorizations_are_refused(value: str) -> None:
    assert status("/bus", OFFER, ("Authorization", value)) == 401


def test_a_token_opens_as_its_secret_does() -> None:
    token = POLICY.keyring.sign("all", 60)
    assert status(f"/bus?secret={token}") == 101
    assert status("/bus", OFFER, ("Authorization", f"Bearer {token}")) == 101


def test_a_secret_beyond_ascii_passes_in_a_header_in_either_encoding() -> None:
    policy = WebSocketHandshakePolicy(Keyring.single("žluťoučký-kůň-úpěl", also_in_url_only=True))
    assert (
        status(
            "/bus",
            OFFER,
            ("Authorization", "Bearer " + "žluťoučký-kůň-úpěl".encode().decode("latin-1")),
            policy=policy,
        )
        == 101
    )
    policy = WebSocketHandshakePolicy(
        Keyring.single("élégant-élégant-élégant", also_in_url_only=True)
    )
    assert (
        status("/bus", OFFER, ("Authorization", "Bearer élégant-élégant-élégant"), policy=policy)
        == 101
    )


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        ((), 101),
        (("https://app.example.com",), 101),
        (("HTTPS://APP.example.com",), 101),
        (("http://app.example.com",), 403),
        (("https://app.example.com:8443",), 403),
        (("https://app.example.com.evil.org",), 403),
        (("https://evil.org/https://app.example.com",), 403),
        (("null",), 403),
        (("",), 403),
        (("https://app.example.com", "https://app.example.com"), 403),
    ],
    ids=str,
)
def test_a_browser_must_come_from_a_listed_origin(origins: tuple[str, ...], expected: int) -> None:
    policy = WebSocketHandshakePolicy(
        POLICY.keyring, origins=("https://app.example.com", "https://other.example.com")
    )
    headers = [("Origin", origin) for origin in origins]
    assert status(f"/bus?secret={SECRET}", *headers, policy=policy) == expected
    assert status(f"/bus?secret={SECRET}", *headers) == 101


@pytest.mark.parametrize(
    "path", ["bus", "", "/bus?x", "/bus#x", "/b us", "/healthz", "/metrics", "/é"]
)
def test_a_path_that_no_client_could_ask_for_is_an_error(path: str) -> None:
    with pytest.raises(ConfigError):
        WebSocketHandshakePolicy(POLICY.keyring, path)


@pytest.mark.parametrize(
    "origin", ["*", "app.example.com", "https://app.example.com/", "https://app.example.com/x", ""]
)
def test_an_origin_that_no_browser_sends_is_an_error(origin: str) -> None:
    with pytest.raises(ConfigError):
        WebSocketHandshakePolicy(POLICY.keyring, origins=(origin,))


PIECES = [
    "secret",
    "=",
    "&",
    "+",
    "%",
    "%4",
    "%41",
    "%C3%A9",
    "%c3",
    "%A9",
    "%ff",
    "%ED%A0%80",
    "%F0%9F%98%80",
    "%00",
    "%zz",
    "#",
    "?",
    "a",
    "é",
    "ÿ",
    ";",
    "'",
    "|",
    "\\",
]


@pytest.mark.peer
def test_queries_are_decoded_exactly_as_node_does() -> None:
    chance = random.Random(4)
    targets = [
        "/p?" + "".join(chance.choices(PIECES, k=chance.randint(0, 12))) for _ in range(20_000)
    ]
    script = (
        "const url = require('url'); const all = JSON.parse(require('fs').readFileSync(0,"
        " 'utf8'));console.log(JSON.stringify(all.map((t) => [].concat(url.parse(t,"
        " true).query.secret ?? []))))"
    )
    done = subprocess.run(
        ["node", "-e", script],
        input=json.dumps(targets).encode(),
        capture_output=True,
        check=True,
        timeout=120,
    )
    ours = [query_parameters(split_target(target)[1], "secret") for target in targets]
    assert [
        pair
        for pair in zip(targets, ours, json.loads(done.stdout), strict=True)
        if pair[1] != pair[2]
    ] == []


@given(st.text())
def test_decoding_takes_any_text(text: str) -> None:
    assert isinstance(unescape_percent(text), str)
    decide_handshake(
        text,
        [("Origin", text), ("Authorization", text), ("Sec-WebSocket-Protocol", text)],
        WebSocketHandshakePolicy(POLICY.keyring, origins=("https://x",)),
    )
