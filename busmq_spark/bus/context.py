"""The part of a bus that its objects use. Objects import this file and never ``bus.py``, which
imports them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from busmq_spark.bus.keepalive import TtlKeepAlive
from busmq_spark.bus.redis_server_links import RedisServerLinks
from busmq_spark.errors import StateError
from busmq_spark.options import BusOptions


class BusContext(Protocol):
    """The surroundings of an object: tasks, servers, leases and the list of attached objects."""

    options: BusOptions
    """The settings of the bus; objects read ``cluster``, which shapes the names of their keys."""
    token: str
    """The name of this bus in leases."""
    keep_alive: TtlKeepAlive
    """The task that touches what is attached before its ttl ends."""
    warned: set[str]
    """The names of queues for which the warning about a short ttl was logged."""

    @property
    def servers(self) -> RedisServerLinks:
        """The links to the Redis servers. Raises StateError outside of the scope of the bus."""

    def _spawn(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run ``work`` as a task that ends with the bus; its error ends the scope of the bus."""

    def _check_loop(self) -> None:
        """Raise StateError unless the bus is open in this process, on this loop."""

    def _adopt(self, thing: Any) -> None:
        """Remember an attached object: leaving the bus detaches it."""

    def release(self, thing: Any) -> None:
        """Forget an object that has detached itself."""

    def _claim_lease(self, queue: str, consumer: object) -> bool:
        """Return whether ``consumer`` is the one that uses the lease of this bus on a queue."""

    def _release_lease(self, queue: str, consumer: object) -> None:
        """Let another consumer of this bus use the lease on a queue."""


def bus_not_open_error() -> StateError:
    """Return the error of a call, or of a push under way, whose bus is not open (any more)."""
    return StateError(
        event="use",
        what="the bus",
        state="not open",
        remedy="Use it inside 'async with Bus(...) as bus:'",
    )
