"""A federation server of npm busmq 3.1.0, which dies of whatever it does not expect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from busmq_spark.bus.bus import Bus
from tests.peers.node import Peer
from tests.support import lasting_port, wait_until

SECRET = "s3cret & more"


class Npm:
    """A Node process with a federation server, on a port that it keeps when it is started anew."""

    def __init__(self, redis_url: str, secret: str = SECRET) -> None:
        self.redis_url, self.secret, self.port = redis_url, secret, lasting_port()
        self.start()

    def start(self) -> None:
        self.peer = Peer([self.redis_url])
        self.port = self.peer.call(
            "federateServe", urls=[self.redis_url], path="/bus", secret=self.secret, port=self.port
        )

    def drop(self) -> None:
        """Cut the connections of clients; a client that looks for a server that was restarted may
        have none for a while.
        """
        wait_until(lambda: self.peer.call("federateDrop") > 0, what="a client has a connection")

    def restart(self) -> None:
        self.peer.kill()
        self.start()

    @asynccontextmanager
    async def bus(self, secret: str = SECRET, **settings: Any) -> AsyncIterator[tuple[Bus, Bus]]:
        """A client's bus without Redis, and one on the server's Redis."""
        far = {
            "federate": f"http://127.0.0.1:{self.port}/bus",
            "federate_secret": secret,
            "federate_secret_in_url": True,
        }
        async with Bus(**{**far, **settings}) as bus, Bus(self.redis_url) as home:
            yield bus, home
        assert self.peer.call("federateSockets") is not None, "it lives"
        assert self.peer.errors == []
