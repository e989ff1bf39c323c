"""The HTTP proxy that the environment names for a federation server. Both web-socket clients obey
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
import time
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from busmq_spark.errors import FederationLost, FederationRefused
from busmq_spark.federation.address import NOT_AUTHORIZED_REASON
from busmq_spark.federation.send_stall_meter import is_readable
from busmq_spark.parsers import host_and_port, split_url

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
