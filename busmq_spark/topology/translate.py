"""redis-py's errors to ours, in one table."""

from __future__ import annotations

import redis.exceptions as rx

from busmq_spark.errors import BusError, LinkLost, MessageRefused, ServerFull, ServerReadOnly, ServerRefused, Unauthorized
from busmq_spark.topology.urls import Server

NOT_EXECUTED = ("LOADING", "BUSY ", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN")
"""Replies that say: not now, and nothing was done. Such a call may be sent again."""
_FULL = ("OOM",)
_READ_ONLY = ("READONLY", "NOREPLICAS", "MISCONF")
_ACCESS = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "ERR invalid password", "ERR Client sent AUTH")


def translate(error: Exception, server: Server) -> BusError:
    """Our error for what redis-py raised or what Redis replied; the address is masked."""
    text = _plain(error)
    if "BUSMQ_MAX_ID" in text:
        return MessageRefused(reason="the queue has used up its ids (2^53-1, the last that JavaScript can count). Drain it and create it anew")
    kind: type[BusError]
    if isinstance(error, (rx.AuthenticationError, rx.NoPermissionError)) or text.startswith(_ACCESS):
        kind = Unauthorized
    elif isinstance(error, rx.OutOfMemoryError) or text.startswith(_FULL) or "-OOM" in text or "OOM command" in text:
        kind = ServerFull
    elif isinstance(error, rx.ReadOnlyError) or text.startswith(_READ_ONLY) or "READONLY" in text:
        kind = ServerReadOnly
    elif isinstance(error, (rx.ConnectionError, rx.TimeoutError, OSError)) or text.startswith(NOT_EXECUTED):
        kind = LinkLost
    else:
        kind = ServerRefused
    return kind(url=server.masked, reason=text)


def _plain(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
