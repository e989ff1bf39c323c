"""A server of a version before an operation was added."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import WireError
from busmq_spark.federation.bulk import server
from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.option_parsing import parse
from busmq_spark.options import WriteOptions
from busmq_spark.spark.read.tasks import IdTimeRecorder, TimestampColumn
from busmq_spark.spark.write.committed_batch import BatchCheck, CommittedBatchNote
from busmq_spark.store.protocol import ConsecutiveMessages
from busmq_spark.writing.sink import StagedList
from tests.conftest import Fresh
from tests.federation.bulk_queues import filled, read
from tests.federation.bulk_site import site

pytestmark = pytest.mark.redis


def test_a_query_goes_on_at_a_server_that_knows_no_clock(
    redis_server: EmbeddedRedis,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = fresh()
    older = {
        name: operation
        for name, operation in OPERATIONS.items()
        if name not in {"note_times", "find_times", "times", "ages"}
    }
    monkeypatch.setattr(server, "OPERATIONS", older)
    with site(redis_server.url) as here:
        store = FederationBulkStore(here.address())
        part = filled(store, queue, [b"1"])
        IdTimeRecorder().note_new_times({queue: store.states({queue: -1})[queue].last_id}, store)
        assert read(store, part) == [(1, b"1")]
        with pytest.raises(WireError, match="an unknown operation"):
            store.find_times({queue: -1000})
        times = TimestampColumn.fetch(store, [part])
        assert times.column(
            ConsecutiveMessages(queue, 1, pa.array([b"1"], pa.binary()))
        ).to_pylist() == [None]
        assert "the column timestamp is NULL" in caplog.text
        store.close()


def test_a_sink_goes_on_at_a_server_that_does_not_say_what_it_has_of_it(
    redis_server: EmbeddedRedis,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    older = {name: each for name, each in OPERATIONS.items() if name != "sink_state"}
    monkeypatch.setattr(server, "OPERATIONS", older)
    sink = fresh("sink")
    note = CommittedBatchNote(tmp_path, sink)
    note.write(3, [StagedList("q", 0, "key", ((1, 1),), 1)], BatchCheck(0))
    with site(redis_server.url) as here:
        store = FederationBulkStore(here.address())
        for _ in range(2):
            options = parse(WriteOptions, {"redis.url": redis_server.url})
            assert note.check(store, options, 4).least == -1
        store.close()
    assert caplog.text.count(f"does not say what it has of sink {sink}") == 1
