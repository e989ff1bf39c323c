"""Who may connect at all: so many sockets, and so many of one address, handshakes under way included."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from websockets.asyncio.server import ServerConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from busmq_spark.federation.handshake import Accept
    from busmq_spark.federation.limits import Limits

V6_PREFIX = 64
"""Bits of an IPv6 address that belong to one household: whoever has one such address has all of them."""


class Listener:
    """Counts the sockets of a server."""

    def __init__(self, limits: Limits, refused: Callable[[], None]) -> None:
        self._limits, self._refused = limits, refused
        self.head_bytes = limits.head_bytes
        self._by_address: Counter[str] = Counter()
        self.open = 0

    def connection(self, *args: Any, **keywords: Any) -> ServerConnection:
        """What websockets makes for each socket."""
        return Socket(self, *args, **keywords)

    def enter(self, address: str) -> bool:
        """Count one more; False when there are too many."""
        if self.open >= self._limits.connections or self._by_address[address] >= self._limits.connections_per_address:
            self._refused()
            return False
        self.open += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """One less."""
        self.open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class Socket(ServerConnection):
    """A web socket that is counted. One too many is closed before a byte of it is read."""

    accepted: Accept
    """What the handshake has decided."""

    def __init__(self, listener: Listener, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._listener, self._address, self._counted = listener, "", False
        self._head = listener.head_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP (and TLS) connection is there."""
        self._address = household(transport.get_extra_info("peername"))
        self._counted = self._listener.enter(self._address)
        if self._counted:
            super().connection_made(transport)
        else:
            cast(asyncio.Transport, transport).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._counted:
            self._listener.leave(self._address)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some of what the peer sends. Who is not let in yet sends no more than a head: websockets would keep a megabyte of it."""
        if self.request is None:
            self._head -= len(data)
            if self._head < 0:
                self.transport.abort()
                return
        super().data_received(data)

    def eof_received(self) -> None:
        """The peer sends no more."""
        if self._counted:
            super().eof_received()


def household(peer: Any) -> str:
    """The address, or of an IPv6 one the network it stands for."""
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return str(peer)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, V6_PREFIX), strict=False))
