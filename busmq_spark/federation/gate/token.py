"""Signed tokens with an end: ``bt1.<claim>.<mac>``. Pure.

The claim is JSON, the mac HMAC-SHA256 over everything before it, both in base64 for URLs without
padding. The claim is not looked into before its mac is known to be right, so a stranger reaches no
parser.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from busmq_spark.errors import ConfigError
from busmq_spark.federation.gate.rights import Grants

MAX_TOKEN_LIFE_S = 366 * 24 * 3600
MAX_TOKEN_CHARACTERS = 4096
_TOKEN_PATTERN = re.compile(r"bt1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of a valid token."""

    name: str
    expires: float
    narrowed: Grants | None
    audience: str | None = None
    """Name of the servers that take it; None is the audience of servers without a name."""


def signing_key(secret: str) -> bytes:
    """Not the secret itself, so that nothing else made from it can be passed off as a token."""
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), b"busmq_spark token 1", sha256)


def sign_token(
    name: str,
    key: bytes,
    now: float,
    expires_s: float,
    narrow: Mapping[str, Any] | None = None,
    audience: str | None = None,
) -> str:
    """A token; raises ConfigError for a lifetime or a narrowing that makes no sense."""
    if not 0 < expires_s <= MAX_TOKEN_LIFE_S:
        raise ConfigError(
            reason=(
                f"a token is to be valid for {expires_s} s; expected more than 0 and at most"
                f" {MAX_TOKEN_LIFE_S} (a year)"
            )
        )
    claim: dict[str, Any] = {"n": name, "e": math.ceil(now + expires_s)}
    if narrow is not None:
        Grants.parse(narrow, "token")
        claim["g"] = dict(narrow)
    if audience is not None:
        check_audience(audience)
        claim["a"] = audience
    head = f"bt1.{_to_base64url(json.dumps(claim, separators=(',', ':')).encode())}"
    made = f"{head}.{_to_base64url(_signature(key, head))}"
    if len(made) > MAX_TOKEN_CHARACTERS:
        raise ConfigError(
            reason=(
                f"the token is {len(made)} characters long; expected at most"
                f" {MAX_TOKEN_CHARACTERS}. Narrow it with fewer patterns"
            )
        )
    return made


def check_audience(audience: str | None) -> None:
    """Raises ConfigError for what can be no name of servers."""
    if audience is not None and not re.fullmatch(r"[\x21-\x7e]{1,200}", audience):
        raise ConfigError(
            reason=(
                f"the audience is {audience!r}; expected up to 200 visible ASCII characters, such"
                " as eu.example.com"
            )
        )


def verify_token(
    text: str, keys: Sequence[tuple[str, bytes]], now: float, audience: str | None = None
) -> tuple[TokenClaims, int] | None:
    """The claim of a token that has not ended and is for ``audience``, and the index of its key in
    ``keys``, which are names and signing keys.
    """
    if len(text) > MAX_TOKEN_CHARACTERS or not _TOKEN_PATTERN.fullmatch(text):
        return None
    head, _, mac = text.rpartition(".")
    signer = -1
    for index, (_, key) in enumerate(keys):  # all of them, always
        if hmac.compare_digest(_to_base64url(_signature(key, head)), mac):
            signer = index
    if signer < 0:
        return None
    claim = _decode_claims(head.partition(".")[2])
    if claim is None or (claim.name, claim.audience) != (keys[signer][0], audience):
        return None
    return (claim, signer) if now < claim.expires <= now + MAX_TOKEN_LIFE_S + 60 else None


def _decode_claims(text: str) -> TokenClaims | None:
    try:
        found = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        name, expires, narrow, audience = found["n"], found["e"], found.get("g"), found.get("a")
        if (
            type(name) is not str
            or type(expires) is not int
            or type(audience) not in {str, type(None)}
        ):
            return None
        return TokenClaims(
            name, expires, None if narrow is None else Grants.parse(dict(narrow), "token"), audience
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError):
        return None


def _signature(key: bytes, head: str) -> bytes:
    return hmac.digest(key, head.encode("ascii"), sha256)


def _to_base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
