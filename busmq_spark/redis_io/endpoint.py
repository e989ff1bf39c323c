"""The target of a link: a fixed server, or the present master."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Protocol

from busmq_spark.errors import LinkLost, StateError, WritesPaused
from busmq_spark.redis_io.retry import FAILOVER_PATIENCE_S, PATIENCE_S
from busmq_spark.redis_io.urls import RedisServerAddress

log = logging.getLogger("busmq_spark")
_next_warning: dict[str, float] = {}
"""The time of the next warning of a server that pauses writes, by the monotonic clock."""


class NoServerReachable(LinkLost):
    """No sentinel, or no node of the cluster, could be reached: then waiting for a fail-over is
    useless.
    """


class RedisEndpoint(Protocol):
    """The target of a link. ``resolve`` says which server that is now."""

    @property
    def masked_url(self) -> str:
        """For people; shows no credentials."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the secrets, which no text for people may contain."""
        ...

    @property
    def may_move(self) -> bool:
        """Whether another server may take over: then the one found must say it is master, and
        READONLY means that it no longer is.
        """
        ...

    def resolve(self) -> RedisServerAddress:
        """The server to connect to. Raises NoServerReachable."""
        ...

    async def resolve_async(self) -> RedisServerAddress:
        """Resolve on the running loop."""
        ...


def retry_time_s(endpoint: RedisEndpoint, error: Exception, chosen_s: float | None = None) -> float:
    """Return how long a step may be tried in all after this error; ``chosen_s`` where its caller
    says.

    Logs once a minute that writes pause.
    """
    paused = isinstance(error, WritesPaused)
    if paused and time.monotonic() >= _next_warning.get(endpoint.masked_url, 0.0):
        _next_warning[endpoint.masked_url] = time.monotonic() + FAILOVER_PATIENCE_S
        log.warning("%s", error)
    may_pass = paused or (endpoint.may_move and not isinstance(error, NoServerReachable))
    given_s = FAILOVER_PATIENCE_S if may_pass else PATIENCE_S
    return given_s if chosen_s is None else chosen_s


@dataclass(slots=True)
class RoundRobinEndpoint:
    """A target that takes one server after the other, a new one at each connect: for calls that
    every node of a cluster can execute, such as pub/sub.
    """

    servers: tuple[RedisServerAddress, ...]
    _next: int = 0

    may_move = False

    @property
    def masked_url(self) -> str:
        """All servers."""
        return ",".join(server.masked_url for server in self.servers)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of all servers."""
        return tuple(secret for server in self.servers for secret in server.secrets)

    def resolve(self) -> RedisServerAddress:
        """The next one."""
        self._next += 1
        return self.servers[self._next % len(self.servers)]

    async def resolve_async(self) -> RedisServerAddress:
        """The next one."""
        return self.resolve()


def stopped_error() -> StateError:
    """The error of a stopped link; not LinkLost, so that no caller retries."""
    return StateError(
        event="ask",
        what="Redis",
        state="no longer ours to ask",
        remedy="The peer it was for is gone",
    )
