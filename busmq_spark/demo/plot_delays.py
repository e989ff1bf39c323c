"""The demo's picture: mean delay by hour of the day, one line an airline."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from busmq_spark.cli.terminal_text import format_number
from busmq_spark.demo.flight_delays import FlightDelayTotals, by_carrier

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
