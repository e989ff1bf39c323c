"""The outbox: what its calls cost against SQLite itself, and its forwarding against push_many.
Messages of 100 B, on the local disk.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from busmq_spark.bus.bus import Bus
from busmq_spark.outbox import sql
from busmq_spark.outbox.outbox import Outbox, SyncOutbox
from tests.benchmarks.harness import RUNS, Row, Spread, alternating, ratios, redis

CALLS, EVENTS, FORWARDED, STORED = 1000, 20_000, 200_000, 1_000_000
CALL, EVENT_RATE, FORWARD, REOPEN_S = 0.8, 20_000, 0.5, 1.0
VALUE = b"x" * 100
NOWHERE = "redis://127.0.0.1:1"
_NAMES = count()


def run(runs: int = RUNS) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        with redis() as (server, _):
            found = alternating(
                runs,
                sqlite=lambda: plain(here),
                thread=lambda: in_a_thread(here),
                one=lambda: one_by_one(here),
                awaited=lambda: awaited(here),
                one_sent=lambda: one_by_one(here, server.url),
                awaited_sent=lambda: awaited(here, server.url),
                shared=lambda: shared(here),
            )
        yield from calls(found)
        over = Spread.of(ratios(found["shared"], found["sqlite"]))
        yield Row(
            "Outbox, 100 tasks at once: rate against SQLite, one fsync a call",
            over.text(1),
            "",
            None,
        )
        events = Spread.of([publishing(here) for _ in range(runs)])
        yield Row(
            "Outbox, publish_many of 100: events a second",
            events.text(0),
            f"≥ {EVENT_RATE}",
            events.median >= EVENT_RATE,
        )
        with redis() as (server, _):
            both = alternating(
                runs,
                forwarding=lambda: forwarding(here, server.url),
                push_many=lambda: pushing(server.url),
            )
        over = Spread.of(ratios(both["forwarding"], both["push_many"]))
        rate = f"{over.text()}; {Spread.of(both['forwarding']).median / 1000:.0f} k/s"
        yield Row(
            f"Outbox, forwarding {FORWARDED:,} messages: rate against push_many",
            rate,
            f"≥ {FORWARD}",
            over.median >= FORWARD,
        )
        opening = Spread.of(reopening(here, runs))
        yield Row(
            f"Outbox, opening a store of {STORED:,} messages",
            opening.text(3, " s"),
            f"< {REOPEN_S:.0f} s",
            opening.median < REOPEN_S,
        )


def calls(found: dict[str, list[float]]) -> Iterator[Row]:
    over = Spread.of(ratios(found["thread"], found["sqlite"]))
    yield Row(
        "SQLite in a thread that a loop asks and awaits, against SQLite, one fsync a call",
        over.text(),
        "",
        None,
    )
    for name, what in (
        ("one", "no loop"),
        ("awaited", "asyncio"),
        ("one_sent", "no loop, forwarded"),
        ("awaited_sent", "asyncio, forwarded"),
    ):
        over = Spread.of(ratios(found[name], found["sqlite"]))
        rate = f"{over.text()}; {Spread.of(found[name]).median:.0f} a second"
        yield Row(
            f"Outbox, one call after the other, {what}: rate against SQLite, one fsync a call",
            rate,
            f"≥ {CALL}",
            over.median >= CALL,
        )
    over = Spread.of(ratios(found["awaited"], found["thread"]))
    yield Row(
        "Outbox, one call after the other, asyncio: rate against SQLite in a thread that a loop"
        " asks",
        over.text(),
        "",
        None,
    )


def _path(here: Path) -> Path:
    return here / f"outbox-{next(_NAMES)}.db"


def _rate(number: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return number / (time.perf_counter() - began)


@contextmanager
def committing(here: Path) -> Iterator[Callable[[], None]]:
    """A row and a commit, as SQLite does it with the same settings."""
    with closing(sql.create_or_open(_path(here))) as connection:
        connection.execute("CREATE TABLE plain(id INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB)")

        def commit() -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO plain(value) VALUES (?)", (VALUE,))
            connection.execute("COMMIT")

        yield commit


def plain(here: Path) -> float:
    with committing(here) as commit:
        return _rate(CALLS, lambda: [commit() for _ in range(CALLS)])  # type: ignore[func-returns-value]


def in_a_thread(here: Path) -> float:
    async def work(commit: Callable[[], None]) -> float:
        loop, asked = asyncio.get_running_loop(), SimpleQueue[asyncio.Future[None] | None]()

        def run() -> None:
            while (reply := asked.get()) is not None:
                commit()
                loop.call_soon_threadsafe(reply.set_result, None)

        running = loop.run_in_executor(None, run)
        began = time.perf_counter()
        for _ in range(CALLS):
            asked.put(reply := loop.create_future())
            await reply
        took = time.perf_counter() - began
        asked.put(None)
        await running
        return CALLS / took

    with committing(here) as commit:
        return asyncio.run(work(commit))


def one_by_one(here: Path, to: str = NOWHERE) -> float:
    with SyncOutbox(_path(here), to) as outbox:
        return _rate(CALLS, lambda: [outbox.push("q", VALUE) for _ in range(CALLS)])


def awaited(here: Path, to: str = NOWHERE) -> float:
    async def work() -> float:
        async with Outbox(_path(here), to) as outbox:
            began = time.perf_counter()
            for _ in range(CALLS):
                await outbox.push("q", VALUE)
            return CALLS / (time.perf_counter() - began)

    return asyncio.run(work())


def shared(here: Path) -> float:
    async def work() -> float:
        async with Outbox(_path(here), NOWHERE) as outbox:

            async def one() -> None:
                for _ in range(CALLS // 10):
                    await outbox.push("q", VALUE)

            began = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(100)))
            return 10 * CALLS / (time.perf_counter() - began)

    return asyncio.run(work())


def publishing(here: Path) -> float:
    data = [{"user": n, "name": "x" * 60} for n in range(100)]
    with SyncOutbox(_path(here), NOWHERE) as outbox:
        return _rate(
            EVENTS,
            lambda: [outbox.publish_many(["user.signup"], data) for _ in range(EVENTS // 100)],
        )


def _filled(path: Path, messages: int) -> Path:
    with SyncOutbox(path, NOWHERE) as outbox:
        for _ in range(messages // 10_000):
            outbox.push("forwarded", *[VALUE] * 10_000)
    return path


def forwarding(here: Path, url: str) -> float:
    with SyncOutbox(_filled(_path(here), FORWARDED), url) as outbox:
        return _rate(FORWARDED, outbox.wait_drained)


def pushing(url: str) -> float:
    values = [VALUE] * FORWARDED
    with Bus.sync(url) as bus, bus.queue("pushed") as queue:
        return _rate(FORWARDED, lambda: queue.push_many(values))


def reopening(here: Path, runs: int) -> list[float]:
    path = _filled(_path(here), STORED)
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        outbox = SyncOutbox(path, NOWHERE)
        outbox.__enter__()
        outbox.push("q", VALUE)
        found.append(time.perf_counter() - began)
        outbox.__exit__(None, None, None)
    return found
