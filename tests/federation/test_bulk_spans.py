"""What a mirror reads: the state of queues and their rows in one round trip, the state from before
the first row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from busmq_spark.embedded import EmbeddedRedis, EmbeddedStandaloneServers
from busmq_spark.federation.bulk import server
from busmq_spark.federation.bulk.row_frames import ask_spans_and_stored_ranges
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Range
from busmq_spark.store.redis_store import RedisStore, open_store
from busmq_spark.writing.mirror import NEWEST_MESSAGE
from tests.conftest import Fresh
from tests.federation.bulk_queues import filled
from tests.federation.bulk_site import Site, site
from tests.federation.cutting import cutter
from tests.federation.test_bulk_many import flat, posted, ranges

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    with site(redis_server.url) as made:
        yield made


def test_spans_and_rows_come_in_one_call(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    parts = ranges(direct, fresh, [5, 1, 300, 3000, 2], 40)
    wanted = [
        part._replace(first=part.last // 2 + 1, last=last)
        for part, last in zip(parts, (NEWEST_MESSAGE, NEWEST_MESSAGE, 200, 2999, 2), strict=True)
    ]
    expected = [
        row
        for part, last in zip(wanted, (5, 1, 200, 2999, 2), strict=True)
        for row in flat(direct.read(part._replace(last=last), True))
    ]
    asked = posted(store)
    spans, rows = store.read_with_spans(wanted)
    assert flat(rows) == expected
    assert asked == ["read_with_spans"]
    assert spans == direct.spans({part.queue: (part.first - 1, part.last) for part in wanted})
    again, rows = direct.read_with_spans(wanted)
    assert (again, flat(rows)) == (spans, expected)


def test_the_state_is_from_before_the_rows(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two the origin may lose its last pushes, and give their ids anew: the
    fingerprints show that the rows are others.
    """
    [part] = ranges(direct, fresh, [3])

    def then_pushed(there: RedisStore, parts: list[Range]) -> object:
        spans = ask_spans_and_stored_ranges(there, parts)
        direct.push(part.queue, [b"later"])
        return spans

    monkeypatch.setattr(server, "ask_spans_and_stored_ranges", then_pushed)
    spans, rows = store.read_with_spans([part._replace(last=NEWEST_MESSAGE)])
    assert (spans[part.queue].last_id, len(flat(rows)), direct.counters([part.queue])) == (
        3,
        3,
        [b"4"],
    )


def test_of_what_is_not_there_only_the_state_comes(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    parts = ranges(direct, fresh, [3, 3, 3, 3])
    direct.trim({parts[0].queue: 3})
    wanted = [
        parts[0],
        parts[1]._replace(born="another"),
        parts[2]._replace(last=4),
        parts[3]._replace(first=4, last=NEWEST_MESSAGE),
        Range(fresh(), "b", 1, NEWEST_MESSAGE),
    ]
    for some in (wanted, wanted[:1], wanted[-1:]):
        spans, rows = store.read_with_spans(some)
        assert flat(rows) == []
        assert [spans[part.queue].last_id for part in some] == [
            3 if part.born != "b" else 0 for part in some
        ]
        assert not store._link._inbox, "nothing is still to come"
    assert flat(store.read(parts[1], True)) == flat(direct.read(parts[1], True)), (
        "the connection is in step"
    )


def test_rows_over_a_link_that_is_cut_come_once(
    here: Site, direct: RedisStore, fresh: Fresh
) -> None:
    parts = ranges(direct, fresh, [3, 400, 2, 900, 1] * 8, 60)
    expected = [row for part in parts for row in flat(direct.read(part, True))]
    chance = random.Random(8)
    with cutter(here.port) as man:
        man.down = iter([chance.randint(2_000, 300_000) for _ in range(6)])
        store = FederationBulkStore(here.address(port=man.port, patience_s=60.0))
        spans, rows = store.read_with_spans([part._replace(last=NEWEST_MESSAGE) for part in parts])
        assert flat(rows) == expected
        assert {*spans} == {part.queue for part in parts}
        assert man.connections > 2
        store.close()


def test_a_read_that_is_closed_ends_and_the_connection_goes_on(
    store: FederationBulkStore, direct: RedisStore, fresh: Fresh
) -> None:
    whole = filled(direct, fresh(), [b"x" * 1000] * 40_000)
    for _ in range(6):  # more than a connection may have at once
        _, rows = store.read_with_spans([whole])
        assert next(rows).first == 1
        rows.close()
    assert store.counters([whole.queue]) == [b"40000"]


def test_queues_of_several_servers(three_servers: EmbeddedStandaloneServers, fresh: Fresh) -> None:
    options = RedisOptions(url=",".join(three_servers.urls))
    with site(options) as there:
        direct, store = open_store(options), FederationBulkStore(there.address())
        parts = ranges(direct, fresh, [3] * 30)
        assert len({*direct.locate([part.queue for part in parts]).values()}) > 1
        for each in (store, direct):
            spans, rows = each.read_with_spans(
                [part._replace(last=NEWEST_MESSAGE) for part in parts]
            )
            assert flat(rows) == [
                (part.queue, id, f"{part.queue}-{id}".encode().ljust(10, b"."))
                for part in parts
                for id in (1, 2, 3)
            ]
            assert {span.last_id for span in spans.values()} == {3}
        store.close()
        direct.close()
