"""``python -m tests.benchmarks [name …]``: run all benchmarks, or the named ones, print the table,
and write a full one to docs/performance-details.md.

``python -m tests.benchmarks peers [options]`` compares with Kafka instead: peers.py.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version

from tests.benchmarks.harness import RUNS, Row, write

BENCHMARKS = {
    "latency": "latency.run",  # these three first: they start sessions of their own
    "realtime": "realtime.run",
    "queues": "flat.queues",
    "reply": "reply.run",
    "drain": "drain.run",
    "sink": "sink.run",
    "topic-sink": "topic_sink.run",
    "writing": "flat.writing",
    "flat": "flat.run",
    "idle": "idle.run",
    "bus": "bus.run",
    "groups": "groups.run",
    "jobs": "jobs.run",
    "outbox": "outbox.run",
    "topics": "topics.run",
    "clock": "clock.run",
    "federation": "federation.run",
    "bulk": "bulk.run",
    "slow": "slow.run",
    "far": "far.run",
    "mirror": "mirror.run",
    "comeback": "comeback.run",
}
"""Module and function, imported when they are run: not every environment has what all of them
need.
"""


def table(rows: Sequence[Row]) -> str:
    """The table in Markdown, with its set-up."""
    lines = ["| what | measured: median (least–most) | wanted | met |", "|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.measured} | {row.target} |"
        f" {'' if row.met is None else 'yes' if row.met else 'no'} |"
        for row in rows
    ]
    versions = (
        f"Spark {version('pyspark')}, pyarrow {version('pyarrow')}, redis-py {version('redis')},"
        f" Python {platform.python_version()}"
    )
    where = (
        f"{os.cpu_count()} shared cores ({platform.machine()}), local[2], the embedded Redis on"
        f" loopback TCP, {versions}"
    )
    return "\n".join(
        [
            *lines,
            "",
            (
                f"Set-up: {where}; medians of {RUNS} alternating runs (far, comeback: 3), ratios"
                " run by run. `make bench` measures again."
            ),
        ]
    )


def main(names: Sequence[str]) -> int:
    if names[:1] == ["peers"]:
        from tests.benchmarks import peers

        return peers.main(names[1:])
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(
            f"unknown benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr
        )
        return 2
    rows: list[Row] = []
    for name in names or BENCHMARKS:
        print(f"{name} …", file=sys.stderr, flush=True)
        module, _, function = BENCHMARKS[name].partition(".")
        run: Callable[[], Iterator[Row]] = getattr(
            import_module(f"tests.benchmarks.{module}"), function
        )
        for row in run():
            rows.append(row)
            print(f"  {row.what}: {row.measured} {row.target}", file=sys.stderr, flush=True)
    text = table(rows)
    print(text)
    if not names:
        write("benchmarks", text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
