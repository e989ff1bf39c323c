"""The part that the worker of a queue and the worker of a topic share: options, slots and life; and
workers of several queues as one, in fair turns, under one limit.

async with bus.workers(concat, split, limit=8) as workers:
    ...
    await workers.drain(timeout_s=30)
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self, TypedDict

from busmq_spark.arguments import show
from busmq_spark.bus.handle import Handle
from busmq_spark.bus.jobs.job import MIN_FIELD_TTL_S
from busmq_spark.bus.queue.base_group import check_start
from busmq_spark.bus.queue.shared_group import SharedGroupOptions, check_seconds
from busmq_spark.errors import ConfigError
from busmq_spark.reading.reader_subscriptions import check_name

MAX_BACKOFF_S = 60.0
"""The longest pause before another try, before jitter."""
JobHandler = Callable[[Any], object]
"""A function, which gets a job whose calls wait, or a coroutine function, which gets a Job."""


class FairSlots:
    """Slots that several readers share: the one that waits longest is next. At most ``limit`` are
    taken at once.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> int:
        """At least one slot, and all that are free; how many. They are given back with ``give``."""
        if self._free and not self._waiting:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back(1)
                elif turn in self._waiting:
                    self._waiting.remove(turn)
                raise
        more, self._free = self._free, 0
        return 1 + more

    def give_back(self, count: int) -> None:
        """Give slots back."""
        if not self._waiting:
            self._free += count
            return
        for _ in range(count):
            while self._waiting and self._waiting[0].done():
                self._waiting.popleft()
            if self._waiting:
                self._waiting.popleft().set_result(None)
            else:
                self._free += 1


class WorkerKeywords(TypedDict, total=False):
    """The options of a worker; see Jobs.worker."""

    limit: int
    lease_s: float
    tries: int
    deadline_s: float | None
    start: str | int
    group_limit: int
    dead: str
    backoff_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of a worker. Raises ConfigError."""

    group: str
    limit: int = 8
    lease_s: float = 30
    tries: int = 3
    deadline_s: float | None = 30
    start: str | int = "new"
    group_limit: int | None = None
    dead: str | None = None
    backoff_s: float = 0.1
    """The pause before the second try; each further one is twice as long, up to a minute, with
    jitter.
    """

    def __post_init__(self) -> None:
        check_limit(self.limit)
        check_name(self.group)
        check_start(self.start)
        check_seconds("backoff_s", self.backoff_s, 0, MAX_BACKOFF_S)
        if self.deadline_s is not None:
            check_seconds("deadline_s", self.deadline_s, MIN_FIELD_TTL_S)
        self.group_options()

    def group_options(self) -> SharedGroupOptions:
        """Return the options of its group."""
        return SharedGroupOptions(
            lease_s=self.lease_s, tries=self.tries, limit=self.group_limit, dead=self.dead
        )


def check_limit(limit: object) -> None:
    """Raises ConfigError."""
    if type(limit) is not int or limit < 1:
        raise ConfigError(
            reason=(
                f"limit is {limit!r}; expected a whole number of at least 1: how many handlers run"
                " at once"
            )
        )


class BaseWorker(Handle, ABC):
    """A handler of jobs in a group. ``async with`` begins to work, and ends it."""

    def __init__(self, handler: JobHandler, options: WorkerOptions) -> None:
        self.check_handler(handler, options)
        self.handler, self.options = handler, options
        self.slots = FairSlots(options.limit)
        """Slots for handlers; ``bus.workers(…)`` may put others here before it begins."""
        self._over = asyncio.Event()

    @staticmethod
    def check_handler(handler: object, options: WorkerOptions) -> None:
        """Raises ConfigError unless it is a function or a coroutine function."""
        if not callable(handler) or inspect.isasyncgenfunction(handler):
            wanted = "a function or coroutine function of one argument, the job"
            found = f"the handler of group {options.group!r} is {handler!r}"
            raise ConfigError(reason=f"{found}; expected {wanted}")

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Begin to work."""

    async def run(self) -> None:
        """Work until ``stop`` or ``drain``, or until the task is cancelled.

        Raises:
            BusError: The error that ends the worker, if there is one.
        """
        async with self:
            await self.wait_stopped()

    async def wait_stopped(self) -> None:
        """Returns when it has stopped."""
        await self._over.wait()

    @abstractmethod
    async def stop(self) -> None:
        """Stop now: handlers are cancelled, and their jobs returned as if they had not begun. The
        thread of a plain function goes on, so its job may begin again after ``lease_s``.

        A handler of this worker may call it; the call returns at once then.

        Raises:
            LinkLost: The server cannot be reached in time.
        """

    async def detach(self) -> None:
        """Stop: every object of a bus has ``detach``."""
        await self.stop()

    @abstractmethod
    async def pause(self, timeout_s: float | None = None) -> None:
        """Begin no more jobs until ``resume``, and wait until begun jobs are done.

        Args:
            timeout_s: Longest wait in seconds, or None for no end.

        Raises:
            WorkTimeout: Jobs still run. The worker stays paused.
        """

    @abstractmethod
    async def resume(self) -> None:
        """End a pause.

        Raises:
            StateError: The worker does not run.
        """

    async def drain(self, timeout_s: float | None = None) -> None:
        """Finish begun jobs, begin no more, and stop.

        Args:
            timeout_s: Longest wait in seconds, or None for no end.

        Raises:
            WorkTimeout: Jobs still run. The worker stays paused.
        """
        await self.pause(timeout_s)
        await self.stop()


class WorkerGroup(Handle):
    """Begins and ends its workers together."""

    def __init__(self, workers: Sequence[BaseWorker], limit: int) -> None:
        check_limit(limit)
        if not all(hasattr(each, "slots") for each in workers):
            raise ConfigError(
                reason=(
                    f"the workers are {show(workers)}; expected what jobs.worker(...) made of"
                    " functions"
                )
            )
        if not workers or len(set(workers)) < len(workers):
            raise ConfigError(
                reason=f"the workers are {list(workers)}; expected one or more, each once"
            )
        self._workers, self._stack = workers, AsyncExitStack()
        slots = FairSlots(limit)
        for each in workers:
            each.slots = slots

    def __repr__(self) -> str:
        return f"Workers({', '.join(map(repr, self._workers))})"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for each in self._workers:
                await stack.enter_async_context(each)
            self._stack = stack.pop_all()
        return self

    async def detach(self) -> None:
        """Leave the block: every worker stops, as its own block would end."""
        await self._stack.aclose()

    async def run(self) -> None:
        """Work until all have stopped, or until this is cancelled."""
        async with self:
            await asyncio.gather(*(each.wait_stopped() for each in self._workers))

    async def stop(self) -> None:
        """See Worker.stop."""
        await asyncio.gather(*(each.stop() for each in self._workers))

    async def pause(self, timeout_s: float | None = None) -> None:
        """See Worker.pause; all pause at once."""
        await asyncio.gather(*(each.pause(timeout_s) for each in self._workers))

    async def resume(self) -> None:
        """See Worker.resume."""
        for each in self._workers:
            await each.resume()

    async def drain(self, timeout_s: float | None = None) -> None:
        """See Worker.drain."""
        await self.pause(timeout_s)
        await self.stop()
