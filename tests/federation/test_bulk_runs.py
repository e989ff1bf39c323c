"""What runs of a sink stage, of Redis itself and over a federation link: the later one removes what
the earlier one leaves, and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import StaleRun, WireError
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.store.redis_store import RedisStore, open_store
from busmq_spark.writing.sink import STAGE_TTL_S, StagedList, attempt_name
from busmq_spark.writing.sink_runs import SinkRun
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR, Store
from tests.federation.bulk_site import Site, site
from tests.support import Life

pytestmark = pytest.mark.redis
ROWS = [b"%d" % i for i in range(2500)]


@pytest.fixture(scope="module")
def here(redis_server: EmbeddedRedis) -> Iterator[Site]:
    with site(redis_server.url) as made:
        yield made


@pytest.fixture(params=["redis", "federated"])
def store(request: pytest.FixtureRequest, redis_url: str, here: Site) -> Iterator[Store]:
    made: Store = (
        open_store(RedisOptions(url=redis_url))
        if request.param == "redis"
        else FederationBulkStore(here.address())
    )
    yield made
    made.close()


@pytest.fixture
def queues(store: Store, fresh: Fresh) -> list[str]:
    names = [fresh(), fresh()]
    store.attach(names, HOUR)
    return names


def stage(store: Store, run: SinkRun, queue: str, batch: int = 0) -> StagedList:
    appender = store.appender()
    appender.stage(
        queue,
        store.keys(queue).stage(attempt_name("", str(batch), 0, secrets.token_hex(8))),
        ROWS,
        run,
    )
    [part] = appender.finish()
    return part


def lists(direct: RedisStore, queues: list[str]) -> list[str]:
    link = direct._links[0]
    return sorted(
        key.decode()
        for queue in queues
        for key in link.execute(command("KEYS", QueueKeys(queue).stage("*")))
    )


def test_a_later_run_removes_what_earlier_ones_left_for_any_queue_and_stages_beside_it(
    store: Store, direct: RedisStore, queues: list[str], fresh: Fresh
) -> None:
    one, other = queues
    sink, beside = fresh("sink"), fresh("sink")
    stranger = stage(store, store.begin(beside, "theirs", [one]), one)
    first = store.begin(sink, "first", queues)
    left = [stage(store, first, one), stage(store, first, other)]
    assert store.begin(sink, "first", [one]) == first
    assert {part.key for part in left} < {*lists(direct, queues)}
    second = store.begin(sink, "second", [one])
    assert second.epoch > first.epoch
    kept = stage(store, second, one)
    assert lists(direct, queues) == sorted([stranger.key, kept.key])
    assert store.begin(sink, "first", [one, other]) == first, "it is still the earlier one"
    assert lists(direct, queues) == sorted([stranger.key, kept.key])
    with pytest.raises(StaleRun):
        store.record(sink, 0, left, epoch=first.epoch)
    assert store.record(sink, 0, [kept], epoch=second.epoch) == (kept,)
    assert store.commit(one, sink, 0, [kept]) is None


def test_what_is_on_record_stays_for_the_run_that_follows(
    store: Store, direct: RedisStore, queues: list[str], fresh: Fresh
) -> None:
    sink, [queue, _] = fresh("sink"), queues
    dead = store.begin(sink, "dead", [queue])
    part, lost = stage(store, dead, queue), stage(store, dead, queue)
    store.record(sink, 0, [part], epoch=dead.epoch)
    store.begin(sink, "after", [queue])
    assert lists(direct, queues) == [part.key]
    assert lost.key != part.key
    assert store.commit(queue, sink, 0, [part]) is None
    assert direct.states({queue: -1})[queue].count == len(ROWS)


def test_all_lists_of_a_run_are_renewed_in_whichever_queue_they_are(
    store: Store, direct: RedisStore, queues: list[str], fresh: Fresh
) -> None:
    link, sink = direct._links[0], fresh("sink")
    run = store.begin(sink, "run", queues)
    parts = [stage(store, run, queue) for queue in queues]
    kept = stage(store, run, queues[0])
    for part in parts:
        link.execute(command("EXPIRE", part.key, 1000))
    link.execute(command("EXPIRE", kept.key, 8 * STAGE_TTL_S))
    life = Life(lambda *words: link.execute(command(*words)), STAGE_TTL_S)
    store.renew(run)
    assert life.given_to(*(part.key for part in parts))
    assert link.execute(command("TTL", kept.key)) > STAGE_TTL_S


@pytest.mark.parametrize("run", ["", "a=1", ";", "a\nb", "x" * 65])
def test_a_run_has_a_plain_name(here: Site, fresh: Fresh, run: str) -> None:
    store: FederationBulkStore = FederationBulkStore(here.address())
    with pytest.raises(WireError, match="a run whose name"):
        store.begin(fresh("sink"), run, [fresh()])
    store.close()
