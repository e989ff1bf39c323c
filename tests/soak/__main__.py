"""Faults without end: ``make soak``, or
``python -m tests.soak --seconds 7200 [--seed N] [--round N] [--kind python]``.

A round is one query, from queue to queue or from topic to topic, beside a shared group or over to a
mirror, and one to three faults, all drawn from the seed and its number alone. It ends when all that
was fed has arrived, each message once and in order, or when an error has said which messages are
gone, and why. A line per round, a table at the end; the exit code is 1 after a violation, whose
line says how to repeat it, and 130 after Ctrl-C. Clocks are set and power is cut where a C compiler
is at hand.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from busmq_spark.spark.java_runtime import find_jar
from tests import java
from tests.soak.drivers import Drivers
from tests.soak.faults import FAULTS, chosen, power_lost_unsynced
from tests.soak.mirror import MirrorRun
from tests.soak.run import KINDS, VARIANTS, Run, Violation
from tests.soak.shared import SharedRun
from tests.soak.site import Site
from tests.soak.topic import TopicRun

RUNS = {"topic": TopicRun, "shared": SharedRun, "mirror": MirrorRun}
"""What a round of a kind is, if not a Run itself."""


@dataclass
class Result:
    """What became of one round."""

    number: int
    kind: str
    done: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    starts: int = 0
    rows: int = 0
    keys: int = 0
    driver_mb: int = 0
    took_s: float = 0.0
    violation: str = ""

    def line(self) -> str:
        errors = f"errors {', '.join(dict.fromkeys(self.errors))}; " if self.errors else ""
        done = "; ".join(self.done)
        left = f"{errors}{self.keys} keys, {self.driver_mb} MB, {self.took_s:.0f} s"
        return (
            f"{self.number:4} {self.kind:10} {done}: {self.rows} rows, {self.starts} starts, {left}"
        )


def one(site: Site, drivers: Drivers, number: int, arguments: argparse.Namespace) -> Result:
    """One round."""
    chance, began = random.Random(f"{arguments.seed}:{number}"), time.monotonic()
    kind = chance.choice(arguments.kind or KINDS)
    named = [
        fault for fault in FAULTS if fault.name in (arguments.fault or ()) and kind in fault.kinds
    ]
    faults = [chance.choice(named)] if named else chosen(chance, kind)
    result = Result(number, kind)
    run = RUNS.get(kind, Run)(site, drivers, number, kind, chance)
    run.drawn = [fault.name for fault in faults]
    run.durable = not any(fault.do is power_lost_unsynced for fault in faults)
    try:
        run.feed(chance.randint(1, 4) * 500)
        run.begin()
        if chance.random() < 0.7:
            run.until(lambda: run.count_sunk() > 0, "the first rows arrive")
        for fault in faults:
            run.tend()
            run.feed(chance.randint(1, 4) * 500)
            if fault.harms:  # what a query has never planned it cannot miss
                run.until(
                    lambda: run.checkpoint.planned >= 0 and run.count_sunk() > 0,
                    "the first batch is in the offset log",
                )
            run.harmed |= fault.harms
            result.done.append(
                fault.name
            )  # before it happens, so that the line of a violation has it
            detail = fault.do(run)
            result.done[-1] += f" ({detail})" if detail else ""
        run.settle()
        result.keys, result.driver_mb = run.finish()
    except Exception as error:  # noqa: BLE001  # the next round may find more
        where = "" if isinstance(error, Violation) else f"\n{traceback.format_exc()}"
        result.violation = (str(error) or repr(error)) + where
        site.calm()
        run.lose_driver()
        site.server.command("FLUSHALL")
    finally:
        run.close()
    result.errors, result.starts, result.rows = run.errors, run.starts, sum(run.fed.values())
    result.took_s = time.monotonic() - began
    return result


def summary(results: list[Result]) -> Table:
    table = Table("query", "rounds", "minutes", "rows", "starts", "faults", "errors", "violations")
    by: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by[result.kind].append(result)
    for kind, of in sorted(by.items()):
        errors = Counter(code for result in of for code in result.errors)
        numbers = (
            len(of),
            round(sum(r.took_s for r in of) / 60),
            sum(r.rows for r in of),
            sum(r.starts for r in of),
            sum(len(r.done) for r in of),
        )
        codes = ", ".join(f"{code} {count}" for code, count in errors.most_common())
        table.add_row(kind, *map(str, numbers), codes, str(sum(bool(r.violation) for r in of)))
    return table


def soak(arguments: argparse.Namespace, console: Console, results: list[Result]) -> None:
    """Round after round, each with its result, until the time is over."""
    columns = (
        BarColumn(),
        TextColumn("round {task.fields[round]}, {task.fields[bad]} violations"),
        TimeElapsedColumn(),
    )
    bars = Progress(*columns, console=console, transient=True)
    with (
        tempfile.TemporaryDirectory(prefix="busmq-soak-") as folder,
        Site(Path(folder)) as site,
        bars as progress,
    ):
        if java.VARIABLE not in os.environ:  # what started this may have made it
            java.share_classes(Path(folder))
        os.environ["SPARK_SUBMIT_OPTS"] += (
            f" -Djava.io.tmpdir={folder}"  # a Spark that is killed leaves its folders behind
        )
        drivers, began = Drivers(Path(folder), site.machines["spark"]), time.monotonic()
        bar, number = (
            progress.add_task("soak", total=arguments.seconds, round=0, bad=0),
            arguments.round or 1,
        )
        try:
            while not results or (
                arguments.round is None and time.monotonic() - began < arguments.seconds
            ):
                result = one(site, drivers, number, arguments)
                results.append(result)
                console.print(result.line(), markup=False, highlight=False, soft_wrap=True)
                if result.violation:
                    words = [
                        f"--{name} '{each}'"
                        for name in ("kind", "fault")
                        for each in getattr(arguments, name) or ()
                    ]
                    again = (
                        f"python -m tests.soak --seed {arguments.seed} --round {number}"
                        f" {' '.join(words)}"
                    )
                    console.print(
                        f"     VIOLATION: {result.violation}\n     again: {again}",
                        markup=False,
                        highlight=False,
                        soft_wrap=True,
                    )
                number += 1
                bad = sum(bool(each.violation) for each in results)
                progress.update(
                    bar,
                    completed=min(time.monotonic() - began, arguments.seconds),
                    round=number - 1,
                    bad=bad,
                )
        finally:
            drivers.kill()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--round", type=int, help="this round alone")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these queries")
    parser.add_argument(
        "--fault",
        action="append",
        choices=[fault.name for fault in FAULTS],
        help="one of these a round, where they can happen",
    )
    arguments = parser.parse_args()
    if find_jar() is None:  # what the Java module runs is left out
        arguments.kind = arguments.kind or ["python", "federation", *VARIANTS]
    if java.VARIABLE not in os.environ:
        java.prepare()
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # a shell starts what runs in the background without the first
        signal.signal(number, signal.default_int_handler)
    console = Console()
    console.print(f"seed {arguments.seed}", highlight=False)
    results: list[Result] = []
    try:
        soak(arguments, console, results)
    except KeyboardInterrupt:
        console.print(
            f"interrupted: seed {arguments.seed}, {len(results)} rounds done", highlight=False
        )
        return 130
    console.print(summary(results))
    return int(any(result.violation for result in results))


if __name__ == "__main__":
    sys.exit(main())
