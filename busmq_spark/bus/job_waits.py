"""Waiting for outcomes of jobs: many waits, one subscription, and one task that reads what pub/sub may have lost.

Rule 1. Subscribed first, then read, then waited for, then read again: no wake-up is lost.
Rule 2. One script writes and publishes an outcome: a published one need not be read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from busmq_spark.core import job as flows
from busmq_spark.core.job import Outcome
from busmq_spark.errors import BusError, JobFailed, LinkLost, MessageRefused, StateError

if TYPE_CHECKING:
    from busmq_spark.bus.job import Job
    from busmq_spark.bus.queue import Queue
    from busmq_spark.redis_io.pubsub_connection import PubSubConnection

POLL_S = 1.0
"""A pending wait reads its outcomes this often without a wake-up."""
READ_MOST = 200
log = logging.getLogger("busmq_spark")


class JobWait:
    """A wait for some groups of one job."""

    def __init__(self, job: Job, queue: str, groups: Iterable[str], *, fail_fast: bool) -> None:
        self.job, self.groups, self._queue, self._fail_fast = job, set(groups), queue, fail_fast
        self.message, self.life = 0, ""
        """What counts: an outcome for this message of this life, or a later one; of any life while that is empty."""
        self.found: dict[str, Outcome] = {}
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.old = False
        """Whether it has lasted since the last look."""

    def pushed(self, push: asyncio.Future[int], life: str) -> None:
        """The job's message is pushed, or is not."""
        if push.cancelled():
            self.result.cancel()
        elif (error := push.exception()) is None:
            self.sent(push.result(), life)
        elif not self.result.done():
            self.result.set_exception(error)

    def sent(self, message: int, life: str) -> None:
        """The job was sent with this message: outcomes of earlier ones do not count."""
        self.message, self.life = message, life
        self.found = {group: each for group, each in self.found.items() if self._counts(each)}
        self._judge()

    def add(self, outcome: Outcome) -> None:
        """An outcome of the job, which may not be one that counts."""
        if outcome.group in self.groups and outcome.queue == self._queue and self._counts(outcome):
            self.found[outcome.group] = outcome
            self._judge()

    def expire(self) -> None:
        """Wait no longer."""
        if not self.result.done():
            self.result.set_result(None)

    def _counts(self, outcome: Outcome) -> bool:
        return not self.life or (outcome.life == self.life and outcome.message >= self.message)

    def _judge(self) -> None:
        """Only what was sent can be judged: before, an outcome may be one of an earlier sending."""
        if not self.result.done() and self.message and self.over:
            self.result.set_result(None)

    @property
    def errors(self) -> dict[str, str]:
        return {group: each.error for group, each in sorted(self.found.items()) if not each.ok}

    @property
    def over(self) -> bool:
        return self.groups <= self.found.keys() or (self._fail_fast and bool(self.errors))

    @property
    def missing(self) -> list[str]:
        return sorted(self.groups - self.found.keys())

    def outcomes(self) -> dict[str, Outcome]:
        """Raises JobFailed."""
        if self._fail_fast and self.errors:
            raise JobFailed(job=self.job.id, queue=self._queue, errors=self.errors)
        return {group: self.found[group] for group in sorted(self.groups)}


class JobWaits:
    """The waits of one object for jobs."""

    def __init__(self, queue: Queue, channel: str) -> None:
        self._queue, self._channel = queue, channel
        self._waits: dict[str, list[JobWait]] = {}
        self._look = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Returns when no outcome of a job that is sent from now on can be missed. Waits while Redis is unreachable."""
        if self._reader is None:
            async with self._opening:
                if self._reader is None:
                    await self._pubsub.add(self._channel, self.published)
                    self._reader = self._queue.bus.spawn(self._read_again(), f"reading outcomes of {self._queue.name}")

    def close(self) -> None:
        """Those who wait get a StateError."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
            self._pubsub.remove(self._channel, self.published)
        for waits in self._waits.values():
            for each in waits:
                if not each.result.done():
                    what, remedy = f"for a job of queue {self._queue.name!r}", "Wait inside the scope of the object for jobs"
                    each.result.set_exception(StateError(event="wait", what=what, state="detached", remedy=remedy))

    def add(self, wait: JobWait) -> None:
        """From now on outcomes reach the wait."""
        self._waits.setdefault(wait.job.id, []).append(wait)

    def remove(self, wait: JobWait) -> None:
        """They do not any more."""
        waits = self._waits[wait.job.id]
        waits.remove(wait)
        if not waits:
            del self._waits[wait.job.id]

    @asynccontextmanager
    async def everything(self, channel: str) -> AsyncIterator[None]:
        """While the block runs, waits are reached by all that is published on the channel, too."""
        await self._pubsub.add(channel, self.published)
        try:
            yield
        finally:
            self._pubsub.remove(channel, self.published)

    def published(self, payload: bytes | None) -> None:
        """None: subscribed again, and what was published meanwhile is lost."""
        if payload is None:
            for waits in self._waits.values():
                for each in waits:
                    each.old = True
            self._look.set()
            return
        try:
            outcome = flows.outcome(payload)
        except MessageRefused as error:
            log.warning("queue %r: %s", self._queue.name, error)
            return
        for each in tuple(self._waits.get(outcome.job, ())):
            each.add(outcome)

    async def read(self, waits: Iterable[JobWait]) -> None:
        """Read the outcomes of the jobs of these. Raises LinkLost."""
        some = list(waits)
        for first in range(0, len(some), READ_MOST):
            part = some[first : first + READ_MOST]
            for wait, outcomes in zip(part, await self._queue.run(flows.outcomes([each.job.in_redis for each in part])), strict=True):
                for each in outcomes:
                    wait.add(each)

    async def _read_again(self) -> None:
        while True:
            self._look.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._look.wait()
            every = [each for waits in self._waits.values() for each in waits]
            try:
                await self.read([each for each in every if each.old and not each.result.done()])
            except LinkLost as error:
                self._queue.not_touched(error)
            except BusError as error:
                self._queue._report(error)
            for each in every:
                each.old = True

    @property
    def _pubsub(self) -> PubSubConnection:
        return self._queue.bus.servers.pubsub[self._queue.server]
