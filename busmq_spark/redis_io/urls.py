"""Text to servers. ``redis://[user:password@]host[:port]``, ``rediss://`` for TLS, ``unix:///path``; several separated by commas.

As in npm busmq the order of the list matters (all peers use the same), the database number is ignored, and a user part without a colon is the
password: ``redis://secret@host``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from busmq_spark.errors import ConfigError

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
DEFAULT_MASTER = "mymaster"
"""What the sentinels of most installations call their master."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """How TLS is checked: paths of PEM files. None means the system's authorities, and no certificate of our own."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    check_hostname: bool = True


SYSTEM_TLS_FILES = TlsFiles()


@dataclass(frozen=True, slots=True)
class DefaultCredentials:
    """DefaultCredentials for servers whose URL has none, and how their TLS is checked."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    trust: TlsFiles = SYSTEM_TLS_FILES


NO_LOGIN = DefaultCredentials()


@dataclass(frozen=True, slots=True)
class RedisServerAddress:
    """One Redis server. Its repr and ``masked_url`` show no credentials."""

    host: str
    port: int
    tls: bool = False
    path: str | None = None
    user: str | None = field(default=None, repr=False)
    """Not shown either: of a password with a colon, given without a user, the first half lands here."""
    password: str | None = field(default=None, repr=False)
    trust: TlsFiles = SYSTEM_TLS_FILES

    may_move = False

    def resolve(self) -> RedisServerAddress:
        """Itself: a server is an endpoint that never moves."""
        return self

    async def resolve_async(self) -> RedisServerAddress:
        """Itself."""
        return self

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no text for people may contain."""
        return tuple(secret for secret in (self.password, self.user) if secret)

    @property
    def masked_url(self) -> str:
        """The address for people: credentials replaced by ``***``."""
        secret = "***@" if self.user or self.password else ""
        if self.path:
            return f"unix://{secret}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{secret}{host}:{self.port}"


def parse(urls: str, login: DefaultCredentials = NO_LOGIN, default_port: int = DEFAULT_PORT) -> tuple[RedisServerAddress, ...]:
    """The servers of a comma list. ``login`` holds for every URL that has no credentials of its own.

    Raises ConfigError that says which URL and why, and repeats nothing of it: a password that breaks its URL may stand anywhere in it.
    """
    given = [url.strip() for url in urls.split(",") if url.strip()]
    if not given:
        raise ConfigError(reason="redis.url is empty; expected redis://host:port, or several separated by commas")
    servers = []
    for place, url in enumerate(given, 1):
        try:
            servers.append(_parse_server(url, login, default_port))
        except _UrlError as bad:
            which = f"URL {place} of {len(given)} in redis.url" if len(given) > 1 else "redis.url"
            raise ConfigError(
                reason=f"{which}: {bad}; expected redis://[user:password@]host[:port], rediss://… or unix:///path. "
                "In a password percent-encode , @ / ? # [ ] and %"
            ) from None
    return tuple(servers)


class _UrlError(Exception):
    """What is wrong with a URL, in words of ours only."""


def _parse_server(url: str, default: DefaultCredentials, default_port: int) -> RedisServerAddress:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _UrlError("it is not a URL") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _UrlError("it does not begin with a known scheme")
    login, _, address = parts.netloc.rpartition("@")
    user, secret = _parse_credentials(login)
    if secret is None:
        user, secret = user or default.user, default.password
    if parts.scheme == "unix":
        if address or not parts.path:
            raise _UrlError("it has a host" if address else "it has no path")
        if login and "@" in parts.path:
            raise _UrlError("it has an @ behind its address")
        return RedisServerAddress("", 0, path=unquote(parts.path), user=user, password=secret)
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise _UrlError("it has an @ behind its address")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _UrlError("its port is not a number from 1 to 65535") from None
    if not host:
        raise _UrlError("it has no host")
    return RedisServerAddress(host, port or default_port, parts.scheme == "rediss", None, user, secret, default.trust)


def _parse_credentials(text: str) -> tuple[str | None, str | None]:
    user, colon, secret = text.partition(":")
    if not colon:
        user, secret = "", text
    return unquote(user) or None, unquote(secret) or None
