"""The output of ``busmq demo``: its stages, tables and picture.

The sums of the demo's query, added up for its tables and its plot. Pure.

The demo's picture: mean delay by hour of the day, one line an airline.

The output of ``busmq demo``: stages with their rates, tables, the plot's place, and the next
command.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from busmq_spark.cli.output import CliOutput, format_count, format_number, format_rate, table
from busmq_spark.queue.command_generators import group_by
from busmq_spark.redis_io.urls import parse

if TYPE_CHECKING:
    from busmq_spark.demo.local_spark import DemoQueryProgress


@dataclass(frozen=True, slots=True)
class FlightDelayTotals:
    """Flights of a carrier ('' all) scheduled in an hour of the day (-1 all); minutes are sums,
    early ones count negative.
    """

    carrier: str
    hour: int
    flights: int
    departed: int
    dep_minutes: int | None
    arrived: int
    arr_minutes: int | None

    @property
    def mean_departure_delay(self) -> float | None:
        """Mean delay of departure in minutes; return None when all were cancelled."""
        return (self.dep_minutes or 0) / self.departed if self.departed else None

    @property
    def mean_arrival_delay(self) -> float | None:
        """Mean delay of arrival in minutes; return None when none arrived."""
        return (self.arr_minutes or 0) / self.arrived if self.arrived else None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "flights": self.flights,
            "departed": self.departed,
            "dep_delay": (
                None if self.mean_departure_delay is None else round(self.mean_departure_delay, 3)
            ),
            "arr_delay": (
                None if self.mean_arrival_delay is None else round(self.mean_arrival_delay, 3)
            ),
        }


def by_carrier(delays: Iterable[FlightDelayTotals]) -> list[FlightDelayTotals]:
    """All hours of a carrier together, the latest first."""
    return _worst_first(_sums_of(delays, lambda delay: (delay.carrier, -1)))


def worst_hours(delays: Iterable[FlightDelayTotals], most: int) -> list[FlightDelayTotals]:
    """All carriers of an hour together, the ``most`` latest first."""
    return _worst_first(_sums_of(delays, lambda delay: ("", delay.hour)))[:most]


def _sums_of(
    delays: Iterable[FlightDelayTotals], key: Callable[[FlightDelayTotals], tuple[str, int]]
) -> list[FlightDelayTotals]:
    return [
        FlightDelayTotals(
            carrier,
            hour,
            sum(each.flights for each in group),
            sum(each.departed for each in group),
            sum(each.dep_minutes or 0 for each in group),
            sum(each.arrived for each in group),
            sum(each.arr_minutes or 0 for each in group),
        )
        for (carrier, hour), group in group_by(delays, key).items()
    ]


def _worst_first(delays: Sequence[FlightDelayTotals]) -> list[FlightDelayTotals]:
    return sorted(
        delays,
        key=lambda delay: (
            -(
                delay.mean_departure_delay
                if delay.mean_departure_delay is not None
                else float("-inf")
            ),
            delay.carrier,
            delay.hour,
        ),
    )


MIN_DEPARTURES_PER_HOUR = 30
"""An hour with fewer departures is not drawn when the whole year is: three flights have no typical
delay.
"""
FLIGHTS_OF_YEAR = 336_776
NAMED_AIRLINES = 7
"""Airlines with a colour and a name; the others are drawn grey, so that the lines can be
distinguished.
"""
COLOURS = ("#d1495b", "#edae49", "#00798c", "#6a4c93", "#52796f", "#3d5a80", "#b5651d")


def draw_delays(
    delays: Sequence[FlightDelayTotals], airlines: dict[str, str], flights: int, path: Path
) -> None:
    """Write the PNG."""
    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # it logs its font cache on the first run
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.2), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    biggest = sorted(by_carrier(delays), key=lambda delay: -delay.flights)
    ends = []
    for rank, airline in reversed(list(enumerate(biggest))):
        hours, means = _mean_delays_by_hour(
            delays, airline.carrier, MIN_DEPARTURES_PER_HOUR * flights / FLIGHTS_OF_YEAR
        )
        if not hours:
            continue
        if rank < NAMED_AIRLINES:
            axes.plot(
                hours, means, color=COLOURS[rank], linewidth=2.2, marker="o", markersize=4, zorder=3
            )
            ends.append(
                (
                    means[-1],
                    hours[-1],
                    airlines.get(airline.carrier, airline.carrier).removesuffix(" Inc."),
                    COLOURS[rank],
                )
            )
        else:
            axes.plot(hours, means, color="#c8ccd0", linewidth=1.1, zorder=1)
    _draw_names(axes, ends)
    _style_axes(figure, axes, flights)
    figure.savefig(path)


def _mean_delays_by_hour(
    delays: Sequence[FlightDelayTotals], carrier: str, fewest: float
) -> tuple[list[int], list[float]]:
    points = [
        (d.hour, d.mean_departure_delay)
        for d in delays
        if d.carrier == carrier and d.departed >= fewest and d.mean_departure_delay is not None
    ]
    points.sort()
    return [hour for hour, _ in points], [mean for _, mean in points]


def _draw_names(axes: object, ends: list[tuple[float, int, str, str]]) -> None:
    """Names in a column at the right, in the order of the line ends, moved apart where they would
    cover each other.
    """
    if not ends:
        return
    # Matplotlib Axes, imported only when drawing
    low, high = axes.get_ylim()  # type: ignore[attr-defined]
    gap, last = (high - low) * 0.05, float("-inf")
    right = max(hour for _, hour, _, _ in ends) + 0.9
    for mean, hour, name, colour in sorted(ends):
        last = max(mean, last + gap)
        axes.plot([hour, right - 0.1], [mean, last], color=colour, linewidth=0.7, alpha=0.5)  # type: ignore[attr-defined]
        axes.text(right, last, name, color=colour, va="center", fontsize=10, fontweight="bold")  # type: ignore[attr-defined]


def _style_axes(figure: object, axes: object, flights: int) -> None:
    a, f = axes, figure
    a.axhline(0, color="#444444", linewidth=0.8)  # type: ignore[attr-defined]
    a.set_xlim(4.6, 27.5)  # type: ignore[attr-defined]
    a.set_xticks(range(5, 24, 2), [f"{hour:02}:00" for hour in range(5, 24, 2)])  # type: ignore[attr-defined]
    a.set_xlabel("scheduled hour of departure", loc="left", color="#555555")  # type: ignore[attr-defined]
    a.set_ylabel("mean delay of departure, minutes", color="#555555")  # type: ignore[attr-defined]
    a.grid(axis="y", color="#e6e8ea")  # type: ignore[attr-defined]
    a.tick_params(length=0, colors="#555555")  # type: ignore[attr-defined]
    for side in ("top", "right", "left", "bottom"):
        a.spines[side].set_visible(False)  # type: ignore[attr-defined]
    title = (
        "Fly early: delays pile up through the day"
        if flights == FLIGHTS_OF_YEAR
        else "Delays of departure through the day"
    )
    f.text(0.065, 0.94, title, fontsize=16, fontweight="bold", color="#222222")  # type: ignore[attr-defined]
    source = (
        f"{format_number(flights)} flights from New York City in 2013, streamed through busmq and"
        " Spark; grey: smaller airlines"
    )
    f.text(0.065, 0.90, source, fontsize=10.5, color="#666666")  # type: ignore[attr-defined]
    f.subplots_adjust(left=0.065, right=0.985, top=0.86, bottom=0.1)  # type: ignore[attr-defined]


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
