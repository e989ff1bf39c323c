"""What tests of the outbox share: layouts to forward to, and what is in queues in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.options import RedisOptions
from busmq_spark.outbox.outbox import SyncOutbox
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.redis_io.queue_location import locate
from busmq_spark.store.redis_store import RedisStore
from tests.bus.conftest import npm_federation, our_federation
from tests.layouts import LAYOUTS, servers_of
from tests.support import PATIENCE_S

__all__ = ["npm_federation", "our_federation"]  # fixtures


@dataclass(frozen=True)
class Place:
    """A Redis to forward to."""

    settings: dict[str, Any]

    @property
    def words(self) -> str:
        """The same for the program of ``program.py``."""
        return json.dumps(self.settings)

    def outbox(self, path: Path) -> SyncOutbox:
        more = {name: value for name, value in self.settings.items() if name != "url"}
        return SyncOutbox(path, self.settings["url"], **more)

    def run(self, queue: str, *words: Any) -> Any:
        """A command at the server of a queue."""
        store = RedisStore(redis_layout(RedisOptions(**self.settings)))
        try:
            keys = store.keys(queue)
            return store._links[locate([keys], store._links)[0]].execute(command(*words))
        finally:
            store.close()

    def keys(self, queue: str) -> QueueKeys:
        return QueueKeys(queue, self.settings.get("layout") == "cluster")

    def values(self, queue: str) -> list[bytes]:
        """What a queue holds, in its order."""
        found: list[bytes] = self.run(queue, "LRANGE", self.keys(queue).messages, 0, -1)[1::2]
        return found


@pytest.fixture(params=LAYOUTS)
def anywhere(request: pytest.FixtureRequest) -> Place:
    return Place(servers_of(request.param, request.getfixturevalue))


@pytest.fixture
def here(redis_url: str) -> Place:
    return Place({"url": redis_url})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def opened(path: Path, here: Place) -> Iterator[SyncOutbox]:
    """An outbox that is open, towards the Redis of the run."""
    with here.outbox(path) as outbox:
        yield outbox


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def drain(outbox: SyncOutbox) -> None:
    outbox.wait_drained(PATIENCE_S)
