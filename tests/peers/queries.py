"""Streaming queries on the queues of a federation server of npm busmq, and those queues as its
Redis has them. Spark itself is played.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from busmq_spark.federation.npm_servers.npm_queue import READER_FIELD
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from tests.peers.npm import Npm
from tests.spark.engine import Engine
from tests.spark.links import LINKED
from tests.support import wait_until

SECRET = "s3cret-of-a-node-server"
Row = tuple[str, int, bytes, str]


class Queries:
    """``port``: where the server is reached, if not at its own."""

    def __init__(self, server: Npm) -> None:
        self.server, self.port = server, server.port
        self.made: list[Engine] = []
        self.redis = SyncLink(parse(server.redis_url)[0])

    def query(self, queue: str, **options: str) -> Engine:
        where = {
            "federation.url": f"dc=ws://127.0.0.1:{self.port}/bus",
            "federation.secret": SECRET,
            "federation.secretInUrl": "true",
        }
        named = {} if "subscribePattern" in options else {"subscribe": queue}
        self.made.append(
            Engine(
                {**where, **named, **options}, schema=LINKED, homes={"dc": self.server.redis_url}
            )
        )
        return self.made[-1]

    def restart(self, query: Engine, **options: str) -> None:
        """A new driver on the same checkpoint. The old one is taken for dead, though its process
        lives on.
        """
        query.restart(**options)
        for queue in query.options["subscribe"].split(","):
            self("HDEL", QueueKeys(queue).metadata, READER_FIELD)

    def fill(self, queue: str, first: int, last: int) -> None:
        """Push messages that say their ids."""
        if queue not in self.server.peer._messages:
            self.server.peer.attach(queue, ttl=600)
        assert self.server.peer.push_all(
            queue, [f"{queue}:{i}" for i in range(first, last + 1)]
        ) == list(range(first, last + 1))

    def take(self, queue: str, many: int) -> None:
        """Consume from Node, so that they are gone."""
        self.server.peer.consume(queue, max=many)
        self.server.peer.received(queue, many)

    def ids(self, queue: str, part: str = "messages") -> list[int]:
        return [int(id) for id in self("LRANGE", getattr(QueueKeys(queue), part), 0, -1)[0::2]]

    def fields(self, queue: str) -> Mapping[str, str]:
        found = [word.decode() for word in self("HGETALL", QueueKeys(queue).metadata)]
        return dict(zip(found[0::2], found[1::2], strict=True))

    def __call__(self, *words: str | int) -> Any:
        return self.redis.execute(command(*words))

    def close(self) -> None:
        for query in self.made:
            query.kill()
        self.redis.close()


def gather(query: Engine, many: int) -> list[int]:
    """Ids of the next rows, until there are so many; each row says its id."""
    rows: list[Any] = []

    def enough() -> bool:
        rows.extend(query.step() or [])
        return len(rows) >= many

    wait_until(enough, what=f"{many} rows")
    assert [row for row in rows if row[2:] != (f"{row[0]}:{row[1]}".encode(), "dc")] == []
    return [id for _, id, *_ in rows]


def settle(query: Engine, done: Any) -> None:
    """Step without rows until something is so."""

    def so() -> bool:
        assert not query.step()
        return bool(done())

    wait_until(so)


def upto(last: int, first: int = 1) -> list[int]:
    return list(range(first, last + 1))
