"""A bus here and its federation server, with a man in the middle, and a bus of a client that has no
Redis.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.client import socket as sockets
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.serve.server import FederationServer
from tests.federation.cutting import Cutter, cutter
from tests.federation.tools import SECRET


class Far:
    """Both ends. ``bus`` is the client's: it reaches the other through ``cutter`` only."""

    def __init__(self, home: Bus, server: FederationServer, man: Cutter, bus: Bus) -> None:
        self.home, self.server, self.cutter, self.bus = home, server, man, bus

    def queue(self, name: str) -> Any:
        return self.bus.federate(self.bus.queue(name))


@asynccontextmanager
async def far(
    redis_url: str, keyring: Keyring | None = None, **settings: Any
) -> AsyncIterator[Far]:
    async with (
        Bus(redis_url) as home,
        FederationServer(home, keyring or Keyring.single(SECRET)) as server,
    ):
        with cutter(server.port) as man:
            url = f"ws://127.0.0.1:{man.port}/bus"
            async with Bus(
                federate=url, **{"federate_secret": SECRET, "federate_sockets": 1, **settings}
            ) as bus:
                yield Far(home, server, man, bus)


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dial again at once."""
    monkeypatch.setattr(sockets, "DIAL_PAUSES_S", (0.005, 0.05))
