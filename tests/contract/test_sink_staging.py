"""What comes before the commit of the exactly-once sink: staged lists, and the record of a
batch.
"""

from __future__ import annotations

import pytest

from busmq_spark.errors import BatchChanged, SinkTargetsError, StagingLost, StaleBatch
from busmq_spark.queue.keys import sink_record
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.writing import sink
from busmq_spark.writing.sink import STAGE_TTL_S, CommitStoppedAtMaxsize, StagedList
from tests.conftest import Fresh, FreshKeys
from tests.contract.conftest import Born, Redis, Run
from tests.contract.sinks import numbered, stage, stored
from tests.support import Life

# Staging


def test_chunks_are_staged_in_order_with_a_life_of_their_own(
    link: SyncLink, fresh_keys: FreshKeys, redis: Redis
) -> None:
    key, life = fresh_keys().stage("one"), Life(redis, STAGE_TTL_S)
    assert link.execute(sink.stage(key, 0, [b"a", b"b"])) == 2
    assert link.execute(sink.stage(key, 2, [b"c"])) == 3
    assert redis("LRANGE", key, 0, -1) == [b"a", b"b", b"c"]
    assert life.given_to(key)


def test_a_chunk_that_is_staged_again_since_its_reply_was_lost_is_there_once(
    link: SyncLink, fresh_keys: FreshKeys, redis: Redis
) -> None:
    key = fresh_keys().stage("one")
    for chunk, before in (([b"a", b"b"], 0), ([b"a", b"b"], 0), ([b"c"], 2), ([b"c"], 2)):
        assert link.execute(sink.stage(key, before, chunk)) == before + len(chunk)
    assert redis("LRANGE", key, 0, -1) == [b"a", b"b", b"c"]
    assert sink.stage(key, 0, [b"a"]).idempotent


def test_a_chunk_behind_rows_that_were_lost_is_not_staged(
    link: SyncLink, fresh_keys: FreshKeys
) -> None:
    assert link.execute(sink.stage(fresh_keys().stage("one"), 2, [b"c"])) == 0


def test_a_chunk_that_comes_when_its_batch_is_half_committed_is_not_staged(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born(maxsize=3)
    rows = [b"%d" % i for i in range(6)]
    for before in (0, 3):
        link.execute(sink.stage(keys.stage("a"), before, rows[before : before + 3]))
    part = StagedList(keys.name, 0, keys.stage("a"), ((3, 2),))
    assert run(sink.commit(keys, "s", 0, [part])) == CommitStoppedAtMaxsize(keys.name, 3, 3)
    assert link.execute(sink.stage(part.key, 3, rows[3:])) == 3
    redis("DEL", keys.messages)
    assert run(sink.commit(keys, "s", 0, [part])) is None
    assert stored(link.execute, keys) == numbered(rows[3:], 4)


def test_a_list_that_is_gone_is_not_made_anew_by_more_of_it(
    link: SyncLink, fresh_keys: FreshKeys, redis: Redis
) -> None:
    key = fresh_keys().stage("one")
    assert link.execute(sink.stage_more(key, [b"a"])) == 0
    assert redis("EXISTS", key) == 0
    assert not sink.stage_more(key, [b"a"]).idempotent


def test_lists_are_sealed_for_as_long_as_a_record_lives_if_they_hold_what_was_staged(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born()
    (one, _), (two, _) = (
        stage(link.execute, keys, "one", [2]),
        stage(link.execute, keys, "two", [2, 1]),
    )
    life = Life(redis, MIN_RECORD_TTL_S)
    run(sink.keep_staged("s", 1, [one, two]))
    run(sink.keep_staged("s", 1, []))
    assert life.given_to(one.key, two.key)
    redis("LPOP", two.key)
    with pytest.raises(StagingLost, match=r"3 rows .* but 2 are left"):
        run(sink.keep_staged("s", 1, [one, two]))


# The record


def test_the_lists_recorded_first_are_the_batch_even_when_it_is_staged_again_differently(
    run: Run, fresh: Fresh, born: Born, link: SyncLink
) -> None:
    keys, _ = born()
    name = fresh("sink")
    one, first = stage(link.execute, keys, "one", [2, 2])
    other, _ = stage(link.execute, keys, "other", [3])
    assert run(sink.record(name, 4, [one], "q", "offsets:")) == (one,)
    held = run(sink.record(name, 4, [other], "q", "offsets:"))
    assert held == (one,)
    run(sink.commit(keys, name, 4, held))
    assert stored(link.execute, keys) == numbered(first)


@pytest.mark.parametrize(
    ("before", "now", "by"),
    [("a:1", "b:2", "offsets"), ("", "b:2", "rows"), ("a:1", "", "rows"), ("", "", "rows")],
)
def test_another_batch_under_the_number_of_a_recorded_one_is_refused_and_the_record_stays(
    run: Run, fresh: Fresh, before: str, now: str, by: str
) -> None:
    name, one, other = (
        fresh("sink"),
        StagedList("q", 0, "k1", ((2, 1),), 5),
        StagedList("q", 0, "k2", ((2, 1),), 6),
    )
    run(sink.record(name, 4, [one], "q", before))
    with pytest.raises(BatchChanged, match=f"batch 4 is recorded with other {by}") as caught:
        run(sink.record(name, 4, [other], "q", now))
    assert caught.value.details["by"] == by
    assert run(sink.recorded_lists(name, 4)) == (one,)


def test_another_checkpoint_may_append_a_batch_again_to_its_queues_only(
    run: Run, fresh: Fresh
) -> None:
    name = fresh("sink")
    x, y, z = (StagedList(queue, 0, f"k{queue}", ((2, 1),), 5) for queue in "xyz")
    run(sink.record(name, 4, [x, y], "q", sink.make_span("a", "1", "here")))
    assert run(sink.record(name, 4, [z], "q", sink.make_span("a", "1", "here"))) == (x, y)
    assert run(sink.record(name, 4, [y], "q", sink.make_span("a", "1", "copy"))) == (x, y)
    for span in (sink.make_span("a", "1", "copy"), sink.make_span("b", "2", "copy")):
        with pytest.raises(
            SinkTargetsError,
            match="batch 4 is recorded for 'x', 'y', and this write sends it to 'y', 'z'",
        ):
            run(sink.record(name, 4, [y, z], "q", span))


def test_a_record_of_an_older_version_is_recognized_by_its_counts(
    run: Run, fresh: Fresh, redis: Redis
) -> None:
    name, one = fresh("sink"), StagedList("q", 0, "k1", ((2, 1),), 5)
    redis(
        "HSET",
        sink_record(name),
        "batch",
        4,
        "manifest",
        '{"v":1,"lists":[["q",0,"k0",[[1,2]]]]}',
        "query",
        "q",
    )
    assert run(sink.record(name, 4, [one], "q", "a:1"))[0].key == "k0"
    with pytest.raises(BatchChanged):
        run(sink.record(name, 4, [StagedList("q", 0, "k1", ((3, 1),), 5)], "q", "a:1"))


def test_the_next_batch_takes_the_place_of_the_record_and_an_older_one_is_stale(
    run: Run, fresh: Fresh, redis: Redis
) -> None:
    name = fresh("sink")
    one, two = StagedList("q", 0, "k1", ((1, 1),)), StagedList("q", 0, "k2", ((1, 1),))
    run(sink.record(name, 4, [one]))
    life = Life(redis, MIN_RECORD_TTL_S)
    assert run(sink.record(name, 5, [two])) == (two,)
    with pytest.raises(StaleBatch, match="batch 4 was offered but batch 5"):
        run(sink.record(name, 4, [one]))
    assert life.given_to(sink_record(name))


def test_a_batch_on_record_is_found_and_another_is_not(run: Run, fresh: Fresh) -> None:
    name, one = fresh("sink"), StagedList("q", 0, "k1", ((1, 1),))
    assert run(sink.recorded_lists(name, 4)) == ()
    run(sink.record(name, 4, [one]))
    assert run(sink.recorded_lists(name, 4)) == (one,)
    assert run(sink.recorded_lists(name, 3)) == run(sink.recorded_lists(name, 5)) == ()


def test_a_batch_without_rows_can_be_recorded(run: Run, fresh: Fresh) -> None:
    assert run(sink.record(fresh("sink"), 0, [])) == ()


def test_discarding_removes_staged_lists_and_nothing_else(
    run: Run, born: Born, link: SyncLink, redis: Redis
) -> None:
    keys, _ = born()
    (one, _), (two, _) = (
        stage(link.execute, keys, "one", [2]),
        stage(link.execute, keys, "two", [2]),
    )
    run(sink.discard([one.key]))
    run(sink.discard([]))
    assert (redis("EXISTS", one.key), redis("EXISTS", two.key)) == (0, 1)


def test_a_forgotten_sink_may_begin_anew(run: Run, born: Born, link: SyncLink) -> None:
    keys, _ = born()
    one, first = stage(link.execute, keys, "one", [1])
    run(sink.commit(keys, "s", 5, [one]))
    run(sink.forget([keys], "s"))
    two, second = stage(link.execute, keys, "two", [1])
    run(sink.commit(keys, "s", 0, [two]))
    assert stored(link.execute, keys) == numbered(first + second)
