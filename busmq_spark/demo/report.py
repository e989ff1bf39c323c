"""The output of ``busmq demo``: stages with their rates, tables, the plot's place, and the next
command.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from busmq_spark.cli.output import CliOutput, table
from busmq_spark.cli.terminal_text import format_count, format_number, format_rate
from busmq_spark.demo.flight_delays import FlightDelayTotals, by_carrier, worst_hours
from busmq_spark.redis_io.urls import parse

if TYPE_CHECKING:
    from busmq_spark.demo.local_spark import DemoQueryProgress

WORST_HOURS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DemoStepResult:
    """The result of a step."""

    name: str
    text: str
    items: int
    seconds: float
    warm: tuple[int, float] = (0, 0.0)
    """Items and seconds without the first batch of a stream."""
    engine: str = ""
    """Of a stream: which implementation of ``format("busmq")`` did it."""


class DemoPrinter:
    """Collects what happened and shows it as it happens."""

    def __init__(self, out: CliOutput) -> None:
        self.out = out
        self.rows = 0
        self._started = time.monotonic()

    def show_title(self, rows: int | None) -> None:
        """Print the title."""
        if not self.out.as_json:
            flights = "All flights" if rows is None else f"The first {format_count(rows, 'flight')}"
            self.out.print_lines(
                Text(
                    f"{flights} that left New York City in 2013, through an ordered bus and Spark",
                    "bold",
                ),
                "",
            )

    def show_redis_url(self, url: str, *, own: bool) -> None:
        """Which Redis."""
        masked = ", ".join(server.masked_url for server in parse(url))
        if not self.out.as_json:
            self._print_line("redis", f"{'embedded, ' if own else ''}{masked}")

    def show_stage(self, stage: DemoStepResult) -> None:
        """A step with its rate."""
        if stage.name == "replay":
            self.rows = stage.items
        if self.out.as_json:
            warm = {"warm_rate": round(stage.warm[0] / stage.warm[1])} if stage.warm[0] else {}
            engine = {"engine": stage.engine} if stage.engine else {}
            seconds = round(stage.seconds, 3)
            self.out.print_json(
                stage=stage.name,
                items=stage.items,
                seconds=seconds,
                rate=round(stage.items / stage.seconds),
                **warm,
                **engine,
            )
            self.out.flush()
            return
        warm_text = f"; {format_rate(*stage.warm)} after the first batch" if stage.warm[0] else ""
        by = f" ({stage.engine.capitalize()} engine)" if stage.engine else ""
        self._print_line(
            stage.name,
            f"{stage.text}{by}, {stage.seconds:.1f} s",
            f"{format_rate(stage.items, stage.seconds)}{warm_text}",
        )

    def show_stream(self, done: DemoQueryProgress, seconds: float) -> None:
        """The two ends of the streaming query. Its first batch has to start Spark's workers."""
        batches = format_count(done.batches, "batch").replace("batchs", "batches")
        warm = done.warm_rows_in, done.warm_seconds
        self.show_stage(
            DemoStepResult(
                "stream",
                f"{format_count(done.rows_in, 'flight')} in {batches}",
                done.rows_in,
                seconds,
                warm,
                done.engine,
            )
        )
        sunk = (
            f"{format_count(done.rows_out, 'result')} in {format_count(done.batches, 'commit')} to"
            " queue delays"
        )
        self.show_stage(
            DemoStepResult(
                "sink", sunk, done.rows_out, seconds, (done.warm_rows_out, done.warm_seconds)
            )
        )

    def show_results(
        self, delays: Sequence[FlightDelayTotals], airlines: dict[str, str], picture: Path
    ) -> None:
        """The tables, and where the plot is."""
        carriers, hours = by_carrier(delays), worst_hours(delays, WORST_HOURS_SHOWN)
        seconds = time.monotonic() - self._started
        if self.out.as_json:
            for delay in carriers:
                self.out.print_json(
                    carrier=delay.carrier, airline=airlines.get(delay.carrier), **delay.to_json()
                )
            for delay in hours:
                self.out.print_json(worst_hour=delay.hour, **delay.to_json())
            self.out.print_json(plot=str(picture), seconds=round(seconds, 1))
            return
        self.out.print_lines("")
        self.out.print_table(_carriers_table(carriers, airlines))
        self.out.print_table(_hours_table(hours))
        self._print_line("plot", str(picture))
        self._print_line("total", f"{seconds:.0f} s")

    def show_next_steps(self, url: str, *, own: bool, keep: bool) -> None:
        """Three lines that work as they are with what is running now."""
        if self.out.as_json:
            return
        head, lines = next_lines(url, own=own, keep=keep)
        self.out.print_lines(
            "", Text(head, "bold"), *(Text(f"  {line}", "green") for line in lines), ""
        )

    def _print_line(self, name: str, text: str, figure: str = "") -> None:
        self.out.print_lines(
            Text.assemble((f"{name:<10}", "cyan"), text, "  " if figure else "", (figure, "bold"))
        )
        self.out.flush()


def next_lines(url: str, *, own: bool, keep: bool) -> tuple[str, list[str]]:
    """A heading, and three lines of Python for a shell that has ``spark``."""
    secret = any(server.password for server in parse(url))
    named = 'os.environ["BUSMQ_REDIS_URL"]' if secret else f'"{url}"'
    if keep:
        head = "Next, in a pyspark shell (the flights are still in their queue):"
        read = (
            'flights = spark.readStream.format("busmq").option("redis.url",'
            f' {named}).option("subscribe", "flights").load()'
        )
        rows = 'rows = flights.selectExpr("id", "CAST(value AS STRING) AS flight")'
        return head, [read, rows, 'rows.writeStream.format("console").start().awaitTermination()']
    if own:
        head = "Next, in a pyspark shell (this Redis is gone now; with --keep it stays):"
        first = "from busmq_spark.embedded import EmbeddedRedis; redis = EmbeddedRedis().start()"
        named = "redis.url"
    else:
        head = "Next, in a pyspark shell (the demo's queues are removed; with --keep they stay):"
        first = f"redis_url = {named}"
        named = "redis_url"
    read = (
        'orders = spark.readStream.format("busmq").option("redis.url",'
        f' {named}).option("subscribe", "orders").load()'
    )
    return head, [
        first,
        read,
        (
            'orders.selectExpr("id", "CAST(value AS'
            ' STRING)").writeStream.format("console").start().awaitTermination()'
        ),
    ]


def _carriers_table(carriers: Sequence[FlightDelayTotals], airlines: dict[str, str]) -> Any:
    columns = [
        ("airline", "left"),
        ("flights", "right"),
        ("cancelled", "right"),
        ("left late by", "right"),
        ("arrived late by", "right"),
    ]
    rows: list[list[str | Text]] = [
        [
            Text.assemble((f"{d.carrier}  ", "cyan"), airlines.get(d.carrier, "")),
            format_number(d.flights),
            f"{100 * (1 - d.departed / d.flights):.1f} %",
            _minutes(d.mean_departure_delay),
            _minutes(d.mean_arrival_delay),
        ]
        for d in carriers
    ]
    return table(columns, rows, "Airlines by mean delay of departure")


def _hours_table(hours: Sequence[FlightDelayTotals]) -> Any:
    columns = [
        ("scheduled", "left"),
        ("flights", "right"),
        ("left late by", "right"),
        ("arrived late by", "right"),
    ]
    rows: list[list[str | Text]] = [
        [
            f"{d.hour:02}:00-{d.hour:02}:59",
            format_number(d.flights),
            _minutes(d.mean_departure_delay),
            _minutes(d.mean_arrival_delay),
        ]
        for d in hours
    ]
    return table(columns, rows, "The worst hours to leave")


def _minutes(value: float | None) -> Text:
    if value is None:
        return Text("-", "dim")
    return Text(f"{value:.1f} min", "red" if value >= 15 else "yellow" if value >= 10 else "green")
