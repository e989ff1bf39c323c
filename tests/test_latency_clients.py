"""The clients that time a stream from outside: what they count is what happened."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time

import pytest

from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import attach, push_many
from notebooks import latency_clients
from notebooks.latency_clients import (
    DemoLatencyTally,
    Workload,
    make_order,
    percentiles,
    read_order,
    workload_clients,
)
from tests.cli.conftest import environment
from tests.conftest import Fresh, link_to


@pytest.mark.parametrize("n", [1, 999_999_999])
def test_an_order_carries_its_number_and_time_also_in_base64_and_as_spark_writes_it(n: int) -> None:
    value = make_order(n, 123_456_789_012_345, 100)
    assert len(value) == 100
    spark = json.dumps({"n": n, "at": 123_456_789_012_345, "gross": 1.5}).encode()
    assert [read_order(value), read_order(base64.b64encode(value)), read_order(spark)] == [
        (n, 123_456_789_012_345)
    ] * 3


def test_orders_that_are_missing_come_twice_or_late_are_distinguished() -> None:
    arrived = DemoLatencyTally()
    for n in (1, 2, 2, 5, 3, 20_000):
        arrived.add(n, 100)
    assert arrived.take_record() == {"arrived": 6, "twice": 1, "misplaced": 1, "took_us": [100] * 6}
    assert arrived.take_record()["took_us"] == []


def test_points_are_those_of_the_sorted_times() -> None:
    assert percentiles([1000 * i for i in range(100, 0, -1)]) == {
        "p50": 51,
        "p95": 96,
        "p99": 100,
        "p99.9": 100,
        "max": 100,
    }
    assert percentiles([]) == {}


@pytest.mark.redis
@pytest.mark.parametrize("rate", [200, 5000])
def test_what_one_pushes_the_other_takes_each_once_in_order(
    redis_url: str, fresh: Fresh, rate: int
) -> None:
    queue, link = fresh("q"), link_to(redis_url)
    link.run(attach(QueueKeys(queue), "born", ttl_s=60))
    with workload_clients(redis_url, Workload(queue, queue, rate, 0.5), every_s=0.1) as said:
        records = list(said)
    times = [took for record in records for took in record["took_us"]]
    assert {name: records[-1][name] for name in ("arrived", "twice", "misplaced")} == {
        "arrived": rate // 2,
        "twice": 0,
        "misplaced": 0,
    }
    assert len(times) == rate // 2
    assert min(times) > 0
    assert link.execute(command("LLEN", QueueKeys(queue).messages)) == 0
    link.close()


@pytest.mark.redis
def test_a_message_that_waited_is_known_to_have_waited(redis_url: str, fresh: Fresh) -> None:
    queue, link = fresh("q"), link_to(redis_url)
    link.run(attach(QueueKeys(queue), "born", ttl_s=60))
    link.run(push_many(QueueKeys(queue), [make_order(1, time.monotonic_ns() - 5_000_000_000, 100)]))
    taker = [
        sys.executable,
        latency_clients.__file__,
        "take",
        redis_url,
        queue,
        "1",
        "0",
    ]
    done = subprocess.run(
        taker, env=environment(None), capture_output=True, text=True, timeout=60, check=True
    )
    [took_us] = json.loads(done.stdout)["took_us"]
    assert took_us > 5_000_000
    link.close()
