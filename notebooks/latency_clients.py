"""Two clients outside Spark, two processes: one pushes orders that carry the time, the other takes
what arrives and says how long that took.

python notebooks/latency_clients.py push URL QUEUE RATE SECONDS SIZE
python notebooks/latency_clients.py take URL QUEUE COUNT EVERY_S

For the notebook ``04_real_time.ipynb`` and the benchmarks. Processes, since two threads of one
Python take turns of 5 ms; and little work for each, since they share the machine with what they
measure.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from busmq_spark.queue import queue as q
from busmq_spark.queue.command_generators import command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse

PUSH_TICK_S = 0.001
"""Faster than one message in this time, those of a tick go in one round trip, each a push of its
own.
"""
TAKE_TIMEOUT_S = 1
"""Seconds for which Redis holds an answer back when no message is there."""
MAX_EMPTY_TAKES = 60
"""After so many waits without a message the taker ends."""
MESSAGES_PER_TAKE = 999
PERCENTILE_POINTS = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
_ORDER = re.compile(rb'"n": ?(\d+), ?"at": ?(\d+)')


def make_order(n: int, at_ns: int, size: int) -> bytes:
    """Message ``n`` of about ``size`` bytes, pushed at ``at_ns`` of the clock that all processes of
    a machine share.
    """
    return (b'{"n":%d,"at":%d,"total":%d.50,"of":"' % (n, at_ns, n % 900 + 10)).ljust(
        size - 2, b"."
    ) + b'"}'


def read_order(value: bytes) -> tuple[int, int]:
    """Number and time of an order, as it was pushed or in base64."""
    found = _ORDER.search(value) or _ORDER.search(base64.b64decode(value))
    assert found, f"no order: {value!r}"
    return int(found[1]), int(found[2])


@dataclass(slots=True)
class DemoLatencyTally:
    """The tally of arrived orders 1, 2, 3 …"""

    rows: int = 0
    twice: int = 0
    misplaced: int = 0
    """Behind one with a higher number, and not for the second time."""
    took_us: list[int] = field(default_factory=list)
    _seen: bytearray = field(default_factory=bytearray)
    _last: int = 0

    def add(self, n: int, took_us: int) -> None:
        """Order ``n`` is there."""
        self.rows += 1
        self.took_us.append(took_us)
        if n >= len(self._seen):
            self._seen.extend(bytes(n + 10_000 - len(self._seen)))
        if self._seen[n]:
            self.twice += 1
        elif n < self._last:
            self.misplaced += 1
        self._seen[n] = 1
        self._last = max(self._last, n)

    def take_record(self) -> dict[str, Any]:
        """Everything up to now; the times only since the last call."""
        took, self.took_us = self.took_us, []
        return {
            "arrived": self.rows,
            "twice": self.twice,
            "misplaced": self.misplaced,
            "took_us": took,
        }


def percentiles(took_us: Sequence[int]) -> dict[str, float]:
    """Milliseconds within which such a share arrived; nothing of nothing."""
    ranked = sorted(took_us)
    return (
        {
            name: round(ranked[min(len(ranked) - 1, int(len(ranked) * share))] / 1000, 2)
            for name, share in PERCENTILE_POINTS.items()
        }
        if ranked
        else {}
    )


def push_orders(url: str, queue: str, rate: float, seconds: float, size: int) -> None:
    """So many a second, at even distances."""
    link, keys = SyncLink(parse(url)[0]), QueueKeys(queue)
    count, bunch = int(rate * seconds), max(1, int(rate * PUSH_TICK_S))
    began = time.monotonic()
    for first in range(1, count + 1, bunch):
        if (pause := began + first / rate - time.monotonic()) > 0:
            time.sleep(pause)
        if bunch == 1:
            link.run(q.push(keys, make_order(first, time.monotonic_ns(), size)))
        else:
            values = [
                make_order(n, time.monotonic_ns(), size)
                for n in range(first, min(first + bunch, count + 1))
            ]
            link.execute(
                [
                    script("push", keys.appending, (keys.available, value), idempotent=False)
                    for value in values
                ]
            )
    print_record({"pushed": count, "seconds": round(time.monotonic() - began, 3)})


def take_orders(url: str, queue: str, count: int, every_s: float) -> None:
    """Print a line every so many seconds (0: only at the end), until ``count`` messages have
    arrived.
    """
    link, keys, arrived, vain = SyncLink(parse(url)[0]), QueueKeys(queue), DemoLatencyTally(), 0
    said = time.monotonic()
    while arrived.rows < count and vain < MAX_EMPTY_TAKES:
        # The list itself wakes us, so that nothing but Redis is between its arrival and its being
        # seen.
        if (
            head := link.execute(command("BLPOP", keys.messages, TAKE_TIMEOUT_S, idempotent=False))
        ) is None:
            vain += 1
        else:
            rest = link.execute(
                command("LPOP", keys.messages, 2 * MESSAGES_PER_TAKE + 1, idempotent=False)
            )
            now, vain = time.monotonic_ns(), 0
            assert head[1].isdigit(), head
            for value in rest[::2]:
                n, at_ns = read_order(value)
                arrived.add(n, (now - at_ns) // 1000)
        if every_s and time.monotonic() - said >= every_s:
            said = time.monotonic()
            print_record(arrived.take_record())
    print_record(arrived.take_record())


def print_record(record: dict[str, Any]) -> None:
    """Print one line of JSON for the parent process."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Workload:
    """The messages that are pushed into ``source`` and awaited in ``target``."""

    source: str
    target: str
    rate: float
    seconds: float
    size: int = 100

    @property
    def count(self) -> int:
        """Messages in all."""
        return int(self.rate * self.seconds)


@contextmanager
def workload_clients(
    url: str, load: Workload, every_s: float = 0
) -> Iterator[Iterator[dict[str, Any]]]:
    """Start both clients, and yield the lines of the taker. They end with the block, whatever
    happens.
    """
    with ExitStack() as stack:
        taker = _start_process(stack, "take", url, load.target, load.count, every_s)
        _start_process(stack, "push", url, load.source, load.rate, load.seconds, load.size)
        yield map(json.loads, taker)


def _start_process(stack: ExitStack, *words: object) -> IO[str]:
    command = [sys.executable, __file__, *map(str, words)]
    # A session of its own: a Ctrl-C in the terminal reaches the parent only, which ends it in its
    # turn.
    client = stack.enter_context(
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    )
    stack.callback(client.kill)
    assert client.stdout is not None
    return client.stdout


def main(words: list[str]) -> None:
    """The command."""
    if words[0] == "push":
        push_orders(words[1], words[2], float(words[3]), float(words[4]), int(words[5]))
    else:
        take_orders(words[1], words[2], int(words[3]), float(words[4]))


if __name__ == "__main__":
    main(sys.argv[1:])
