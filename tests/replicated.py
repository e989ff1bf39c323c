"""A master and a replica, with a man in the middle who can hold the bytes between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from busmq_spark.embedded.server import EmbeddedRedis
from busmq_spark.options import RedisOptions
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.layout import redis_layout, sync_links
from busmq_spark.redis_io.sync_link import SyncLink
from tests.federation.cutting import Cutter, cutter
from tests.support import wait_until

SOON, LONG = 100, 60_000
"""Milliseconds: a wait whose end a test expects, and one that must not end by itself."""


class Pair(NamedTuple):
    """The servers. ``between.hush()`` holds what the master sends."""

    master: EmbeddedRedis
    replica: EmbeddedRedis
    between: Cutter

    def heal(self) -> None:
        """Let the replica connect again; it then has everything."""
        self.between.cut()
        wait_until(lambda: "master_link_status:up" in info(self.replica))
        wait_until(lambda: "state=online" in info(self.master))

    def fail_over_and_back(self) -> None:
        """Make the replica master, and the master again. Connections of clients survive that."""
        self.replica.command("REPLICAOF", "NO", "ONE")
        self.master.command("REPLICAOF", "127.0.0.1", str(self.replica.port))
        wait_until(lambda: "master_link_status:up" in info(self.master))
        self.master.command("REPLICAOF", "NO", "ONE")
        self.replica.command("REPLICAOF", "127.0.0.1", str(self.between.port))
        wait_until(lambda: "state=online" in info(self.master))

    def link(self) -> SyncLink:
        """Return a link to the master."""
        [link] = sync_links(redis_layout(RedisOptions(url=self.master.url)))
        assert isinstance(link, SyncLink)
        return link


def info(server: EmbeddedRedis) -> str:
    """Return what a server says of its replication."""
    return str(server.command("INFO", "replication"))


def count(server: EmbeddedRedis, queue: str) -> int:
    """Return how many messages of a queue a server has."""
    return int(str(server.command("LLEN", QueueKeys(queue, False).messages))) // 2


@contextmanager
def running_pair() -> Iterator[Pair]:
    """Start both servers."""
    settings = {"repl-diskless-sync-delay": "0", "repl-timeout": "3600"}
    with (
        EmbeddedRedis(settings=settings) as master,
        cutter(master.port) as between,
        EmbeddedRedis(replica_of=("127.0.0.1", between.port), settings=settings) as replica,
    ):
        yield Pair(master, replica, between)
