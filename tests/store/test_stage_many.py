"""Rows staged for many queues: small chunks do not wait for each other's replies, and a link that
breaks under hundreds of them costs no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import StagingLost
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_append import MAX_CHUNKS_UNDER_WAY, MAX_FULL_CHUNKS_UNDER_WAY
from busmq_spark.store.redis_store import RedisStore, open_store
from busmq_spark.writing import sink as sinks
from tests.conftest import Fresh

pytestmark = pytest.mark.redis
QUEUES = 400


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as made:
        yield made


@pytest.fixture
def store(server: EmbeddedRedis) -> Iterator[RedisStore]:
    made = open_store(RedisOptions(url=server.url))
    yield made
    made.close()


class UnderWay:
    """Counts the calls that a link has sent and not been answered."""

    def __init__(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.sent = 0
        [link] = store._links
        post, fetch = link.post, link.fetch

        def posted(call: Any) -> None:
            post(call)
            self.sent += 1
            self.now += 1
            self.most = max(self.most, self.now)
            self.after(self.sent)

        def fetched() -> Any:
            self.now -= 1
            return fetch()

        monkeypatch.setattr(link, "post", posted)
        monkeypatch.setattr(link, "fetch", fetched)

    def after(self, sent: int) -> None:
        """Called when so many were sent."""


def stage(
    store: RedisStore, queues: list[str], rounds: int, rows: int
) -> tuple[sinks.StagedList, ...]:
    """Rows of each queue in turn, as a task stages them."""
    appender, attempts = (
        store.appender(),
        {queue: sinks.attempt_name("", "1", 0, new_token()) for queue in queues},
    )
    for number in range(rounds):
        for queue in queues:
            values = [f"{queue}:{number}:{row}".encode() for row in range(rows)]
            appender.stage(queue, store.keys(queue).stage(attempts[queue]), values)
    return tuple(appender.finish())


def names(store: RedisStore, fresh: Fresh, many: int) -> list[str]:
    base = fresh()
    queues = [f"{base}-{number}" for number in range(many)]
    store.attach(queues, QueueCreateOptions(True, 3600))
    return queues


def test_hundreds_of_small_chunks_are_under_way_and_few_full_ones(
    store: RedisStore, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, under_way = names(store, fresh, QUEUES), UnderWay(store, monkeypatch)
    stage(store, queues, 1, 3)
    assert under_way.most == MAX_CHUNKS_UNDER_WAY
    under_way.most = 0
    stage(store, queues[:2], 10, 1000)
    assert under_way.most == MAX_FULL_CHUNKS_UNDER_WAY


@pytest.mark.parametrize("at", [1, 255, 256, 257, 1100])
def test_a_link_that_breaks_under_many_small_chunks_costs_no_row_and_doubles_none(
    store: RedisStore, server: EmbeddedRedis, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    queues, under_way = names(store, fresh, QUEUES), UnderWay(store, monkeypatch)
    monkeypatch.setattr(
        under_way,
        "after",
        lambda sent: server.command("CLIENT", "KILL", "TYPE", "normal") if sent == at else None,
    )
    staged = stage(store, queues, 3, 2)
    assert under_way.sent >= at
    sink = f"sink-{fresh()}"
    assert set(store.commit_many(sink, 1, store.record(sink, 1, staged)).values()) == {None}
    for queue in queues:
        flat = store._link_of_queue(queue).execute(
            command("LRANGE", store.keys(queue).messages, 0, -1)
        )
        assert flat[1::2] == [
            f"{queue}:{number}:{row}".encode() for number in range(3) for row in range(2)
        ]


def test_replies_to_a_piece_that_came_too_early_are_not_taken_for_those_of_the_next(
    store: RedisStore, server: EmbeddedRedis, fresh: Fresh
) -> None:
    """The error keeps the frames it was raised in alive, and with them what was under way."""
    queue = fresh()
    rows = [b"%d" % row for row in range(10_000)]
    key = store.keys(queue).stage(f"batch:0:0:{new_token()}")
    with pytest.raises(StagingLost) as early:
        store.stage_at(queue, key, 5_000, rows[5_000:])
    assert store.stage_at(queue, key, 0, rows[:5_000]) == (5_000, 0)
    assert store.stage_at(queue, key, 5_000, rows[5_000:]) == (10_000, 0)
    assert server.command("LRANGE", key, 0, -1) == [row.decode() for row in rows]
    assert early.value.details["found"] == 0
