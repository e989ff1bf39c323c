"""How far a mirror is behind at a steady rate, beside a stream mirror of NATS: both are asked for
their last message in one loop.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from busmq_spark.queue import queue as q
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.sync_link import SyncLink
from tests.benchmarks import mirror_nats
from tests.benchmarks.harness import Row, Spread, ratios

RATE, SECONDS, WARM_S, TICK_S = 10_000, 5.0, 1.0, 0.001
VALUE = b"x" * 100
WARM, TOTAL = int(RATE * WARM_S), int(RATE * (WARM_S + SECONDS))


def lags_ms(push: Callable[[int], object], last: Callable[[], int]) -> list[float]:
    """Of each message, from just before it is pushed until ``last`` is seen to name it, sorted;
    those of the first second do not count.
    """
    found: list[float] = []
    waiting: deque[tuple[int, int, float]] = deque()
    sent, began = 0, time.perf_counter()
    while sent < TOTAL or waiting:
        now = time.perf_counter()
        if (due := min(TOTAL, int((now - began) * RATE))) > sent:
            push(due - sent)
            waiting.append((due, due - sent, now))
            sent = due
        copied, seen = last(), time.perf_counter()
        while waiting and waiting[0][0] <= copied:
            upto, count, since = waiting.popleft()
            if upto > WARM:
                found += [(seen - since) * 1000] * count
        time.sleep(
            max(0.0, now + TICK_S - time.perf_counter())
        )  # a poll: neither side says when it has a message
    return sorted(found)


def beside_nats(
    link: SyncLink, runs: int, ours: Callable[[QueueKeys], list[float]]
) -> Iterator[Row]:
    """``ours``: the lags of a mirror of this queue, which is fresh at ``link``."""
    found: dict[str, list[list[float]]] = {"mirror": [], "nats": []}
    for turn in range(runs + 1):
        keys = QueueKeys(f"lagging-{turn}")
        link.run(q.attach(keys, "bench", ttl_s=86_400))
        measured = {"mirror": ours(keys), "nats": of_nats()}
        for name, lags in measured.items():
            found[name] += [lags] if turn else []  # the first warms up
    for share, point in ((0.5, "p50"), (0.99, "p99")):
        mirror, nats = (
            [lags[int(share * len(lags))] for lags in found[name]] for name in ("mirror", "nats")
        )
        text = (
            f"{Spread.of(mirror).text(1)} and {Spread.of(nats).text(1)} ms:"
            f" {Spread.of(ratios(mirror, nats)).text()}"
        )
        yield Row(
            f"Lag of a mirror on loopback at {RATE:,} messages of 100 B a second, beside a stream"
            f" mirror of NATS 2.10, {point}",
            text,
            "",
            None,
        )


def of_nats() -> list[float]:
    with tempfile.TemporaryDirectory() as folder, mirror_nats.servers(Path(folder)) as (hub, leaf):
        mirror_nats.filled(hub, 0, len(VALUE))
        mirror_nats.copying(leaf)
        return lags_ms(
            lambda count: hub.socket.sendall(mirror_nats.publication(len(VALUE)) * count),
            lambda: leaf.messages("copy"),
        )
