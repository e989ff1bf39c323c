"""One query through one round: started again whenever it ends, until everything fed has arrived,
and what must be true of it then.
"""

from __future__ import annotations

import random
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from busmq_spark.errors import BatchChanged, DataLoss, SinkRolledBack, StagingLost, StaleBatch
from busmq_spark.queue.command_generators import command
from busmq_spark.spark.java_runtime import find_jar
from busmq_spark.spark.tune import CHECKPOINT_MANAGER_SETTING
from tests.faults.process import DriverProcess
from tests.faults.scene import Pipeline
from tests.soak.drivers import Drivers
from tests.soak.flat import figures_of
from tests.soak.site import Site

QUEUES = ("python", "java", "live", "federation")
"""Kinds of rounds whose query goes from one plain queue to another."""
VARIANTS = ("topic", "shared", "mirror")
"""Kinds with a file of their own here; their queries are in both engines, by turns."""
KINDS = (*QUEUES, *VARIANTS)
ENGINES = ("busmq", "busmq-realtime") if find_jar() else ("busmq",)
"""The formats of both engines, for micro-batches."""
SPARKS_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Keeps the files of a checkpoint, and syncs none."""
STILL_S = 300.0
"""A query that gets nowhere for so long after the last fault stands still."""
TYPED = re.compile(r"\[(BUSMQ_\w+)\]")


LOSSES = {
    SinkRolledBack.code.removeprefix("BUSMQ_"),
    *(kind.code.removeprefix("BUSMQ_") for kind in DataLoss.__subclasses__()),
}
"""Errors that say that messages are gone."""
STUCK = {kind.code.removeprefix("BUSMQ_") for kind in (StagingLost, StaleBatch, BatchChanged)}
"""Errors of a sink whose remedy is a new checkpoint."""


class Violation(Exception):
    """A guarantee that did not hold."""


class StandsStill(Violation):
    """Nothing has moved for too long."""


class Run(Pipeline):
    """From queue ``in-<round>`` to ``out-<round>``. ``errors`` are the codes of those that ended
    the query on its way.
    """

    def __init__(
        self, site: Site, drivers: Drivers, number: int, kind: str, chance: random.Random
    ) -> None:
        options = (
            {}
            if kind == "live"
            else {
                "maxMessagesPerTrigger": str(chance.choice((500, 1500, 4000))),
                "maxMessagesPerPartition": "700",
            }
        )
        folder = site.folder / f"round-{number}"
        super().__init__(
            site.bus, folder, source=self.queues_to_read(number), sink=f"out-{number}", **options
        )
        self.site, self.kind, self.number, self.chance, self._drivers = (
            site,
            kind,
            number,
            chance,
            drivers,
        )
        self.master = (
            chance.choice(("local[2]", "local[2]", "local-cluster[2,1,1024]"))
            if kind in ("python", "java", "topic")
            else "local[2]"
        )
        self.engines = (
            tuple(chance.sample(ENGINES, len(ENGINES)))
            if kind in VARIANTS
            else ("busmq-realtime" if kind in ("java", "live") else "busmq",)
        )
        """The formats of the query: each start takes the next one."""
        self.source_where = site.away if kind == "federation" else site.near
        self.sink_where, self.sink_bus = self.source_where, site.bus
        self.drawn: list[str] = []
        """The names of the faults of this round."""
        self.driver: DriverProcess | None = None
        self.errors: list[str] = []
        self.starts = 0
        self.harmed = False
        """Whether a fault was injected that may cost messages, if an error reports it."""
        self.repeats = kind == "live"
        """Whether messages may come again."""
        self.taken: list[int] = []
        """What had arrived in lives of the sink's queue that others have ended."""
        self.engine_fails = False
        """Whether something was done after which Spark itself gives up."""
        self.durable = True
        """Whether the product's manager keeps the checkpoint, where its Java module is at hand."""
        self.unreadable = False
        """Whether Spark may find a file of the checkpoint damaged, and say so in its own words."""
        site.machines["spark"].forget()

    def queues_to_read(self, number: int) -> str:
        """The queues of the source, as a comma list."""
        return f"in-{number}"

    @property
    def source(self) -> str:
        return self.sources[0]

    @property
    def out(self) -> str:
        return self.sink_of(self.source)

    @property
    def sinks(self) -> list[str]:
        """The queues of the sink."""
        return [self.out]

    def count_left(self) -> int:
        """How many messages the source holds."""
        return sum(map(self.bus.count, self.sources))

    def count_sunk(self) -> int:
        """How many messages the sink holds."""
        return sum(map(self.sink_bus.count, self.sinks))

    def feed(self, rows: int) -> None:
        self.find_broken_link()
        if not self.bus.state(self.source).exists:
            self.bus.create(self.source)
        super().feed(rows)

    def find_broken_link(self) -> None:
        """What broke the link of the test itself is found out by a call that may be sent again."""
        self.bus.link.execute(command("PING"))

    def arrived(self, queue: str) -> list[int]:
        return self.taken + super().arrived(queue)

    # The query

    def begin(self) -> None:
        """Start it, in a driver that is up; an error of the start counts as one of the query."""
        if self.driver is None:
            self.driver = self._drivers.take(self.master, live=self.kind == "live")
        self.starts += 1
        form = self.engines[self.starts % len(self.engines)]
        source, sink = (
            {**self.source_where, **self.source_options, **self.options},
            {**self.sink_where, **self.sink_options},
        )
        order = {"checkpoint": str(self.checkpoint.folder), "source": source, "sink": sink}
        try:
            self.driver.ask(
                "set",
                name=CHECKPOINT_MANAGER_SETTING,
                value=None if self.durable else SPARKS_MANAGER,
            )
            if self.kind == "live":
                self.driver.ask("live", **order, duration="2 seconds")
            else:
                self.driver.ask("start", **order, change=self.change, mark="", of=form, into=form)
        except AssertionError as ended:
            self.lose_driver()
            self.note(str(ended))

    def lose_driver(self) -> None:
        """kill -9 for everything of it."""
        if self.driver is not None:
            self.driver.kill()
            self.driver = None

    def note(self, error: str) -> None:
        """The query has ended with this."""
        found = [code.removeprefix("BUSMQ_") for code in TYPED.findall(error)]
        if not found and not self.engine_fails:
            raise Violation(f"the query ended with an error that has no code: {error[:3000]}")
        if found and found[-1] in LOSSES | STUCK and not self.harmed and not self.engine_fails:
            raise Violation(
                f"the query says that messages are gone, and none were taken: {error[-1500:]}"
            )
        self.errors.append(found[-1] if found else "SPARK")

    def tend(self) -> None:
        """Start it again if it has ended."""
        if self.driver is not None:
            status = self.driver.ask("status")
            if status["active"]:
                return
            if status["error"]:
                self.note(status["error"])
        if self.excused and self.errors[-1] in LOSSES:
            self.options["failOnDataLoss"] = self.sink_options["failOnDataLoss"] = "false"
        stuck = self.excused and (
            self.errors[-1] in STUCK or self.errors.count(self.errors[-1]) > 3
        )
        if stuck or (self.unreadable and "SPARK" in self.errors):
            shutil.rmtree(self.checkpoint.folder, ignore_errors=True)
            self.repeats, self.unreadable = True, False
        self.begin()

    def until(self, true: Callable[[], bool], what: str, limit_s: float = STILL_S) -> None:
        """Wait, and start the query again meanwhile. What gets nowhere is a violation."""
        pause, seen, deadline = threading.Event(), (-1, -1), time.monotonic() + limit_s
        while not true():
            self.tend()
            now = (self.count_sunk(), self.count_left())
            if now != seen:
                seen, deadline = now, time.monotonic() + limit_s
            if time.monotonic() > deadline:
                raise StandsStill(
                    f"{what}: not so for {limit_s:.0f} s; {now[1]} left in the source, {now[0]} in"
                    f" the sink, fed {self.fed}, errors {self.errors}"
                )
            pause.wait(0.2)

    @property
    def excused(self) -> bool:
        """Whether messages may be missing: something was done to them, and an error has said so."""
        return self.harmed and not (LOSSES | STUCK).isdisjoint(self.errors)

    def arrived_all(self) -> bool:
        return (
            set(range(self.fed[self.source])) <= set(self.arrived(self.source))
            and self.count_left() == 0
        )

    # The end of a round

    def settle(self) -> None:
        """All faults are over: the query must come to its end, or an error says why messages are
        gone, and new ones arrive.
        """
        self.site.calm()
        self.feed(1)
        if self.harmed:
            before = self.fed[self.source]
            with suppress(StandsStill):  # then the check finds what is missing
                self.until(
                    lambda: self.arrived_all() or self.excused,
                    "what was fed arrives, or an error says why not",
                    60.0,
                )
            self.feed(200)
            self.until(lambda: before + 199 in self.arrived(self.source), "the query goes on")
        self.until(
            lambda: self.count_left() == 0 if self.excused else self.arrived_all(),
            "everything arrives and is acked",
        )
        self.check()

    def check(self) -> None:
        """Row by row."""
        values, fed, highest = self.arrived(self.source), self.fed[self.source], -1
        for at, value in enumerate(values):
            if value > highest + 1 and not self.excused:
                raise Violation(
                    f"place {at} of the sink has message {value} after {highest}; errors"
                    f" {self.errors}"
                )
            if value <= highest and not self.repeats:
                raise Violation(
                    f"place {at} of the sink has message {value} again or late, after {highest};"
                    f" errors {self.errors}"
                )
            highest = max(highest, value)
        if (missing := sorted(set(range(fed)) - set(values))) and not self.excused:
            raise Violation(
                f"{len(missing)} of {fed} messages never arrived, the first is {missing[0]}; errors"
                f" {self.errors}"
            )
        self.check_ttls()

    def check_ttls(self) -> None:
        """Every key of ours ends by itself."""
        if kept := self.bus.kept_for_ever():
            raise Violation(f"keys without a ttl: {kept[:5]}")

    def finish(self) -> tuple[int, int]:
        """Leave nothing behind; the result is how many of our keys outlive the round, and the MB
        that the driver and its processes take.
        """
        resident = 0
        if self.driver is not None:
            self.driver.stop()
            for process in self.driver.processes():
                with suppress(psutil.Error):
                    resident += process.memory_info().rss
            self._check_flat(self.driver)
            self._drivers.give_back(self.driver, self.master, live=self.kind == "live")
        self.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        return len(self._left()), resident // 2**20

    def remove(self) -> None:
        """Every queue of the round."""
        for queue in (*self.sources, *self.sinks):
            self.bus.close(queue)

    def close(self) -> None:
        """End what the round has started beside the query, however it has ended."""

    def _check_flat(self, driver: DriverProcess) -> None:
        if grown := self.site.flat.grown(
            f"the driver ({self.kind})", driver.pid, driver.ask("figures")
        ):
            grown += f"; its threads: {driver.ask('threads')}"
        if self.kind == "federation":
            serving = self.site.serving.process.pid
            grown = grown or self.site.flat.grown(
                "the federation server", serving, figures_of(serving)
            )
        if grown:
            raise Violation(grown)

    def _left(self) -> list[str]:
        keys = [str(key) for key in self.site.server.command("KEYS", "*")]  # type: ignore[union-attr]
        ends_by_itself = re.compile(
            r"^bus:sink(?:-queues)?:|:(?:stages?|lease):|:sinks$"
        )  # a sink's progress outlives its queue on purpose
        if strange := [key for key in keys if not ends_by_itself.search(key)]:
            raise Violation(f"keys that outlive their queue: {strange[:5]}")
        if (grown := self.site.memory() - self.site.calm_memory) > 64 * 2**20:
            raise Violation(
                f"Redis holds {grown} bytes more than at the beginning, in {len(keys)} keys"
            )
        return keys
