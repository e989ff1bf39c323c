"""Many queues over one link: what is asked of all of them costs as many round trips as of a few,
and no connection each.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest

from busmq_spark.embedded import EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.errors import DataLoss, QueueMissing, WireError
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame
from busmq_spark.federation.bulk.row_frames import RemainingRanges
from busmq_spark.federation.bulk.store import QUEUES_PER_CALL, FederationBulkStore
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Range
from busmq_spark.store.protocol import ConsecutiveMessages
from busmq_spark.store.redis_store import RedisStore, open_store
from busmq_spark.writing.sink import StagedList, attempt_name
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR
from tests.federation.bulk_site import Site, site
from tests.federation.cutting import cutter

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    with site(redis_server.url) as made:
        yield made


def ranges(direct: RedisStore, fresh: Fresh, sizes: list[int], width: int = 10) -> list[Range]:
    """A queue each, with so many messages."""
    names = [fresh() for _ in sizes]
    born = direct.attach(names, HOUR)
    for name, size in zip(names, sizes, strict=True):
        direct.push(name, [f"{name}-{id}".encode().ljust(width, b".") for id in range(1, size + 1)])
    return [Range(name, born[name].born, 1, size) for name, size in zip(names, sizes, strict=True)]


def flat(rows: Iterator[ConsecutiveMessages]) -> list[tuple[str, int, bytes]]:
    return [
        (piece.queue, piece.first + at, value)
        for piece in rows
        for at, value in enumerate(piece.values.to_pylist())
    ]


def posted(store: FederationBulkStore) -> list[str]:
    """What is asked from now on, once it is connected."""
    store.connect()
    names: list[str] = []
    send = store._link._send_call_on

    def counted(socket: object, name: str, *rest: object) -> int:
        names.append(name)
        return send(socket, name, *rest)  # type: ignore[arg-type]

    store._link._send_call_on = counted  # type: ignore[assignment,method-assign]
    return names


def connections(server: EmbeddedRedis) -> int:
    return int(server.command("INFO", "stats").split("total_connections_received:")[1].split()[0])


def test_many_ranges_come_in_one_call_as_one_by_one(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    parts = ranges(direct, fresh, [5, 1, 300, 7, 3000, 2] + [4] * 60, 40)
    parts = [
        Range(part.queue, part.born, 2, part.last) if part.last > 1 else part for part in parts
    ]
    one_by_one = [row for part in parts for row in flat(store.read(part, True))]
    asked = posted(store)
    assert flat(store.read_many(parts, True)) == one_by_one
    assert asked == ["read_many"]


def test_a_range_cut_into_several_is_whole(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    [whole] = ranges(direct, fresh, [100])
    cut = [
        Range(whole.queue, whole.born, first + 1, last)
        for first, last in pairwise([0, 10, 11, 60, 100])
    ]
    assert flat(store.read_many(cut, True)) == flat(store.read(whole, True))


def test_more_ranges_than_fit_a_call_take_several(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    [whole] = ranges(direct, fresh, [QUEUES_PER_CALL + 10])
    each = [Range(whole.queue, whole.born, id, id) for id in range(1, QUEUES_PER_CALL + 11)]
    asked = posted(store)
    assert flat(store.read_many(each, True)) == flat(direct.read(whole, True))
    assert {*asked} == {"read_many"}
    assert 1 < len(asked) < 4


def test_what_is_gone_of_one_of_them_is_an_error_or_left_out(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    parts = ranges(direct, fresh, [5, 5, 5])
    direct.trim({parts[1].queue: 3})
    with pytest.raises(DataLoss):
        flat(store.read_many(parts, True))
    left = flat(store.read_many(parts, False))
    assert [(queue, id) for queue, id, _ in left] == [
        (part.queue, id)
        for part, ids in zip(parts, ([1, 2, 3, 4, 5], [4, 5], [1, 2, 3, 4, 5]), strict=True)
        for id in ids
    ]


def test_reads_over_a_link_that_is_cut_bring_each_row_once(
    here: Site, direct: RedisStore, fresh: Fresh
) -> None:
    parts = ranges(direct, fresh, [3, 400, 2, 900, 1] * 8, 60)
    expected = [row for part in parts for row in flat(direct.read(part, True))]
    chance = random.Random(7)
    with cutter(here.port) as man:
        man.down = iter([chance.randint(2_000, 300_000) for _ in range(6)])
        store = FederationBulkStore(here.address(port=man.port, patience_s=60.0))
        assert flat(store.read_many(parts, True)) == expected
        assert man.connections > 2
        store.close()


def test_ranges_of_several_servers_come_in_their_order(
    three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    with site(RedisOptions(url=",".join(three_servers.urls))) as there:
        direct = open_store(RedisOptions(url=",".join(three_servers.urls)))
        parts = ranges(direct, fresh, [3] * 30)
        assert len({*direct.locate([part.queue for part in parts]).values()}) > 1
        store = FederationBulkStore(there.address())
        assert flat(store.read_many(parts, True)) == [
            (part.queue, id, f"{part.queue}-{id}".encode().ljust(10, b"."))
            for part in parts
            for id in (1, 2, 3)
        ]
        store.close()
        direct.close()


def test_reads_share_the_servers_connections(
    store: FederationBulkStore, direct: RedisStore, redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    parts = ranges(direct, fresh, [5] * 20)
    flat(store.read(parts[0], True))
    before = connections(redis_server)
    for part in parts:
        assert len(flat(store.read(part, True))) == 5
    assert connections(redis_server) - before <= 1  # the question itself


def test_questions_about_more_queues_than_fit_a_call_are_under_way_together(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    names = [fresh() for _ in range(QUEUES_PER_CALL + 5)]
    asked = posted(store)
    attached = store.attach(names, HOUR)
    assert [*attached] == names
    assert asked == ["attach"] * 2
    assert {name: state.born for name, state in store.states(dict.fromkeys(names, -1)).items()} == {
        name: each.born for name, each in attached.items()
    }


def staged_in(store: FederationBulkStore, names: list[str]) -> list[StagedList]:
    appender = store.appender()
    for name in names:
        appender.stage(
            name,
            store.keys(name).stage(attempt_name("", "0", 0, secrets.token_hex(8))),
            [b"a", b"b"],
        )
    return appender.finish()


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_many_queues_are_committed_with_all_calls_under_way(
    here: Site, direct: RedisStore, fresh: Fresh, cut: bool
) -> None:
    names = [fresh() for _ in range(150)]
    with cutter(here.port) as man:
        store = FederationBulkStore(here.address(port=man.port, patience_s=60.0))
        store.attach(names, HOUR)
        staged = staged_in(store, names)
        held = store.record(sink := fresh(), 0, staged)
        if cut:
            store.close()
            man.down = iter([600, 2_000, 5_000])
        assert store.commit_many(sink, 0, held) == dict.fromkeys(names)
        assert [state.newest for state in direct.states(dict.fromkeys(names, -1)).values()] == [
            2
        ] * len(names)
        store.close()


def test_a_queue_that_is_missing_keeps_no_other_from_its_commit(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    names = [fresh() for _ in range(3)]
    store.attach([names[0], names[2]], HOUR)
    held = store.record(sink := fresh(), 0, staged_in(store, names))
    found = store.commit_many(sink, 0, held)
    assert [type(found[name]) for name in names] == [type(None), QueueMissing, type(None)]
    store.attach(names, HOUR)
    assert store.commit_many(sink, 0, held) == dict.fromkeys(names)
    assert {
        name: state.newest for name, state in direct.states(dict.fromkeys(names, -1)).items()
    } == dict.fromkeys(names, 2)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [[0, 1, 3]],
        [[0, 2, 2]],
        [[1, 1, 2]],
        [[0, 1, 0], [0, 1, 2]],
        [[0, 1, 1], [1, 2, 1]],
        [[0, 1]],
        "x",
        [[0, "1", 2]],
        [[-1, 1, 2]],
        [[0, 2, 1], [0, 1, 1]],
    ],
    ids=repr,
)
def test_rows_that_are_not_those_that_come_next_are_refused(runs: object) -> None:
    parts = [Range("a", "b", 1, 2), Range("c", "d", 1, 2)]
    values = pa.array([b"x", b"y"], pa.binary())
    frame = BulkProtocolFrame(
        BulkFrameKind.ROWS, 1, {"runs": runs}, frames.encode_rows(values).to_pybytes()
    )
    with pytest.raises(WireError):
        list(RemainingRanges(parts, True).take_rows(frame, frames.rows_schema(values)))
