"""The note of a sink in a checkpoint against a real Redis, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import SinkRolledBack
from busmq_spark.option_parsing import parse
from busmq_spark.options import RedisOptions, WriteOptions
from busmq_spark.queue.keys import QueueKeys, sink_record
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark.write.committed_batch import BatchCheck, CommittedBatchNote
from busmq_spark.spark.write.committer import SinkCommitter
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import open_store
from busmq_spark.writing.sink import StagedList, attempt_name
from busmq_spark.writing.sink_rollback import COMMITTED_BATCH_FILE, CommittedBatch
from tests.conftest import Fresh

pytestmark = pytest.mark.redis
Append = Callable[..., None]


@pytest.fixture
def sink(fresh: Fresh) -> str:
    return fresh("sink")


@pytest.fixture
def append(redis_server: EmbeddedRedis, sink: str, fresh: Fresh, tmp_path: Path) -> Append:
    """Commit a batch as a driver does that has just started."""

    def run(queue: str, batch: int, *rows: bytes, url: str = "", go_on: bool = False) -> None:
        loss = "false" if go_on else "true"
        given = {"redis.url": url or redis_server.url, "queue": queue, "failOnDataLoss": loss}
        options = parse(WriteOptions, given)
        own = open_store(RedisOptions(url=given["redis.url"]))
        own.attach([queue], QueueCreateOptions(True, 3600))
        epoch = own.begin(sink, fresh("run"), [queue])
        staged = []
        if rows:
            appender = own.appender()
            name = attempt_name(sink, str(batch), 0, new_token())
            appender.stage(queue, QueueKeys(queue).stage(name), list(rows), epoch)
            staged = appender.finish()
        note = CommittedBatchNote(tmp_path, sink)
        check = note.check(own, options, batch)
        held = SinkCommitter(options, own, check.least).commit(sink, batch, staged, run=epoch)
        note.write(batch, held, check)
        own.close()

    return run


def stored(server: EmbeddedRedis, queue: str) -> list[str]:
    found: list[str] = server.command("LRANGE", QueueKeys(queue).messages, 0, -1)
    return found[1::2]


def noted(folder: Path) -> CommittedBatch:
    return CommittedBatch.decode((folder / COMMITTED_BATCH_FILE).read_bytes())


def test_a_failover_before_the_append_that_loses_only_the_record_is_no_loss(
    redis_server: EmbeddedRedis, append: Append, sink: str, fresh: Fresh, tmp_path: Path
) -> None:
    queue = fresh()
    append(queue, 0, b"0")
    record = redis_server.command("HGETALL", sink_record(sink))
    append(queue, 1, b"1")
    redis_server.command("HSET", sink_record(sink), *record)
    append(queue, 2, b"2")
    assert stored(redis_server, queue) == ["0", "1", "2"]
    assert (noted(tmp_path).batch, noted(tmp_path).before) == (2, 0)


def test_a_noted_batch_comes_again_after_a_loss_of_power(
    redis_server: EmbeddedRedis, append: Append, sink: str, fresh: Fresh
) -> None:
    queue = fresh()
    append(queue, 0, b"0")
    keys = [sink_record(sink), QueueKeys(queue).sinks, QueueKeys(queue).messages]
    before = [redis_server.command("DUMP", key) for key in keys]
    append(queue, 1, b"1")
    for key, dump in zip(keys, before, strict=True):
        redis_server.command("RESTORE", key, 3_600_000, dump, "REPLACE")
    append(queue, 1, b"1")
    assert stored(redis_server, queue) == ["0", "1"]
    redis_server.command("DEL", *keys)
    with pytest.raises(SinkRolledBack, match="its batch 0, and Redis has no batch of it"):
        append(queue, 1, b"1")


def test_an_accepted_loss_is_over_with_a_batch_without_rows(
    redis_server: EmbeddedRedis, append: Append, sink: str, fresh: Fresh, tmp_path: Path
) -> None:
    queue = fresh()
    append(queue, 0, b"0")
    redis_server.command("DEL", sink_record(sink), QueueKeys(queue).sinks)
    with pytest.raises(SinkRolledBack):
        append(queue, 1)
    append(queue, 1, go_on=True)
    assert not (tmp_path / COMMITTED_BATCH_FILE).exists()
    append(queue, 2, b"2")


def test_a_note_has_the_time_before_its_record(tmp_path: Path) -> None:
    """The append may wait for days for room in a queue, and the record expires meanwhile."""
    part = StagedList("q", 0, "key", ((1, 1),), made=7)
    CommittedBatchNote(tmp_path, "sink").write(3, [part], BatchCheck(1_000))
    assert noted(tmp_path).at_ms == 1_000
