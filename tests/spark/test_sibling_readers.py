"""Several readers of one query on one queue, as in a self-join: each reads everything, and what one
has still to read stays.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from busmq_spark.errors import QueueBusy
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.spark.read import acquisition, reader_threads
from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus, Query
from tests.spark.engine import Engine, through_json
from tests.support import wait_until

MakeEngine = Callable[..., Engine]


class Pair:
    """One query with two readers, which Spark asks in turn: offset log, commit, replay."""

    def __init__(self, sides: list[Engine]) -> None:
        self.sides = sides
        self.log: list[list[dict[str, Any]]] = []
        self.done = 0
        self.ids: list[list[int]] = [[] for _ in sides]

    def step(self, *, crash: bool = False, between: Callable[[], object] = lambda: None) -> bool:
        """One batch; whether there was one. ``crash``: it is planned only. ``between``: called when
        the first reader has planned it.
        """
        starts = (
            self.log[-1]
            if self.log
            else [through_json(side.reader.initialOffset()) for side in self.sides]
        )
        if self.done == len(self.log):
            limits = [side.reader.getDefaultReadLimit() for side in self.sides]
            pairs = zip(self.sides, starts, limits, strict=True)
            ends = []
            for side, start, limit in pairs:
                ends.append(through_json(side.reader.latestOffset(start, limit)))
                if len(ends) == 1:
                    between()
            if ends == starts:
                return False
            self.log.append(ends)
            if len(self.log) > 1:
                for side, start in zip(self.sides, starts, strict=True):
                    side.reader.commit(start)
        else:
            starts = (
                self.log[-2]
                if len(self.log) > 1
                else [through_json(side.reader.initialOffset()) for side in self.sides]
            )
        if crash:
            return True
        parts = [
            side.reader.partitions(start, end)
            for side, start, end in zip(self.sides, starts, self.log[-1], strict=True)
        ]
        for side, found, part in zip(self.sides, self.ids, parts, strict=True):
            found += [id for rows in side._read(part) for _, id, _ in rows]
        self.done = len(self.log)
        return True

    def drain(self) -> None:
        while self.step():
            pass

    def restart(self) -> None:
        for side in self.sides:
            side.kill()


class MakePair(Protocol):
    def __call__(self, *options: dict[str, str]) -> Pair: ...


@pytest.fixture
def pair(bus: Bus, engine: MakeEngine, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> MakePair:
    monkeypatch.setattr(acquisition, "STOPPING_READER_GRACE_S", 0.0)
    monkeypatch.setattr(reader_threads, "DISCOVERY_INTERVAL_S", 0.02)

    def make(*options: dict[str, str]) -> Pair:
        folder = f"/{fresh('checkpoint')}/sources"
        common = {"redis.url": bus.url, "idlePollMs": "1"}
        return Pair(
            [engine({**common, **own}, folder=f"{folder}/{at}") for at, own in enumerate(options)]
        )

    return make


def test_two_readers_of_one_query_both_read_everything_and_a_message_leaves_when_both_have_done_it(
    bus: Bus, pair: MakePair, queue: str
) -> None:
    bus.fill(queue, 6)
    query = pair({"subscribe": queue}, {"subscribe": queue, "maxMessagesPerTrigger": "2"})
    query.step()
    assert bus.ids(queue) == [1, 2, 3, 4, 5, 6]
    query.step()
    assert (query.ids, bus.ids(queue)) == ([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]], [3, 4, 5, 6])
    query.drain()
    assert query.ids == [[1, 2, 3, 4, 5, 6]] * 2
    assert bus.ids(queue) == []
    bus.fill(queue, 3, first=7)
    query.drain()
    assert query.ids == [[*range(1, 10)]] * 2
    assert bus.ids(queue) == []


@pytest.mark.parametrize("planned", [False, True])
def test_after_a_crash_between_two_batches_both_readers_go_on_where_they_were(
    bus: Bus, pair: MakePair, queue: str, planned: bool
) -> None:
    bus.fill(queue, 6)
    query = pair({"subscribe": queue}, {"subscribe": queue, "maxMessagesPerTrigger": "2"})
    query.step()
    if planned:
        query.step(crash=True)
    for _ in range(2):
        query.restart()
        query.step()
    query.drain()
    assert query.ids == [[1, 2, 3, 4, 5, 6]] * 2
    assert bus.ids(queue) == []


@pytest.mark.only("python", reason="Java's readers of a query are in one process, without a file")
def test_both_readers_go_on_where_the_file_that_they_share_was_cleared_away(
    bus: Bus, pair: MakePair, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bus.fill(queue, 6)
    query = pair({"subscribe": queue}, {"subscribe": queue, "maxMessagesPerTrigger": "2"})
    query.step()
    [folder] = tmp_path.glob("busmq-*")
    shutil.rmtree(folder)
    query.step()
    assert bus.ids(queue) in ([1, 2, 3, 4, 5, 6], [3, 4, 5, 6])
    query.drain()
    bus.fill(queue, 3, first=7)
    query.drain()
    assert query.ids == [[*range(1, 10)]] * 2
    assert bus.ids(queue) == []


def test_with_one_subscription_both_readers_share_its_position(
    bus: Bus, pair: MakePair, queue: str
) -> None:
    bus.fill(queue, 4)
    own = {"subscribe": queue, "subscription": "s"}
    query = pair({**own, "maxMessagesPerTrigger": "1"}, own)
    query.step()
    query.step()
    assert bus("HGET", QueueKeys(queue).acks, "s") == b"1"
    query.restart()
    query.drain()
    assert query.ids == [[1, 2, 3, 4]] * 2
    assert bus.ids(queue) == []


def test_a_new_queue_of_a_pattern_is_kept_until_both_readers_have_found_it(
    bus: Bus, pair: MakePair, fresh: Fresh
) -> None:
    base = fresh("p")
    query = pair(
        {"subscribePattern": f"{base}-."},
        {"subscribe": f"{base}-0", "maxMessagesPerTrigger": "1"},
        {"subscribePattern": f"{base}-1"},
    )
    query.drain()
    bus.fill(f"{base}-1", 3)
    wait_until(
        lambda: query.step() is not None and min(len(query.ids[0]), len(query.ids[2])) == 3,
        PATIENCE_S,
    )
    query.drain()
    assert query.ids == [[1, 2, 3], [], [1, 2, 3]]
    assert bus.ids(f"{base}-1") == []


def test_another_query_is_refused_once_the_readers_of_the_first_have_planned(
    bus: Bus, pair: MakePair, queue: str
) -> None:
    bus.fill(queue, 2)
    first = pair({"subscribe": queue}, {"subscribe": queue})
    first.step()
    with pytest.raises(QueueBusy, match="is read by another query"):
        pair({"subscribe": queue}, {"subscribe": queue}).step()
    first.drain()
    assert first.ids == [[1, 2]] * 2
    assert bus.ids(queue) == []


def test_the_readers_of_a_query_find_each_other_while_another_query_of_the_driver_begins(
    bus: Bus, pair: MakePair, fresh: Fresh
) -> None:
    names = [fresh("q"), fresh("q")]
    slow, quick = (
        pair({"subscribe": name}, {"subscribe": name, "maxMessagesPerTrigger": "2"})
        for name in names
    )
    for name in names:
        bus.fill(name, 6)
    slow.step(between=quick.drain)
    slow.drain()
    assert (slow.ids, quick.ids) == ([[1, 2, 3, 4, 5, 6]] * 2, [[1, 2, 3, 4, 5, 6]] * 2)
    assert [bus.ids(name) for name in names] == [[], []]


@pytest.mark.parametrize("chosen", ["busmq", "busmq-realtime"])
def test_spark_joins_a_stream_with_itself_and_goes_on_after_a_restart(
    spark: SparkSession,
    bus: Bus,
    queue: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    chosen: str,
) -> None:
    if chosen == "busmq-realtime":
        request.getfixturevalue("shim_jar")
    options = {"redis.url": bus.url, "subscribe": queue}
    frame = spark.readStream.format(chosen).options(**options).load()
    joined = frame.alias("a").join(frame.alias("b"), expr("a.id = b.id")).select("a.id", "b.value")
    found = Query()
    for last in (20, 30):
        bus.fill(queue, 20 if last == 20 else 10, first=1 if last == 20 else 21)
        found.query = (
            joined.writeStream.foreachBatch(found.take)
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
        )
        found.wait_for(
            lambda last=last: {row["id"] for row in found.rows} == set(range(1, last + 1)),
            f"{last} rows",
        )  # type: ignore[misc]
        found.wait_for(lambda: bus.ids(queue) == [], "acks")
        found.query.stop()
    assert len(found.rows) == 30


@pytest.mark.only("python", reason="Java knows the readers of a query from the start")
def test_a_queue_that_another_reader_created_is_found_before_a_reader_is_asked_again(
    pair: MakePair, fresh: Fresh
) -> None:
    base = fresh("p")
    query = pair({"subscribePattern": f"{base}-."}, {"subscribe": f"{base}-0"})
    query.step(crash=True)
    found = query.sides[0].reader._planning.names._discovery
    assert found is not None
    wait_until(lambda: found._found.queues, PATIENCE_S)
    query.step()
    query.drain()
