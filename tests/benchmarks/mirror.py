"""What a mirror carries, beside reading and appending alone, over a far link, for many queues that
are slow, and at rest.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from busmq_spark.federation.bulk.client import READ_CREDIT_BYTES
from busmq_spark.mirror.copy_planning import CopyRange, CopyRangeReadResult, EncodedMessages
from busmq_spark.mirror.origin_reader import open_origin
from busmq_spark.mirror.settings import MirrorSettings
from busmq_spark.mirror.target import MirrorTarget
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue as q
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Range
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.writing.mirror import MirrorOf, begin_mirror, read_spans
from tests.benchmarks import mirror_lag, mirror_nats
from tests.benchmarks.far import away
from tests.benchmarks.federation import SECRET, our_server, serving
from tests.benchmarks.harness import Row, Spread, alternating, fill, ratios, redis
from tests.spark.monitor import Monitor
from tests.support import wait_until

RUNS, ROWS, SIZE = 5, 200_000, 1_024
SMALL_ROWS, SMALL = 1_000_000, 100
MIB = 1024 * 1024
LEAST, LEAST_FAR, LEAST_NATS = 0.5, 0.8, 1.0
ROUND_TRIP_S, FARTHER_S = 0.1, 0.4
LINKS = (("undelayed", 0.0), ("far", ROUND_TRIP_S), ("farther", FARTHER_S))
QUEUES, MOST_S, MOST_COMMANDS, MOST_CPU, MOST_MB, IDLE_S = 1_000, 2.0, 25, 2.0, 200, 20.0


def run(runs: int = RUNS) -> Iterator[Row]:
    with redis() as (there, link), redis() as (here, near), ExitStack() as stack:
        fill(link, "bench", ROWS, SIZE)
        born = link.run(q.attach(QueueKeys("bench"), "bench", ttl_s=86_400)).born
        whole = Range("bench", born, 1, ROWS)
        found = alternating(
            runs,
            mirror=lambda: rate(near, lambda: mirrored_s(near, there.url, here.url)),
            apart=lambda: rate(near, lambda: apart_s(near, there.url, here.url, whole)),
        )
        yield row(
            "Mirror of one queue on loopback, beside reading it and appending it",
            found["mirror"],
            found["apart"],
            LEAST,
        )
        if mirror_nats.SERVER:
            yield beside_nats(near, there.url, here.url, runs)
        server = stack.enter_context(serving(our_server(there.url)))
        urls = {
            "nearby": server,
            **{name: stack.enter_context(away(server, s)) for name, s in LINKS},
        }
        measures = {
            name: lambda url=url: rate(near, lambda: mirrored_s(near, url, here.url))
            for name, url in urls.items()
        }  # type: ignore[misc]
        alone = {
            f"{name}_alone": lambda url=url: read_mib_s(url, whole) for name, url in urls.items()
        }  # type: ignore[misc]
        found = alternating(runs, **measures, **alone)
        for name, seconds in (("far", ROUND_TRIP_S), ("farther", FARTHER_S)):
            limit = READ_CREDIT_BYTES / MIB / seconds
            what = f"Mirror of one queue {seconds * 1000:.0f} ms away, beside"
            yield row(
                f"{what} reading it alone over the same link",
                found[name],
                found[f"{name}_alone"],
                None,
            )
            what = f"{what} the same server nearby or what credit allows ({limit:.0f} MiB/s)"
            yield row(what, found[name], [min(limit, rate) for rate in found["nearby"]], LEAST_FAR)
        what = (
            f"Mirror of one queue {ROUND_TRIP_S * 1000:.0f} ms away, beside the same link without"
            " its delay, whose program takes CPU, too"
        )
        yield row(what, found["far"], found["undelayed"], None)
        yield memory(near, there.url, here.url)
    with redis() as (there, link), redis() as (here, near):
        fill(link, "bench", SMALL_ROWS, SMALL)
        yield appending(near, there.url, here.url, runs)
        if mirror_nats.SERVER:
            yield beside_nats(near, there.url, here.url, runs, SMALL_ROWS, SMALL)
    if mirror_nats.SERVER:
        yield from lags(runs)
    with redis() as (there, link), redis() as (here, near):
        yield from many(link, near, there, here)


def lags(runs: int) -> Iterator[Row]:
    with redis() as (there, link), redis() as (here, near):

        def ours(keys: QueueKeys) -> list[float]:
            with mirroring(there.url, here.url, keys.name):
                wait_until(
                    lambda: near.run(read_spans([(keys, (-1, -1))]))[0].ttl_s > 0,
                    what="the queue is mirrored",
                )
                return mirror_lag.lags_ms(
                    lambda count: link.run(q.push_many(keys, [mirror_lag.VALUE] * count)),
                    lambda: last(near, keys.name),
                )

        yield from mirror_lag.beside_nats(link, runs, ours)


def beside_nats(
    near: SyncLink, there: str, here: str, runs: int, rows: int = ROWS, size: int = SIZE
) -> Row:
    with tempfile.TemporaryDirectory() as folder, mirror_nats.servers(Path(folder)) as (hub, leaf):
        mirror_nats.filled(hub, rows, size)
        found = alternating(
            runs,
            mirror=lambda: rate(near, lambda: mirrored_s(near, there, here, rows), rows * size),
            nats=lambda: rows * size / MIB / mirror_nats.mirrored_s(leaf, rows),
        )
    what = "Mirror of one queue on loopback, beside a stream mirror of NATS 2.10 in memory"
    return row(
        what, found["mirror"], found["nats"], LEAST_NATS if size == SMALL else None, rows, size
    )


def read_mib_s(url: str, whole: Range) -> float:
    """Reading only, in one stream: over the same link no mirror is faster."""
    store = open_origin(MirrorSettings(origin=url, patterns=("bench",), secret=SECRET))
    store.counters(["bench"])
    began = time.perf_counter()
    assert sum(len(piece.values) for piece in store.read(whole, True)) == ROWS
    took = time.perf_counter() - began
    store.close()
    return ROWS * SIZE / MIB / took


def appending(near: SyncLink, there: str, here: str, runs: int) -> Row:
    """CPU of Redis here for a message, beside RPUSH of the same words."""
    store, target = (
        open_origin(MirrorSettings(origin=there, patterns=("bench",))),
        MirrorTarget(RedisOptions(url=here)),
    )
    span = store.spans({"bench": (-1, 0)})["bench"]
    parts = [
        EncodedMessages.of(piece.first, piece.values)
        for piece in store.read(Range("bench", span.born, 1, SMALL_ROWS), True)
    ]
    keys = QueueKeys("bench")

    def mirrored() -> float:
        near.run(q.delete(keys))
        near.run(begin_mirror(keys, span, MirrorOf(there)))
        before = cpu_s(near)
        target.append(
            [
                CopyRangeReadResult(
                    CopyRange("bench", span.born, 0, SMALL_ROWS, SMALL_ROWS),
                    span,
                    SMALL_ROWS,
                    0,
                    parts,
                    sound=True,
                )
            ]
        )
        return (cpu_s(near) - before) / SMALL_ROWS * 1e6

    def pushed() -> float:
        near.run(q.delete(keys))
        before = cpu_s(near)
        for part in parts:
            near.execute(
                [
                    command("RPUSH", keys.messages)._replace(wired=(2 * count, words))
                    for _, count, words in part.chunks()
                ]
            )
        return (cpu_s(near) - before) / SMALL_ROWS * 1e6

    found = alternating(runs, mirror_append=mirrored, rpush=pushed)
    store.close()
    target.close()
    script, floor = Spread.of(found["mirror_append"]), Spread.of(found["rpush"])
    text = (
        f"{script.text()} and {floor.text()} µs:"
        f" {Spread.of(ratios(found['mirror_append'], found['rpush'])).text()}"
    )
    return Row(
        f"CPU of Redis to append a message of {SMALL} B to a mirror, and for RPUSH of the same"
        " words, 1,000 messages a call",
        text,
        "",
        None,
    )


def cpu_s(link: SyncLink) -> float:
    said = link.execute(command("INFO", "cpu")).decode()
    return sum(float(number) for number in re.findall(r"used_cpu_(?:sys|user):([\d.]+)", said))


def row(
    what: str,
    mirror: list[float],
    other: list[float],
    least: float | None,
    rows: int = ROWS,
    size: int = SIZE,
) -> Row:
    share = Spread.of(ratios(mirror, other))
    text = f"{Spread.of(mirror).text(0)} and {Spread.of(other).text(0)} MiB/s: {share.text()}"
    return Row(
        f"{what}, {rows:,} × {size} B",
        text,
        f"≥ {least}" if least else "",
        share.median >= least if least else None,
    )


def rate(near: SyncLink, measure: Callable[[], float], size: int = ROWS * SIZE) -> float:
    near.run(q.delete(QueueKeys("bench")))
    return size / MIB / measure()


@contextmanager
def mirroring(origin: str, here: str, pattern: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own, as users run it."""
    command = [
        sys.executable,
        "-m",
        "busmq_spark",
        "mirror",
        "--from",
        origin,
        "--from-secret",
        SECRET,
        "--redis",
        here,
        pattern,
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def last(near: SyncLink, queue: str = "bench") -> int:
    found = near.run(q.metadata(QueueKeys(queue))).get("mirrored", "0").partition(":")[0]
    return int(found)


def mirrored_s(near: SyncLink, origin: str, here: str, rows: int = ROWS) -> float:
    """From the first message that is there to the last: not the start of a process."""
    with mirroring(origin, here, "bench"):
        while not (before := last(near)):
            time.sleep(
                0.001
                # Here and below: the resolution of what is measured; without it the poll takes a
                # core from the mirror
            )
        began = time.perf_counter()
        while last(near) < rows:
            time.sleep(0.002)  # as above
        return (time.perf_counter() - began) * rows / (rows - before)


def apart_s(near: SyncLink, origin: str, here: str, whole: Range) -> float:
    """Reading in one thread, window by window, each appended before the next is read."""
    store, target = (
        open_origin(MirrorSettings(origin=origin, patterns=("bench",))),
        MirrorTarget(RedisOptions(url=here)),
    )
    span = store.spans({"bench": (-1, 0)})["bench"]
    near.run(begin_mirror(QueueKeys("bench"), span, MirrorOf(origin)))
    began, rows, window = time.perf_counter(), None, CopyRange("bench", span.born, 0, ROWS, ROWS)
    for piece in store.read(whole, True):
        upto = piece.first + len(piece.values) - 1
        rows = CopyRangeReadResult(
            window,
            span,
            upto,
            piece.first - 1,
            [EncodedMessages.of(piece.first, piece.values)],
            sound=True,
        )
        target.append([rows])
    store.close()
    target.close()
    return time.perf_counter() - began


def memory(near: SyncLink, origin: str, here: str) -> Row:
    """The most that a process has used while it copied all of it."""
    near.run(q.delete(QueueKeys("bench")))
    most = 0
    with mirroring(origin, here, "bench") as process:
        watched = psutil.Process(process.pid)
        while last(near) < ROWS:
            most = max(most, watched.memory_info().rss)
            time.sleep(0.01)  # how often memory is sampled
    return Row(
        f"Memory of the process while it copies {ROWS:,} × {SIZE} B",
        f"{most / 1e6:.0f} MB",
        f"< {MOST_MB} MB",
        most / 1e6 < MOST_MB,
    )


def many(link: SyncLink, near: SyncLink, there: object, here: object) -> Iterator[Row]:
    """1,000 queues: a message to each of them, and then none."""
    origin, place = str(getattr(there, "url", "")), str(getattr(here, "url", ""))
    keys = [QueueKeys(f"slow-{i}") for i in range(QUEUES)]
    for each in keys:
        link.run(q.attach(each, secrets.token_hex(8), ttl_s=86_400))
    with mirroring(origin, place, "slow-*") as process:
        while (
            sum(
                1
                for each in near.run(read_spans([(each, (-1, -1)) for each in keys]))
                if each.ttl_s
            )
            < QUEUES
        ):
            time.sleep(0.1)  # before what is measured: until every queue is mirrored
        took = []
        for _ in range(RUNS):
            before = [
                each.last_id for each in near.run(read_spans([(each, (-1, -1)) for each in keys]))
            ]
            began = time.perf_counter()
            for each in keys:
                link.run(q.push(each, b"x" * 100))
            while any(
                each.last_id <= old
                for each, old in zip(
                    near.run(read_spans([(k, (-1, -1)) for k in keys])), before, strict=True
                )
            ):
                time.sleep(0.01)
            took.append(time.perf_counter() - began)
        spread = Spread.of(took)
        yield Row(
            f"A message to each of {QUEUES:,} queues, until all are copied",
            f"{spread.text()} s",
            f"≤ {MOST_S:g} s",
            spread.median <= MOST_S,
        )
        time.sleep(3.0)  # what is at rest is measured
        watched = psutil.Process(process.pid)
        cpu = watched.cpu_times()
        # EmbeddedRedis
        with Monitor(there) as far, Monitor(here) as close:  # type: ignore[arg-type]
            time.sleep(IDLE_S)
        after = watched.cpu_times()
        used = (after.user + after.system - cpu.user - cpu.system) / IDLE_S * 100
        rates = [len(monitor.commands) / IDLE_S for monitor in (far, close)]
        yield Row(
            f"CPU of an idle mirror of {QUEUES:,} queues",
            f"{used:.1f} % of a core",
            f"< {MOST_CPU:g} %",
            used < MOST_CPU,
        )
        text = f"{rates[0]:.1f} and {rates[1]:.1f} a second"
        yield Row(
            f"Commands of an idle mirror of {QUEUES:,} queues, there and here",
            text,
            f"≤ {MOST_COMMANDS}",
            max(rates) <= MOST_COMMANDS,
        )
