"""What the clock of a queue costs in Redis: in pushes, and when a time or the time of an id is
found among a day of seconds.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator, Sequence

from busmq_spark.queue import queue as q
from busmq_spark.queue.command_generators import RedisCall, command, script
from busmq_spark.reading.times_of_ids import NewestIdAtTime
from busmq_spark.redis_io.sync_link import SyncLink
from tests.benchmarks.harness import (
    RUNS,
    Row,
    Spread,
    alternating,
    fill,
    ratios,
    redis,
    script_calls_and_us,
)
from tests.clocks import store

BATCH, SIZE, BATCHES, SINGLES, TOGETHER = 1000, 100, 400, 10_000, 20
DAY, LOOKS = 86_400, 2000
MOST_MORE, MOST_US = 1.02, 200.0


def run(runs: int = RUNS) -> Iterator[Row]:
    with redis() as (_, link):
        yield from pushes(link, runs)
        yield from looks(link, runs)


def spent_us(link: SyncLink, calls: Sequence[RedisCall]) -> float:
    """Microseconds inside Redis for each of these scripts, as its commandstats have them."""
    link.execute(list(calls[:1]))  # now Redis knows the script
    link.execute(command("CONFIG", "RESETSTAT"))
    for at in range(0, len(calls), TOGETHER):
        link.execute(list(calls[at : at + TOGETHER]))
    made, spent = script_calls_and_us(link)
    assert made == len(calls)
    return spent / made


def pushes(link: SyncLink, runs: int) -> Iterator[Row]:
    """The same push with the key of the clock and without it, which then notes nothing: some of the
    one and some of the other in turn.
    """
    for values, count, what in (
        ([b"x" * SIZE] * BATCH, BATCHES, f"of {BATCH:,} messages"),
        ([b"x" * SIZE], SINGLES, "of one message"),
    ):
        found: list[tuple[float, float]] = []
        for turn in range(runs + 1):
            blocks: tuple[list[float], list[float]] = ([], [])
            each = [fill(link, f"bench-clock-{timed}", 0, SIZE) for timed in (0, 1)]
            for block in range(count // TOGETHER):
                for timed in (0, 1) if block % 2 else (1, 0):
                    names = (
                        (*each[timed].peer_keys, each[timed].clock)
                        if timed
                        else each[timed].peer_keys
                    )
                    blocks[timed].append(
                        spent_us(
                            link,
                            [script("push", names, (each[timed].available, *values))] * TOGETHER,
                        )
                    )
            spent = [
                statistics.median(found_us) for found_us in blocks
            ]  # of blocks: a shared machine stops Redis now and then
            if turn:
                found.append((spent[1], spent[0]))
                print(
                    f"    {what} {turn}/{runs}: {spent[1]:.2f} µs, without {spent[0]:.2f} µs",
                    file=sys.stderr,
                    flush=True,
                )
        more = Spread.of(ratios([timed for timed, _ in found], [plain for _, plain in found]))
        plain = Spread.of([plain for _, plain in found]).median
        wanted: tuple[str, bool | None] = (
            (f"≤ {MOST_MORE}", more.median <= MOST_MORE) if len(values) > 1 else ("", None)
        )
        yield Row(
            f"Clock: a push {what} against one that notes no time, in Redis",
            f"{more.text(3)}, {plain:.0f} µs",
            *wanted,
        )


def looks(link: SyncLink, runs: int) -> Iterator[Row]:
    keys = fill(link, "bench-day", 1, SIZE)
    link.execute(command("SET", keys.msgid, DAY))
    now = link.run(q.clock_ms(keys)) // 1000 * 1000
    store(
        lambda *words: link.execute(command(*words)),
        keys,
        [NewestIdAtTime(now - 1000 * (DAY - i), i) for i in range(DAY + 1)],
    )
    chance = random.Random(1)

    def by_time() -> float:
        return spent_us(
            link,
            [
                script(
                    "id_at",
                    (keys.metadata, keys.messages, keys.clock),
                    (-chance.randrange(1000 * DAY) - 1,),
                )
                for _ in range(LOOKS)
            ],
        )

    def by_id() -> float:
        ids = [chance.randrange(DAY) + 1 for _ in range(LOOKS)]
        return spent_us(
            link, [script("times", (keys.metadata, keys.clock), (id, id, 2000)) for id in ids]
        )

    def newest() -> float:
        return spent_us(
            link, [script("times", (keys.metadata, keys.clock), (DAY, DAY, 2000))] * LOOKS
        )

    def ages() -> float:
        return spent_us(
            link,
            [
                script("ages", (keys.metadata, keys.clock), (chance.randrange(DAY) + 1,))
                for _ in range(LOOKS)
            ],
        )

    found = alternating(runs, by_time=by_time, by_id=by_id, newest=newest, ages=ages)
    names = {
        "by_time": "the id before a time",
        "by_id": "the time of an id",
        "newest": "the time of the newest id",
        "ages": "the age of a message",
    }
    for name, what in names.items():
        us = Spread.of(found[name])
        yield Row(
            f"Clock: {what} found among {DAY:,} pairs, in Redis",
            us.text(1, " µs"),
            f"< {MOST_US:.0f} µs",
            us.median < MOST_US,
        )
