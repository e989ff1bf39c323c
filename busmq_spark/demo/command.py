"""``busmq demo``: real flights through the bus and Spark, from nothing to a plot in about half a
minute.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busmq_spark.cli.options import JsonOption, RedisOption
from busmq_spark.cli.output import CliOutput, TerminalProgressBar, format_count
from busmq_spark.cli.queue_lookup import LocatedQueue, locate_queue, open_links
from busmq_spark.demo.report import DemoPrinter, DemoStepResult, FlightDelayTotals
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError, ToolMissing
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import sink_queues, sink_record
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach, delete, push_many
from busmq_spark.redis_io.queue_location import new_token

if TYPE_CHECKING:
    from busmq_spark.demo.local_spark import FlightsDemoQuerySettings

DEMO_QUEUES = ("flights", "delays")
PICTURE_FILE = "flight-delays.png"
SPARK_LOG = "busmq-demo-spark.log"
ROWS_PER_PROGRESS_STEP = 5000
FIRST_BATCH_NOTE = "the first batch starts Spark's workers"


def demo(  # the options of a command
    *,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Replay only the first N departures of 2013.  [default: all 336,776]",
        ),
    ] = None,
    redis: RedisOption = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Save the plot in this folder, or as this .png file.",
        ),
    ] = Path(),
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help=(
                "Leave the queues 'flights' and 'delays' there; an embedded Redis then runs on"
                " until Ctrl-C."
            ),
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove queues of these names that exist already.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """See everything at work: real flights, a live stream, a plot.

    Replays the flights that left New York City in 2013 as JSON messages into a queue, lets Spark
    compute the delays of each airline and hour as a stream, which writes its results into a second
    queue, and reads those back. Without --redis (or BUSMQ_REDIS_URL) it starts a Redis of its own.

    ```
    busmq demo
    busmq demo --rows 50000 --keep
    ```
    """
    out = CliOutput(as_json)
    picture = _picture_path(output, PICTURE_FILE)
    _check_installed("pyspark", "matplotlib")
    _flights(out, FlightsDemoOptions(rows, redis, keep, replace), picture)


@dataclass(frozen=True, slots=True)
class FlightsDemoOptions:
    """The options of the demo."""

    rows: int | None
    redis: str | None
    keep: bool
    replace: bool


def _flights(out: CliOutput, asked: FlightsDemoOptions, picture: Path) -> None:
    from busmq_spark.demo.local_spark import FlightsDemoQuerySettings

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busmq-demo-")))
        report = DemoPrinter(out)
        report.show_title(asked.rows)
        url = asked.redis or _start_redis(out, stack)
        report.show_redis_url(url, own=not asked.redis)
        sink = f"busmq-demo-{new_token()}"
        with _fresh_demo_queues(url, sink, keep=asked.keep, replace=asked.replace) as (
            flights,
            delays,
        ):
            airlines = _push_flights(report, flights, asked.rows)
            job = FlightsDemoQuerySettings(
                url, flights.keys.name, delays.keys.name, sink, folder / "checkpoint", asked.keep
            )
            _run_query_and_report(report, job, airlines, picture)
        report.show_next_steps(url, own=not asked.redis, keep=asked.keep)
        if asked.keep and not asked.redis:
            _keep_redis_until_interrupt(out)


def _picture_path(output: Path, file: str) -> Path:
    """The file to write; refused now rather than after the work is done."""
    path = output if output.suffix.lower() == ".png" else output / file
    if not path.parent.is_dir():
        raise ConfigError(
            reason=(
                f"--output {output} is in a folder that does not exist. Create it first, or name"
                " another"
            )
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(
            reason=f"--output {output} cannot be written. Name a file that is yours to write"
        )
    return path


def _check_installed(*packages: str) -> None:
    from importlib.util import find_spec

    for package in packages:
        if find_spec(package) is None:
            raise ToolMissing(
                tool=package, reason="the demo needs it", remedy="pip install 'busmq_spark[demo]'"
            )


def _start_redis(out: CliOutput, stack: ExitStack) -> str:
    with out.spinner("starting Redis"):
        return stack.enter_context(EmbeddedRedis()).url


@contextmanager
def _fresh_demo_queues(
    url: str, sink: str, *, keep: bool, replace: bool
) -> Iterator[tuple[LocatedQueue, LocatedQueue]]:
    """The two queues, new and empty; removed at the end unless they are to be kept."""
    with open_links(RedisOptions(url=url)) as links:
        places = locate_queue(DEMO_QUEUES[0], links), locate_queue(DEMO_QUEUES[1], links)
        for place in places:
            if replace:
                place.link.run(delete(place.keys))
            elif place.read_state().exists:
                raise ConfigError(
                    reason=(
                        f"queue {place.keys.name!r} exists already on {place.server}, and the demo"
                        " would mix its messages with it. Use another Redis, or --replace to"
                        " remove it"
                    )
                )
        try:
            for place in places:
                place.link.run(attach(place.keys, new_token(), ttl_s=MIN_RECORD_TTL_S))
            yield places
        finally:
            if not keep:
                for place in places:
                    place.link.run(delete(place.keys))
                    # A query leaves these to their ttl, so that its next run finds them; this one
                    # has no next run.
                    place.link.execute(command("DEL", place.keys.lease("")))
                    place.link.execute(command("DEL", place.keys.sinks))
                    place.link.execute(
                        [
                            command("DEL", key)
                            for key in (
                                place.keys.stages(sink),
                                sink_record(sink),
                                sink_queues(sink),
                            )
                        ]
                    )


def _push_flights(report: DemoPrinter, flights: LocatedQueue, rows: int | None) -> dict[str, str]:
    """Push every flight; the result is the names of the airlines."""
    from busmq_spark.demo.flights import load_flights

    with report.out.spinner("reading the flights"):
        data = load_flights(rows)
    with TerminalProgressBar(
        report.out,
        f"replaying into queue {DEMO_QUEUES[0]}",
        len(data.messages),
        "messages",
        waiting="",
    ) as meter:
        for start in range(0, len(data.messages), ROWS_PER_PROGRESS_STEP):
            part = data.messages[start : start + ROWS_PER_PROGRESS_STEP]
            flights.link.run(push_many(flights.keys, part))
            meter.add(len(part))
    report.show_stage(
        DemoStepResult(
            "replay",
            f"{format_count(meter.items, 'flight')} pushed to queue {DEMO_QUEUES[0]}",
            meter.items,
            meter.seconds,
        )
    )
    return data.airlines


def _run_query_and_report(
    report: DemoPrinter, job: "FlightsDemoQuerySettings", airlines: dict[str, str], picture: Path
) -> None:
    from busmq_spark.demo.local_spark import DemoQueryProgress, LocalSpark, read_totals, run_query
    from busmq_spark.demo.report import draw_delays

    with ExitStack() as stack:
        with report.out.spinner("starting Spark"):
            spark = stack.enter_context(
                LocalSpark(job.checkpoint.parent, picture.parent / SPARK_LOG)
            )
        started = time.monotonic()
        with TerminalProgressBar(
            report.out,
            f"streaming {DEMO_QUEUES[0]} → {DEMO_QUEUES[1]}",
            report.rows,
            "rows",
            waiting=FIRST_BATCH_NOTE,
        ) as meter:

            def on_progress(progress: DemoQueryProgress) -> None:
                meter.add(progress.rows_in - meter.items)

            done = run_query(spark, job, on_progress)
        report.show_stream(done, time.monotonic() - started)
        started = time.monotonic()
        with report.out.spinner(f"reading queue {DEMO_QUEUES[1]} back"):
            totals, messages = read_totals(spark, job)
        report.show_stage(
            DemoStepResult(
                "read back",
                f"{format_count(messages, 'result')} read from queue {DEMO_QUEUES[1]}",
                messages,
                time.monotonic() - started,
            )
        )
        with report.out.spinner("drawing"):
            draw_delays(
                delays := [FlightDelayTotals(**row) for row in totals],
                airlines,
                report.rows,
                picture,
            )
        report.show_results(delays, airlines, picture)


def _keep_redis_until_interrupt(out: CliOutput) -> None:
    out.note("Redis and both queues stay until Ctrl-C.")
    out.flush()
    while True:
        time.sleep(3600)
