"""Pushing JSON over a link of 100 kB/s to a federation server, compressed and not, by turns."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.serve.server import FederationServer
from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios, redis
from tests.federation.cutting import cutter

SECRET = "only-for-measuring"
BYTES_PER_S = 100_000
SIZES = {"of 200 bytes": (2_000, 1), "of 10 KB": (40, 60)}
"""How many messages, each of how many flights."""


def run(runs: int = RUNS) -> Iterator[Row]:
    with redis() as (server, _):
        for words, (count, flights) in SIZES.items():
            texts = [json.dumps([flight(n, part) for part in range(flights)]) for n in range(count)]
            found = alternating(
                runs,
                plain=lambda texts=texts: asyncio.run(push(server.url, texts, compression=False)),
                compressed=lambda texts=texts: asyncio.run(
                    push(server.url, texts, compression=True)
                ),
            )
            faster, took = (
                Spread.of(ratios(found["plain"], found["compressed"])),
                {name: Spread.of(times) for name, times in found.items()},
            )
            shown = (
                f"{took['plain'].text(1, ' s')} → {took['compressed'].text(1, ' s')}:"
                f" {faster.text(1)} times as fast"
            )
            yield Row(
                f"{count} pushes of JSON {words} over a link of 100 kB/s, plain and compressed",
                shown,
                "",
                None,
            )


def flight(n: int, part: int) -> dict[str, object]:
    """Values that differ as those of programs do."""
    at = (n * 7919 + part * 104_729) % 1_000_003
    return {
        "flight": f"AA{at % 9000}",
        "from": ("SFO", "JFK", "LAX", "ORD")[at % 4],
        "to": ("BOS", "DEN", "ATL")[at % 3],
        "scheduled": f"2024-01-{1 + at % 28:02d}T{at % 24:02d}:{at % 60:02d}:00Z",
        "delay_minutes": at % 113,
        "gate": f"B{at % 70}",
    }  # fmt: skip


async def push(redis_url: str, texts: list[str], *, compression: bool) -> float:
    """Seconds until all are stored."""
    async with (
        Bus(redis_url) as home,
        FederationServer(home, Keyring.single(SECRET), compression=compression) as server,
    ):
        with cutter(server.port) as link:
            link.bytes_per_s = BYTES_PER_S
            url = f"ws://127.0.0.1:{link.port}/bus"
            settings: dict[str, Any] = {
                "federate_secret": SECRET,
                "federate_sockets": 1,
                "federate_compression": compression,
            }
            async with (
                Bus(federate=url, **settings) as bus,
                bus.federate(bus.queue("slow")) as queue,
            ):
                began = time.perf_counter()
                await queue.push_many(texts)
                return time.perf_counter() - began


if __name__ == "__main__":
    for row in run(3):
        print(row)
