"""The planner over real links: silent ones, ones that are cut all the time, and one whose Redis is
unreachable.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from math import inf
from typing import Any, cast

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions, WriteOptions
from busmq_spark.queue.keys import qualified_name
from busmq_spark.spark import stores
from busmq_spark.spark.read import acquisition
from busmq_spark.spark.read.tasks import RangePartition
from busmq_spark.store import multi_source_store
from busmq_spark.store.multi_source_store import SameThreadStoreCaller
from tests.conftest import Fresh
from tests.federation.bulk_site import SECRET, Site, site
from tests.federation.cutting import Cutter, cutter
from tests.spark.conftest import PATIENCE_S, Bus, MakeBus
from tests.spark.engine import Engine, through_json
from tests.spark.links import LINKED, gather, ids
from tests.support import wait_until

pytestmark = [
    pytest.mark.redis,
    pytest.mark.fault,
    pytest.mark.only("python", reason="only the Python source reads over links of federation"),
]


@dataclass
class Far:
    """A data centre of the test's own behind a line that can be cut."""

    redis: EmbeddedRedis
    bus: Bus
    line: Cutter
    server: Site


@pytest.fixture
def far(bus_of: MakeBus) -> Iterator[Far]:
    with EmbeddedRedis(aof=True) as redis, site(redis.url) as server, cutter(server.port) as middle:
        yield Far(redis, bus_of(redis), middle, server)


@pytest.fixture
def query(
    far: Far, bus: Bus, engine: Callable[..., Engine], queue: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """Over the far queue and one of the same name here."""
    monkeypatch.setattr(multi_source_store, "ANSWER_BUDGET_S", 3.0)
    monkeypatch.setattr(multi_source_store, "PROBE_PAUSES_S", (0.01, 0.1))
    monkeypatch.setattr(acquisition, "STOPPING_READER_GRACE_S", 0.0)
    shared: dict[Any, Any] = {}
    monkeypatch.setattr(stores, "_shared_stores", shared)
    where = {
        "federation.url": f"far=ws://127.0.0.1:{far.line.port}/bus",
        "federation.secret": SECRET,
        "redis.url": bus.url,
    }
    made = engine({**where, "subscribe": queue}, schema=LINKED, homes={"far": far.redis.url})
    yield made
    made.kill()
    for store in shared.values():
        store.close()


def test_a_silent_link_delays_no_other_and_its_messages_are_read_when_it_answers_again(
    far: Far, bus: Bus, query: Engine, queue: str
) -> None:
    far.bus.fill(queue, 10)
    bus.fill(queue, 10)
    gather(query, {"far": 10, "": 10})
    far.line.hush()
    far.bus.fill(queue, 10, first=11)
    bus.fill(queue, 10, first=11)
    assert ids(gather(query, {"": 10}), "far") == []
    far.line.cut()
    assert ids(gather(query, {"far": 10}), "far") == list(range(11, 21))


def test_a_data_centre_whose_redis_is_away_is_as_one_that_is_away(
    far: Far, bus: Bus, query: Engine, queue: str
) -> None:
    far.bus.fill(queue, 10)
    gather(query, {"far": 10})
    far.redis.kill()
    bus.fill(queue, 10)
    assert ids(gather(query, {"": 10}), "far") == []
    far.redis.restart()
    far.bus.fill(queue, 5, first=11)
    assert ids(gather(query, {"far": 5}), "far") == list(range(11, 16))


@pytest.mark.parametrize("more", [{}, {"minPartitions": "5"}, {"maxMessagesPerPartition": "7"}])
def test_a_link_that_goes_away_between_planning_and_reading_does_not_hold_up_the_batch(
    far: Far,
    bus: Bus,
    query: Engine,
    queue: str,
    more: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, budget in (
        (multi_source_store, "FETCH_BUDGET_S"),
        (multi_source_store, "ANSWER_BUDGET_S"),
    ):
        monkeypatch.setattr(
            module, budget, PATIENCE_S
        )  # the link answers, or is gone: nothing is slow
    query.options |= more
    query.restart()
    far.bus.fill(queue, 100)
    bus.fill(queue, 100)
    query.step("planned")
    far.line.close()
    found = query.step() or []
    assert ids(found, "far") == ids(found, "") == list(range(1, 101))
    assert all(value == f"{queue}:{id}".encode() for _, id, value, _ in found)
    bus.fill(queue, 10, first=101)
    assert ids(gather(query, {"": 10}), "far") == []


def test_rows_that_were_fetched_for_one_batch_are_not_taken_for_another(
    far: Far, query: Engine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_source_store, "FETCH_BUDGET_S", PATIENCE_S)
    monkeypatch.setattr(multi_source_store, "ANSWER_BUDGET_S", PATIENCE_S)
    far.bus.fill(queue, 10)
    query.step("planned")
    assert query.reader._planning.prefetched
    start, planned = through_json(query.reader.initialOffset()), query.planned[-1]
    other = copy.deepcopy(planned)
    other["sources"]["far"]["queues"][queue]["last"] = 5
    # A batch of the log, as the process before had planned it.
    assert [
        cast("RangePartition", part).prefetched for part in query.reader.partitions(start, other)
    ] == [{}]


def test_what_a_slow_link_has_not_brought_in_time_is_left_to_the_tasks(
    far: Far, query: Engine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.bus.fill(queue, 10)
    monkeypatch.setattr(multi_source_store, "FETCH_BUDGET_S", -1.0)
    assert query.step("planned") is None
    assert query.reader._planning.prefetched == {}
    assert ids(gather(query, {"far": 10}), "far") == list(range(1, 11))


def test_a_call_that_cannot_do_without_a_link_waits_for_it_and_not_for_ever(far: Far) -> None:
    where = {
        "federation.url": f"far=ws://127.0.0.1:{far.line.port}/bus",
        "federation.secret": SECRET,
        "subscribe": "q",
    }
    name = qualified_name("far", "q")
    far.bus.fill("q", 2)
    far.redis.kill()
    back = threading.Timer(0.5, far.redis.restart)
    back.start()
    store = stores.patient_store(parse(ReadOptions, where))
    assert store.states({name: -1})[name].newest == 2
    back.join()
    store.close()
    away = SameThreadStoreCaller(
        "far", stores.open_link(parse(ReadOptions, where), "far", 0.0), 0.2
    )
    far.line.close()
    for _ in range(2):
        with pytest.raises(LinkLost, match="link 'far'"):
            away.begin_asking(lambda store: store.states({"q": -1}))()
    away.close()


@pytest.mark.parametrize(("word", "task", "driver"), [("wait", inf, 30.0), ("fail", 8.0, 8.0)])
def test_a_sink_waits_for_its_link_in_tasks_which_spark_can_kill_and_on_the_driver_for_a_while(
    word: str, task: float, driver: float
) -> None:
    options = parse(WriteOptions, {"federation.url": "ws://127.0.0.1:1/bus", "onUnavailable": word})
    found = [stores.sink_store(options, task=True), stores.sink_store(options)]
    # They are federated
    assert [store.address.patience_s for store in found] == [task, driver]  # type: ignore[attr-defined]


def test_over_a_link_that_is_cut_all_the_time_every_message_is_delivered_once_and_in_order(
    far: Far, bus: Bus, query: Engine, queue: str
) -> None:
    rows, chance, done = 3_000, random.Random(5), threading.Event()
    query.options["maxMessagesPerTrigger"] = "300"
    query.restart()

    def cut() -> None:
        while not done.wait(chance.uniform(0.01, 0.1)):
            far.line.cut()

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        for at in range(0, rows, 1_000):
            far.bus.fill(queue, 1_000, first=at + 1)
            bus.fill(queue, 1_000, first=at + 1)
        found = gather(query, {"far": rows, "": rows})
    finally:
        done.set()
        cutting.join()
    assert ids(found, "far") == ids(found, "") == list(range(1, rows + 1))
    wait_until(lambda: query.step() is None and far.bus.ids(queue) == [], PATIENCE_S, "all acked")


def test_a_link_that_is_away_at_a_batch_read_is_mentioned_once_at_its_start_and_end(
    far: Far, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    queue = fresh()
    far.bus.fill(queue, 3)
    options = {
        "federation.url": f"far=ws://127.0.0.1:{far.line.port}/bus",
        "federation.secret": SECRET,
        "subscribe": queue,
    }
    store = stores.patient_store(parse(ReadOptions, options), inf)
    far.line.down = repeat(10)
    try:
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(store.states, {qualified_name("far", queue): -1})
            wait_until(
                lambda: any("waiting for it" in text for text in caplog.messages), PATIENCE_S
            )
            tried = far.line.connections
            wait_until(lambda: far.line.connections > tried + 3, PATIENCE_S)
            far.line.down = iter(())
            assert asked.result(timeout=PATIENCE_S)[qualified_name("far", queue)].count == 3
    finally:
        store.close()
    assert [text.partition(" (")[0] for text in caplog.messages] == [
        "link 'far' cannot be reached",
        "link 'far' is reached again",
    ]
