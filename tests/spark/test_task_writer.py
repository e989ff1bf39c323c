"""One task of a sink against a real Redis, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import MessageRefused, QueueFull, ServerFull
from busmq_spark.options import WriteOptions
from busmq_spark.queue import message
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark.write.sink_columns import SinkColumns
from busmq_spark.spark.write.tasks import TaskWriter
from busmq_spark.writing.sink import STAGE_TTL_S
from tests.faults.proxy import Proxy
from tests.spark.conftest import Bus, MakeBus
from tests.spark.sink_engines import SinkEngine
from tests.support import PATIENCE_S, Life, wait_until

MakeSink = Callable[[Mapping[str, str]], SinkEngine]


def batch(*values: bytes) -> Any:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])


def writer(bus: Bus, queue: str | None, **options: Any) -> TaskWriter:
    return TaskWriter(
        WriteOptions(url=bus.url, queue=queue, **options),
        SinkColumns("value", None if queue else "queue", queue),
        new_token(),
    )


@pytest.fixture
def sink(bus: Bus, queue: str, sink_engine: MakeSink) -> Callable[..., SinkEngine]:
    """Makes a write to the queue."""
    return lambda **options: sink_engine({"redis.url": bus.url, "queue": queue, **options})


def staged(bus: Bus, queue: str) -> list[str]:
    """The keys of what tasks have staged for a queue."""
    return [key.decode() for key in bus("KEYS", QueueKeys(queue).stage("*"))]


def test_an_exactly_once_task_stores_nothing_a_reader_can_see(
    bus: Bus, queue: str, sink: Callable[..., SinkEngine]
) -> None:
    life = Life(bus, STAGE_TTL_S)
    sink().stage([b"1", b"2", b"3"])
    assert bus.stored(queue) == []
    [key] = staged(bus, queue)
    assert bus("LRANGE", key, 0, -1) == [b"1", b"2", b"3"]
    assert life.given_to(key)


def test_every_attempt_stages_under_a_name_of_its_own(
    bus: Bus, queue: str, sink: Callable[..., SinkEngine]
) -> None:
    write = sink()
    for _ in range(3):
        write.stage([b"1"])
    assert len(staged(bus, queue)) == 3


def test_a_task_without_rows_touches_nothing(bus: Bus, queue: str) -> None:
    assert writer(bus, queue).write(iter([])).staged == ()
    assert bus("EXISTS", QueueKeys(queue).metadata) == 0


def test_an_at_least_once_task_appends_at_once(
    bus: Bus, queue: str, sink: Callable[..., SinkEngine]
) -> None:
    sink(delivery="at-least-once").stage([b"1", b"2", b"3"])
    assert bus.stored(queue) == [b"1", b"2", b"3"]
    assert staged(bus, queue) == []


def test_an_at_least_once_task_that_meets_a_full_queue_says_how_many_rows_are_left(
    bus: Bus, queue: str, sink: Callable[..., SinkEngine]
) -> None:
    bus.attach(queue, maxsize=2)
    with pytest.raises(QueueFull, match="holds its maxsize of 2 messages; 1 rows are not stored"):
        sink(delivery="at-least-once", onFull="fail").stage([b"1", b"2", b"3"])
    assert bus.stored(queue) == [b"1", b"2"]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_message_larger_than_redis_takes_is_refused_before_it_is_sent(
    bus: Bus, queue: str, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    monkeypatch.setattr(message, "MAX_VALUE_BYTES", 1_000_000)  # 512 MB would do the same, slowly
    with pytest.raises(
        MessageRefused, match="a message of 1000001 bytes is over Redis' limit of 1000000"
    ):
        writer(bus, queue, delivery=delivery).write(iter([batch(b"x" * 1_000_001)]))
    assert bus.stored(queue) == []


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_large_and_small_messages_keep_their_order(
    bus: Bus, queue: str, sink: Callable[..., SinkEngine], delivery: str
) -> None:
    values = [b"%d" % i if i % 7 else b"x" * 300_000 for i in range(40)]
    write = sink(delivery=delivery)
    write.stage(values)
    write.commit()
    assert bus.stored(queue) == values


def test_a_task_that_meets_a_bad_row_takes_back_what_it_staged(bus: Bus, queue: str) -> None:
    rows = [
        batch(*[b"x" * 100] * 5000),
        pa.RecordBatch.from_arrays([pa.array([b"1", None], pa.binary())], ["value"]),
    ]
    with pytest.raises(MessageRefused, match="column 'value' is NULL in 1 of 2 rows"):
        writer(bus, queue).write(iter(rows))
    assert bus("KEYS", QueueKeys(queue).stage("*")) == []
    assert len(writer(bus, queue).write(iter(rows[:1])).staged) == 1  # the connection is still good


def test_a_task_that_fills_redis_takes_back_what_it_staged(
    bus_of: MakeBus, sink_engine: MakeSink
) -> None:
    with EmbeddedRedis() as server:
        full = bus_of(server)
        full.attach("q")
        used = int(full("INFO", "memory").split(b"used_memory:")[1].split()[0])
        full("CONFIG", "SET", "maxmemory", used + 4_000_000)
        write = sink_engine({"redis.url": full.url, "queue": "q"})
        with pytest.raises(ServerFull):
            write.stage([b"x" * 100_000] * 200)
        wait_until(lambda: not staged(full, "q"), PATIENCE_S)  # Java does so beside the task
        full("CONFIG", "SET", "maxmemory", 0)
        write.stage([b"1"])
        assert len(staged(full, "q")) == 1


def test_the_queues_of_a_batch_are_attached_in_one_round_trip(bus_of: MakeBus) -> None:
    with EmbeddedRedis() as server, Proxy(server.port) as proxy:
        names: list[str] = []
        proxy.seen.append(lambda command: names.append(command.name))
        gate = proxy.hold(lambda command: command.name == "attach", reply=True)
        rows = pa.RecordBatch.from_pydict(
            {"queue": [f"q{i % 50}" for i in range(100)], "value": [b"x"] * 100}
        )
        task = TaskWriter(
            WriteOptions(url=proxy.url), SinkColumns("value", "queue", None), new_token()
        )
        with ThreadPoolExecutor() as pool:
            done = pool.submit(task.write, iter([rows]))
            held = gate.wait()  # the first answer is on its way back
            wait_until(lambda: names.count("attach") >= 50, PATIENCE_S)
            gate.open()
            held.release()
            assert len(done.result(PATIENCE_S).staged) == 50


def test_the_queues_of_a_batch_are_committed_in_one_round_trip(
    bus_of: MakeBus, sink_engine: MakeSink
) -> None:
    with EmbeddedRedis() as server, Proxy(server.port) as proxy:
        names: list[str] = []
        proxy.seen.append(lambda command: names.append(command.name))
        write = sink_engine({"redis.url": proxy.url})
        write.stage([(f"q{i % 50}", b"x") for i in range(100)])
        gate = proxy.hold(lambda command: command.name == "commit", reply=True)
        with ThreadPoolExecutor() as pool:
            done = pool.submit(write.commit)
            held = gate.wait()  # the first answer is on its way back
            wait_until(lambda: names.count("commit") >= 50, PATIENCE_S)
            gate.open()
            held.release()
            done.result(PATIENCE_S)
        assert all(bus_of(server).stored(f"q{i}") == [b"x"] * 2 for i in range(50))
