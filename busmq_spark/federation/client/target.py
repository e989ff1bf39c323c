"""The address of a federation server, and the secret for it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from busmq_spark.errors import ConfigError
from busmq_spark.federation.address import authorization_header, check_federation_secret
from busmq_spark.parsers import check_web_socket_url
from busmq_spark.queue.caching import MemoizedFunction

WEBSOCKET_SCHEME_OF = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class FederationTarget:
    """``url`` as it was given: queues found at the server are stored under it. The secret is not in
    the repr.
    """

    url: str
    secret: str = field(repr=False)
    tls_ca: str | None = None
    secret_in_url: bool = False
    """For npm servers, which look for it there only: URLs are logged on the way."""
    compression: bool = False

    @property
    def url_to_dial(self) -> str:
        """Return the URL of the connection. It may hold the secret: never print it."""
        parts = urlsplit(self.url)
        query = f"?secret={quote(self.secret, safe='')}" if self.secret_in_url else ""
        return f"{WEBSOCKET_SCHEME_OF[parts.scheme]}://{parts.netloc}{parts.path or '/'}{query}"

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the handshake. It holds the secret: never print it."""
        return authorization_header(self.secret)

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for this URL; return None without TLS. Raises OSError for a file
        that cannot be used now.
        """
        if WEBSOCKET_SCHEME_OF[urlsplit(self.url).scheme] != "wss":
            return None
        return _cached_ssl_context(self.tls_ca, _version_of(self.tls_ca) if self.tls_ca else ())


def _version_of(file: str) -> tuple[int, ...]:
    """Return what changes with a file: one that replaces it may have the same time."""
    found = Path(file).stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _load_ssl_context(tls_ca: str | None, _version: tuple[int, ...]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=tls_ca)


_cached_ssl_context = MemoizedFunction(_load_ssl_context, 16)
"""The context of all dials until the file changes: reading the authorities takes longer than a
handshake. Without a file: whom the system trusts.
"""


def make_federation_target(
    url: str,
    secret: str | None,
    tls_ca: str | None = None,
    *,
    secret_in_url: bool = False,
    compression: bool = False,
) -> FederationTarget:
    """Raises ConfigError before anything is connected. The URL is shown in errors only when it can
    hold no secret.
    """
    try:
        check_web_socket_url(url, WEBSOCKET_SCHEME_OF)
    except ValueError as error:
        raise ConfigError(reason=f"the federation URL is none: {error}") from None
    if not secret:
        raise ConfigError(
            reason=(
                f"no secret for the federation server at {url}: set federate_secret, or federate(…,"
                " secret=…)"
            )
        )
    check_federation_secret(f"the secret for {url}", secret, secret_in_url=secret_in_url)
    if tls_ca and not Path(tls_ca).is_file():
        raise ConfigError(reason=f"federate_tls_ca is {tls_ca!r}, which is no file on this machine")
    return FederationTarget(url, secret, tls_ca, secret_in_url, compression)
