"""A federation server that is 100 ms away, against the same server nearby and against what credit
and round trip allow.

A read has ``CREDIT`` bytes of rows on their way, and a staging task as many: by the round trip,
that bounds their rates.
"""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.client import READ_CREDIT_BYTES
from busmq_spark.federation.bulk.store import (
    MAX_PIECE_BYTES,
    MAX_PIECES_UNDER_WAY,
    FederationBulkStore,
)
from busmq_spark.option_parsing import parse
from busmq_spark.options import RedisOptions, WriteOptions
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.spark.write.committer import SinkCommitter
from busmq_spark.spark.write.sink_columns import SinkColumns
from busmq_spark.spark.write.tasks import TaskWriter
from busmq_spark.store.redis_store import open_store
from tests.benchmarks.bulk import HOUR
from tests.benchmarks.federation import SECRET, our_server, serving
from tests.benchmarks.harness import Row, Spread, alternating, drain, fill, ratios, redis, session

RUNS = 3
ROUND_TRIP_S, FARTHER_S = 0.1, 0.4
"""At the longer one the credit is what bounds a read, and not this machine."""
QUEUES, EACH = 1_000, 5
ROWS, SIZE = 300_000, 1_024
MOST_S, LEAST_SHARE, LEAST_STAGED = 5.0, 0.8, 100.0
MIB = 1024 * 1024


def run(runs: int = RUNS) -> Iterator[Row]:
    with redis() as (server, link), ExitStack() as stack:
        near = stack.enter_context(serving(our_server(server.url)))
        far, farther = (
            stack.enter_context(away(near, seconds)) for seconds in (ROUND_TRIP_S, FARTHER_S)
        )
        stores = {url: stack.enter_context(opened(url)) for url in (near, far, farther)}
        parts = short_ranges(server.url)
        yield many(
            f"Read {QUEUES:,} queues of {EACH} messages",
            alternating(runs, **each(lambda url: read_s(stores[url], parts), near, far)),
        )
        yield many(
            f"Exactly-once batch over {QUEUES:,} queues",
            alternating(runs, **each(sink_s, near, far)),
        )
        fill(link, "bench", ROWS, SIZE)
        whole = Range("bench", stores[near].attach(["bench"], HOUR)["bench"].born, 1, ROWS)
        rates = alternating(
            runs,
            **each(
                lambda url: ROWS * SIZE / MIB / read_s(stores[url], [whole]), near, far, farther
            ),
        )
        for name, seconds in (("far", ROUND_TRIP_S), ("farther", FARTHER_S)):
            yield one(
                f"Read {ROWS:,} × {SIZE} B of one queue",
                seconds,
                READ_CREDIT_BYTES,
                rates[name],
                rates["near"],
            )
        rates = alternating(runs, **each(lambda url: stage_mib_s(stores[url]), near, far))
        yield one(
            f"Stage {ROWS:,} × {SIZE} B",
            ROUND_TRIP_S,
            MAX_PIECES_UNDER_WAY * MAX_PIECE_BYTES,
            rates["far"],
            rates["near"],
            LEAST_STAGED,
        )
        yield from query(link, near, far, runs)


@contextmanager
def away(url: str, round_trip_s: float) -> Iterator[str]:
    """The same server, as far away."""
    [port] = re.findall(r":(\d+)/", url)
    with serving(
        [sys.executable, "-m", "tests.benchmarks.far_link", port, str(round_trip_s)]
    ) as there:
        yield url.replace(f":{port}/", f":{there}/")


@contextmanager
def opened(url: str) -> Iterator[FederationBulkStore]:
    store = FederationBulkStore(FederationAddress(url, SECRET))
    yield store
    store.close()


def each(measure: Callable[[str], float], *urls: str) -> dict[str, Callable[[], float]]:
    return {
        name: lambda url=url: measure(url)
        for name, url in zip(("near", "far", "farther"), urls, strict=False)
    }  # type: ignore[misc]


def many(what: str, found: dict[str, list[float]]) -> Row:
    """Seconds, and how many round trips that is beside what it takes nearby."""
    far, near = Spread.of(found["far"]), Spread.of(found["near"])
    trips = Spread.of(
        [
            (over - under) / ROUND_TRIP_S
            for over, under in zip(found["far"], found["near"], strict=True)
        ]
    )
    shown = f"{far.text(1, ' s')}; nearby {near.text(1, ' s')}, so {trips.text(0)} round trips"
    return Row(f"{what}, 100 ms away", shown, f"≤ {MOST_S:.0f} s", far.median <= MOST_S)


def one(
    what: str,
    seconds: float,
    under_way: int,
    far: list[float],
    near: list[float],
    least: float | None = None,
) -> Row:
    """A rate against what may be under way by the round trip, or the rate nearby where that is
    lower; ``least`` in MiB/s.
    """
    limit = under_way / MIB / seconds
    share, rate = (
        Spread.of([over / min(limit, under) for over, under in zip(far, near, strict=True)]),
        Spread.of(far),
    )
    shown = (
        f"{share.text()}; {rate.text(0, ' MiB/s')}, {rate.median / limit:.2f} of the limit; nearby"
        f" {Spread.of(near).text(0, ' MiB/s')}"
    )
    wanted = f"≥ {LEAST_SHARE}" if least is None else f"≥ {least:.0f} MiB/s"
    met = share.median >= LEAST_SHARE if least is None else rate.median >= least
    what = (
        f"{what}, {seconds * 1000:.0f} ms away: against the lower of {limit:.0f} MiB/s (under way"
        " by round trip) and the rate nearby"
    )
    return Row(what, shown, wanted, met)


def short_ranges(url: str) -> list[Range]:
    """Of as many queues."""
    direct, names = open_store(RedisOptions(url=url)), [f"short{n}" for n in range(QUEUES)]
    found = direct.attach(names, HOUR)
    for name in names:
        direct.push(name, [b"y" * 100] * EACH)
    direct.close()
    return [Range(name, found[name].born, 1, EACH) for name in names]


def read_s(store: FederationBulkStore, parts: Sequence[Range]) -> float:
    """Seconds to read ranges into Arrow."""
    store.connect()
    began = time.perf_counter()
    rows = sum(
        len(piece.values)
        for piece in (
            store.read_many(parts, True) if len(parts) > 1 else store.read(parts[0], True)
        )
    )
    assert rows == sum(part.rows for part in parts)
    return time.perf_counter() - began


def sink_s(url: str) -> float:
    """Seconds from a task's first row to the end of the driver's commit."""
    options = parse(WriteOptions, {"federation.url": url, "federation.secret": SECRET})
    names = pa.array([f"sunk{n}" for n in range(QUEUES) for _ in range(EACH)])
    rows = pa.RecordBatch.from_arrays(
        [names, pa.array([b"z" * 100] * len(names), pa.binary())], ["queue", "value"]
    )
    began = time.perf_counter()
    outcome = TaskWriter(options, SinkColumns("value", "queue", None), new_token()).write(
        iter([rows])
    )
    with opened(url) as store:
        held = SinkCommitter(options, store).commit(new_token(), 0, outcome.staged, run=outcome.run)
    assert len(held) == QUEUES
    return time.perf_counter() - began


def stage_mib_s(store: FederationBulkStore) -> float:
    """MiB a second, staged by one task and taken back."""
    values = [b"x" * SIZE] * 10_000
    store.attach(["staged"], HOUR)
    appender, key = (
        store.appender(),
        store.keys("staged").stage(f"batch:0:0:{secrets.token_hex(8)}"),
    )
    began = time.perf_counter()
    for _ in range(ROWS // len(values)):
        appender.stage("staged", key, values)
    staged = appender.finish()
    spent = time.perf_counter() - began
    store.discard(staged)
    return ROWS * SIZE / MIB / spent


def query(link: Any, near: str, far: str, runs: int) -> Iterator[Row]:
    """A whole query over many queues with a few messages each."""
    spark = session()
    for n in range(100):
        fill(link, f"few{n}", 20, 100)
    frames = {
        name: (
            spark.readStream.format("busmq").options(
                **{"federation.url": url, "federation.secret": SECRET},
                subscribePattern=r"few\d+",
                ack="none",
            )
        )
        for name, url in (("near", near), ("far", far))
    }
    found = alternating(
        runs,
        **{
            name: lambda frame=frame: trigger_s(drain(frame.load()))
            for name, frame in frames.items()
        },
    )
    slower, rate = (
        Spread.of(ratios(found["far"], found["near"])),
        2_000 / Spread.of(found["far"]).median,
    )
    shown = (
        f"{slower.text(1)} times as long as nearby; {Spread.of(found['far']).text(1, ' s')},"
        f" {rate:.0f} msg/s"
    )
    yield Row("Query over 100 queues of 20 messages, 100 ms away: its batch", shown, "", None)


def trigger_s(progress: Sequence[Any]) -> float:
    """Seconds of the batches, planning and logs included."""
    assert sum(p["numInputRows"] for p in progress) == 2_000
    return sum(p["durationMs"]["triggerExecution"] for p in progress) / 1000
