"""The address of a federation server, its TLS settings, and the proxy on the way to it.

The address of a federation server, and its TLS settings; values only.

The HTTP proxy that the environment names for a federation server. Both web-socket clients obey
it alike.

Rule 1. HTTPS_PROXY is for wss://, HTTP_PROXY for ws://, NO_PROXY names hosts without a proxy:
        names, domains, addresses, networks, each with a port or without. Names in small letters
        come first. Other variables mean nothing here.
Rule 2. This machine is never reached through a proxy.
Rule 3. An error names the variable and the proxy, without its password.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import ssl
import time
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from websockets.exceptions import InvalidURI
from websockets.uri import WebSocketURI, parse_uri

from busmq_spark.errors import BusError, ConfigError, FederationLost, FederationRefused, TlsError
from busmq_spark.federation.send_stall_meter import is_readable
from busmq_spark.option_parsing import (
    can_be_in_header,
    check_secret,
    check_web_socket_url,
    host_and_port,
    split_url,
)
from busmq_spark.redis_io.retry import PATIENCE_S

CONNECT_TIMEOUT_S = 5.0
NOT_AUTHORIZED_REASON = (
    "it does not know the secret that the Authorization header carries, or the token has expired"
    " (401). An npm busmq server reads the secret from the URL only: for one, set"
    " federation.secretInUrl (Spark) or secret_in_url (Python), and use TLS"
)
"""The reason of a 401 for a client that has shown the secret in the header only."""


@dataclass(frozen=True, slots=True)
class FederationAddress:
    """The address of a federation server and the secret for it. Values only, so it may be pickled;
    the secret (or signed token) is in no repr.
    """

    url: str
    secret: str = field(default="", repr=False)
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_check_hostname: bool = True
    patience_s: float = PATIENCE_S
    """Seconds for which one step is retried while no server answers."""
    secret_in_url: bool = False
    """For npm servers, which look for it there only: URLs are logged on the way."""

    def parse_url(self) -> WebSocketURI:
        """Raises ConfigError for what is no address; its text does not repeat a password."""
        try:
            check_web_socket_url(self.url)
            found = parse_uri(self.url)
        except (InvalidURI, ValueError) as error:
            reason = str(error) if type(error) is ValueError else "it cannot be read"
            raise ConfigError(
                reason=(
                    f"federation.url is no web-socket address: {reason}; expected"
                    " ws://host:port/bus or wss://host/bus, and the secret in federation.secret"
                )
            ) from None
        check_federation_secret("federation.secret", self.secret, secret_in_url=self.secret_in_url)
        return found

    def check_offline(self) -> None:
        """Raises ConfigError for what can be known to be wrong without connecting."""
        if self.parse_url().secure:
            self.make_ssl_context()

    def make_ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises ConfigError for files that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            context.check_hostname = self.tls_check_hostname
            if self.tls_certificate:
                context.load_cert_chain(self.tls_certificate, self.tls_key, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(
                reason=f"a file of federation.tls.* cannot be used: {error}"
            ) from None
        return context


def dial_error(url: str, error: Exception) -> BusError:
    """Return the error of a connection that could not be made.

    It is a TlsError where TLS found a fault that waiting does not mend. A peer that goes away
    during its handshake is lost.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(url=url, reason=error.verify_message.rstrip("."))
    ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    # asyncio raises one without arguments for the same.
    if ended or (url.startswith("wss:") and isinstance(error, OSError) and not error.args):
        reason = "it closed the connection in the TLS handshake, as a port without TLS does"
        return FederationLost(url=url, reason=reason)
    if isinstance(error, ssl.SSLError):
        return TlsError(url=url, reason=(error.reason or str(error)).replace("_", " ").lower())
    reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
    return FederationLost(url=url, reason=reason or type(error).__name__)


def no_answer_error(url: str, error: Exception | None) -> FederationLost:
    """Return the error of a server whose answer to the handshake is not HTTP."""
    return FederationLost(
        url=url, reason=f"no HTTP answer to the handshake ({type(error).__name__})"
    )


def authorization_header(secret: str) -> dict[str, str]:
    """The header that shows a secret or a signed token; none where no header can carry it."""
    return {"Authorization": f"Bearer {secret}"} if secret and can_be_in_header(secret) else {}


def check_federation_secret(what: str, secret: str, *, secret_in_url: bool) -> None:
    """Raises ConfigError for a secret that our servers refuse to load. Npm servers take more, in
    the URL.
    """
    check_secret(what, secret)
    if not secret_in_url and not can_be_in_header(secret):
        raise ConfigError(
            reason=(
                f"{what} has characters that no HTTP header can carry; expected visible ASCII ones"
            )
        )


DEFAULT_PROXY_PORT = 80
MAX_HEAD_BYTES = 16 * 1024
_HOST_WITH_PORT = re.compile(r"(?:\[([^]]*)\]|([^:]*)):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """A proxy, and the variable that names it."""

    variable: str
    host: str
    port: int
    login: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"the proxy http://{self.host}:{self.port} of {self.variable}"


def proxy_of(url: str, host: str, port: int, *, secure: bool) -> ProxyAddress | None:
    """Return the proxy for a server, or None. Raises FederationRefused for a proxy of another kind
    than http://.
    """
    variable, text = _variable("https_proxy" if secure else "http_proxy")
    if not text or _is_this_machine(host) or _needs_none(host.lower(), port):
        return None
    parts = split_url(text if "://" in text else f"http://{text}")
    try:
        if parts is None or parts.scheme != "http":
            raise ValueError("it is none of http://")
        login, _, place = parts.place.rpartition("@")
        proxy_host, proxy_port = host_and_port(place)
    except ValueError as error:
        what = f"{variable} names a proxy that cannot be used: {error}"
        raise FederationRefused(
            url=url, reason=f"{what}; expected http://host:port, or {host} in NO_PROXY"
        ) from None
    return ProxyAddress(variable, proxy_host, proxy_port or DEFAULT_PROXY_PORT, unquote(login))


def open_tunnel(
    proxy: ProxyAddress, url: str, host: str, port: int, timeout_s: float
) -> socket.socket:
    """Return a connection to the server through the proxy. Raises FederationLost,
    FederationRefused.
    """
    deadline = time.monotonic() + timeout_s
    try:
        made = socket.create_connection((proxy.host, proxy.port), timeout=timeout_s)
    except OSError as error:
        raise FederationLost(
            url=url,
            reason=(
                f"{proxy} cannot be reached ({_text(error)}); NO_PROXY names hosts without a proxy"
            ),
        ) from None
    try:
        made.sendall(_connect_request(proxy, host, port))
        status = _read_status(made, deadline)
    except (OSError, ValueError) as error:
        made.close()
        raise FederationLost(
            url=url, reason=f"{proxy} opens no way to {host}:{port} ({_text(error)})"
        ) from None
    if 200 <= status < 300:
        return made
    made.close()
    found = handshake_error(url, status)
    raise type(found)(
        url=url,
        reason=(
            f"{proxy} answered CONNECT with HTTP status {status}; NO_PROXY names hosts without a"
            " proxy"
        ),
        status=status,
    )


async def open_tunnel_async(
    proxy: ProxyAddress, url: str, host: str, port: int, timeout_s: float
) -> socket.socket:
    """Open a tunnel like :func:`open_tunnel`, without blocking the loop."""
    opening = asyncio.get_running_loop().run_in_executor(
        None, open_tunnel, proxy, url, host, port, timeout_s
    )
    try:
        made = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_result)
        raise
    made.setblocking(False)
    return made


def _close_result(opening: asyncio.Future[socket.socket]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _variable(name: str) -> tuple[str, str]:
    for each in (name, name.upper()):
        # A web server puts a header of its client into HTTP_PROXY.
        if each in os.environ and not (each == "HTTP_PROXY" and "REQUEST_METHOD" in os.environ):
            return each, os.environ[each]
    return name.upper(), ""


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _needs_none(host: str, port: int) -> bool:
    for word in _variable("no_proxy")[1].lower().split(","):
        entry = word.strip()
        if found := _HOST_WITH_PORT.fullmatch(entry):
            if int(found[3]) != port:
                continue
            entry = found[1] or found[2]
        name = entry.strip("[]").removeprefix("*").lstrip(".")
        if entry == "*" or (
            name and (host == name or host.endswith(f".{name}") or _is_in_network(host, name))
        ):
            return True
    return False


def _is_in_network(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


def _connect_request(proxy: ProxyAddress, host: str, port: int) -> bytes:
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    login = base64.b64encode(proxy.login.encode()).decode()
    lines = [
        f"CONNECT {target} HTTP/1.1",
        f"Host: {target}",
        *([f"Proxy-Authorization: Basic {login}"] if proxy.login else []),
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


def _read_status(made: socket.socket, deadline: float) -> int:
    """Return the status of the proxy's answer. Raises ValueError for what is no HTTP, and
    OSError.
    """
    head = b""
    while b"\r\n\r\n" not in head:
        is_late = time.monotonic() > deadline and not is_readable(made)
        if len(head) > MAX_HEAD_BYTES or is_late:
            raise ValueError("its answer does not end")
        data = made.recv(1)  # the byte after the head is the server's
        if not data:
            raise ValueError("it closed the connection")
        head += data
    found = re.match(rb"HTTP/1\.[01] (\d{3})\b", head)
    if not found:
        raise ValueError("its answer is no HTTP")
    return int(found[1])


def _text(error: Exception) -> str:
    return (
        (error.strerror if isinstance(error, OSError) else None)
        or str(error)
        or type(error).__name__
    )


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
