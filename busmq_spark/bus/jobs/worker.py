"""Workers of jobs: of a queue, of a topic, and of several queues as one.

The part that the worker of a queue and the worker of a topic share: options, slots and life; and
workers of several queues as one, in fair turns, under one limit.

async with bus.workers(concat, split, limit=8) as workers:
    ...
    await workers.drain(timeout_s=30)

Workers: programs that work on the jobs of a queue, as a shared group.

    @jobs.worker(group="worldConcat", limit=8, deadline_s=30)
    async def concat(job):
        said = await job.load("inbound", forget=("inbound",))
        job["outbound"] = said["inbound"] + " world!"
        await job.save()

    await concat.run()

Rule 1. The outcome is written first, and published with it; then the message is acked. A worker
        that finds an outcome for a message only acks it.
Rule 2. An outcome is accepted until a later lease of the message has begun; then it is refused, and
        logged.
Rule 3. While a handler runs, its lease is kept, until its deadline.
Rule 4. A handler is one task; all else is done for what was leased, or is finished, at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self, TypedDict, cast

from busmq_spark.arguments import show
from busmq_spark.bus.emitter import Handle
from busmq_spark.bus.handler_calls import (
    call_handler,
    call_outside_handler,
    calling_work,
    is_coroutine_function,
)
from busmq_spark.bus.jobs.job import MIN_FIELD_TTL_S, Job, JobOwner
from busmq_spark.bus.queue.base_group import check_start
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.queue.shared_group import SharedGroup, SharedGroupOptions, check_seconds
from busmq_spark.bus.sync import job_of_a_thread
from busmq_spark.errors import (
    BusError,
    ConfigError,
    LinkLost,
    MessageRefused,
    Rejected,
    Released,
    StateError,
    WorkTimeout,
)
from busmq_spark.errors.foreign import error_text, exc_info
from busmq_spark.groups import job as flows
from busmq_spark.groups.job import LeasedJob
from busmq_spark.groups.shared_group import Action, LeasedMessage
from busmq_spark.queue.command_generators import Flow, T
from busmq_spark.queue.keys import JobKeys
from busmq_spark.queue.message import CHUNK_BYTES
from busmq_spark.reading.reader_subscriptions import check_name
from busmq_spark.redis_io.retry import Pauses
from busmq_spark.tracing import continued_trace

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
        self._check_handler(handler, options)
        self.handler, self.options = handler, options
        self.slots = FairSlots(options.limit)
        """Slots for handlers; ``bus.workers(…)`` may put others here before it begins."""
        self._over = asyncio.Event()

    @staticmethod
    def _check_handler(handler: object, options: WorkerOptions) -> None:
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
            await self._wait_stopped()

    async def _wait_stopped(self) -> None:
        """Returns when it has stopped."""
        await self._over.wait()

    @abstractmethod
    async def stop(self) -> None:
        """Begin no more jobs, cancel handlers, and return their jobs as if they had not begun. A
        plain function cannot be cancelled: it is waited for until its deadline, and keeps its job.

        A handler of this worker may call it; the call returns at once then, and the handler goes on
        to its end.

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
            await asyncio.gather(*(each._wait_stopped() for each in self._workers))

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


RESULT_FIELD = "result"
"""The field of a job that has what its handler returned."""
MAX_OUTCOMES_PER_SETTLE = 500
PAUSE_AFTER_REFUSAL_S = 1.0
"""Pause after Redis has refused to lease."""
log = logging.getLogger("busmq_spark")


@dataclass(slots=True)
class _RunningJob:
    work: LeasedJob
    ends: float
    """Its deadline, by the clock of the loop."""
    late: bool = False
    given_up: bool = False
    """Whether this worker cancelled the handler for another reason than its deadline."""
    asked_to_stop: bool = False
    """Whether the handler has stopped its worker: it ends by itself."""


class Worker(BaseWorker):
    """A handler of the jobs of a queue, in a group of it. ``async with`` begins to work, and ends
    it: running jobs are given back.
    """

    def __init__(self, jobs: JobOwner, handler: JobHandler, options: WorkerOptions) -> None:
        super().__init__(handler, options)
        self.jobs = jobs
        self._group = JobConsumerGroup(jobs.queue, self)
        self._tasks: list[asyncio.Task[None]] = []
        self._at_work: dict[
            asyncio.Task[None], _RunningJob
        ] = {}  # whose handlers have not ended, in the order of their deadlines
        self._deadline: asyncio.TimerHandle | None = None
        self._finished: list[tuple[LeasedJob, flows.Fields]] = []
        self._settling: asyncio.Task[None] | None = None
        self._failing: set[asyncio.Task[None]] = set()
        self._durable: dict[str, Queue] = {}
        self._stepping, self._leaving = asyncio.Lock(), asyncio.Lock()
        self._resumed = asyncio.Event()

    def __repr__(self) -> str:
        return f"Worker({self.jobs.queue.name!r}, {self.options.group!r})"

    @property
    def _is_handling(self) -> bool:
        """Whether the caller is one of its handlers."""
        return not calling_work().isdisjoint(self._at_work)

    # -- life --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        queue = await self.jobs._attached_queue()
        if self._tasks:
            raise StateError(
                event="begin",
                what=repr(self),
                state="at work already",
                remedy="Make another worker for more of it, or raise its limit",
            )
        self._group = JobConsumerGroup(queue, self)
        await self._group.__aenter__()
        self._resumed.set()
        self._over.clear()
        self.jobs.bus._adopt(self)
        self.jobs.at_work.add(self)
        self._tasks = [
            self._spawn(self._read_jobs(), "reading"),
            self._spawn(self._extend_leases_regularly(), "keeping leases"),
        ]
        return self

    async def stop(self) -> None:
        """Begin no more jobs, cancel handlers, and return their jobs as if they had not begun. A
        plain function cannot be cancelled: it is waited for until its deadline, and keeps its job.

        A handler of this worker may call it; the call returns at once then, and the handler goes on
        to its end.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        if self._is_handling:
            self.spare_caller()
            call_outside_handler(lambda: self._spawn(self.stop(), "stopping"))
            return
        async with (
            self._leaving
        ):  # the second caller waits for the first, and finishes its work if it was kept from it
            if not self._tasks:
                return
            reading, keeping_leases = self._tasks
            reading.cancel()
            await asyncio.wait([reading])
            if is_coroutine_function(self.handler):
                for task, running in self._at_work.items():
                    if not running.asked_to_stop:
                        running.given_up = True
                        task.cancel()
            await self._wait_for_tasks()
            keeping_leases.cancel()
            await asyncio.wait([keeping_leases])
            self.slots.give_back(
                len(self._at_work)
            )  # of tasks that had not begun when they were cancelled
            self._at_work.clear()
            await self._group.stop()
            for each in self._durable.values():
                await each.detach()
            self._durable.clear()
            self.jobs.bus.release(self)
            self.jobs.at_work.discard(self)
            self._tasks.clear()
            self._over.set()

    def spare_caller(self) -> None:
        """Let the handler that makes this call go on to its end."""
        for task in calling_work().intersection(self._at_work):
            self._at_work[cast("asyncio.Task[None]", task)].asked_to_stop = True

    async def finish(self) -> None:
        """Stop, unless a handler calls it."""
        if not self._is_handling:
            await self.stop()

    async def pause(self, timeout_s: float | None = None) -> None:
        """Begin no more jobs until ``resume``, and wait until begun jobs are done.

        Args:
            timeout_s: Longest wait in seconds, or None for no end.

        Raises:
            WorkTimeout: Jobs still run. The worker stays paused.
        """
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, 0)
        self._resumed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                async with self._stepping:
                    pass
                await self._wait_for_tasks()
        except TimeoutError:
            raise self._timeout_error(
                f"{len(self._at_work)} handlers", timeout_s, remedy="It stays paused"
            ) from None

    async def resume(self) -> None:
        """End a pause."""
        self._resumed.set()

    async def _wait_for_tasks(self) -> None:
        me = calling_work()  # of a handler that drains its worker
        while tasks := [
            each
            for each in (*self._at_work, *self._failing, self._settling)
            if each is not None and each not in me and not each.done()
        ]:
            await asyncio.wait(tasks)

    @property
    def running(self) -> int:
        """Return the number of running handlers."""
        return len(self._at_work)

    # -- reading -----------------------------------------------------------------------------------

    async def _read_jobs(self) -> None:
        pauses = Pauses()
        while True:
            await self._resumed.wait()
            free = await self.slots.take()
            nap_s, begun = PAUSE_AFTER_REFUSAL_S, 0
            try:
                async with self._stepping:
                    if self._resumed.is_set():
                        batch, nap_s = await self._group.take(free)
                        works, other, done = await self._begin_jobs(batch)
                        begun = self._start_handlers(works)
                        if other or done:
                            await self._settle_without_handler(other, done)
                        if (
                            len(batch) == free
                            or sum(len(each.value) for each in batch) >= CHUNK_BYTES
                        ):
                            nap_s = 0  # there may be more
                pauses.failures = 0
            except LinkLost as error:
                self.jobs.queue._not_touched(error)
                nap_s = pauses.next_s()
            except StateError:
                raise
            except BusError as error:
                self.jobs.queue._report(error)
            finally:
                self.slots.give_back(free - begun)
            if nap_s:
                await self._group.sleep_unless_woken(nap_s)

    async def _begin_jobs(
        self, batch: Sequence[LeasedMessage]
    ) -> tuple[list[LeasedJob], list[LeasedMessage], list[tuple[LeasedJob, bytes]]]:
        """Begin what was leased: whose handlers are to start, what names no job, and what has an
        outcome.
        """
        asked = [(each, self._work_of(each)) for each in batch]
        works = [work for _, work in asked if work is not None]
        answers = (
            await self._group.run_with_retries(
                lambda: flows.begin_work(works, self.jobs.outcome_ttl_s)
            )
            if works
            else []
        )
        found = list(zip(works, answers, strict=True))
        begun = [work for work, (answer, _) in found if answer == "ok"]
        done = [(work, outcome) for work, (answer, outcome) in found if answer == "done"]
        return begun, [each for each, work in asked if work is None], done

    async def _settle_without_handler(
        self, other: Sequence[LeasedMessage], done: Sequence[tuple[LeasedJob, bytes]]
    ) -> None:
        """Messages that name no job, and those whose jobs have their outcomes: their workers died
        before they could ack.
        """
        try:
            await self._publish_durably(done)
            await self._group.ack_settled([work.delivery for work, _ in done])
            for each in other:
                await self._group.reject(
                    each, f"it begins with {each.value[:40]!r}, and names no job"
                )
        except BusError as error:
            self._warn_not_settled(len(other) + len(done), error)

    def _start_handlers(self, works: Sequence[LeasedJob]) -> int:
        """Return the number of started handlers. Each handler has a task, and one timer serves all
        of them: a task of the bus and a timeout would cost as much as the rest of a job.
        """
        loop, deadline_s = asyncio.get_running_loop(), self.options.deadline_s
        ends = loop.time() + (deadline_s or 0)
        for work in works:
            at_work = _RunningJob(work, ends)
            self._at_work[loop.create_task(self._run_handler(at_work))] = at_work
        if works and deadline_s is not None and self._deadline is None:
            self._deadline = loop.call_at(ends, self._cancel_overdue_handlers)
        return len(works)

    def _cancel_overdue_handlers(self) -> None:
        loop, self._deadline = asyncio.get_running_loop(), None
        for task, each in self._at_work.items():
            if each.ends > loop.time():
                self._deadline = loop.call_at(each.ends, self._cancel_overdue_handlers)
                return
            if not each.late:
                each.late = True
                task.cancel()

    async def _without_outcome(self, spent: Sequence[LeasedMessage]) -> list[LeasedMessage]:
        """Of deliveries whose tries are used up those whose jobs have no outcome, and can get none
        but a failure now. The others are acked.
        """
        works, other, done = await self._begin_jobs(spent)
        if done:
            await self._settle_without_handler([], done)
        return [*(work.delivery for work in works), *other]

    def _work_of(self, delivery: LeasedMessage) -> LeasedJob | None:
        """Return the work that a message asks for; return None when it names no job."""
        try:
            id, client, done = flows.decode_reference(delivery.value, self.jobs.queue.name)
        except MessageRefused:
            return None
        return LeasedJob(
            delivery,
            JobKeys(id, self.jobs.queue.keys.cluster),
            client,
            self.options.group,
            self._group.life,
            done or self.jobs.done,
        )

    # -- working -----------------------------------------------------------------------------------

    async def _run_handler(self, at_work: _RunningJob) -> None:
        """Call the handler. Another task settles its outcome, together with others."""
        work = at_work.work
        failed: BaseException | None = None
        job, fields = Job(self.jobs, work.keys.id, work.delivery.tries), dict[str, Any]()
        try:
            with self._trace(work):
                result = await call_handler(self.handler, job, job_of_a_thread)
            if result is not None and not at_work.late:
                fields = self._result_field(job, result)
        except asyncio.CancelledError as error:
            if not at_work.late and self._is_given_up(at_work):
                raise
            failed = error  # the handler's own: it was not cancelled by this worker
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises is its answer
            failed = error
        finally:
            # There is one
            self._at_work.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            self.slots.give_back(1)
        if at_work.late:
            failed = self._timeout_error(f"job {work.keys.id}", self.options.deadline_s)
        try:
            if failed is not None:
                failing = self._spawn(self._retry_or_reject_job(work, failed), "settling")
                self._failing.add(failing)
                failing.add_done_callback(self._failing.discard)
                return
            self._finished.append((work, fields))
            if self._settling is None:
                self._settling = self._spawn(self._settle_finished(), "settling")
        except BusError as error:  # the bus is about to end
            self._warn_not_settled(1, error)

    def _trace(self, work: LeasedJob) -> AbstractContextManager[None]:
        """Return a span after the one of the sender."""
        return continued_trace(
            flows.traceparent_of(work.delivery.value),
            "busmq job",
            queue=self.jobs.queue.name,
            group=self.options.group,
        )

    def _result_field(self, job: Job, result: object) -> dict[str, Any]:
        """Return the field of the result, to be stored with the outcome. The job is done also where
        it cannot be stored.
        """
        try:
            job.set(RESULT_FIELD, result)
            return job.unsaved_fields(self.jobs.queue.ttl_s, RESULT_FIELD)
        except BusError as error:
            text = "job %s of group %r is done; its result is not kept: %s"
            log.warning(text, job.id, self.options.group, error)
            return {}

    def _is_given_up(self, at_work: _RunningJob) -> bool:
        """Return whether the worker or its program ended the handler: its job is released then."""
        return at_work.given_up or any(task.cancelling() or task.done() for task in self._tasks)

    def _timeout_error(self, what: str, timeout_s: float | None, **remedy: str) -> WorkTimeout:
        return WorkTimeout(
            what=what,
            group=self.options.group,
            queue=self.jobs.queue.name,
            timeout_s=timeout_s,
            **remedy,
        )

    async def _retry_or_reject_job(self, work: LeasedJob, failed: BaseException) -> None:
        """A handler has raised: the job is handed back, tried again, or a dead letter."""
        delivery, error = work.delivery, error_text(failed).removeprefix(f"[{Rejected.code}] ")
        rejected, released = issubclass(type(failed), Rejected), issubclass(type(failed), Released)
        if not released:
            self._log_failure(work, failed, error, quietly=rejected)
        try:
            if released and isinstance(failed, Released):
                await self._group.release(delivery, delay_s=failed.details["delay_s"])
                self._group.wake()
            elif rejected or delivery.tries >= self._group.tries:
                await self._group.reject(delivery, error)
            else:
                pauses = Pauses(self.options.backoff_s, MAX_BACKOFF_S)
                pauses.failures = delivery.tries - 1
                await self._group.retry(delivery, delay_s=pauses.next_s(), error=error)
                self._group.wake()
        except BusError as refusal:
            self._warn_not_settled(1, refusal)

    def _log_failure(
        self, work: LeasedJob, failed: BaseException, error: str, *, quietly: bool
    ) -> None:
        info = exc_info(failed)
        log.log(
            logging.INFO if quietly else logging.WARNING,
            "queue %r, group %r: the handler of job %s failed in try %d of %d: %s",
            *(*self._group.names, work.keys.id, work.delivery.tries, self._group.tries, error),
            exc_info=None if quietly or info[2] is None else info,
        )

    async def _settle_finished(self) -> None:
        """Write outcomes, and then ack: jobs that finish meanwhile go with the next call."""
        try:
            while self._finished:
                some, self._finished = (
                    self._finished[:MAX_OUTCOMES_PER_SETTLE],
                    self._finished[MAX_OUTCOMES_PER_SETTLE:],
                )
                try:
                    outcomes = [(work, None) for work, _ in some]
                    written = await self.write(outcomes, [fields for _, fields in some])
                    await self._group.ack_settled(written)
                except BusError as error:
                    self._warn_not_settled(len(some), error)
        finally:
            self._settling = None

    def _warn_not_settled(self, count: int, error: BusError) -> None:
        log.warning(
            "queue %r, group %r: %d messages are not settled; their leases end by themselves: %s",
            *self._group.names,
            count,
            error,
        )

    async def write(
        self,
        outcomes: Sequence[tuple[LeasedJob, str | None]],
        fields: Sequence[flows.Fields] = (),
    ) -> list[LeasedMessage]:
        """Write outcomes, durably and once: the deliveries that can be settled then."""
        if not outcomes:
            return []
        name = self.jobs.queue.name
        answers = await self._group.run_with_retries(
            lambda: flows.write_outcomes(
                outcomes, name, self.jobs.outcome_ttl_s, fields if any(fields) else None
            )
        )
        taken = [
            (work, text)
            for (work, _), (answer, text) in zip(outcomes, answers, strict=True)
            if answer != "late"
        ]
        if late := len(outcomes) - len(taken):
            log.warning(
                "queue %r, group %r: answers of %d jobs are refused: their leases had ended, others"
                " have them",
                *self._group.names,
                late,
            )
        await self._publish_durably(taken)
        return [work.delivery for work, _ in taken]

    async def _publish_durably(self, written: Sequence[tuple[LeasedJob, bytes]]) -> None:
        for name in dict.fromkeys(work.done for work, _ in written if work.done):
            if name not in self._durable:
                queue = Queue(self.jobs.bus, name)
                await queue.attach()
                self._durable[name] = queue
            await self._durable[name].push_many(
                [text for work, text in written if work.done == name]
            )

    async def _extend_leases_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._group.lease_s / 3)
            if at_work := [each.work.delivery for each in self._at_work.values() if not each.late]:
                try:
                    refused = set(await self._group.extend(at_work, lease_s=self._group.lease_s))
                except BusError as error:
                    log.warning(
                        "queue %r, group %r: leases are not kept now: %s", *self._group.names, error
                    )
                    continue
                for task, each in [*self._at_work.items()]:
                    if each.work.delivery in refused:  # the lease is another's, or has ended
                        each.given_up = True
                        task.cancel()

    def _spawn(self, work: Any, what: str) -> asyncio.Task[None]:
        return self.jobs.bus._spawn(
            work, f"{what} of group {self.options.group} of {self.jobs.queue.name}"
        )


class JobConsumerGroup(SharedGroup):
    """The group of a worker: a message that it gives up has an outcome, too."""

    _is_left_by_bus = False

    def __init__(self, queue: Queue, worker: Worker) -> None:
        start = "latest" if worker.options.start == "new" else worker.options.start
        super().__init__(queue, worker.options.group, start, worker.options.group_options())
        self._worker = worker

    @property
    def life(self) -> str:
        """Of the queue, in which it reads."""
        return self._born

    @property
    def names(self) -> tuple[str, str]:
        """Of queue and group, for the log."""
        return self._log_names

    async def run_with_retries(self, flow: Callable[[], Flow[T]]) -> T:
        """Run a flow that is safe to repeat; again as long as the server may be expected back."""
        return await self._run_with_retries(lambda _: self._run(flow()))

    async def ack_settled(self, some: Sequence[LeasedMessage]) -> None:
        """Ack what has an outcome."""
        await self._settle(
            sorted(some, key=itemgetter(0)), "ack"
        )  # ids in a row are one lease, and one settlement
        if self._worker.options.group_limit:
            self.wake()

    async def sleep_unless_woken(self, seconds: float) -> None:
        """Sleep, or until there may be something to read."""
        await self._sleep_unless_woken(seconds)

    def wake(self) -> None:
        """Read again at once."""
        self._wake.set()

    async def _settle(
        self, deliveries: Sequence[LeasedMessage], action: Action, ms: int = 0
    ) -> list[LeasedMessage]:
        """A lease counts as late that begins in the millisecond of one that was released."""
        least = 1 if action == "release" else 0
        return await super()._settle(deliveries, action, max(ms, least))

    async def _without_outcome(self, spent: Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:
        return await self._worker._without_outcome(spent)

    async def _on_given_up(self, some: Sequence[LeasedMessage], error: str) -> None:
        works = [work for work in map(self._worker._work_of, some) if work is not None]
        await self._worker.write([(work, error) for work in works])
