"""``busmq demo federation``: two data centres in one query, one of which goes away in the middle
and comes back.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from busmq_spark.cli.output import CliOutput, table
from busmq_spark.cli.progress_bar import TerminalProgressBar
from busmq_spark.cli.terminal_text import format_count, format_number, format_rate
from busmq_spark.demo.data_centre import DemoDataCentre
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import StateError

if TYPE_CHECKING:
    from busmq_spark.demo.spark_federation import DemoArrivalCounts, FederationDemoQuery

ORDERS_QUEUE = "orders"
SPARK_LOG = "busmq-demo-spark.log"
BOTH_LINKED_S, OUTAGE_S, AFTER_RECOVERY_S = 4.0, 5.0, 2.0
PROGRESS_TIMEOUT_S = 180.0
"""A laptop that does other things, too, needs a minute until the first batch of two data centres
has flowed.
"""
POLL_S = 0.1


def federation(out: CliOutput) -> None:
    """The whole scene."""
    from busmq_spark.demo.local_spark import LocalSpark
    from busmq_spark.demo.spark_federation import (
        FederationDemoQuery,
        FederationDemoQuerySettings,
        count_arrivals,
    )

    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busmq-demo-")))
        show = _Printer(out)
        with out.spinner("starting two data centres"):
            here = stack.enter_context(EmbeddedRedis())
            eu, us = (
                stack.enter_context(DemoDataCentre(name, ORDERS_QUEUE, folder))
                for name in ("eu", "us")
            )
        show.start(eu, us, here.url)
        with out.spinner("starting Spark"):
            spark = stack.enter_context(LocalSpark(folder, Path(SPARK_LOG)))
        links, secrets = (
            {eu.name: eu.url, us.name: us.url},
            {eu.name: eu.secret, us.name: us.secret},
        )
        route = FederationDemoQuerySettings(
            links, secrets, ORDERS_QUEUE, here.url, folder / "checkpoint"
        )
        with FederationDemoQuery(spark, route) as query:
            pushed = _run_scenario(show, query, eu, us)
        with out.spinner("reading everything back"):
            found = count_arrivals(spark, route)
        show.show_proof(pushed, found)
        show.print_line(
            "total", f"{time.monotonic() - began:.0f} s", seconds=round(time.monotonic() - began, 1)
        )


def _run_scenario(
    show: "_Printer", query: "FederationDemoQuery", eu: DemoDataCentre, us: DemoDataCentre
) -> dict[str, int]:
    """Both, one, both again; the result is how many messages were pushed in each data centre."""
    with TerminalProgressBar(
        show.out,
        "two data centres → one queue",
        None,
        "orders",
        waiting="the first batch starts Spark's Python workers",
    ) as meter:
        watch = _ProgressWatcher(query, meter)
        for centre in (eu, us):
            centre.start_producer()
        watch.wait_until(lambda done: all(done.values()), "both data centres flow")
        begun = {centre.name: centre.pushed for centre in (eu, us)}
        watch.wait_until(
            lambda done: all(done[name] >= begun[name] for name in begun),
            "what came during the first batch is through",
        )
        rows, seconds = watch.watch_for(BOTH_LINKED_S)
        show.show_flow(rows, seconds)
        eu.stop_server()
        rows, seconds = watch.watch_for(OUTAGE_S)
        show.show_outage(eu.name, us.name, rows, seconds, watch.last[eu.name])
        eu.start_server()
        backlog, back = eu.pushed, time.monotonic()
        behind = backlog - watch.last[eu.name]
        watch.wait_until(lambda done: done[eu.name] >= backlog, f"{eu.name} catches up")
        show.show_recovery(eu.name, behind, time.monotonic() - back)
        watch.watch_for(AFTER_RECOVERY_S)
        pushed = {centre.name: centre.stop_producer() for centre in (eu, us)}
        watch.wait_until(lambda done: done == pushed, "everything arrives")
    return pushed


class _ProgressWatcher:
    """Looks how far the query is, ten times a second."""

    def __init__(self, query: "FederationDemoQuery", meter: TerminalProgressBar) -> None:
        self._query, self._meter = query, meter
        self.last: dict[str, int] = {}

    def wait_until(self, reached: Callable[[dict[str, int]], bool], what: str) -> dict[str, int]:
        """Return the progress once the condition holds."""
        deadline = time.monotonic() + PROGRESS_TIMEOUT_S
        while True:
            self.last = self._query.last_arrived()
            self._meter.add(sum(self.last.values()) - self._meter.items)
            if reached(self.last):
                return self.last
            if time.monotonic() > deadline:
                self._query.keep_log()
                remedy = f"This machine may be too busy; what Spark said is in {SPARK_LOG}"
                raise StateError(
                    event="go on",
                    what="the demo",
                    state=f"waiting until {what}, for {PROGRESS_TIMEOUT_S:.0f} s",
                    remedy=remedy,
                )
            time.sleep(POLL_S)

    def watch_for(self, seconds: float) -> tuple[dict[str, int], float]:
        """Return the arrivals meanwhile, and the elapsed seconds."""
        before, began = dict(self.last), time.monotonic()
        after = self.wait_until(lambda _: time.monotonic() - began >= seconds, "")
        return {name: after[name] - before[name] for name in after}, time.monotonic() - began


class _Printer:
    """The output of the demo, for people or as JSON lines."""

    def __init__(self, out: CliOutput) -> None:
        self.out = out

    def start(self, eu: DemoDataCentre, us: DemoDataCentre, redis: str) -> None:
        """Print the title."""
        if not self.out.as_json:
            self.out.print_lines(
                Text(
                    "Orders of two data centres through one query into one queue, while one of them"
                    " goes away and comes back",
                    "bold",
                ),
                "",
            )
        self.print_line(
            "centres",
            f"{eu.name} at {eu.url}, {us.name} at {us.url}; into {redis}",
            eu=eu.url,
            us=us.url,
        )

    def show_flow(self, rows: dict[str, int], seconds: float) -> None:
        """Both are there."""
        text = " and ".join(f"{format_number(many)} of {name}" for name, many in rows.items())
        self.print_line(
            "both",
            f"{text} in {seconds:.1f} s",
            format_rate(sum(rows.values()), seconds),
            rows=rows,
            seconds=round(seconds, 2),
        )

    def show_outage(
        self, gone: str, there: str, rows: dict[str, int], seconds: float, waits: int
    ) -> None:
        """The row of the part in which one centre is unreachable."""
        text = (
            f"{there} goes on: {format_count(rows[there], 'order')} in {seconds:.1f} s; {gone}"
            f" waits behind order {format_number(waits)}"
        )
        self.print_line(
            f"{gone} away",
            text,
            format_rate(rows[there], seconds),
            rows=rows,
            seconds=round(seconds, 2),
        )

    def show_recovery(self, name: str, behind: int, seconds: float) -> None:
        """It has caught up."""
        text = (
            f"{format_count(behind, 'order')} that had waited arrived within {seconds:.1f} s of its"
            " return"
        )
        self.print_line(
            f"{name} back",
            text,
            format_rate(behind, seconds),
            behind=behind,
            seconds=round(seconds, 2),
        )

    def show_proof(self, pushed: dict[str, int], found: "dict[str, DemoArrivalCounts]") -> None:
        """Print the pushed messages beside the found ones. Raises StateError when they differ."""
        rows: list[list[str | Text]] = []
        for name, many in pushed.items():
            there = found[name]
            missing = many - there.different
            wrong = (missing, there.twice, there.misplaced)
            rows.append(
                [
                    Text(name, "cyan"),
                    format_number(many),
                    format_number(there.rows),
                    *(Text(format_number(n), "red" if n else "green") for n in wrong),
                ]
            )
            if self.out.as_json:
                shown = {"missing": missing, "twice": there.twice, "out_of_order": there.misplaced}
                self.out.print_json(centre=name, pushed=many, arrived=there.rows, **shown)
        if not self.out.as_json:
            head = [
                ("data centre", "left"),
                *(
                    (title, "right")
                    for title in ("pushed", "arrived", "missing", "twice", "out of order")
                ),
            ]
            self.out.print_lines("")
            self.out.print_table(table(head, rows, "Every order, compared"))
        if any(
            many != found[name].different or found[name].twice or found[name].misplaced
            for name, many in pushed.items()
        ):
            raise StateError(
                event="end",
                what="the demo",
                state="short of its proof: the table shows what is wrong",
                remedy="Please report this",
            )

    def print_line(self, name: str, text: str, figure: str = "", **record: object) -> None:
        """Print one line; for programs its figures."""
        if self.out.as_json:
            self.out.print_json(stage=name, **record)
        else:
            self.out.print_lines(
                Text.assemble(
                    (f"{name:<10}", "cyan"), text, "  " if figure else "", (figure, "bold")
                )
            )
        self.out.flush()
