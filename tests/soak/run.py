"""One query through one round: started again whenever it ends, until everything fed has arrived, and what must be true of it then."""

from __future__ import annotations

import random
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from busmq_spark.core.flow import command
from busmq_spark.errors import BatchChanged, DataLoss, StagingLost, StaleBatch
from busmq_spark.spark.tune import MANAGER
from tests.faults.process import DriverProcess
from tests.faults.scene import Pipeline
from tests.soak.flat import figures_of
from tests.soak.machine import Machine
from tests.soak.site import Site

KINDS = ("python", "java", "live", "federation")
SPARKS_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Keeps the files of a checkpoint, and syncs none."""
STILL_S = 300.0
"""A query that gets nowhere for so long after the last fault stands still."""
TYPED = re.compile(r"\[(BUSMQ_\w+)\]")


LOSSES = {kind.code.removeprefix("BUSMQ_") for kind in DataLoss.__subclasses__()}
"""Errors that say that messages are gone."""
STUCK = {kind.code.removeprefix("BUSMQ_") for kind in (StagingLost, StaleBatch, BatchChanged)}
"""Errors of a sink whose remedy is a new checkpoint."""


class Violation(Exception):
    """A guarantee that did not hold."""


class StandsStill(Violation):
    """Nothing has moved for too long."""


class Drivers:
    """Spark drivers; one that outlives its round serves the next of its sort."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self._folder, self._machine, self._made = folder, machine, 0
        self._all: list[DriverProcess] = []
        self._idle: dict[tuple[str, bool], DriverProcess] = {}

    def take(self, master: str, *, live: bool) -> DriverProcess:
        if found := self._idle.pop((master, live), None):
            return found
        self.close()  # one more Java beside it would only take its memory
        return self.make(master, live=live)

    def make(self, master: str, *, live: bool) -> DriverProcess:
        """A new one."""
        self._made += 1
        self._all = [each for each in self._all if each.lives]
        self._all.append(DriverProcess(self._folder / f"driver-{self._made}", master, live=live, more=self._machine.environment))
        return self._all[-1]

    def give_back(self, driver: DriverProcess, master: str, *, live: bool) -> None:
        self._idle[master, live] = driver

    def close(self) -> None:
        for driver in self._idle.values():
            driver.kill()
        self._idle.clear()

    def kill(self) -> None:
        """All of them, those at work too."""
        for driver in self._all:
            if driver.lives:
                driver.kill()


class Run(Pipeline):
    """From queue ``in-<round>`` to ``out-<round>``. ``errors`` are the codes of those that ended the query on its way."""

    def __init__(self, site: Site, drivers: Drivers, number: int, kind: str, chance: random.Random) -> None:
        options = {} if kind == "live" else {"maxMessagesPerTrigger": str(chance.choice((500, 1500, 4000))), "maxMessagesPerPartition": "700"}
        folder = site.folder / f"round-{number}"
        super().__init__(site.bus, folder, source=f"in-{number}", sink=f"out-{number}", **options)
        self.site, self.kind, self.chance, self._drivers = site, kind, chance, drivers
        self.master = chance.choice(("local[2]", "local[2]", "local-cluster[2,1,1024]")) if kind in ("python", "java") else "local[2]"
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

    @property
    def source(self) -> str:
        return self.sources[0]

    @property
    def out(self) -> str:
        return self.sink_of(self.source)

    def feed(self, rows: int) -> None:
        self.bus.link.execute(command("PING"))  # what broke its link before is found out by a call that may be sent again
        if not self.bus.state(self.source).exists:
            self.bus.create(self.source)
        super().feed(rows)

    def arrived(self, queue: str) -> list[int]:
        return self.taken + super().arrived(queue)

    # The query

    def begin(self) -> None:
        """Start it, in a driver that is up; an error of the start counts as one of the query."""
        if self.driver is None:
            self.driver = self._drivers.take(self.master, live=self.kind == "live")
        self.starts += 1
        where = self.site.away if self.kind == "federation" else self.site.near
        form = "busmq-realtime" if self.kind in ("java", "live") else "busmq"
        source, sink = {**where, "subscribe": self.source, **self.options}, {**where, "queue": self.out}
        order = {"checkpoint": str(self.checkpoint.folder), "source": source, "sink": sink}
        try:
            self.driver.ask("set", name=MANAGER, value=None if self.durable else SPARKS_MANAGER)
            if self.kind == "live":
                self.driver.ask("live", **order, duration="2 seconds")
            else:
                self.driver.ask("start", **order, change="plain", mark="", of=form, into=form)
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
            raise Violation(f"the query says that messages are gone, and none were taken: {error[-1500:]}")
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
            self.options["failOnDataLoss"] = "false"
        stuck = self.excused and (self.errors[-1] in STUCK or self.errors.count(self.errors[-1]) > 3)
        if stuck or (self.unreadable and "SPARK" in self.errors):
            shutil.rmtree(self.checkpoint.folder, ignore_errors=True)
            self.repeats, self.unreadable = True, False
        self.begin()

    def until(self, true: Callable[[], bool], what: str, limit_s: float = STILL_S) -> None:
        """Wait, and start the query again meanwhile. What gets nowhere is a violation."""
        pause, seen, deadline = threading.Event(), (-1, -1), time.monotonic() + limit_s
        while not true():
            self.tend()
            now = (self.bus.count(self.out), self.bus.count(self.source))
            if now != seen:
                seen, deadline = now, time.monotonic() + limit_s
            if time.monotonic() > deadline:
                raise StandsStill(
                    f"{what}: not so for {limit_s:.0f} s; {now[1]} left in the source, {now[0]} in the sink, fed {self.fed}, errors {self.errors}"
                )
            pause.wait(0.2)

    @property
    def excused(self) -> bool:
        """Whether messages may be missing: something was done to them, and an error has said so."""
        return self.harmed and not (LOSSES | STUCK).isdisjoint(self.errors)

    def arrived_all(self) -> bool:
        return set(range(self.fed[self.source])) <= set(self.arrived(self.source)) and self.bus.count(self.source) == 0

    # The end of a round

    def settle(self) -> None:
        """All faults are over: the query must come to its end, or an error says why messages are gone, and new ones arrive."""
        self.site.calm()
        self.feed(1)
        before = self.fed[self.source]
        if self.harmed:
            with suppress(StandsStill):  # then the check finds what is missing
                self.until(lambda: self.arrived_all() or self.excused, "what was fed arrives, or an error says why not", 60.0)
            self.feed(200)
            self.until(lambda: before + 199 in self.arrived(self.source), "the query goes on")
        self.until(lambda: self.bus.count(self.source) == 0 if self.excused else self.arrived_all(), "everything arrives and is acked")
        self.check()

    def check(self) -> None:
        """Row by row."""
        values, fed, highest = self.arrived(self.source), self.fed[self.source], -1
        for at, value in enumerate(values):
            if value > highest + 1 and not self.excused:
                raise Violation(f"place {at} of the sink has message {value} after {highest}; errors {self.errors}")
            if value <= highest and not self.repeats:
                raise Violation(f"place {at} of the sink has message {value} again or late, after {highest}; errors {self.errors}")
            highest = max(highest, value)
        if (missing := sorted(set(range(fed)) - set(values))) and not self.excused:
            raise Violation(f"{len(missing)} of {fed} messages never arrived, the first is {missing[0]}; errors {self.errors}")
        if kept := self.bus.kept_for_ever():
            raise Violation(f"keys without a ttl: {kept[:5]}")

    def finish(self) -> tuple[int, int]:
        """Leave nothing behind; the result is how many of our keys outlive the round, and the MB that the driver and its processes take."""
        resident = 0
        if self.driver is not None:
            self.driver.stop()
            for process in self.driver.processes():
                with suppress(psutil.Error):
                    resident += process.memory_info().rss
            self._check_flat(self.driver)
            self._drivers.give_back(self.driver, self.master, live=self.kind == "live")
        for queue in (self.source, self.out):
            self.bus.close(queue)
        shutil.rmtree(self.folder, ignore_errors=True)
        return len(self._left()), resident // 2**20

    def _check_flat(self, driver: DriverProcess) -> None:
        if grown := self.site.flat.grown(f"the driver ({self.kind})", driver.pid, driver.ask("figures")):
            grown += f"; its threads: {driver.ask('threads')}"
        if self.kind == "federation":
            serving = self.site.serving.process.pid
            grown = grown or self.site.flat.grown("the federation server", serving, figures_of(serving))
        if grown:
            raise Violation(grown)

    def _left(self) -> list[str]:
        keys = [str(key) for key in self.site.server.command("KEYS", "*")]  # type: ignore[union-attr]
        ends_by_itself = re.compile(r"^bus:sink(?:-queues)?:|:(?:stages?|lease):|:sinks$")  # a sink's progress outlives its queue on purpose
        if strange := [key for key in keys if not ends_by_itself.search(key)]:
            raise Violation(f"keys that outlive their queue: {strange[:5]}")
        if (grown := self.site.memory() - self.site.calm_memory) > 64 * 2**20:
            raise Violation(f"Redis holds {grown} bytes more than at the beginning, in {len(keys)} keys")
        return keys
