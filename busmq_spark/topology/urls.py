"""Text to servers. ``redis://[user:password@]host[:port]``, ``rediss://`` for TLS, ``unix:///path``; several separated by commas.

As in npm busmq the order of the list matters (all peers use the same), the database number is ignored, and a user part without a colon is the
password: ``redis://secret@host``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from busmq_spark.errors import ConfigError

DEFAULT_PORT = 6379


@dataclass(frozen=True, slots=True)
class Server:
    """One Redis server. Its repr and ``masked`` show no credentials."""

    host: str
    port: int
    tls: bool = False
    path: str | None = None
    user: str | None = field(default=None, repr=False)
    """Not shown either: of a password with a colon, given without a user, the first half lands here."""
    password: str | None = field(default=None, repr=False)

    @property
    def masked(self) -> str:
        """The address for people: credentials replaced by ``***``."""
        secret = "***@" if self.user or self.password else ""
        if self.path:
            return f"unix://{secret}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{secret}{host}:{self.port}"


def parse(urls: str, password: str | None = None) -> tuple[Server, ...]:
    """The servers of a comma list. ``password`` holds for every URL that has none of its own.

    Raises ConfigError that says which URL and why, and repeats nothing of it: a password that breaks its URL may stand anywhere in it.
    """
    given = [url.strip() for url in urls.split(",") if url.strip()]
    if not given:
        raise ConfigError(reason="redis.url is empty; expected redis://host:port, or several separated by commas")
    servers = []
    for place, url in enumerate(given, 1):
        try:
            servers.append(_server(url, password))
        except _Bad as bad:
            which = f"URL {place} of {len(given)} in redis.url" if len(given) > 1 else "redis.url"
            raise ConfigError(
                reason=f"{which}: {bad}; expected redis://[user:password@]host[:port], rediss://… or unix:///path. "
                "In a password percent-encode , @ / ? # [ ] and %"
            ) from None
    return tuple(servers)


class _Bad(Exception):
    """What is wrong with a URL, in words of ours only."""


def _server(url: str, password: str | None) -> Server:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _Bad("it is not a URL") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _Bad("it does not begin with a known scheme")
    login, _, address = parts.netloc.rpartition("@")
    user, secret = _credentials(login)
    if parts.scheme == "unix":
        if address or not parts.path:
            raise _Bad("it has a host" if address else "it has no path")
        if login and "@" in parts.path:
            raise _Bad("it has an @ behind its address")
        return Server("", 0, path=unquote(parts.path), user=user, password=secret or password)
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise _Bad("it has an @ behind its address")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _Bad("its port is not a number from 1 to 65535") from None
    if not host:
        raise _Bad("it has no host")
    return Server(host, port or DEFAULT_PORT, parts.scheme == "rediss", None, user, secret or password)


def _credentials(text: str) -> tuple[str | None, str | None]:
    user, colon, secret = text.partition(":")
    if not colon:
        user, secret = "", text
    return unquote(user) or None, unquote(secret) or None
