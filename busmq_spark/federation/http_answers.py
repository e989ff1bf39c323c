"""The HTTP answers to a web-socket handshake, in one table for both clients.

An answer that may be another one a moment later is FederationLost, which is tried again; any other
is FederationRefused.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from busmq_spark.errors import FederationLost, FederationRefused
from busmq_spark.federation.address import NOT_AUTHORIZED_REASON

_TEMPORARY_STATUSES = frozenset({408, 425, 429})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REASONS = {
    200: "it is an HTTP server without web sockets at this path (200)",
    403: "it forbids this client to connect (403)",
    404: "it serves nothing at this path (404)",
    407: "a proxy on the way asks for credentials (407)",
}


def handshake_error(
    url: str, status: int, *, location: str = "", secret_in_url: bool = False
) -> FederationLost | FederationRefused:
    """Return the error for an HTTP status other than 101. ``location``: the target of a
    redirect.
    """
    if status >= 500 or status in _TEMPORARY_STATUSES:
        return FederationLost(
            url=url, reason=f"it answered the handshake with HTTP status {status}"
        )
    if status == 401:
        reason = "it does not know the secret (401)" if secret_in_url else NOT_AUTHORIZED_REASON
    elif status in _REDIRECTS:
        reason = (
            f"it sends clients on to {_without_secrets(location)} ({status}), and the secret is for"
            " this address only; give the address itself"
        )
    else:
        reason = _REASONS.get(status, f"it answered the handshake with HTTP status {status}")
    return FederationRefused(url=url, reason=reason, status=status)


def _without_secrets(location: str) -> str:
    """Return where a redirect leads, without user and query, which may repeat the secret."""
    try:
        parts = urlsplit(location)
        return repr(
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            if parts.netloc
            else parts.path
        )[:200]
    except ValueError:
        return "an address that cannot be read"
