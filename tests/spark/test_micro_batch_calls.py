"""What each micro-batch of a query asks Redis for, and what only its first one does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue.scripts import load
from tests.spark.conftest import Bus
from tests.spark.monitor import Monitor
from tests.support import PATIENCE_S

BATCHES = 6
STATE, RECORD, ATTACH = (load(name).digest for name in ("state", "record", "attach"))


def test_a_batch_of_the_java_engine_asks_for_nothing_twice(
    spark: SparkSession,
    shim_jar: Path,
    bus: Bus,
    redis_server: EmbeddedRedis,
    queue: str,
    tmp_path: Path,
) -> None:
    target = f"{queue}-out"
    bus.fill(queue, BATCHES)
    options = {"redis.url": bus.url, "engine": "java"}
    rows = (
        spark.readStream.format("busmq")
        .options(**options, subscribe=queue, maxMessagesPerTrigger="1")
        .load()
        .select("value")
    )
    with Monitor(redis_server) as monitor:
        writer = rows.writeStream.format("busmq").options(
            **options, queue=target, checkpointLocation=str(tmp_path / "c")
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(int(2 * PATIENCE_S))
    assert query.exception() is None
    assert len(bus.stored(target)) == BATCHES
    asked = Counter(words[1] if words[0] == "EVALSHA" else words[0] for words in monitor.words)
    assert asked[RECORD] == BATCHES
    assert asked["INFO"] == 2, "whether the Redis evicts: the source and the sink, once each"
    assert asked["MGET"] < BATCHES, (
        "the counters are for an idle query; here the first and the last planning are followed"
        " by one"
    )
    assert asked[STATE] <= 3 * BATCHES + 4, (
        "one for the planning, one before the rows of the task and one behind them"
    )
    assert asked[ATTACH] <= BATCHES + 2, (
        "the target once in each task, though it may travel with the call that begins the run"
    )
