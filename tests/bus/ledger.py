"""Processes that read a shared group, and a ledger of what they have printed: who has begun which
message, and who has acked it.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tests.bus.killable import Killable
from tests.bus.tools import until


class Ledger:
    """What the workers of a group have printed."""

    def __init__(self) -> None:
        self.begun: dict[tuple[int, int], list[Worker]] = defaultdict(list)
        """Who has begun a message, by id and try."""
        self.latest: dict[int, int] = {}
        """Message → its last try."""
        self.acked: list[tuple[int, int]] = []
        """What was acked, by id and try, but for acks that were refused."""

    async def begin(self, place: dict[str, Any], queue: str, tries: int) -> Worker:
        """A worker that writes here."""
        worker = await Worker.start("group_worker", place, queue, "g", tries)
        worker.ledger = self
        return worker

    def check(self, count: int) -> None:
        """Each message was begun, and no try of it twice."""
        assert set(self.latest) == set(range(1, count + 1))
        assert [pair for pair, workers in self.begun.items() if len(workers) > 1] == []

    def check_acks(self) -> None:
        """Each message was acked once at most, by who had leased it last. Not so where replies are
        lost: who asks again takes it for its own.
        """
        assert [(id, tries) for id, tries in self.acked if tries != self.latest[id]] == []
        assert len({id for id, _ in self.acked}) == len(self.acked)


class Worker(Killable):
    """A process that reads a shared group."""

    ledger: Ledger
    answers = 0
    """How many batches it has settled."""
    seen = 0
    """How many messages it has begun."""

    def heard(self, said: Any) -> None:
        if isinstance(said, dict):
            self.answers += 1
            self.ledger.acked += [(id, tries) for id, tries in said["acked"]]
            return
        self.seen += len(said)
        for id, tries in said:
            self.ledger.begun[id, tries].append(self)
            self.ledger.latest[id] = max(tries, self.ledger.latest.get(id, 0))

    def goes_on(self, answers: int) -> bool:
        """Whether it has settled more than so many batches, or is dead; it is stopped, or is about
        to be.
        """
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        return self.answers > answers or self.process.returncode is not None


async def wake(ledger: Ledger, hang: Sequence[int]) -> None:
    """A worker that hangs with a message goes on when another has it, which hangs, too, until the
    first has answered: too late.
    """
    for id in hang:
        await until(lambda id=id: ledger.latest.get(id, 0) > 1)
        for worker in [worker for tries in (1, 2) for worker in ledger.begun.get((id, tries), [])]:
            await until(partial(worker.goes_on, worker.answers))
