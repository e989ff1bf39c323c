"""A Redis that comes back older than the checkpoint of a query stops its sink, in both engines."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from busmq_spark.embedded import EmbeddedRedis, EmbeddedSentinel
from busmq_spark.queue.keys import QueueKeys, sink_record
from busmq_spark.writing.sink_rollback import COMMITTED_BATCH_FILE, CommittedBatch
from tests.spark.conftest import Bus, MakeBus
from tests.spark.lines import Lines
from tests.support import PATIENCE_S, wait_until

PYTHON, JAVA = "busmq", "busmq-realtime"
Drain = Callable[..., None]

pytestmark = [pytest.mark.usefixtures("shim_jar")]


@pytest.fixture(params=[PYTHON, JAVA])
def via(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as made:
        yield made


@pytest.fixture
def own(server: EmbeddedRedis, bus_of: MakeBus) -> Bus:
    return bus_of(server)


def snapshot(server: EmbeddedRedis) -> Callable[[], None]:
    """Save Redis as it is now; the result starts it again from there."""
    server.command("SAVE")
    dump, kept = server.folder / "dump.rdb", server.folder / "kept.rdb"
    shutil.copy(dump, kept)

    def restore() -> None:
        server.kill()
        shutil.copy(kept, dump)
        server.restart()

    return restore


def rolled_back(batch: int, found: str) -> Any:
    return pytest.raises(
        StreamingQueryException,
        match=rf"\[BUSMQ_SINK_ROLLED_BACK\] sink .*: the checkpoint has its batch {batch}, and"
        rf" Redis has {found}\. .*failOnDataLoss=false at the sink",
    )


def numbers(bus: Bus, queue: str) -> list[int]:
    return [int(value) for value in bus.stored(queue)]


def test_a_redis_restored_from_an_older_dump_stops_the_query_until_that_is_allowed(
    server: EmbeddedRedis, own: Bus, lines: Lines, queue: str, via: str
) -> None:
    options = {"redis.url": own.url, "queue": queue}
    lines.add(0)
    lines.drain(via, options)
    restore = snapshot(server)
    lines.add(1)
    lines.drain(via, options)
    restore()
    lines.add(2)
    with rolled_back(1, "batch 0"):
        lines.drain(via, options)
    with rolled_back(1, "batch 0"):
        lines.drain(via, options)
    assert numbers(own, queue) == [0]
    assert own("KEYS", QueueKeys(queue).stage("*")) == []
    assert not (lines.checkpoint / "commits" / "2").exists(), "its sources are not acknowledged"
    lines.drain(via, {**options, "failOnDataLoss": "false"})
    lines.add(3)
    lines.drain(via, options)
    assert numbers(own, queue) == [0, 2, 3]


def test_a_flushed_redis_stops_the_query_but_for_another_sink(
    server: EmbeddedRedis, own: Bus, lines: Lines, queue: str, via: str
) -> None:
    options = {"redis.url": own.url, "queue": queue}
    lines.add(0)
    lines.drain(via, options)
    server.command("FLUSHALL")
    lines.add(1)
    with rolled_back(0, "no batch of it"):
        lines.drain(via, options)
    lines.drain(via, {**options, "sinkId": f"{queue}-other"})
    assert numbers(own, queue) == [1]


def test_a_queue_on_another_server_that_came_back_older_stops_the_query(
    own: Bus, lines: Lines, queue: str, via: str
) -> None:
    """The record of the sink is as new as before; only the progress in the queue is not."""
    options = {"redis.url": own.url, "queue": queue}
    lines.add(0)
    lines.drain(via, options)
    sinks = QueueKeys(queue).sinks
    before = own("HGET", sinks, lines.query_id)
    lines.add(1)
    lines.drain(via, options)
    own("HSET", sinks, lines.query_id, before)
    lines.add(2)
    with rolled_back(1, f"batch 0 in queue '{queue}'"):
        lines.drain(via, options)


def test_each_engine_goes_on_with_the_note_of_the_other(
    server: EmbeddedRedis, own: Bus, lines: Lines, queue: str, via: str, tmp_path: Path
) -> None:
    """A driver that dies at any point, a checkpoint that is moved and one of an older version are
    no loss; then the Redis of both is flushed.
    """
    other = PYTHON if via == JAVA else JAVA
    options = {"redis.url": own.url, "queue": queue}
    note = lines.checkpoint / COMMITTED_BATCH_FILE

    def noted() -> CommittedBatch:
        text = note.read_text()
        found = CommittedBatch.decode(text)
        assert found.encode() == text, "both write the same form"
        return found

    lines.add(0)
    lines.drain(via, options)
    first = note.read_bytes()
    assert (noted().batch, noted().sink, noted().queues) == (0, lines.query_id, (queue,))
    lines.forget_commit()  # the note is newer than the commit log
    lines.drain(other, options)
    lines.add(1)
    lines.drain(other, options)
    assert noted().batch == 1
    note.write_bytes(first)  # a crash between the record and the note
    lines.forget_commit()
    lines.drain(via, options)
    assert noted().batch == 1
    note.unlink()  # an older version wrote the checkpoint
    lines.add(2)
    lines.drain(other, options)
    moved = lines.checkpoint.rename(tmp_path / "moved")
    moved.rename(lines.checkpoint)
    note.write_bytes(b"{")  # damaged
    lines.add(3)
    lines.drain(via, options)
    assert numbers(own, queue) == [0, 1, 2, 3]
    assert (noted().batch, noted().made) == (
        3,
        int(own("HGET", sink_record(noted().sink), "epoch")),
    )
    server.command("FLUSHALL")
    lines.add(4)
    with rolled_back(3, "no batch of it"):
        lines.drain(other, options)


def test_a_failover_before_the_append_that_loses_only_the_record_is_no_loss(
    own: Bus, lines: Lines, queue: str, via: str
) -> None:
    """The new master had the staged lists and not the record, so all rows were appended there."""
    options = {"redis.url": own.url, "queue": queue}
    lines.add(0)
    lines.drain(via, options)
    record = sink_record(lines.query_id)
    before = own("HGETALL", record)
    lines.add(1)
    lines.drain(via, options)
    own("HSET", record, *before)
    lines.add(2)
    lines.drain(via, options)
    assert numbers(own, queue) == [0, 1, 2]


def test_a_noted_batch_that_a_loss_of_power_took_back_comes_again(
    server: EmbeddedRedis, own: Bus, lines: Lines, queue: str, via: str
) -> None:
    """The note is on the disk; the commit log and the last second of Redis are not."""
    options = {"redis.url": own.url, "queue": queue}
    lines.add(0)
    lines.drain(via, options)
    restore = snapshot(server)
    for row in (1, 2):
        lines.add(row)
        lines.drain(via, options)
        restore()
        lines.forget_commit()
        lines.drain(via, options)
        assert numbers(own, queue) == [*range(row + 1)]
        restore = snapshot(server)
    lines.forget_commit()
    server.command("FLUSHALL")
    with rolled_back(1, "no batch of it"):
        lines.drain(via, options)


def test_a_run_without_data_loss_checks_ends_the_loss_also_where_it_brings_no_rows(
    server: EmbeddedRedis, own: Bus, lines: Lines, queue: str, via: str
) -> None:
    options = {"redis.url": own.url, "queue": queue}
    lines.add(0)
    lines.drain(via, options)
    server.command("FLUSHALL")
    lines.add(1)
    empty = lines.frame().where("false")
    query = lines.start(via, empty, {**options, "failOnDataLoss": "false"})
    assert query.awaitTermination(int(PATIENCE_S))
    assert not (lines.checkpoint / COMMITTED_BATCH_FILE).exists()
    lines.add(2)
    lines.drain(via, options)
    assert numbers(own, queue) == [2]


@pytest.mark.slow
def test_a_failover_to_a_replica_that_missed_a_batch_stops_both_engines(
    sentinel_servers: EmbeddedSentinel, spark: Any, tmp_path: Path, queue: str
) -> None:
    group = sentinel_servers
    options = {"redis.url": ",".join(group.urls), "redis.layout": "sentinel"}
    queries: dict[str, Lines] = {}
    for via in (PYTHON, JAVA):
        (tmp_path / via).mkdir()
        queries[via] = Lines(spark, tmp_path / via)

    def drain(row: int) -> None:
        for via, lines in queries.items():
            lines.add(row)
            lines.drain(via, {**options, "queue": f"{queue}-{via}"})

    drain(0)
    master = group.master
    wait_until(lambda: master.command("WAIT", 1, 1000) == 1, what="the replica has batch 0")
    master.command("ACL", "SETUSER", "default", "-psync", "-sync")
    master.command("CLIENT", "KILL", "TYPE", "replica")
    drain(1)
    group.kill_master()
    wait_until(lambda: group.master is not master, what="a fail-over")
    for via, lines in queries.items():
        lines.add(2)
        with rolled_back(1, "batch 0"):
            lines.drain(via, {**options, "queue": f"{queue}-{via}"})
        lines.stop()
    master.restart()
    group.wait_healthy()
