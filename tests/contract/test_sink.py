"""The exactly-once sink: each staged row once and in order, whichever process crashes and whichever
other one commits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark.errors import (
    BusError,
    LinkLost,
    QueueMissing,
    SinkRolledBack,
    StagingLost,
    StaleBatch,
)
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import Flow, Step, run_sync
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.writing import sink
from busmq_spark.writing.sink import CHUNKS_PER_COMMIT, CommitStoppedAtMaxsize
from tests.conftest import FreshKeys
from tests.contract.conftest import Born, Redis, Run
from tests.contract.sinks import numbered, replies, stage, stored
from tests.support import Life


class Crash(Exception):
    pass


def crashing(
    execute: Callable[[Step], Any], calls: int, *, executed: bool
) -> Callable[[Step], Any]:
    """Executes so many calls; then the process dies, before or after Redis has executed the
    next.
    """
    left = calls

    def go(step: Step) -> Any:
        nonlocal left
        if left == 0:
            if executed:
                execute(step)
            raise Crash
        left -= 1
        return execute(step)

    return go


def test_a_commit_appends_the_staged_lists_in_their_order(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born()
    run(queue.push(keys, b"before"))
    (one, first), (two, second) = (
        stage(link.execute, keys, "one", [3, 3, 1]),
        stage(link.execute, keys, "two", [2]),
    )
    assert run(sink.commit(keys, "s", 0, [one, two])) is None
    assert stored(link.execute, keys) == numbered([b"before", *first, *second])
    assert redis("EXISTS", one.key, two.key) == 0
    assert redis("HGET", keys.sinks, "s") == b"0:done"


def test_a_committed_batch_is_not_appended_again(run: Run, born: Born, link: SyncLink) -> None:
    keys, _ = born()
    part, rows = stage(link.execute, keys, "one", [4])
    run(sink.commit(keys, "s", 3, [part]))
    again, _ = stage(link.execute, keys, "again", [9])
    assert run(sink.commit(keys, "s", 3, [part])) is None
    assert run(sink.commit(keys, "s", 3, [again])) is None
    assert stored(link.execute, keys) == numbered(rows)


def test_batches_follow_each_other_and_sinks_do_not_disturb_each_other(
    run: Run, born: Born, link: SyncLink
) -> None:
    keys, _ = born()
    rows: list[bytes] = []
    for batch in range(3):
        for name in ("s", "t"):
            part, more = stage(link.execute, keys, f"{name}{batch}", [2, 1])
            run(sink.commit(keys, name, batch, [part]))
            rows += more
    assert stored(link.execute, keys) == numbered(rows)


@pytest.mark.parametrize("executed", [False, True], ids=["before-redis", "after-redis"])
@pytest.mark.parametrize("calls", range(6))
def test_after_a_crash_at_any_call_a_second_commit_completes_the_batch(
    run: Run, born: Born, link: SyncLink, calls: int, executed: bool
) -> None:
    keys, _ = born()
    (one, first), (two, second) = (
        stage(link.execute, keys, "one", [2, 2, 1]),
        stage(link.execute, keys, "two", [3, 3, 1]),
    )
    dying = sink.commit(keys, "s", 7, [one, two])
    with pytest.raises(Crash):
        link.run(through(dying, crashing(link.execute, calls, executed=executed)))
    run(sink.commit(keys, "s", 7, [one, two]))
    assert stored(link.execute, keys) == numbered(first + second)


def through(flow: Flow[Any], execute: Callable[[Step], Any]) -> Flow[Any]:
    """The same flow, executed by ``execute`` and not by the link that runs it."""
    pace = replies(flow, execute)
    while True:
        try:
            next(pace)
        except StopIteration as done:
            return done.value
        yield []


def test_a_reply_that_was_lost_on_the_way_does_not_append_twice(link: SyncLink, born: Born) -> None:
    keys, _ = born()
    part, rows = stage(link.execute, keys, "one", [2, 2])

    def twice(step: Step) -> Any:
        link.execute(step)
        return link.execute(step)  # as the link does when the first reply did not arrive

    list(replies(sink.commit(keys, "s", 1, [part]), twice))
    assert stored(link.execute, keys) == numbered(rows)


@pytest.mark.parametrize("executed", range(CHUNKS_PER_COMMIT + 1))
def test_a_round_trip_that_was_cut_anywhere_is_sent_again_as_a_whole(
    link: SyncLink, born: Born, executed: int
) -> None:
    keys, _ = born()
    part, rows = stage(link.execute, keys, "one", [2] * (CHUNKS_PER_COMMIT + 2))
    flow = sink.commit(keys, "s", 1, [part])
    first = next(flow)
    for call in first[:executed]:
        link.execute(call)
    with suppress(StopIteration):
        step = flow.send(link.execute(first))
        while True:
            step = flow.send(link.execute(step))
    assert stored(link.execute, keys) == numbered(rows)


def test_a_round_trip_moves_some_chunks_also_of_several_lists(link: SyncLink, born: Born) -> None:
    keys, _ = born()
    parts, rows = zip(
        *[
            stage(link.execute, keys, str(n), sizes)
            for n, sizes in enumerate(([1] * 5, [], [2] * 4))
        ],
        strict=True,
    )
    trips: list[int] = []

    def counted(step: Step) -> Any:
        trips.append(len(step))
        return link.execute(step)

    assert run_sync(sink.commit(keys, "s", 1, parts), counted) is None
    assert trips == [4, 4, 2]
    assert stored(link.execute, keys) == numbered([*rows[0], *rows[2]])


chunk_sizes = st.lists(st.integers(1, 3), max_size=3)


@settings(max_examples=150)
@given(
    parts=st.lists(chunk_sizes, min_size=1, max_size=3),
    turns=st.lists(st.integers(0, 2), max_size=40),
    maxsize=st.sampled_from([0, 0, 2, 5]),
    data=st.data(),
)
def test_committers_at_once_append_each_row_once_and_in_order(
    link: SyncLink,
    fresh_keys: FreshKeys,
    parts: list[list[int]],
    turns: list[int],
    maxsize: int,
    data: st.DataObject,
) -> None:
    """Three drivers commit the same batch, one call at a time in any order; any of them may die; a
    consumer drains a full queue.
    """
    keys = fresh_keys()
    link.run(attach(keys, "b", ttl_s=60, maxsize=maxsize))
    staged, rows = [], []
    for n, sizes in enumerate(parts):
        part, more = stage(link.execute, keys, str(n), sizes)
        staged.append(part)
        rows += more
    consumed: list[tuple[int, bytes]] = []

    def drain() -> None:
        consumed.extend(
            (m.id, m.value) for m in link.run(queue.pop(keys, most=data.draw(st.integers(1, 3))))
        )

    drivers = [replies(sink.commit(keys, "s", 5, staged), link.execute) for _ in range(3)]
    for turn in turns:
        if maxsize and data.draw(st.booleans()):
            drain()
        if next(drivers[turn], "ended") == "ended":
            drivers[turn] = replies(
                sink.commit(keys, "s", 5, staged), link.execute
            )  # restarted, or waiting for room
    for _ in range(200):
        if link.run(sink.commit(keys, "s", 5, staged)) is None:
            break
        drain()
    assert consumed + stored(link.execute, keys) == numbered(rows)


def test_a_full_queue_stops_the_commit_and_room_lets_it_go_on(
    run: Run, born: Born, link: SyncLink
) -> None:
    keys, _ = born(maxsize=5)
    (one, first), (two, second) = (
        stage(link.execute, keys, "one", [4]),
        stage(link.execute, keys, "two", [4]),
    )
    assert run(sink.commit(keys, "s", 1, [one, two])) == CommitStoppedAtMaxsize(keys.name, 5, 3)
    assert stored(link.execute, keys) == numbered((first + second)[:5])
    assert run(sink.commit(keys, "s", 1, [one, two])) == CommitStoppedAtMaxsize(keys.name, 5, 3)
    run(queue.pop(keys, most=2))
    assert run(sink.commit(keys, "s", 1, [one, two])) == CommitStoppedAtMaxsize(keys.name, 5, 1)
    run(queue.pop(keys, most=2))
    assert run(sink.commit(keys, "s", 1, [one, two])) is None
    assert stored(link.execute, keys) == numbered((first + second)[4:], 5)


@pytest.mark.parametrize("peers", [2, 5])
def test_an_empty_list_is_committed_even_while_the_queue_is_overfull(
    run: Run, born: Born, link: SyncLink, redis: Redis, peers: int
) -> None:
    keys, _ = born(maxsize=2)
    for i in range(1, peers + 1):
        redis("RPUSH", keys.messages, i, "peer")  # npm peers push with a maxsize of their own
    redis("SET", keys.msgid, peers)
    empty, _ = stage(link.execute, keys, "empty", [])
    part, rows = stage(link.execute, keys, "one", [1])
    assert run(sink.commit(keys, "s", 1, [empty, part])) == CommitStoppedAtMaxsize(keys.name, 2, 1)
    run(queue.pop(keys, most=peers))
    assert run(sink.commit(keys, "s", 1, [empty, part])) is None
    assert stored(link.execute, keys) == numbered(rows, peers + 1)


def test_lost_staging_stops_the_commit_before_a_row_of_it_is_appended(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born()
    (one, first), (two, _) = (
        stage(link.execute, keys, "one", [2]),
        stage(link.execute, keys, "two", [2, 2]),
    )
    redis("DEL", two.key)
    with pytest.raises(StagingLost, match=r"4 rows .* but 0 are left") as caught:
        run(sink.commit(keys, "s", 1, [one, two]))
    assert caught.value.details["key"] == two.key
    assert stored(link.execute, keys) == numbered(first)


def test_staging_with_fewer_rows_than_were_staged_counts_as_lost(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born()
    part, _ = stage(link.execute, keys, "one", [2, 2])
    redis("LPOP", part.key)
    with pytest.raises(StagingLost):
        run(sink.commit(keys, "s", 1, [part]))
    assert stored(link.execute, keys) == []


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_rows_that_came_late_behind_those_that_were_staged_are_never_appended(
    run: Run, born: Born, link: SyncLink, redis: Redis, moment: int
) -> None:
    keys, _ = born()
    (one, first), (two, second) = (
        stage(link.execute, keys, "one", [2, 2]),
        stage(link.execute, keys, "two", [2]),
    )
    pace = replies(sink.commit(keys, "s", 1, [one, two]), link.execute)
    for _ in range(moment):
        next(pace)
    redis("RPUSHX", one.key, *[b"late"] * 2)
    assert run(sink.commit(keys, "s", 1, [one, two])) is None
    assert stored(link.execute, keys) == numbered(first + second)
    assert redis("RPUSHX", one.key, b"later") == 0
    assert redis("EXISTS", one.key, two.key) == 0


def test_a_batch_older_than_the_one_committed_is_stale_and_appends_nothing(
    run: Run, born: Born, link: SyncLink
) -> None:
    keys, _ = born()
    later, rows = stage(link.execute, keys, "later", [2])
    run(sink.commit(keys, "s", 10, [later]))
    older, _ = stage(link.execute, keys, "older", [2])
    with pytest.raises(StaleBatch, match="batch 9 was offered but batch 10"):
        run(sink.commit(keys, "s", 9, [older]))
    assert stored(link.execute, keys) == numbered(rows)


def test_a_queue_that_is_gone_is_not_created_by_a_commit(
    run: Run, fresh_keys: FreshKeys, link: SyncLink, redis: Redis
) -> None:
    keys = fresh_keys()
    part, _ = stage(link.execute, keys, "one", [2])
    with pytest.raises(QueueMissing):
        run(sink.commit(keys, "s", 1, [part]))
    assert redis("EXISTS", *keys.all) == 0
    assert redis("LLEN", part.key) == 2


@pytest.mark.parametrize("closed_by", ["npm", "us"])
def test_a_half_committed_batch_is_completed_in_the_next_life_of_its_queue(
    run: Run, born: Born, link: SyncLink, redis: Redis, closed_by: str
) -> None:
    keys, _ = born()
    part, rows = stage(link.execute, keys, "one", [2, 2])
    with pytest.raises(Crash):
        link.run(
            through(sink.commit(keys, "s", 1, [part]), crashing(link.execute, 1, executed=False))
        )
    run(queue.delete(keys)) if closed_by == "us" else redis("DEL", *keys.peer_keys)
    run(attach(keys, "next", ttl_s=60))
    assert run(sink.commit(keys, "s", 1, [part])) is None
    assert stored(link.execute, keys) == numbered(rows[2:])
    run(queue.delete(keys))
    assert redis("TTL", keys.sinks) > 0


def test_ids_used_up_stop_a_commit_with_nothing_of_its_chunk_appended(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born()
    redis("SET", keys.msgid, 2**53 - 2)
    part, _ = stage(link.execute, keys, "one", [2])
    with pytest.raises(BusError, match="used up its ids"):
        run(sink.commit(keys, "s", 1, [part]))
    assert stored(link.execute, keys) == []
    assert redis("LLEN", part.key) == 2


def test_a_commit_renews_the_queue_and_notifies_its_consumers(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born(ttl_s=50)
    redis("EXPIRE", keys.metadata, 40)
    part, _ = stage(link.execute, keys, "one", [2])
    short, long = Life(redis, 50), Life(redis, MIN_RECORD_TTL_S)
    run(sink.commit(keys, "s", 1, [part]))
    assert short.given_to(keys.metadata, keys.messages, keys.msgid)
    assert long.given_to(keys.sinks)


def test_an_error_of_the_link_leaves_the_commit_to_be_called_again(
    link: SyncLink, born: Born
) -> None:
    keys, _ = born()
    part, rows = stage(link.execute, keys, "one", [1, 1, 1])
    left = iter([True, True, False])

    def flaky(step: Step) -> Any:
        reply = link.execute(step)
        if not next(left, True):
            raise LinkLost(url="", reason="the reply was lost")
        return reply

    with pytest.raises(LinkLost):
        list(replies(sink.commit(keys, "s", 1, [part]), flaky))
    link.run(sink.commit(keys, "s", 1, [part]))
    assert stored(link.execute, keys) == numbered(rows)


def test_a_batch_is_not_recorded_where_the_record_is_older_than_the_last_one(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    """The check and the record are one step: a fail-over cannot come between them."""
    keys, _ = born()
    name = f"sink-{keys.name}"
    part, _ = stage(link.execute, keys, "one", [1])
    with pytest.raises(SinkRolledBack, match="its batch 4, and Redis has no batch of it"):
        run(sink.record(name, 5, [part], least=4))
    assert run(sink.record(name, 3, [part])) == (part,)
    with pytest.raises(SinkRolledBack, match="its batch 4, and Redis has batch 3"):
        run(sink.record(name, 5, [part], least=4))
    assert run(sink.recorded_lists(name, 3)) == (part,)
    assert run(sink.record(name, 4, [part], least=3)) == (part,)
    assert run(sink.record(name, 4, [part], least=4)) == (part,), "it comes again"
