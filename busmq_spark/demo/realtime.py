"""``busmq demo realtime``: orders from queue to queue in real-time mode, timed from outside while
they flow, beside the same query without it.
"""

import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from busmq_spark.cli.output import CliOutput, table
from busmq_spark.cli.queue_lookup import locate_queue, open_links
from busmq_spark.cli.terminal_text import format_count, format_number
from busmq_spark.demo.latency_clients import Workload, percentiles, workload_clients
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import StateError
from busmq_spark.options import RedisOptions
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach
from busmq_spark.redis_io.queue_location import new_token

if TYPE_CHECKING:
    from busmq_spark.demo.spark_realtime import RealtimeDemoQuery

PICTURE_FILE = "real-time-latency.png"
SPARK_LOG = "busmq-demo-spark.log"
ORDERS_PER_S, DEFAULT_SECONDS = 1000, 20
WARM_UP_S, BASELINE_S = 2.0, 3.0
DISPLAY_INTERVAL_S = 0.5
SHOWN_PERCENTILES = ("p50", "p95", "p99", "max")
HISTOGRAM_BARS, HISTOGRAM_MIN_MS, HISTOGRAM_DECADES, BINS_PER_DECADE = " ▁▂▃▄▅▆▇█", 0.1, 4, 12


@dataclass(frozen=True, slots=True)
class DeliveryMeasurement:
    """The measurements of the clients for one way."""

    name: str
    pushed: int
    arrived: int
    twice: int
    misplaced: int
    took_us: list[int]

    @property
    def missing(self) -> int:
        """Pushed and never seen."""
        return self.pushed - (self.arrived - self.twice)


def realtime(out: CliOutput, seconds: int, picture: Path) -> None:
    """The whole scene."""
    from busmq_spark.demo.local_spark import LocalSpark
    from busmq_spark.demo.plot_latency import draw_latency
    from busmq_spark.demo.spark_realtime import RealtimeDemoQuery, realtime_settings

    began = time.monotonic()
    settings = realtime_settings()  # first: raises at once when there is nothing to run
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busmq-demo-")))
        with out.spinner("starting Redis"):
            redis = stack.enter_context(EmbeddedRedis())
        show = _Printer(out)
        show.start(redis.url)
        found = [_measure_latency(show, redis.url, "without Spark", min(BASELINE_S, seconds))]
        with out.spinner("starting Spark"):
            spark = stack.enter_context(
                LocalSpark(folder, picture.parent / SPARK_LOG, settings=settings)
            )
        for name, ordinary, during in (
            ("real-time mode", False, seconds),
            ("ordinary trigger", True, seconds / 2),
        ):
            with RealtimeDemoQuery(
                spark, redis.url, name.split("-")[0].split()[0], folder / name
            ).start(ordinary=ordinary) as stream:
                found.append(_measure_latency(show, redis.url, name, during, stream))
    with out.spinner("drawing"):
        draw_latency([(timed.name, timed.took_us) for timed in found], picture)
    show.show_proof(found, picture, time.monotonic() - began)


def _measure_latency(
    show: "_Printer", url: str, name: str, seconds: float, stream: "RealtimeDemoQuery | None" = None
) -> DeliveryMeasurement:
    """Traffic to warm up with a stream, then traffic that counts."""
    source, target = (stream.source, stream.target) if stream else ("floor", "floor")
    for queue in {source, target}:
        with open_links(RedisOptions(url=url)) as links:
            place = locate_queue(queue, links)
            place.link.run(attach(place.keys, new_token(), ttl_s=MIN_RECORD_TTL_S))
    if stream:
        _warm_up(show, url, name, stream)
    took: list[int] = []
    record: dict[str, Any] = {}
    load = Workload(source, target, ORDERS_PER_S, seconds)
    with (
        workload_clients(url, load, DISPLAY_INTERVAL_S) as said,
        show.live_percentiles(name) as live,
    ):
        for record in said:
            took += record["took_us"]
            live.update(took, record["took_us"])
            if stream:
                stream.raise_if_failed()
    timed = DeliveryMeasurement(
        name, load.count, record["arrived"], record["twice"], record["misplaced"], took
    )
    show.show_way(timed)
    return timed


def _warm_up(show: "_Printer", url: str, name: str, stream: "RealtimeDemoQuery") -> None:
    """Traffic until the first batch has ended: the first start of the next one takes Java far
    longer than all that follow.
    """
    with show.out.spinner(f"{name}: warming up"):
        while not stream.is_warm():
            with workload_clients(
                url, Workload(stream.source, stream.target, ORDERS_PER_S, WARM_UP_S)
            ) as said:
                for _ in said:
                    pass


class _PercentilesDisplay:
    """The percentiles while they come in, on stderr, when a person is there to see it."""

    def __init__(self, out: CliOutput, name: str) -> None:
        self._name = name
        self._live = (
            Live(console=out.errors, transient=True, auto_refresh=False) if out.is_watched else None
        )

    def __enter__(self) -> "_PercentilesDisplay":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, took_us: Sequence[int], latest_us: Sequence[int]) -> None:
        """Everything up to now, and what came since the last call."""
        if not self._live or not took_us:
            return
        rows: list[list[str | Text]] = []
        for what, some in (("now", latest_us), ("all", took_us)):
            if at := percentiles(some):
                rows.append(
                    [
                        what,
                        format_number(len(some)).rjust(8),
                        *(_ms(at[point], wide=9) for point in SHOWN_PERCENTILES),
                    ]
                )
        head = [("", "left"), *((title, "right") for title in ("messages", *SHOWN_PERCENTILES))]
        self._live.update(Group(table(head, rows, self._name), *_histogram(took_us)), refresh=True)


def _histogram(took_us: Sequence[int]) -> list[Text]:
    """Two lines: how many took how long, from 0.1 ms to 1 s, and a scale. Heights are logarithms,
    or the tail would not show.
    """
    bins = [0] * (HISTOGRAM_DECADES * BINS_PER_DECADE)
    for took in took_us:
        place = int(
            math.log10(max(took / 1000, HISTOGRAM_MIN_MS) / HISTOGRAM_MIN_MS) * BINS_PER_DECADE
        )
        bins[min(place, len(bins) - 1)] += 1
    top = math.log1p(max(bins))
    bars = "".join(
        HISTOGRAM_BARS[math.ceil(math.log1p(many) / top * (len(HISTOGRAM_BARS) - 1))]
        for many in bins
    )
    scale = "".join(mark.ljust(BINS_PER_DECADE) for mark in ("0.1 ms", "1 ms", "10 ms", "100 ms"))
    return [Text(bars, "cyan"), Text(scale + "1 s", "dim")]


class _Printer:
    """The output of the demo, for people or as JSON lines."""

    def __init__(self, out: CliOutput) -> None:
        self.out = out

    def live_percentiles(self, name: str) -> _PercentilesDisplay:
        """For a ``with`` block."""
        return _PercentilesDisplay(self.out, name)

    def start(self, redis: str) -> None:
        """Print the title."""
        if not self.out.as_json:
            title = (
                f"{format_number(ORDERS_PER_S)} orders a second from queue to queue through Spark,"
                " timed by clients outside it"
            )
            self.out.print_lines(
                Text(title, "bold"), "", Text.assemble(("redis     ", "cyan"), f"embedded, {redis}")
            )
            self.out.flush()

    def show_way(self, timed: DeliveryMeasurement) -> None:
        """Print the result of one way."""
        at = percentiles(timed.took_us)
        if self.out.as_json:
            shown = {
                "missing": timed.missing,
                "twice": timed.twice,
                "out_of_order": timed.misplaced,
            }
            self.out.print_json(
                stage=timed.name, pushed=timed.pushed, arrived=timed.arrived, **shown, ms=at
            )
        else:
            text = f"{format_count(timed.arrived, 'order')}, half of them within "
            self.out.print_lines(
                Text.assemble((f"{timed.name}: ", "cyan"), text, _ms(at["p50"]) if at else "-")
            )
        self.out.flush()

    def show_proof(
        self, found: Sequence[DeliveryMeasurement], picture: Path, seconds: float
    ) -> None:
        """All side by side. Raises StateError when an order is missing or out of order; at least
        once is what real-time mode promises.
        """
        if self.out.as_json:
            self.out.print_json(plot=str(picture), seconds=round(seconds, 1))
        else:
            titles = (*SHOWN_PERCENTILES, "pushed", "arrived", "missing", "twice", "out of order")
            self.out.print_lines("")
            self.out.print_table(
                table(
                    [("", "left"), *((title, "right") for title in titles)],
                    map(_latency_row, found),
                    "From push to arrival",
                )
            )
            self.out.print_lines(
                Text.assemble(("plot      ", "cyan"), str(picture)),
                Text.assemble(("total     ", "cyan"), f"{seconds:.0f} s"),
            )
        if any(timed.missing or timed.misplaced for timed in found):
            raise StateError(
                event="end",
                what="the demo",
                state="short of its proof: the table shows what is wrong",
                remedy="Please report this",
            )


def _latency_row(timed: DeliveryMeasurement) -> list[str | Text]:
    at = percentiles(timed.took_us)
    counts = [format_number(timed.pushed), format_number(timed.arrived)]
    wrong = [
        Text(format_number(many), "red" if many else "green")
        for many in (timed.missing, timed.twice, timed.misplaced)
    ]
    return [
        Text(timed.name, "cyan"),
        *(_ms(at[point]) if at else "-" for point in SHOWN_PERCENTILES),
        *counts,
        *wrong,
    ]


def _ms(value: float, wide: int = 0) -> Text:
    text = f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"
    return Text(text.rjust(wide), "green" if value < 10 else "yellow" if value < 100 else "red")
