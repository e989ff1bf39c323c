"""Pushes to a topic by key against pushes to one queue, in one process, in turn, on the same Redis;
and how long partitions need to move.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.topics.member import Member
from busmq_spark.groups.topic import partitions_of
from busmq_spark.redis_io import lease_token
from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios, redis

BATCH, BATCHES, TOGETHER, PARTITIONS, VALUE = 1000, 100, 20, 10, b"x" * 100
KEYS = [f"host-{n % 5000}" for n in range(BATCH * BATCHES)]
RATE, HASHING, LEFT_MS, KILLED_S = 0.8, 0.1, 200.0, lease_token.LEASE_MS / 1000 + 1


def run(runs: int = RUNS) -> Iterator[Row]:
    with redis() as (server, _):
        ways: dict[str, Callable[..., object]] = {
            "topic": pushed_to_topic,
            "queue": pushed_to_queue,
            "queues": pushed_to_queues,
        }
        ways |= {
            f"{name}_unawaited": partial(ways[name], awaited=False) for name in ("topic", "queue")
        }
        found = alternating(
            runs, **{name: partial(in_loop, way, server.url) for name, way in ways.items()}
        )
        over = Spread.of(ratios(found["topic_unawaited"], found["queue_unawaited"]))
        what = (
            f"Push to a topic of {PARTITIONS} partitions by key, batches of {BATCH:,}, {TOGETHER}"
            " under way: rate against push_many on one queue"
        )
        yield Row(
            what,
            f"{over.text()}; {Spread.of(found['topic_unawaited']).median / 1000:.0f} k/s",
            f"≥ {RATE}",
            over.median >= RATE,
        )
        over = Spread.of(ratios(found["topic"], found["queue"]))
        what = (
            f"The same, each awaited: {BATCH // PARTITIONS} a partition and call: rate against"
            " push_many on one queue"
        )
        yield Row(
            what,
            f"{over.text()}; {Spread.of(found['topic']).median / 1000:.0f} k/s",
            f"≥ {RATE}",
            over.median >= RATE,
        )
        over = Spread.of(ratios(found["topic"], found["queues"]))
        yield Row(
            f"That against push_many of {BATCH // PARTITIONS} on each of {PARTITIONS} queues at"
            " once",
            over.text(),
            "",
            None,
        )
        part = Spread.of([hashing_s() * rate / len(KEYS) for rate in found["topic"]])
        yield Row(
            "Choosing partitions: part of the time of such a push",
            part.text(),
            f"≤ {HASHING}",
            part.median <= HASHING,
        )
        left = Spread.of([in_loop(left_s, server.url) * 1000 for _ in range(runs)])
        yield Row(
            "A member leaves: milliseconds until another owns its 5 partitions",
            left.text(0),
            f"≤ {LEFT_MS:.0f}",
            left.most <= LEFT_MS,
        )
        killed = Spread.of([in_loop(killed_s, server.url) for _ in range(min(3, runs))])
        yield Row(
            "A member of another machine is killed: seconds until then",
            killed.text(1),
            f"≤ {KILLED_S:.0f}",
            killed.most <= KILLED_S,
        )


def in_loop(work: Callable[..., object], url: str) -> float:
    # A coroutine function of a float
    return asyncio.run(work(url))  # type: ignore[arg-type,return-value]


async def pushed(push: Callable[[int], asyncio.Future[Any]], *, awaited: bool) -> float:
    """All batches, each after the one before or TOGETHER at a time."""
    began = time.perf_counter()
    step = BATCH if awaited else BATCH * TOGETHER
    for start in range(0, len(KEYS), step):
        await asyncio.gather(*(push(at) for at in range(start, start + step, BATCH)))
    return len(KEYS) / (time.perf_counter() - began)


async def pushed_to_topic(url: str, *, awaited: bool = True) -> float:
    async with Bus(url) as bus, bus.topic("bench", PARTITIONS) as topic:
        rate = await pushed(
            lambda at: topic.push_many([VALUE] * BATCH, keys=KEYS[at : at + BATCH]), awaited=awaited
        )
        for queue in topic.queues:
            await queue.flush()
        return rate


async def pushed_to_queue(url: str, *, awaited: bool = True) -> float:
    async with Bus(url) as bus, bus.queue("bench") as queue:
        rate = await pushed(lambda _: queue.push_many([VALUE] * BATCH), awaited=awaited)
        await queue.flush()
        return rate


async def pushed_to_queues(url: str) -> float:
    async with Bus(url) as bus:
        queues = [bus.queue(f"bench-{n}") for n in range(PARTITIONS)]
        for queue in queues:
            await queue.attach()
        began = time.perf_counter()
        for _ in range(BATCHES):
            await asyncio.gather(
                *(queue.push_many([VALUE] * (BATCH // PARTITIONS)) for queue in queues)
            )
        rate = len(KEYS) / (time.perf_counter() - began)
        for queue in queues:
            await queue.flush()
        return rate


def hashing_s() -> float:
    began = time.perf_counter()
    for at in range(0, len(KEYS), BATCH):
        partitions_of(KEYS[at : at + BATCH], PARTITIONS, 0)
    return time.perf_counter() - began


async def left_s(url: str) -> float:
    async with (
        Bus(url) as bus,
        bus.topic("bench", PARTITIONS) as topic,
        topic.group("g") as stays,
        Bus(url) as other,
    ):
        async with other.topic("bench").group("g"):
            await owns(stays, PARTITIONS // 2)
            began = time.perf_counter()
        await owns(stays, PARTITIONS)
        return time.perf_counter() - began


async def killed_s(url: str) -> float:
    async with Bus(url) as bus, bus.topic("bench", PARTITIONS) as topic:
        words = (
            "-m",
            "tests.bus.topic_worker",
            json.dumps({"url": url}),
            "bench",
            "g",
            "another machine",
        )
        async with topic.group("g") as stays:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *words, cwd=Path(__file__).parents[2]
            )
            await owns(stays, PARTITIONS // 2)
            await asyncio.sleep(random.uniform(2, 7))
            process.kill()
            began = time.perf_counter()
            await process.wait()
            await owns(stays, PARTITIONS)
            return time.perf_counter() - began


async def owns(member: Member, count: int) -> None:
    while len(member.partitions) != count:  # noqa: ASYNC110  # it is measured when that is so
        await asyncio.sleep(0.001)
