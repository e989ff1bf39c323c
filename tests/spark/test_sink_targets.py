"""A sink is its id and its targets: a batch on record for some queues never stands for rows of
others. Both engines.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from busmq_spark.queue.keys import sink_record
from tests.spark.conftest import Bus
from tests.spark.lines import Lines
from tests.spark.test_changed_batch import JAVA, PYTHON, number, staged
from tests.support import PATIENCE_S

pytestmark = [pytest.mark.usefixtures("shim_jar")]
REFUSED = (
    r"\[BUSMQ_SINK_TARGETS\] sink \S+: batch 1 is recorded for '\S+', and this write sends it to"
    r" '\S+'"
)


@pytest.fixture(params=[PYTHON, JAVA])
def via(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Copied:
    """Two pipelines over the same lines: the second has a copy of the first one's checkpoint."""

    def __init__(self, bus: Bus, lines: Lines, via: str, name: str) -> None:
        self._bus, self._lines, self._via, self._name = bus, lines, via, name

    def run(
        self,
        pipeline: str,
        *columns: str,
        to: str = "queue",
        checkpoint: str | None = None,
        **options: str,
    ) -> None:
        """Drain to the queue or topic of the pipeline, or with column ``queue`` where the rows
        say.
        """
        target = {} if to == "column" else {to: self.name(pipeline)}
        if to == "column":
            columns = ("value", f"'{self.name(pipeline)}' AS queue", *columns)
        elif to == "topic":
            target["partitions"] = "2"
        given = {"redis.url": self._bus.url, **target, **options}
        folder = {"first": "", "second": "-copy"}[pipeline] if checkpoint is None else checkpoint
        self._lines.drain(self._via, given, *columns, checkpoint=folder)

    def copy(self) -> None:
        shutil.copytree(self._lines.checkpoint, f"{self._lines.checkpoint}-copy")

    def name(self, pipeline: str) -> str:
        return f"{self._name}-{pipeline}"

    def stored(self, pipeline: str) -> list[int]:
        queues = [self.name(pipeline), *(f"{self.name(pipeline)}/{i}" for i in range(4))]
        return sorted(number([value for queue in queues for value in self._bus.stored(queue)]))


@pytest.fixture
def copied(bus: Bus, lines: Lines, via: str, queue: str) -> Copied:
    return Copied(bus, lines, via, queue)


@pytest.mark.parametrize("to", ["queue", "topic", "column"])
def test_a_copied_checkpoint_that_writes_elsewhere_is_refused_until_it_has_a_sink_of_its_own(
    bus: Bus, lines: Lines, copied: Copied, to: str
) -> None:
    lines.add(0)
    copied.run("first", to=to)
    copied.copy()
    lines.add(1, 2)
    copied.run("first", to=to)
    with pytest.raises(StreamingQueryException, match=REFUSED):
        copied.run("second", to=to)
    assert copied.stored("second") == []
    assert staged(bus, "*") == []
    copied.run("second", to=to, sinkId=copied.name("own"))
    lines.add(3)
    copied.run("second", to=to, sinkId=copied.name("own"))
    copied.run("first", to=to)
    assert (copied.stored("first"), copied.stored("second")) == ([0, 1, 2, 3], [1, 2, 3])


def test_the_first_pipeline_learns_it_when_the_copy_was_faster(
    lines: Lines, copied: Copied
) -> None:
    lines.add(0)
    copied.run("first")
    copied.copy()
    for row in (1, 2):
        lines.add(row)
        copied.run("second")
    with pytest.raises(StreamingQueryException, match=r"\[BUSMQ_SINK_TARGETS\]"):
        copied.run("first")
    assert (copied.stored("first"), copied.stored("second")) == ([0], [1, 2])


@pytest.mark.parametrize("offsets", ["known", "other"])
def test_another_queue_on_the_same_checkpoint_waits_until_the_recorded_batch_is_done(
    lines: Lines, copied: Copied, offsets: str
) -> None:
    for row in (0, 1):
        lines.add(row)
        copied.run("first")
    if offsets == "known":
        lines.forget_commit()
    else:
        lines.forget_batch()
        lines.add(2)
    with pytest.raises(StreamingQueryException, match=REFUSED):
        copied.run("second", checkpoint="", onChangedBatch="keep")
    if offsets == "known":
        copied.run("first")
        lines.add(2)
        copied.run("second", checkpoint="")
        assert (copied.stored("first"), copied.stored("second")) == ([0, 1], [2])


def test_a_query_whose_rows_choose_other_queues_when_they_come_again_goes_on(
    lines: Lines, copied: Copied
) -> None:
    lines.add(0)
    copied.run("first", to="column")
    lines.forget_commit()
    copied.run("second", to="column", checkpoint="")
    lines.add(1)
    copied.run("second", to="column", checkpoint="")
    assert (copied.stored("first"), copied.stored("second")) == ([0], [1])


def test_a_moved_checkpoint_goes_on_with_its_batch(lines: Lines, copied: Copied) -> None:
    lines.add(0)
    copied.run("first", to="column")
    lines.forget_commit()
    lines.checkpoint.rename(f"{lines.checkpoint}-copy")
    copied.run("first", to="column", checkpoint="-copy")
    lines.add(1)
    copied.run("first", to="column", checkpoint="-copy")
    assert copied.stored("first") == [0, 1]


def test_a_topic_that_grew_is_the_same_target(lines: Lines, copied: Copied, bus: Bus) -> None:
    lines.add(*range(20))
    copied.run("first", to="topic")
    lines.forget_commit()
    bus("HSET", f"bus:topic:{copied.name('first')}", "partitions", 4)
    copied.run("first", to="topic")
    lines.add(20)
    copied.run("first", to="topic")
    assert copied.stored("first") == list(range(21))


def test_a_record_without_a_checkpoint_is_one_of_an_older_version(
    lines: Lines, copied: Copied, bus: Bus
) -> None:
    lines.add(0)
    copied.run("first", to="column")
    record = sink_record(lines.query_id)
    bus("HSET", record, "span", bus("HGET", record, "span").partition(b"\n@")[0])
    lines.forget_commit()
    copied.run("first", to="column")
    lines.add(1)
    copied.run("first", to="column")
    assert copied.stored("first") == [0, 1]


class Twice:
    """A foreachBatch that writes each batch twice."""

    def __init__(self, bus: Bus, lines: Lines, via: str, name: str) -> None:
        self._bus, self._lines, self._via, self._name = bus, lines, via, name

    def drain(self, *parts: tuple[str, dict[str, str]], **options: str) -> None:
        """``parts``: a condition, and the options or columns of that write."""

        def write(frame: DataFrame, batch: int) -> None:
            for where, target in parts:
                rows = frame.where(where)
                named = {name: text for name, text in target.items() if name != "column"}
                if not named:
                    rows = rows.selectExpr("value", f"'{target['column']}' AS queue")
                given = {"redis.url": self._bus.url, "sinkId": self._name, "batchId": str(batch)}
                rows.write.format(self._via).mode("append").options(
                    **{**given, **named, **options}
                ).save()

        writer = self._lines.frame().writeStream.foreachBatch(write)
        query = (
            writer.option("checkpointLocation", str(self._lines.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(PATIENCE_S))


@pytest.fixture
def twice(bus: Bus, lines: Lines, via: str, queue: str) -> Twice:
    return Twice(bus, lines, via, queue)


@pytest.mark.parametrize("kind", ["queue", "topic", "column"])
@pytest.mark.parametrize("changed", ["fail", "keep"])
def test_two_writes_of_a_batch_with_one_sink_are_told_so_and_no_row_vanishes(
    bus: Bus, lines: Lines, twice: Twice, queue: str, kind: str, changed: str
) -> None:
    more = {"partitions": "2"} if kind == "topic" else {}
    parts = (("value < 3", "s"), ("value >= 3", "l"))
    small, large = ((where, {kind: f"{queue}-{name}", **more}) for where, name in parts)
    lines.add(*range(6))
    with pytest.raises(
        StreamingQueryException,
        match=(
            r"BUSMQ_SINK_TARGETS\].*two writes have one sinkId: give this write a sinkId of its own"
        ),
    ):
        twice.drain(small, large, onChangedBatch=changed)
    if kind != "column":
        twice.drain(small, (large[0], {**large[1], "sinkId": f"{queue}-own"}))
        queues = {name: [f"{queue}-{name}{part}" for part in ("", "/0", "/1")] for name in "sl"}
        found = {
            name: sorted(number([v for each in own for v in bus.stored(each)]))
            for name, own in queues.items()
        }
        assert found == {"s": [0, 1, 2], "l": [3, 4, 5]}


def test_two_writes_to_one_queue_are_told_how_both_are_appended(
    lines: Lines, twice: Twice, queue: str
) -> None:
    lines.add(*range(6))
    with pytest.raises(
        StreamingQueryException,
        match=(
            r"BUSMQ_BATCH_CHANGED\].*If two writes of one batch have this sinkId, give each its own"
        ),
    ):
        twice.drain(("value < 3", {"queue": queue}), ("value >= 3", {"queue": queue}))


@pytest.fixture
def setting(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The folder where the session keeps checkpoints."""
    name = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(name, str(tmp_path / "base"))
    yield tmp_path / "base"
    spark.conf.unset(name)


def forget_commits(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "commits")


def write_random(lines: Lines, via: str, options: dict[str, Any], name: str = "") -> None:
    writer = lines.frame("uuid() AS value").writeStream.format(via).options(**options)
    query = (writer.queryName(name) if name else writer).trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE_S))


def test_a_checkpoint_of_the_session_is_found_by_the_name_of_the_query(
    bus: Bus, lines: Lines, queue: str, via: str, setting: Path
) -> None:
    options = {"redis.url": bus.url, "queue": queue}
    lines.add(0, 1)
    write_random(lines, via, options, queue)
    first = bus.stored(queue)
    forget_commits(setting / queue)
    write_random(lines, via, options, queue)
    assert bus.stored(queue) == first
    assert len(first) == 2


def test_a_checkpoint_of_the_session_without_a_name_is_found_by_its_id(
    bus: Bus, lines: Lines, queue: str, via: str, setting: Path
) -> None:
    options = {"redis.url": bus.url, "queue": queue}
    lines.add(0, 1)
    write_random(lines, via, options)
    [folder] = setting.iterdir()
    first = bus.stored(queue)
    forget_commits(folder)
    write_random(lines, via, {**options, "CHECKPOINTlocation": folder.as_uri()})
    assert bus.stored(queue) == first
