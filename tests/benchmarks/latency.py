"""Push to arrival through a Python source and a Python sink, as Spark comes and tuned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from busmq_spark.queue import queue as q
from busmq_spark.queue.keys import QueueKeys
from tests.benchmarks.harness import Row, Spread, ratios, redis, session

RATE, SIZE = 1000, 100
LEAST_GAIN = 0.4
SETTINGS = {
    "plain": "as Spark comes",
    "habits": "with what busmq_spark does by itself in Spark's Python workers",
    "tuned": "with busmq_spark.tune, too",
}


def run(runs: int = 5, seconds: float = 60) -> Iterator[Row]:
    """``runs`` alternating runs that share ``seconds`` of measured traffic for each setting."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
    for turn in range(runs):
        for name in SETTINGS:
            measured = apart(name, seconds / runs)
            found[name].append(measured)
            print(f"    {name} {turn + 1}/{runs}: {measured}", file=sys.stderr, flush=True)
    for name, what in SETTINGS.items():
        shown = ", ".join(
            f"{p} {Spread.of([run[p] for run in found[name]]).text(0)}" for p in ("p50", "p99")
        )
        yield Row(
            f"Push to arrival, {RATE:,} msg/s of {SIZE} B, Python source and sink, {what}",
            shown + " ms",
            "",
            None,
        )
    gain = Spread.of(
        ratios([run["p50"] for run in found["tuned"]], [run["p50"] for run in found["plain"]])
    )
    yield Row(
        "Tuned p50 against that of Spark as it comes",
        gain.text(),
        f"≤ {LEAST_GAIN}",
        gain.median <= LEAST_GAIN,
    )


def apart(name: str, seconds: float, module: str = "tests.benchmarks.latency") -> dict[str, Any]:
    """One setting in a process of its own: Java and the Python workers keep what was set when they
    started.
    """
    environ = dict(os.environ)
    if name == "plain":
        environ["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parent / "as_spark_comes"), *sys.path]
        )
    command = [sys.executable, "-m", module, name, str(seconds)]
    measured: dict[str, Any] = json.loads(
        subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    )
    return measured


def once(tuned: bool, seconds: float) -> dict[str, float]:
    """A session, a query, some traffic to warm up, and then the traffic that counts."""
    spark = session(tuned)
    try:
        with redis() as (server, link), tempfile.TemporaryDirectory() as folder:
            for name in ("in", "out"):
                link.run(q.attach(QueueKeys(name), "bench", ttl_s=86_400))
            where = {"redis.url": server.url}
            frame = (
                spark.readStream.format("busmq")
                .options(**where, subscribe="in")
                .load()
                .select("value")
            )
            query = (
                frame.writeStream.format("busmq")
                .options(**where, queue="out", checkpointLocation=folder)
                .start()
            )
            try:
                load(server.url, 8)
                return load(server.url, seconds)
            finally:
                query.stop()
    finally:
        spark.stop()


def load(url: str, seconds: float) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.load",
        url,
        "in",
        "out",
        str(RATE),
        str(seconds),
        str(SIZE),
    ]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    assert found["messages"] == int(RATE * seconds), f"messages are missing: {found}"
    return found


if __name__ == "__main__":
    print(json.dumps(once(sys.argv[1] == "tuned", float(sys.argv[2]))))
