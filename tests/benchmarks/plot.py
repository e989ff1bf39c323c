"""The plot of docs/performance.md, from the table beside Kafka in docs/performance-details.md:
``python -m tests.benchmarks.plot``.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl

DOCS = Path(__file__).parents[2] / "docs"
ROWS = {
    "First query of a session, whole, 1,000,000": "first query, 100 B",
    "A later query, whole, 1,000,000": "later query, 100 B",
    "1,000,000 × 100 B, sink less its source: exactly": "sink, exactly once",
    "1,000,000 × 100 B, sink less its source: at least": "sink, at least once",
    "Queue → queue, 500,000 rows in batches of 100,000: exactly": "queue to queue, exactly once",
    "Queue → queue, 500,000 rows in batches of 100,000: at least": "queue to queue, at least once",
    "Push to arrival at 1,000/s, trigger 0: exactly once; Kafka acks=all, p50": "trigger 0, p50",
    "Push to arrival at 1,000/s, trigger 0: exactly once; Kafka acks=all, p99": "trigger 0, p99",
}


def ratios() -> dict[str, tuple[float, float]]:
    """Return the ratios to tuned Kafka of each row, Python and Java."""
    found = {}
    for line in (DOCS / "performance-details.md").read_text("utf-8").splitlines():
        for start, name in ROWS.items():
            if line.startswith(f"| {start}"):
                *_, python, java, _ = line.split("|")
                found[name] = (_median(python), _median(java))
    return found


def _median(cell: str) -> float:
    number = re.match(r"\s*([0-9.]+)", cell)
    assert number, cell
    return float(number[1])


def draw(path: Path) -> None:
    """Write the plot as SVG."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "busmq"  # the same bytes for the same figures
    from matplotlib import pyplot as plt

    rows = ratios()
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    places = range(len(rows))
    for offset, engine, color in ((0.2, 0, "#c0a060"), (-0.2, 1, "#3060a0")):
        axes.barh(
            [place + offset for place in places],
            [each[engine] for each in rows.values()],
            height=0.38,
            color=color,
            label=("Python engine", "Java engine")[engine],
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(list(places), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel("time against tuned Kafka (1 = as fast; left is faster)")
    axes.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(DOCS / "performance.svg")
