"""Events in real-time mode: their columns need nothing that this mode lacks, and carry what
exactly-once needs.
"""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit

from busmq_spark import Event, events, json_columns, to_events
from busmq_spark.groups.dead_letter import decode_letter
from tests.spark.conftest import Bus
from tests.spark.test_realtime_sink_live import Live, any_sink, live

__all__ = ["any_sink", "live"]
pytestmark = [pytest.mark.usefixtures("shim_jar", "any_sink")]


def pipeline(source: DataFrame) -> DataFrame:
    wanted = events(source).where("type = 'order' and cast(data as int) >= 0")
    return to_events(wanted.withColumn("type", lit("seen")).withColumn("subject", col("id")))


def test_events_are_read_and_written_once_while_their_batch_runs(
    bus: Bus, live: Live, queue: str
) -> None:
    live.rows = pipeline
    sink = {"redis.url": bus.url, "queue": queue, "delivery": "exactly-once"}
    for first in (0, 5):
        live.start(sink)
        for n in range(first, first + 5):
            bus.push(
                live.source,
                Event(id=f"e{n}", source="/web", type="order", data=n).encode(),
                b"no event",
            )
        live.wait_rows(queue, first + 5)
        live.stop()
    found = [Event.decode(value) for value in bus.stored(queue)]
    assert [(each.id, each.type, each.subject, each.data) for each in found] == [
        (f"e{n}", "seen", f"e{n}", n) for n in range(10)
    ]


def test_dead_letters_arrive_while_their_batch_runs(bus: Bus, live: Live, queue: str) -> None:
    """Of a query of their own: in this mode none reads its source twice."""
    live.rows = lambda source: json_columns(source, "n int", on_error="dead-letter", into=queue)[1]
    live.start({"redis.url": bus.url, "delivery": "at-least-once"})
    bus.push(live.source, b'{"n": 1}', b"bad", b'{"n": 2}', b"worse")
    live.wait_rows(queue, 2)
    assert [(each.id, each.value) for each in map(decode_letter, bus.stored(queue))] == [
        (2, b"bad"),
        (4, b"worse"),
    ]
