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
    """One Redis server. Its repr and ``masked`` never show the password."""

    host: str
    port: int
    tls: bool = False
    path: str | None = None
    user: str | None = None
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
    """The servers of a comma list. ``password`` holds for every URL that has none of its own. Raises ConfigError, credentials masked."""
    servers = tuple(_server(url.strip(), password) for url in urls.split(",") if url.strip())
    if not servers:
        raise ConfigError(reason="redis.url is empty; expected redis://host:port, or several separated by commas")
    return servers


def _server(url: str, password: str | None) -> Server:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _bad(url, str(error)) from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _bad(url, f"its scheme is {parts.scheme!r}")
    user, secret = _credentials(parts.netloc.rpartition("@")[0])
    if parts.scheme == "unix":
        if not parts.path:
            raise _bad(url, "it has no path")
        return Server("", 0, path=unquote(parts.path), user=user, password=secret or password)
    if not parts.hostname:
        raise _bad(url, "it has no host")
    return Server(parts.hostname, port or DEFAULT_PORT, parts.scheme == "rediss", None, user, secret or password)


def _credentials(text: str) -> tuple[str | None, str | None]:
    user, colon, secret = text.partition(":")
    if not colon:
        user, secret = "", text
    return unquote(user) or None, unquote(secret) or None


def _bad(url: str, found: str) -> ConfigError:
    shown = f"{url[: url.index('://') + 3]}***@{url.rpartition('@')[2]}" if "@" in url and "://" in url else ("***" if "@" in url else url)
    return ConfigError(reason=f"redis.url {shown!r}: {found}; expected redis://[user:password@]host[:port], rediss://… or unix:///path")
