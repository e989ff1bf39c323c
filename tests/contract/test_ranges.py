"""What a reader of a range asks Redis before and when something is amiss: probe, seek, and the
bytes of messages.
"""

from __future__ import annotations

from bisect import bisect_right
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import Flow, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading import range_reader, reader_operations
from busmq_spark.reading.range_reader import ValueSizeStats
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.writing import sink
from busmq_spark.writing.sink import StagedList, encode_chunks
from tests.conftest import FreshKeys
from tests.contract.conftest import Born, Redis, Run


def test_a_queue_that_does_not_exist_is_probed_as_nothing(run: Run, fresh_keys: FreshKeys) -> None:
    assert run(range_reader.read_range_start(fresh_keys(), 1)) == ("", 0, 0, ValueSizeStats())


def test_a_probe_has_the_incarnation_the_oldest_id_and_how_long_values_are_there(
    run: Run, born: Born
) -> None:
    keys, there = born()
    run(queue.push_many(keys, [b"x" * n for n in (9000, 1, 2, 3, 40, 5)]))
    run(queue.pop(keys))
    assert run(range_reader.read_range_start(keys, 2)) == (
        there.born,
        2,
        40,
        ValueSizeStats(1, 6, 9000),
    )
    assert run(range_reader.read_range_start(keys, 6)) == (
        there.born,
        2,
        5,
        ValueSizeStats(1, 6, 9000),
    )
    assert run(range_reader.read_range_start(keys, 99)) == (
        there.born,
        2,
        0,
        ValueSizeStats(1, 6, 9000),
    )


def test_a_probe_far_from_the_head_looks_at_a_few_values_only(
    run: Run, born: Born, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "DEEP_WINDOW_MESSAGES", 2)
    keys, there = born()
    run(queue.push_many(keys, [b"x" * n for n in (1, 2, 3, 4, 5, 6, 70)]))
    assert run(range_reader.read_range_start(keys, 2)) == (
        there.born,
        1,
        70,
        ValueSizeStats(1, 7, 70),
    )
    assert run(range_reader.read_range_start(keys, 3)) == (
        there.born,
        1,
        6,
        ValueSizeStats(1, 7, 70),
    )


def test_a_probe_of_a_queue_without_a_born_token_has_no_incarnation(
    run: Run, fresh_keys: FreshKeys, redis: Redis
) -> None:
    keys = fresh_keys()
    redis("HSET", keys.metadata, "ttl", 30)
    redis("RPUSH", keys.messages, 5, "x")
    assert run(range_reader.read_range_start(keys, 5)) == ("", 5, 1, ValueSizeStats())


def noted(redis: Redis, keys: QueueKeys) -> ValueSizeStats:
    return ValueSizeStats.parse(redis("HGET", keys.metadata, "sizes"))


def test_every_writer_of_ours_notes_how_long_its_values_are(
    run: Run, born: Born, redis: Redis
) -> None:
    keys, _ = born()
    run(queue.push(keys, b"x" * 5))
    run(queue.push_many(keys, [b"x" * n for n in (3, 0, 7, 65_536)]))
    assert noted(redis, keys) == ValueSizeStats(1, 5, 65_536)
    run(queue.push_many(keys, [b"x" * n for n in (1, 65_537, 2, 70_000, 4)]))
    run(queue.push(keys, b"x" * 65_537))
    assert noted(redis, keys) == ValueSizeStats(1, 11, 65_536, 11, 70_000)
    staged = keys.stage("one")
    redis("RPUSH", staged, "a", "b" * 80_000)
    run(sink.commit(keys, "s", 1, [StagedList(keys.name, 0, staged, encode_chunks([2]))]))
    assert noted(redis, keys) == ValueSizeStats(1, 13, 65_536, 13, 80_000)


def test_what_a_peer_pushes_begins_a_new_note(run: Run, born: Born, redis: Redis) -> None:
    keys, _ = born()
    run(queue.push(keys, b"x" * 9))
    redis("RPUSH", keys.messages, redis("INCR", keys.msgid), "x" * 10)  # as npm busmq: no note
    assert noted(redis, keys) == ValueSizeStats(1, 1, 9)
    run(queue.push_many(keys, [b"x", b"xx"]))
    assert noted(redis, keys) == ValueSizeStats(3, 4, 2)
    redis("HSET", keys.metadata, "sizes", "1:nonsense")
    run(queue.push(keys, b"xyz"))
    assert noted(redis, keys) == ValueSizeStats(5, 5, 3)


@pytest.mark.parametrize(
    ("values", "fits"),
    [([100] * 20_000, True), ([15_000] * 900, True), ([100] * 20_000 + [10**6] * 16, False)],
)
def test_what_peers_push_is_read_by_plain_commands_where_all_that_is_stored_fits_one_reply(
    run: Run, born: Born, redis: Redis, values: list[int], fits: bool
) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"x"] * 10))
    for first in range(0, len(values), 500):
        part = values[first : first + 500]
        redis(
            "RPUSH",
            keys.messages,
            *(word for n, size in enumerate(part, 11 + first) for word in (n, b"x" * size)),
        )
    last = redis("INCRBY", keys.msgid, len(values))
    _, oldest, value_bytes, found = run(range_reader.read_range_start(keys, 11))
    call = range_reader.RangeCursor(keys, 11, last, oldest, value_bytes, sizes=found).ask()
    assert call is not None
    assert (call.words[0] == "LRANGE") is fits
    if fits:
        run(
            queue.push_many(keys, [b"x" * 500_000] * 40)
        )  # behind what the probe has seen nothing is known
        assert found.rows(last) == range_reader.ROWS_OF_UNKNOWN_SIZE
        assert found.rows(last + 1) == range_reader.ROWS_OF_UNKNOWN_SIZE


@pytest.mark.parametrize("widest", [1, 3, 64])
def test_a_window_that_counts_ends_with_the_message_that_reaches_the_bytes(
    run: Run, born: Born, widest: int
) -> None:
    keys, _ = born()
    lengths = [5, 0, 100, 7, 7, 7, 7, 7, 7, 7, 7, 90]
    run(queue.push_many(keys, [b"x" * n for n in lengths]))

    def window(index: int, most: int, room: int) -> list[int]:
        call = script("window", (keys.messages,), (index, most, room, widest))

        def flow() -> Flow[list[bytes]]:
            reply: list[bytes] = yield call
            return reply

        reply = run(flow())
        assert [int(id) for id in reply[0::2]] == list(
            range(index + 1, index + 1 + len(reply) // 2)
        )
        return [len(value) for value in reply[1::2]]

    assert window(0, 100, 10**6) == lengths
    assert window(1, 4, 10**6) == lengths[1:5]
    assert window(0, 100, 105) == lengths[:3]
    assert window(3, 100, 8) == [7, 7]
    assert window(2, 100, 1) == [100]
    assert window(12, 5, 10) == []


@settings(max_examples=100)
@given(st.sets(st.integers(1, 60), max_size=30), st.integers(0, 61))
def test_seek_finds_an_id_or_its_neighbours_in_a_list_with_holes(
    link: SyncLink, fresh_keys: FreshKeys, ids: set[int], wanted: int
) -> None:
    keys, stored = fresh_keys(), sorted(ids)
    link.execute([command("RPUSH", keys.messages, id, "v") for id in stored])
    after = bisect_right(stored, wanted)
    expected = (after - 1, wanted in ids, stored[after] if after < len(stored) else 0)
    assert link.run(range_reader.find_id(keys, wanted)) == expected


sizes = st.lists(st.one_of(st.integers(0, 50), st.integers(0, 400_000)), min_size=1, max_size=25)


@settings(max_examples=100)
@given(sizes, st.data())
def test_bytes_are_counted_exactly_up_to_the_budget(
    link: SyncLink, fresh_keys: FreshKeys, lengths: list[int], data: st.DataObject
) -> None:
    keys = fresh_keys()
    link.execute(
        [command("RPUSH", keys.messages, id, b"x" * length) for id, length in enumerate(lengths, 1)]
    )
    first = data.draw(st.integers(1, len(lengths)))
    last = data.draw(st.integers(first, len(lengths)))
    budget = data.draw(st.integers(0, sum(lengths) + 10))
    at, used = first - 1, 0
    while at < last and used + lengths[at] <= budget:
        used += lengths[at]
        at += 1
    assert link.run(reader_operations.bytes_until(keys, first, last, budget)) == (at, used)
    link.execute(command("DEL", keys.messages))


def test_bytes_of_more_messages_than_one_call_looks_at(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"ab"] * 5000))
    assert run(reader_operations.bytes_until(keys, 11, 4990, 10**9)) == (4990, 2 * 4980)
    assert run(reader_operations.bytes_until(keys, 11, 4990, 7001)) == (3510, 7000)


def test_messages_that_are_gone_have_no_bytes(run: Run, born: Born) -> None:
    keys, _ = born()
    run(queue.push_many(keys, [b"ab"] * 5))
    run(queue.pop(keys, most=2))
    assert run(reader_operations.bytes_until(keys, 2, 5, 100)) == (1, 0)
    assert run(reader_operations.bytes_until(keys, 4, 9, 100)) == (5, 4)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(1, 40)), st.integers(1, 41), st.integers(0, 40)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 400),
    st.booleans(),
)
def test_short_ranges_bring_what_lies_next_to_each_other_and_fits(
    link: SyncLink,
    fresh_keys: FreshKeys,
    wanted: list[tuple[set[int], int, int]],
    room: int,
    named: bool,
) -> None:
    asked, expected = [], []
    for n, (ids, first, more) in enumerate(wanted):
        keys = fresh_keys()
        values = {id: b"%d" % id * (1 + id % 7) for id in ids}
        link.execute([command("RPUSH", keys.messages, id, values[id]) for id in sorted(ids)])
        if named:
            link.execute(command("HSET", keys.metadata, "born", f"life {n}"))
        id, left, found = first, room, []
        while id <= first + more and id in values and len(values[id]) <= left:
            left -= len(values[id])
            found.append(values[id])
            id += 1
        asked.append((keys, first, first + more))
        expected.append((f"life {n}" if named else "", found))
    assert link.run(range_reader.read_short_ranges(asked, room)) == expected


def test_short_ranges_bring_nothing_from_deep_down(
    run: Run, born: Born, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "DEEP_WINDOW_MESSAGES", 3)
    keys, there = born()
    run(queue.push_many(keys, [b"1", b"2", b"3", b"4"]))
    assert run(range_reader.read_short_ranges([(keys, 3, 4), (keys, 4, 4)], 100)) == [
        (there.born, [b"3", b"4"]),
        (there.born, []),
    ]


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(200_000, 2_500_000))
def test_a_budget_holds_where_no_message_is_much_longer_than_others(
    link: SyncLink, fresh_keys: FreshKeys, seed: int, budget: int
) -> None:
    random = Random(seed)
    keys, lengths = fresh_keys(), [random.randint(80, 100) for _ in range(20_000)]
    link.run(queue.attach(keys, "b", ttl_s=60))
    link.run(queue.push_many(keys, [b"x" * n for n in lengths]))
    at, used = link.run(reader_operations.bytes_until(keys, 1, 20_000, budget))
    assert sum(lengths[:at]) <= used <= budget
    assert (
        at == 20_000
        or sum(lengths[: at + 1]) > budget / reader_operations.MAX_LONGEST_TO_MEAN_RATIO
    )
    link.run(queue.delete(keys))


@pytest.mark.parametrize(
    "sizes", [[100], [10, 190], [5] * 30 + [2855], [20, 40, 60, 80, 300]], ids=str
)
def test_a_budget_that_thousands_of_messages_fit_is_met_closely(
    link: SyncLink, born: Born, sizes: list[int]
) -> None:
    keys, _ = born()
    values = [b"x" * sizes[n * 7 % len(sizes)] for n in range(30_000)]  # 100 bytes each on average
    link.run(queue.push_many(keys, values))
    for budget in (50_000, 700_000, 2_000_000):
        at, used = link.run(reader_operations.bytes_until(keys, 1, 30_000, budget))
        really = sum(map(len, values[:at]))
        assert used <= budget
        assert abs(really - budget) <= budget / 5
    assert link.run(reader_operations.bytes_until(keys, 1, 30_000, 10**9))[0] == 30_000
