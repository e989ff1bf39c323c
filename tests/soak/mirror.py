"""A round whose queue is mirrored over a federation link: its data centre is lost, the mirror
promoted, and the query goes on there as it stood.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
from contextlib import ExitStack

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.mirror.settings import MirrorReport
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import MIRROR_REPORTS_PATTERN
from busmq_spark.writing.mirror import read_mirror_states
from tests.cli.conftest import COMMAND, environment
from tests.faults.scene import Bus
from tests.soak.drivers import Drivers
from tests.soak.pause import pause
from tests.soak.run import Run, Violation
from tests.soak.site import SECRET, Site


class MirrorRun(Run):
    """From queue ``in-<round>`` of the site, and later of a server here, to ``out-<round>`` of that
    server; here is the mirror, too.
    """

    def __init__(
        self, site: Site, drivers: Drivers, number: int, kind: str, chance: random.Random
    ) -> None:
        super().__init__(site, drivers, number, kind, chance)
        self.folder.mkdir(exist_ok=True)
        self._stack = ExitStack()
        self.here = self._stack.enter_context(EmbeddedRedis(self.folder / "here", aof=True))
        self.sink_bus, self.sink_where = Bus(self.here), {"redis.url": self.here.url}
        self.whole = chance.random() < 0.7
        """Whether the mirror has everything when the site is lost. If not, the query may have read
        what it has not.
        """
        self.promoted: int | None = None
        """So many messages the mirror had when it was promoted; what came then has a mark of its
        own.
        """
        self._mirror: subprocess.Popen[bytes] | None = None
        self._stack.callback(self.kill_mirror)

    # The mirror

    def start_mirror(self) -> None:
        """Unless it runs, or the site is lost: one that is started then ends at once, as it
        should.
        """
        if not self.site.server.running or (
            self._mirror is not None and self._mirror.poll() is None
        ):
            return
        words = [
            *COMMAND,
            "mirror",
            "--from",
            f"ws://127.0.0.1:{self.site.far.port}/bus",
            self.source,
        ]
        with (self.folder / "mirror.log").open("ab") as log:
            where = {**environment(self.here.url), "BUSMQ_MIRROR_SECRET": SECRET}
            self._mirror = subprocess.Popen(
                words, env=where, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill_mirror(self) -> None:
        if self._mirror is not None:
            self._mirror.kill()
            self._mirror.wait()
            self._mirror = None

    def stop_mirror(self, *, goes_on: bool = False) -> None:
        """As a process that gets no time, for now."""
        if self._mirror is not None and self._mirror.poll() is None:
            self._mirror.send_signal(signal.SIGCONT if goes_on else signal.SIGSTOP)

    def begin(self) -> None:
        self.start_mirror()
        super().begin()

    def tend(self) -> None:
        self.start_mirror()
        super().tend()

    def last_copied(self) -> int:
        """So many messages of the queue the mirror has had; -1 before it has found the queue."""
        [found] = self.sink_bus.link.run(read_mirror_states([self.sink_bus.keys(self.source)]))
        return found.last if found else -1

    # The end of the round

    def settle(self) -> None:
        self.site.calm()
        self.until(lambda: self.last_copied() >= 0, "the mirror has found the queue")
        self.feed(500)
        if self.whole:
            self.until(lambda: self.last_copied() == self.fed[self.source], "all is copied")
        else:
            self.stop_mirror()
            self.feed(self.chance.choice((1, 400)))
            pause(self.chance, 0, 4)
        self.lose_site()
        self.feed(500)
        if self.whole:
            self.until(self.arrived_all, "the query goes on at the mirror")
        self.see_site_again()
        super().settle()

    def lose_site(self) -> None:
        """Its data centre, and whatever it had and the mirror has not."""
        lost_driver = self.chance.random() < 0.5
        if lost_driver:
            self.lose_driver()
        self.site.server.kill()
        if self.chance.random() < 0.5:
            self.site.serving.kill()
        if not lost_driver and self.driver is not None:
            pause(self.chance, 0, 3)
            if error := self.driver.error:
                self.note(error)
            self.driver.stop()
        if self.chance.random() < 0.5:
            self.kill_mirror()
        self.stop_mirror(goes_on=True)
        self.promote()

    def promote(self) -> None:
        words = [*COMMAND, "mirror", "promote", "--json", self.source]
        done = subprocess.run(
            words, env=environment(self.here.url), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Violation(f"the mirror is not promoted: {done.stderr[-1000:]}")
        self.promoted = json.loads(done.stdout)["promoted_behind"]
        if self.whole and self.promoted != self.fed[self.source]:
            raise Violation(
                f"the mirror was promoted with {self.promoted} messages, and had all"
                f" {self.fed[self.source]}"
            )
        self.harmed = not self.whole
        self.fed[self.source] = self.promoted
        self.bus, self.source_where = self.sink_bus, self.sink_where

    def see_site_again(self) -> None:
        """Somebody still pushes there. The mirror must see it, and copy nothing over what was given
        here.
        """
        self.site.calm()
        self.site.bus.link.execute(command("PING"))
        self.site.bus.push(self.source, [b"9999999"] * 700)
        self.until(self.is_refused, "the mirror says that it was promoted")

    def is_refused(self) -> bool:
        """Whether a mirroring process has said why it copies the queue no further."""
        keys = self.sink_bus.link.execute(command("KEYS", MIRROR_REPORTS_PATTERN))
        reports = [
            MirrorReport.parse(self.sink_bus.link.execute(command("GET", key)) or b"")
            for key in keys
        ]
        return any(report and report.odd.get(self.source, (0, 0, None))[2] for report in reports)

    def value(self, seq: int) -> bytes:
        return super().value(seq) + (b"|here" if self.promoted is not None else b"")

    def arrived(self, queue: str) -> list[int]:
        """But for what only the lost site had: its ids were given anew."""
        found = [value.partition(b"|") for value in self.sink_bus.values(self.sink_of(queue))]
        return [
            int(number)
            for number, _, here in found
            if here or self.promoted is None or int(number) < self.promoted
        ]

    def check(self) -> None:
        self.repeats = self.excused
        super().check()

    def check_ttls(self) -> None:
        super().check_ttls()
        if kept := self.site.bus.kept_for_ever():
            raise Violation(f"keys without a ttl: {kept[:5]}")

    def remove(self) -> None:
        self.site.bus.close(self.source)

    def close(self) -> None:
        self._stack.close()


def mirror_killed(run: Run) -> str:
    """And started again, under load."""
    assert isinstance(run, MirrorRun)
    kills = run.chance.randint(1, 4)
    for _ in range(kills):
        run.feed(500)
        pause(run.chance, 0, 1.5)
        run.kill_mirror()
        run.start_mirror()
    return str(kills)


def mirror_link_cut(run: Run) -> str:
    """After so many bytes, again and again."""
    assert isinstance(run, MirrorRun)
    run.site.far.down = iter([run.chance.randrange(1, 60_000) for _ in range(4)])
    run.site.far.up = iter([run.chance.randrange(1, 3_000) for _ in range(2)])
    for _ in range(3):
        run.site.far.cut()
        run.feed(700)
        pause(run.chance, 0, 2)
    run.site.far.down = run.site.far.up = iter(())
    return ""
