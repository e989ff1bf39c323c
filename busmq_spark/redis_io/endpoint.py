"""Where a link leads: always the same server, or whichever is master at the moment."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from busmq_spark.errors import BusError, LinkLost, StateError
from busmq_spark.redis_io.urls import Server

PATIENCE_S = 8.0
"""How long a step is retried while no server answers. Refused connections end the call in about 8 s; a last try that hangs adds its own time-out."""
FAILOVER_PATIENCE_S = 60.0
"""How long one step is retried while servers answer but none is master: Sentinel and Cluster need up to 35 s for a fail-over by default."""


class ServerUnreachable(LinkLost):
    """No sentinel, or no node of the cluster, could be reached: then waiting for a fail-over is useless."""


class Endpoint(Protocol):
    """What a link connects to. ``find`` says which server that is now."""

    @property
    def masked(self) -> str:
        """For people; shows no credentials."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no text for people may contain."""
        ...

    @property
    def moves(self) -> bool:
        """Whether another server may take over: then the one found must say it is master, and READONLY means that it no longer is."""
        ...

    def find(self) -> Server:
        """The server to connect to. Raises ServerUnreachable."""
        ...

    async def find_async(self) -> Server:
        """The same on the running loop."""
        ...


def patience(endpoint: Endpoint, error: BusError) -> float:
    """How long a step may be tried in all after this error."""
    return FAILOVER_PATIENCE_S if endpoint.moves and not isinstance(error, ServerUnreachable) else PATIENCE_S


@dataclass(slots=True)
class AnyOf:
    """One server after the other, a new one at each connect: for what every node of a cluster can do, such as pub/sub."""

    servers: tuple[Server, ...]
    _next: int = 0

    moves = False

    @property
    def masked(self) -> str:
        """All of them."""
        return ",".join(server.masked for server in self.servers)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Those of all."""
        return tuple(secret for server in self.servers for secret in server.secrets)

    def find(self) -> Server:
        """The next one."""
        self._next += 1
        return self.servers[self._next % len(self.servers)]

    async def find_async(self) -> Server:
        """The next one."""
        return self.find()


def stopped() -> StateError:
    """The error of a stopped link; not LinkLost, so that no caller retries."""
    return StateError(event="ask", what="Redis", state="no longer ours to ask", remedy="The peer it was for is gone")


def pause(error: BusError, attempt: int, elapsed_s: float, given_s: float) -> float:
    """Seconds to wait before the next try; raises the error when it is not one to wait for, or the time given is over."""
    if not isinstance(error, LinkLost):
        raise error from None
    pause_s: float = min(1.0, 0.02 * 2 ** min(attempt, 10)) * random.uniform(0.5, 1)  # noqa: S311  # jitter, not a secret
    if elapsed_s + pause_s > given_s:
        raise error from None
    return pause_s
