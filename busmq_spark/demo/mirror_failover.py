"""``busmq demo mirror``: a data centre is lost, its mirror takes over, and a query goes on with the
same checkpoint.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.text import Text

from busmq_spark.cli.output import CliOutput, table
from busmq_spark.cli.queue_lookup import locate_queue, open_links
from busmq_spark.cli.terminal_text import format_number, format_rate
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import BusError, StateError
from busmq_spark.mirror.runner import MirrorRunner
from busmq_spark.mirror.settings import MirrorSettings
from busmq_spark.options import RedisOptions
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach, push_many
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.writing.mirror import promote

if TYPE_CHECKING:
    from busmq_spark.demo.mirror_failover_query import MirrorFailoverDemoQuery

ORDERS_QUEUE = "orders"
SPARK_LOG = "busmq-demo-spark.log"
PUSH_INTERVAL_S, ORDERS_PER_PUSH = 0.025, 50
"""Orders pushed every PUSH_INTERVAL_S: 2,000 a second."""
BEFORE_LOSS_S, AFTER_PROMOTION_S, PROGRESS_TIMEOUT_S, POLL_S = 4.0, 4.0, 180.0, 0.05


class OrderProducer:
    """Pushes orders, each with the id that it will get, while the block runs, or until its Redis is
    gone.
    """

    def __init__(self, url: str, last: int = 0) -> None:
        self.url, self.last = url, last
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._push, name="busmq-demo-shop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """No more orders."""
        self._ended.set()
        self._thread.join()

    def _push(self) -> None:
        with open_links(RedisOptions(url=self.url)) as links:
            place = locate_queue(ORDERS_QUEUE, links)
            try:
                place.link.run(attach(place.keys, new_token(), ttl_s=MIN_RECORD_TTL_S))
                while not self._ended.wait(PUSH_INTERVAL_S):
                    place.link.run(
                        push_many(
                            place.keys,
                            [
                                b'{"n": %d}' % n
                                for n in range(self.last + 1, self.last + ORDERS_PER_PUSH + 1)
                            ],
                        )
                    )
                    self.last += ORDERS_PER_PUSH
            except BusError:
                return  # its data centre is lost


def mirror(out: CliOutput) -> None:
    """The whole scene."""
    from busmq_spark.demo.local_spark import LocalSpark
    from busmq_spark.demo.mirror_failover_query import read_result

    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busmq-demo-")))
        show = _Printer(out)
        with out.spinner("starting two data centres"):
            eu, us = (stack.enter_context(EmbeddedRedis()) for _ in range(2))
        show.start(eu.url, us.url)
        with out.spinner("starting Spark"):
            spark = stack.enter_context(LocalSpark(folder, Path(SPARK_LOG)))
        last = _run_scenario(show, spark, folder, eu, us)
        with out.spinner("reading everything back"):
            show.show_proof(last, read_result(spark, folder))
        show.print_line(
            "total", f"{time.monotonic() - began:.0f} s", seconds=round(time.monotonic() - began, 1)
        )


def _run_scenario(
    show: "_Printer", spark: object, folder: Path, eu: EmbeddedRedis, us: EmbeddedRedis
) -> int:
    """The origin, its end, the mirror; the result is the last id of the mirror."""
    from busmq_spark.demo.mirror_failover_query import MirrorFailoverDemoQuery

    runner = MirrorRunner(
        MirrorSettings(origin=eu.url, patterns=(ORDERS_QUEUE,)), RedisOptions(url=us.url)
    )
    with ExitStack() as stack:
        shop = stack.enter_context(OrderProducer(eu.url))
        _wait_until(lambda: shop.last > 0, "the shop is open")
        stack.callback(runner.stop)
        runner.start()
        # A LocalSpark, which is imported where pyspark is there
        with MirrorFailoverDemoQuery(spark, eu.url, ORDERS_QUEUE, folder) as query:  # type: ignore[arg-type]
            _wait_until(lambda: query.last_arrived() > 0, "the query flows")
            show.show_flow(
                "eu",
                *_count_during(query, BEFORE_LOSS_S),
                behind=sum(each.behind for each in runner.status()),
            )
            at = query.last_arrived()
        _wait_until(lambda: runner.status()[0].last >= at, "the mirror has what the query has read")
        eu.kill()
    with open_links(RedisOptions(url=us.url)) as links:
        place = locate_queue(ORDERS_QUEUE, links)
        _, last, _ = place.link.run(promote(place.keys))
    show.show_loss(at, last, shop.last)
    with (
        OrderProducer(us.url, last) as shop,
        MirrorFailoverDemoQuery(spark, us.url, ORDERS_QUEUE, folder) as query,  # type: ignore[arg-type]
    ):
        _wait_until(lambda: query.last_arrived() > last, "the query goes on at the mirror")
        show.show_flow("us", *_count_during(query, AFTER_PROMOTION_S))
        shop.close()
        _wait_until(lambda: query.last_arrived() >= shop.last, "all orders are through")
    return shop.last


def _wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PROGRESS_TIMEOUT_S
    while not reached():
        if time.monotonic() > deadline:
            remedy = f"This machine may be too busy; what Spark said is in {SPARK_LOG}"
            raise StateError(
                event="go on",
                what="the demo",
                state=f"waiting until {what}, for {PROGRESS_TIMEOUT_S:.0f} s",
                remedy=remedy,
            )
        time.sleep(POLL_S)


def _count_during(query: "MirrorFailoverDemoQuery", seconds: float) -> tuple[int, float]:
    """Return the number of orders that the query has read meanwhile, and the elapsed seconds."""
    before, began = query.last_arrived(), time.monotonic()
    _wait_until(
        lambda: time.monotonic() - began >= seconds and query.last_arrived() > before, "orders flow"
    )
    return query.last_arrived() - before, time.monotonic() - began


class _Printer:
    """The output of the demo, for people or as JSON lines."""

    def __init__(self, out: CliOutput) -> None:
        self.out = out

    def start(self, eu: str, us: str) -> None:
        """Print the title."""
        if not self.out.as_json:
            self.out.print_lines(
                Text(
                    "Orders in one data centre, their mirror in another; the first one is lost in"
                    " the middle of it",
                    "bold",
                ),
                "",
            )
        self.print_line("centres", f"eu at {eu}, us at {us}", eu=eu, us=us)

    def show_flow(self, where: str, rows: int, seconds: float, behind: int | None = None) -> None:
        """The query reads there."""
        lag = "" if behind is None else f"; the mirror is {format_number(behind)} behind"
        self.print_line(
            where,
            f"{format_number(rows)} orders in {seconds:.1f} s{lag}",
            format_rate(rows, seconds),
            rows=rows,
            seconds=round(seconds, 2),
        )

    def show_loss(self, at: int, last: int, pushed: int) -> None:
        """The origin is gone."""
        missing = (
            f"orders {format_number(last + 1)}..{format_number(pushed)} were not copied"
            if pushed > last
            else "nothing is missing"
        )
        copied = (
            f"{format_number(pushed)} orders were pushed, {format_number(last)} are at the mirror"
            f" ({missing})"
        )
        text = f"killed: {copied}, the query stands at {format_number(at)}"
        self.print_line("eu", text, checkpoint=at, copied=last, pushed=pushed)
        self.print_line(
            "us",
            f"promoted: ids go on at {format_number(last + 1)}; the query starts with its"
            " checkpoint",
            next_id=last + 1,
        )

    def show_proof(self, last: int, found: object) -> None:
        """Print the ids that the query has read beside the existing ones. Raises StateError when
        they differ.
        """
        rows, different, wrong = (
            int(getattr(found, name)) for name in ("rows", "different", "wrong")
        )
        missing, twice = last - different, rows - different
        if self.out.as_json:
            self.out.print_json(ids=last, seen=rows, missing=missing, twice=twice, wrong=wrong)
        else:
            head = [
                (title, "right")
                for title in ("ids", "seen by the query", "missing", "twice", "of another order")
            ]
            cells = [
                Text(format_number(n), "red" if n else "green") for n in (missing, twice, wrong)
            ]
            self.out.print_lines("")
            self.out.print_table(
                table(
                    head,
                    [[format_number(last), format_number(rows), *cells]],
                    "Every order, before and after",
                )
            )
        if missing or twice or wrong:
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
