"""From a range reply of Redis to an Arrow column, the ways that were tried: each alone, on a reply
in memory, without Spark and Redis.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import hiredis
import numpy as np
import pyarrow as pa

from busmq_spark.reading.range_reader import TARGET_REPLY_BYTES, ReplyRowBounds
from busmq_spark.redis_io.range_connection import BulkHeaderScan, RangeReplyParser, ValueSpans
from busmq_spark.store.redis_range import _value_array
from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios

SIZES = (32, 100, 1024, 10_240)
REPEATS = 10
PIECE = 512 * 1024
Way: TypeAlias = Callable[[bytearray, int], Any]


def run(sizes: tuple[int, ...] = SIZES, runs: int = RUNS) -> Iterator[Row]:
    ways = {"ours": ours, "scan": scanned, "hop": hopped, "hiredis": objects}
    for size in sizes:
        for even in (True, False):
            values = _sample(size, even)
            reply, expected = bytearray(_reply(values)), pa.array(values, pa.binary())
            for name, way in ways.items():
                assert way(reply, len(values)).equals(expected), name
            found = alternating(
                runs, **{name: partial(_ns, way, reply, len(values)) for name, way in ways.items()}
            )
            against = {
                name: Spread.of(ratios(found[name], found["ours"])) for name in list(ways)[1:]
            }
            others = "; ".join(
                f"{name} {Spread.of(found[name]).median:.0f}, × {over.text(1)}"
                for name, over in against.items()
            )
            what = (
                f"Reply to Arrow column, values of {'' if even else 'about '}{size:,} B: ns a"
                " message, and of other ways"
            )
            yield Row(what, f"{Spread.of(found['ours']).text(0)}; {others}", "", None)


def ours(reply: bytearray, rows: int) -> Any:
    """What the source does."""
    scanner = RangeReplyParser(2 * rows, _body(reply))
    assert [scanner.end(reply, used) for used in _arrivals(reply)][-1] == len(reply)
    return _value_array(scanner.pairs(reply), ReplyRowBounds(0, rows))


def scanned(reply: bytearray, rows: int) -> Any:
    """Every CR LF ``$`` looked up with numpy."""
    scan = BulkHeaderScan(2 * rows, _body(reply))
    assert [scan.find_end_of_last_value(reply, used) for used in _arrivals(reply)][-1] == len(reply)
    return _value_array(ValueSpans(reply, *scan.places(reply), 0, 0), ReplyRowBounds(0, rows))


def hopped(reply: bytearray, rows: int) -> Any:
    """From header to header in Python."""
    at, places = _body(reply), []
    for _ in range(rows):
        for _ in range(2):
            line = reply.index(b"\r\n", at)
            start, size = line + 2, int(reply[at + 1 : line])
            at = start + size + 2
        places.append((start, size))
    starts, lengths = np.array(places).T
    return _value_array(ValueSpans(reply, starts, lengths, 0, 0), ReplyRowBounds(0, rows))


def objects(reply: bytearray, rows: int) -> Any:
    """An object for every id and value, as redis-py's parser makes them, and a column of those."""
    reader = hiredis.Reader()
    at = 0
    for used in _arrivals(reply):
        reader.feed(memoryview(reply)[at:used])
        found, at = reader.gets(), used
    return pa.array(found[1::2], pa.binary())


def _sample(size: int, even: bool) -> list[bytes]:
    """Values for one full reply."""
    seeded = random.Random(size)  # the same for every run
    lengths = [
        size if even else seeded.randint(size // 2, size + size // 2)
        for _ in range(TARGET_REPLY_BYTES // size // 2)
    ]
    return [b"x" * length for length in lengths]


def _reply(values: list[bytes]) -> bytes:
    parts = [b"*%d\r\n" % (2 * len(values))]
    parts += [
        b"$7\r\n%d\r\n$%d\r\n%s\r\n" % (1_000_000 + at, len(value), value)
        for at, value in enumerate(values)
    ]
    return b"".join(parts)


def _body(reply: bytearray) -> int:
    return reply.index(b"\r\n") + 2


def _arrivals(reply: bytearray) -> list[int]:
    """How far the reply has come when it is looked at; a reader receives so much at once."""
    return [*range(PIECE, len(reply), PIECE), len(reply)]


def _ns(way: Way, reply: bytearray, rows: int) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS):
        way(reply, rows)
    return (time.perf_counter() - start) / REPEATS / rows * 1e9
