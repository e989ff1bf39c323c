"""Many queues committed at once: the same rows and answers as one queue after the other, in far
fewer round trips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from busmq_spark.errors import QueueMissing, StagingLost
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore, open_store
from busmq_spark.writing import sink as sinks
from busmq_spark.writing.sink import CommitStoppedAtMaxsize, StagedList
from tests.conftest import Fresh
from tests.layouts import LAYOUTS, servers_of

pytestmark = pytest.mark.redis
Stage = Callable[..., list[str]]


@pytest.fixture(params=LAYOUTS)
def store(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    made = open_store(RedisOptions(**servers_of(request.param, request.getfixturevalue)))
    yield made
    made.close()


def names(fresh: Fresh, many: int) -> list[str]:
    base = fresh()
    return [f"{base}-{i}" for i in range(many)]


def stage(store: RedisStore, queue: str, chunks: list[list[bytes]]) -> StagedList:
    """A list for a queue that may not exist."""
    keys, server = store.keys(queue), store.locate([queue])[queue]
    key, before = keys.stage(sinks.attempt_name("", "1", 0, new_token())), 0
    for chunk in chunks:
        before = store._links[server].execute(sinks.stage(key, before, chunk))
    return StagedList(
        queue,
        server,
        key,
        sinks.encode_chunks([len(chunk) for chunk in chunks]),
        sinks.digest([v for chunk in chunks for v in chunk]),
    )


def stored(store: RedisStore, queue: str) -> list[bytes]:
    flat: list[bytes] = store._link_of_queue(queue).execute(
        command("LRANGE", store.keys(queue).messages, 0, -1)
    )
    return flat[1::2]


def test_each_queue_gets_its_rows_once_and_has_its_own_answer(
    store: RedisStore, fresh: Fresh
) -> None:
    crowd = names(fresh, 9)
    store.attach(crowd[1:], QueueCreateOptions(True, 3600))
    full, halfway = crowd[1], crowd[2]
    store._link_of_queue(full).execute(command("HSET", store.keys(full).metadata, "maxsize", 2))
    staged = [stage(store, queue, [[b"1", b"2"], [b"3"], [queue.encode()]]) for queue in crowd]
    sink = f"sink-{fresh()}"
    held = store.record(sink, 1, staged, "q")
    begun = sinks.commit(
        store.keys(halfway), sink, 1, [part for part in held if part.queue == halfway]
    )
    store._link_of_queue(halfway).execute(next(begun)[:1])

    found = store.commit_many(sink, 1, held)

    assert isinstance(found.pop(crowd[0]), QueueMissing)
    assert found.pop(full) == CommitStoppedAtMaxsize(full, 2, 2)
    assert found == dict.fromkeys(crowd[2:])
    assert stored(store, full) == [b"1", b"2"]
    for queue in crowd[2:]:
        assert stored(store, queue) == [b"1", b"2", b"3", queue.encode()]
    again = store.commit_many(sink, 1, held)
    assert {queue: again[queue] for queue in crowd[2:]} == found
    assert len(stored(store, crowd[2])) == 4


def test_what_is_lost_of_one_queue_is_an_error_when_the_others_have_their_rows(
    store: RedisStore, fresh: Fresh
) -> None:
    crowd = names(fresh, 3)
    store.attach(crowd, QueueCreateOptions(True, 3600))
    sink = f"sink-{fresh()}"
    held = store.record(sink, 1, [stage(store, queue, [[b"1"]]) for queue in crowd], "q")
    store.discard(held[:1])
    with pytest.raises(StagingLost, match=crowd[0]):
        store.commit_many(sink, 1, held)
    if len({part.server for part in held}) == 1:
        assert [stored(store, queue) for queue in crowd[1:]] == [[b"1"]] * 2


@pytest.mark.parametrize("store", ["direct"], indirect=True)
def test_a_thousand_queues_take_a_round_trip_for_some_chunks_of_each(
    store: RedisStore, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = names(fresh, 1000)
    store.attach(crowd, QueueCreateOptions(True, 3600))
    sink = f"sink-{fresh()}"
    held = store.record(
        sink,
        1,
        [stage(store, queue, [[b"1", b"2"], [b"3"], [b"4"], [b"5"], [b"6"]]) for queue in crowd],
        "q",
    )
    steps: list[Any] = []
    execute = SyncLink.execute
    monkeypatch.setattr(
        SyncLink, "execute", lambda link, step: steps.append(step) or execute(link, step)
    )

    assert store.commit_many(sink, 1, held) == dict.fromkeys(crowd)

    assert [len(step) for step in steps] == [4000, 1000]
    assert stored(store, crowd[-1]) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_queues_with_many_rows_are_committed_apart() -> None:
    def part(queue: str, rows: int) -> StagedList:
        return StagedList(queue, 0, queue, ((1000, rows // 1000),))

    small = [part(f"small {i}", 1000) for i in range(15)]
    groups = sinks.commit_groups(
        [part("large", 50_000), *small[:5], part("middle", 6000), *small[5:]]
    )
    assert [list(group) for group in groups] == [
        ["large"],
        [f"small {i}" for i in range(5)],
        ["middle", *(f"small {i}" for i in range(5, 9))],
        [f"small {i}" for i in range(9, 15)],
    ]
    assert [
        len(group) for group in sinks.commit_groups([part(f"q{i}", 0) for i in range(2500)])
    ] == [1000, 1000, 500]
