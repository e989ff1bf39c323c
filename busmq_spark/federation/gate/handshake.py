"""From the head of an HTTP request to a decision. Pure: no socket, no web-socket library.

compat: paths, queries and answers are those of npm busmq 3.1.0 (protocol 5.1), save that a wrong
path is answered with 404 instead of silence.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

from busmq_spark.errors import ConfigError
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.rights import ANYONE, Identity
from busmq_spark.federation.gate.token import check_audience
from busmq_spark.metrics import HEALTH_PATH, LIVE_PATH, METRICS_PATH, READY_PATH

BUSMQ_HEADER = "X-Busmq"
"""Header of an accepted handshake: by it this package's clients distinguish its server from
npm's.
"""
BULK_SUBPROTOCOL: Final = "busmq.bulk.v1"
PAGE_PATHS = (HEALTH_PATH, LIVE_PATH, READY_PATH, METRICS_PATH)
REFUSAL_REASONS = ("path", "origin", "secret", "busy")
"""Why a handshake is refused: the values of a metric's label."""
MAX_QUERY_PAIRS = 1000  # compat: Node looks at no more
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_HOP = re.compile(
    r"(?:\[([0-9A-Fa-f:.]+(?:%[^\]]*)?)\]|([0-9.]+))(?::\d{1,5})?|([0-9A-Fa-f:.]+(?:%\S*)?)"
)
_BEARER = re.compile(r"bearer +([\x21-\x7e\x80-\U0010ffff]+)", re.IGNORECASE)
# Not from getLogger: no configuration of the program may enable it
WIRE_LOG = logging.Logger("busmq_spark.federation.wire")  # noqa: LOG001
"""The logger of every ``serve`` and ``connect`` of websockets; it writes nothing. At level DEBUG,
and in its reports of bad handshakes, websockets logs request lines, and in busmq's protocol a
request line holds the secret.
"""
WIRE_LOG.disabled = True


@dataclass(frozen=True, slots=True)
class HandshakeAcceptance:
    """The peer is accepted, with this protocol: busmq's own, or bulk (then the answer must name the
    subprotocol).
    """

    identity: Identity
    protocol: Literal["busmq", "busmq.bulk.v1"]


@dataclass(frozen=True, slots=True)
class HandshakeRefusal:
    """The answer instead of a web socket, complete as it is: no further header belongs into it."""

    status: int
    phrase: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class WebSocketHandshakePolicy:
    """The connections a server accepts. ``origins``: those of browsers, such as
    ``https://app.example.com``; none named means any.

    Without a keyring every client is accepted, except browsers whose origin is not named.
    """

    keyring: Keyring | None
    path: str = "/bus"
    origins: tuple[str, ...] = ()
    audience: str | None = None
    """Name that tokens must be signed for; without one those signed for no name."""

    def __post_init__(self) -> None:
        check_audience(self.audience)
        if not re.fullmatch(r"/[A-Za-z0-9/_.~-]*", self.path) or self.path in PAGE_PATHS:
            raise ConfigError(
                reason=(
                    f"path is {self.path!r}; expected one such as /bus, and none of"
                    f" {', '.join(PAGE_PATHS)}"
                )
            )
        for origin in self.origins:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+", origin):
                raise ConfigError(
                    reason=(
                        f"origin is {origin!r}; expected scheme, host and port only, such as"
                        " https://app.example.com"
                    )
                )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_networks(texts: Sequence[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Addresses of proxies, or networks of them such as 10.0.0.0/8. Raises ConfigError."""
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise ConfigError(
            reason=f"a proxy to trust: {error}; expected an address or a network such as 10.0.0.0/8"
        ) from None


def client_address(
    peer: str, headers: Sequence[tuple[str, str]], trusted: Sequence[IPv4Network | IPv6Network]
) -> str:
    """The last address in X-Forwarded-For that is no trusted proxy's: the addresses before it may
    be forged by the client.

    Ports and brackets are taken off. If the next hop is no address, the client is unknown: then the
    proxy that named it counts.
    """
    hops = [word for line in _header_values(headers, "x-forwarded-for") for word in line.split(",")]
    address = peer
    while _is_trusted(address, trusted) and hops and (hop := _hop_address(hops.pop())):
        address = hop
    return address


def _hop_address(text: str) -> str:
    """The address of a hop, of ``v4``, ``v4:port``, ``v6``, ``[v6]`` or ``[v6]:port``; empty for
    other text.
    """
    found = _HOP.fullmatch(text.strip().strip('"'))
    try:
        return (
            str(_without_mapping(ip_address((found[1] or found[2] or found[3]).partition("%")[0])))
            if found
            else ""
        )
    except ValueError:
        return ""


def _without_mapping(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 one stands for, or the address itself."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _is_trusted(text: str, trusted: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        address = _without_mapping(ip_address(text))
    except ValueError:
        return False
    return any(address in network for network in trusted)


def page_path(target: str) -> str | None:
    """Which of the pages for operators is asked for, if it is one: they need no secret and hold
    none.
    """
    path = split_target(target)[0]
    return path if path in PAGE_PATHS else None


def decide_handshake(
    target: str, headers: Sequence[tuple[str, str]], policy: WebSocketHandshakePolicy
) -> HandshakeAcceptance | HandshakeRefusal:
    """``target`` is the second word of the request line, ``headers`` every header line in any case,
    repeated ones repeatedly.
    """
    path, query = split_target(target)
    origins = _header_values(headers, "origin")
    if policy.keyring is None and origins and not policy.origins:
        return make_refusal(
            403,
            "Forbidden",
            "origin",
            "a server without secrets serves no web pages unless their origin is named\n",
        )
    if path != policy.path:
        return make_refusal(404, "Not Found", "path", "there is nothing at this path\n")
    if (
        policy.origins
        and origins
        and (
            len(origins) > 1
            or _normalize_origin(origins[0]) not in map(_normalize_origin, policy.origins)
        )
    ):
        return make_refusal(
            403, "Forbidden", "origin", "pages of this origin may not use this bus\n"
        )
    offered = [
        word.strip()
        for line in _header_values(headers, "sec-websocket-protocol")
        for word in line.split(",")
    ]
    protocol: Literal["busmq", "busmq.bulk.v1"] = (
        BULK_SUBPROTOCOL if BULK_SUBPROTOCOL in offered else "busmq"
    )
    if policy.keyring is None:
        return HandshakeAcceptance(ANYONE, protocol)
    shown = _find_secret(headers, query, bulk=protocol == BULK_SUBPROTOCOL)
    identity = None if shown is None else policy.keyring.identify_either(shown, policy.audience)
    if identity is None:
        # compat: exactly this header and no body
        return HandshakeRefusal(
            401, "Unauthorized", (("Content-type", "text/html"),), b"", "secret"
        )
    return HandshakeAcceptance(identity, protocol)


def is_metrics_reader(
    headers: Sequence[tuple[str, str]], keyring: Keyring | None, name: str
) -> bool | None:
    """Whether the Authorization header shows the secret ``name``; return None where there is no
    such header.
    """
    if not _header_values(headers, "authorization"):
        return None
    shown = _bearer_secret(headers)
    found = keyring.identify(shown) if keyring is not None and shown is not None else None
    return found is not None and found.name == name


def make_refusal(status: int, phrase: str, why: str, text: str) -> HandshakeRefusal:
    """An answer in plain text."""
    body = text.encode()
    headers = (
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    )
    return HandshakeRefusal(status, phrase, headers, body, why)


def _find_secret(headers: Sequence[tuple[str, str]], query: str, *, bulk: bool) -> str | None:
    """The one secret or token shown. URLs are logged on the way, so bulk takes none from there;
    with busmq's own protocol it goes first.
    """
    if not bulk and (secrets := query_parameters(query, "secret")):
        return secrets[0] if len(secrets) == 1 else None
    return _bearer_secret(headers)


def _bearer_secret(headers: Sequence[tuple[str, str]]) -> str | None:
    lines = _header_values(headers, "authorization")
    found = _BEARER.fullmatch(lines[0].strip(" \t")) if len(lines) == 1 else None
    return _decode_header_value(found[1]) if found else None


def split_target(target: str) -> tuple[str, str]:
    """Return path and query, both still escaped; a part after ``#`` is in neither."""
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


def query_parameters(query: str, name: str) -> list[str]:
    """Every value of a parameter, decoded as Node does it."""
    pairs = [pair.partition("=") for pair in query.split("&") if pair][:MAX_QUERY_PAIRS]
    return [unescape_percent(value) for key, _, value in pairs if unescape_percent(key) == name]


def unescape_percent(text: str) -> str:
    """compat: Node's querystring. Text whose escapes are no UTF-8, or not all complete, is decoded
    byte by byte.
    """
    text = text.replace("+", " ")
    if not _ESCAPES.search(text):
        return text
    try:
        if "%" in _ESCAPES.sub("", text):
            raise ValueError
        return _ESCAPES.sub(lambda found: unquote_to_bytes(found[0]).decode(), text)
    except ValueError:
        return unquote_to_bytes(bytes(ord(char) & 0xFF for char in text)).decode("utf-8", "replace")


def _header_values(headers: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [value for key, value in headers if key.lower() == name]


def _decode_header_value(value: str) -> str:
    """A header's value as its sender meant it: UTF-8 where it is that, else Latin-1, as which it
    was read.
    """
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _normalize_origin(text: str) -> str:
    return text.strip().rstrip("/").lower()
