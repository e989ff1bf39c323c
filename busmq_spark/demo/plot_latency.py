"""The picture of ``busmq demo realtime``: how many messages took how long, on a scale from tenths
of a millisecond to a second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from busmq_spark.demo.latency_clients import percentiles

COLOURS = ("#9aa5ae", "#00798c", "#d1495b")
MIN_LATENCY_MS, BINS_PER_DECADE = 0.05, 20


def draw_latency(ways: Sequence[tuple[str, Sequence[int]]], path: Path) -> None:
    """Write the PNG: for each way its name and the microseconds."""
    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # it logs its font cache on the first run
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.2), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    longest = max(1000.0, *(max(took, default=0) / 1000 for _, took in ways))
    edges = (
        10
        ** np.arange(
            np.log10(MIN_LATENCY_MS), np.log10(longest) + 1 / BINS_PER_DECADE, 1 / BINS_PER_DECADE
        )
    ).tolist()
    for (name, took), colour in zip(ways, COLOURS, strict=True):
        if not took:
            continue
        values = np.maximum(np.asarray(took) / 1000, MIN_LATENCY_MS)
        label = (
            f"{name}: p50 {percentiles(took)['p50']:.2g} ms, p99 {percentiles(took)['p99']:.3g} ms"
        )
        axes.hist(
            values,
            edges,
            weights=np.full(len(values), 100 / len(values)),
            color=colour,
            alpha=0.75,
            label=label,
        )
    axes.set_xscale("log")
    axes.set_xticks([0.1, 1, 10, 100, 1000], ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s"])
    axes.minorticks_off()
    axes.set_ylabel("messages, %", color="#555555")
    axes.grid(axis="y", color="#e6e8ea")
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors="#555555")
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=10.5)
    figure.text(
        0.065,
        0.94,
        "From push to arrival, through one Spark query",
        fontsize=16,
        fontweight="bold",
        color="#222222",
    )
    said = (
        "1,000 messages a second of 100 bytes, queue to queue; grey: the same clients without Spark"
        " in between"
    )
    figure.text(0.065, 0.90, said, fontsize=10.5, color="#666666")
    figure.subplots_adjust(left=0.065, right=0.985, top=0.86, bottom=0.08)
    figure.savefig(path)
