"""Stand-ins for data centres: a Redis each, reached as if through a link that a test takes away and
gives back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.types import StringType, StructType

from busmq_spark.errors import LinkLost
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Range
from busmq_spark.store.protocol import ConsecutiveMessages
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.spark.engine import SCHEMA, Engine
from tests.support import wait_until

LINKS = {"federation.url": "eu=wss://eu.example/bus,us=wss://us.example/bus"}
SOURCES = ("", "eu", "us")


LINKED = StructType([*SCHEMA.fields]).add("source", StringType())


class Centre:
    """Where a link leads. ``down``: every call raises LinkLost; ``hangs``: none comes back before
    ``awake`` is set.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.down = False
        self.asked: list[str] = []
        self.awake = threading.Event()
        self.awake.set()
        self.rows_until_down = -1
        self.calls_until_down = -1
        """It goes down with the call after so many more; -1: it stays up."""

    def check(self) -> None:
        self.down |= self.calls_until_down == 0
        self.calls_until_down = max(-1, self.calls_until_down - 1)
        self.awake.wait()
        if self.down:
            raise LinkLost(url=self.url, reason="the test took it away")


class Remote:
    """The store behind a link: that of the Redis there, as long as the link is up."""

    def __init__(self, centre: Centre) -> None:
        self._centre = centre
        self._store: RedisStore = open_store(RedisOptions(url=centre.url))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name.startswith("_") or name in ("keys", "close"):
            return found

        def asked(*args: Any) -> Any:
            self._centre.asked.append(name)
            self._centre.check()
            return found(*args)

        return asked

    def push_listeners(self, notified: object) -> list[Any]:
        return []

    def read(self, part: Range, fail_on_data_loss: bool) -> Iterator[ConsecutiveMessages]:
        return self.read_many([part], fail_on_data_loss)

    def read_many(
        self, parts: Sequence[Range], fail_on_data_loss: bool
    ) -> Iterator[ConsecutiveMessages]:
        self._centre.check()
        for rows in self._store.read_many(parts, fail_on_data_loss):
            self._centre.rows_until_down -= len(rows.values)
            if self._centre.rows_until_down < 0 <= self._centre.rows_until_down + len(rows.values):
                self._centre.down = True
            self._centre.check()
            yield rows


def leading_to(centres: dict[str, Centre]) -> Callable[..., Remote]:
    """What stands for ``stores.open_link``."""
    return lambda _, link, *__: Remote(centres[link])


def ids(rows: list[Any], source: str) -> list[int]:
    return [id for _, id, _, found in rows if found == (source or "local")]


def gather(query: Engine, wanted: dict[str, int]) -> list[Any]:
    """Step until so many rows of each source have come."""
    rows: list[Any] = []

    def enough() -> bool:
        rows.extend(query.step() or [])
        return all(len(ids(rows, source)) >= many for source, many in wanted.items())

    wait_until(enough, what=f"rows {wanted}")
    return rows
