"""A round whose queue has a shared group of workers, which are killed and stopped, beside the
query, which reads with a subscription of its own.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from busmq_spark.groups.dead_letter import DeadLetter, decode_letter
from busmq_spark.queue.command_generators import command
from busmq_spark.reading.reader_subscriptions import register
from tests.bus.group_worker import HANG, POISON
from tests.bus.ledger import Ledger, Worker, wake
from tests.soak.drivers import Drivers
from tests.soak.pause import pause
from tests.soak.run import Run, Violation
from tests.soak.site import Site
from tests.support import PATIENCE_S, wait_until

T = TypeVar("T")
GROUP, SUBSCRIPTION = "g", "q"
REPLIES_LOST = {"redis killed", "redis stalled", "scripts flushed", "redis full"}
"""Faults that break the links of all workers: who asks again takes for its own what another has
settled meanwhile.
"""
BEGUN_S = 20.0
"""A worker that begins nothing for so long has nothing to do."""


class SharedRun(Run):
    """From queue ``in-<round>`` to ``out-<round>``. Of the messages each 101st is poison for the
    workers; the query copies it as any other.
    """

    def __init__(
        self, site: Site, drivers: Drivers, number: int, kind: str, chance: random.Random
    ) -> None:
        super().__init__(site, drivers, number, kind, chance)
        self.source_options["subscription"] = SUBSCRIPTION
        self.tries, self.direct = chance.randint(2, 4), chance.random() < 0.7
        self.ledger, self.workers = Ledger(), list[Worker]()
        self.hangs = set[int]()
        """The numbers of messages at which workers hang, one after the other."""
        keys = self.bus.keys(self.source)
        self.bus.link.run(register(keys, SUBSCRIPTION))
        self.bus.link.run(register(keys, GROUP, shared={"lease_ms": 1000, "tries": self.tries}))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def value(self, seq: int) -> bytes:
        return super().value(seq) + (
            b"|" + HANG if seq in self.hangs else b"|" + POISON if seq % 101 == 7 else b""
        )

    @property
    def dead(self) -> str:
        return f"{self.source}.dead"

    # The workers

    def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        """In the loop of the workers."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def add_worker(self) -> Worker:
        port = self.site.server.port if self.direct else self.site.line.port
        self.workers.append(
            self.run_async(
                self.ledger.begin({"url": f"redis://127.0.0.1:{port}"}, self.source, self.tries)
            )
        )
        return self.workers[-1]

    def kill_worker(self, worker: Worker) -> None:
        self.run_async(worker.kill())
        self.workers.remove(worker)

    def begin(self) -> None:
        self._need_workers()
        super().begin()

    def tend(self) -> None:
        self._need_workers()
        super().tend()

    def _need_workers(self) -> None:
        """Three of them: one that has given up, since Redis was away for too long, gets a
        successor.
        """
        self.workers = [each for each in self.workers if each.process.returncode is None]
        while len(self.workers) < 3:
            self.add_worker()

    # What must be true

    def check(self) -> None:
        super().check()
        while self.workers:
            self.kill_worker(self.workers[0])
        letters = [decode_letter(value) for value in self.bus.values(self.dead)]
        check_group(self, letters)

    @property
    def replies_kept(self) -> bool:
        """Whether every worker knows what became of all it has settled."""
        return self.direct and REPLIES_LOST.isdisjoint(self.drawn)

    def remove(self) -> None:
        super().remove()
        self.bus.close(self.dead)
        self.bus.link.execute(command("DEL", *self.bus.keys(self.source).group(GROUP)))

    def close(self) -> None:
        while self.workers:
            self.kill_worker(self.workers[0])
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def check_group(run: SharedRun, letters: list[DeadLetter]) -> None:
    """What the workers have printed, beside the dead letters. A worker that was killed may have
    leased or settled what it never printed.
    """
    ledger, count = run.ledger, run.fed[run.source]
    dead = {each.id for each in letters}
    poison = {seq + 1 for seq in range(count) if run.value(seq).endswith(POISON)}
    if unhandled := [
        id for id in range(1, count + 1) if id not in ledger.latest and id not in dead
    ]:
        raise Violation(
            f"{len(unhandled)} of {count} messages were settled and no worker had begun them, the"
            f" first has id {unhandled[0]}"
        )
    if twice := [pair for pair, workers in ledger.begun.items() if len(workers) > 1]:
        raise Violation(
            f"id {twice[0][0]} was begun twice in its try {twice[0][1]}, and so were"
            f" {len(twice) - 1} others"
        )
    if spare := [pair for pair in ledger.begun if pair[1] > run.tries]:
        raise Violation(f"id {spare[0][0]} was begun in try {spare[0][1]} of {run.tries}")
    for each in letters:
        if (each.queue, each.group, each.value) != (
            run.source,
            GROUP,
            run.value(each.id - 1),
        ) or each.tries < run.tries:
            raise Violation(
                f"a dead letter is not what it should be after {run.tries} tries: {each}"
            )
    if alive := sorted(poison - dead):
        raise Violation(
            f"{len(alive)} messages failed {run.tries} times and have no dead letter, the first has"
            f" id {alive[0]}"
        )
    if not run.replies_kept:
        return
    acks = Counter(id for id, _ in ledger.acked)
    if twice := [(id, times) for id, times in acks.items() if times > 1]:
        raise Violation(f"id {twice[0][0]} was acked {twice[0][1]} times")
    if late := [(id, tries) for id, tries in ledger.acked if tries < ledger.latest[id]]:
        raise Violation(
            f"the ack of try {late[0][1]} of id {late[0][0]} was taken, and try"
            f" {ledger.latest[late[0][0]]} had begun"
        )
    if both := sorted(dead & {*acks}):
        raise Violation(f"id {both[0]} was acked and has a dead letter")


def group_worker_killed(run: Run) -> str:
    """Some, one after the other, each with a batch in hand if it gets one."""
    assert isinstance(run, SharedRun)
    kills = run.chance.randint(1, 4)
    for _ in range(kills):
        worker = run.chance.choice(run.workers)
        _feed_until_begun(run, worker)
        run.kill_worker(worker)
        run.add_worker()
    return str(kills)


def group_worker_stopped(run: Run) -> str:
    """With its batch in hand, for longer than its lease or not: what it answers afterwards may be
    too late.
    """
    assert isinstance(run, SharedRun)
    worker = run.chance.choice(run.workers)
    _feed_until_begun(run, worker)
    with suppress(ProcessLookupError):
        worker.process.send_signal(signal.SIGSTOP)
        pause(run.chance, 0.2, 4)
        worker.process.send_signal(signal.SIGCONT)
    return ""


def group_worker_answers_late(run: Run) -> str:
    """It hangs with its batch in hand until another has the same messages, which hangs, too, until
    the first has answered.
    """
    assert isinstance(run, SharedRun)
    seq = run.fed[run.source] + 100
    run.hangs.add(seq)
    run.feed(500)
    run.run_async(wake(run.ledger, [seq + 1]))
    return f"id {seq + 1}"


def _feed_until_begun(run: SharedRun, worker: Worker) -> None:
    begun = worker.seen
    run.feed(500)
    with suppress(AssertionError):
        wait_until(lambda: worker.seen > begun or worker.process.returncode is not None, BEGUN_S)
