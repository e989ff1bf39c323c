"""The process that mirrors: one thread decides and writes here (mirror/mirror_copier.py), a few
others read at the origin.

Rule 1. Progress is the copy itself. After any error everything that was under way is forgotten, and
        the mirrors say how far they are.
Rule 2. Windows are appended in the order in which they were planned, so that those of one queue
        follow each other.
Rule 3. A queue that stops holds up no other, and is looked at again with every look at all of them.

``bus.mirror(...)``: queues of another data centre here, while the block runs.

async with bus.mirror("wss://eu.example/bus", "orders-*", secret=…) as mirror:
    await mirror.caught_up()
    print(mirror.status())
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from busmq_spark.arguments import check_number
from busmq_spark.bus.emitter import Handle
from busmq_spark.errors import BusError, LinkLost, MirrorTimeout, StateError
from busmq_spark.errors.foreign import error_text, exc_info
from busmq_spark.metrics import Metrics
from busmq_spark.mirror.copy_planning import ClockExcerpt, CopyRangeReadResult
from busmq_spark.mirror.mirror_copier import MirrorCopier
from busmq_spark.mirror.origin_reader import (
    LookedAtQueue,
    ThreadLocalOriginStores,
    look_at_clocks,
    look_at_queues,
    make_push_listeners,
    read_windows,
)
from busmq_spark.mirror.settings import (
    MirroredQueueStatus,
    MirrorMetrics,
    MirrorSettings,
    encode_report,
)
from busmq_spark.mirror.target import MirrorTarget
from busmq_spark.option_parsing import from_call
from busmq_spark.options import WEEK_S, RedisOptions
from busmq_spark.queue.message import MAX_ID
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.retry import Pauses
from busmq_spark.writing.mirror import NO_MARK, OriginQueueState, Positions

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus


MAX_READS_AT_ONCE = 6
"""Calls that read at the origin at once, each in a thread: 18 MB, which a link 100 ms away carries
at 180 MB/s. A federation server works on eight of one secret at once (``reads_per_secret``).
"""
COUNTER_POLL_S = 1.0
"""Seconds between two reads of the id counters while nothing is pushed."""
QUEUE_CHECK_INTERVAL_S = 5.0
"""Seconds between two looks at all queues: lives, trims, groups."""
DISCOVERY_INTERVAL_S, DISCOVERY_PAUSE_FACTOR = 10.0, 20
"""Seconds between two searches for new queues; a walk over all keys is followed by a pause of so
many times its duration.
"""
REPORT_INTERVAL_S = 5.0
CLUSTER_QUEUES_ASKED_PER_S, MAX_CLUSTER_QUEUES_ASKED_PER_S = 20, 10_000
"""In a cluster each queue is asked on its own: so many a second at rest, and so many a second at
most.
"""
PAUSES_S = (0.2, 15.0)
"""The first and the longest pause after an error."""
_OriginLook: TypeAlias = tuple[
    dict[str, OriginQueueState], dict[str, tuple[str, Positions]], dict[str, ClockExcerpt]
]
log = logging.getLogger("busmq_spark")


class MirrorRunner:
    """Mirrors queues of ``settings.origin`` to the servers of ``here``, from :meth:`start` to
    :meth:`stop`.
    """

    def __init__(
        self, settings: MirrorSettings, here: RedisOptions, metrics: Metrics | None = None
    ) -> None:
        self.settings = settings
        self.error: BusError | None = None
        """Why nothing is mirrored now; the error is None while it is running."""
        self.looked = 0
        """The last look at all queues that :meth:`look_now` asked for and that is over."""
        self._wanted = 0
        self._target = MirrorTarget(here)
        self._origins = ThreadLocalOriginStores(settings)
        self._pool = ThreadPoolExecutor(
            MAX_READS_AT_ONCE + 1, "busmq-mirror-reader"
        )  # one more, so that questions do not wait for rows
        metrics = metrics or Metrics()
        self._counts = MirrorMetrics(metrics)
        self._copier = MirrorCopier(settings, self._target, self._counts, self._mark_there)
        metrics.before_text(lambda: self._counts.measure(self.status()))
        self._token = new_token()
        self._wake = threading.Event()
        self._pushed = _PushSignal(self._wake)
        self._stopped = threading.Event()
        self._listeners = make_push_listeners(settings, self._pushed)
        self._thread = threading.Thread(target=self._run, name="busmq-mirror", daemon=True)
        self._jobs: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
        self._windows: deque[Future[list[CopyRangeReadResult]]] = deque()
        self._due = dict.fromkeys(("poll", "look", "discover", "report"), 0.0)
        self._listened: tuple[str, ...] = ()
        self._pauses = Pauses(*PAUSES_S)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin. Raises what the first look for queues raises: no answer, a wrong secret.

        Without an answer what is here is kept alive first: however often it is started again, no
        copy ends before its origin is back.
        """
        try:
            found = self._pool.submit(self._discover).result()
        except LinkLost:
            with suppress(BusError):
                self._target.touch(
                    [
                        *self._target.copies(
                            self.settings.masked_origin, self._target.names(self.settings.accepts)
                        )
                    ]
                )
            raise
        self._on_discovered(found)
        self._target.report(self._token, self._make_report())
        self._thread.start()

    def stop(self) -> None:
        """End; each step under way is done or not, never half."""
        self._stopped.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        for each in self._listeners:
            each.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._origins.close()
        self._target.close()

    def look_now(self) -> int:
        """Look at all queues, and for new ones; ``looked`` is the number returned, or higher, when
        that is over.
        """
        self._wanted += 1
        self._due["discover"] = 0.0
        self._wake.set()
        return self._wanted

    def status(self) -> list[MirroredQueueStatus]:
        """Of each queue, by name. From any thread."""
        return self._copier.status()

    # -- the loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._run_round()
            except BusError as error:
                self._on_link_lost(error)
            except Exception as error:
                log.error("mirroring met an unexpected error and goes on", exc_info=exc_info(error))
                self._on_link_lost(BusError(reason=f"an unexpected error: {error_text(error)}"))

    def _run_round(self) -> None:
        self._wake.clear()
        self._submit_due_work(time.monotonic())
        while self._windows and self._windows[0].done():
            found = self._windows.popleft().result()
            self._start_reads()
            self._copier.append(found)
        for _ in range(len(self._jobs)):
            job, then = self._jobs.popleft()
            if job.done():
                then(job.result())
            else:
                self._jobs.append((job, then))
        self._start_reads()
        now = time.monotonic()
        until = min(*self._due.values(), *self._copier.next_read, *self._pushed.next_answer)
        if not self._copier.look:
            self._wake.wait(max(0.0, until - now))

    def _submit_due_work(self, now: float) -> None:
        """Submit the due work."""
        counted = self._copier.last_copied_ids
        if counted and (now >= self._due["poll"] or self._pushed.take(now)):
            self._due["poll"] = now + MAX_ID  # until it is answered
            self._submit(
                lambda: self._read_counters(list(counted)),
                lambda found: self._on_counters(found, counted),
            )
        if self._copier.look or now >= self._due["look"]:
            self._copier.look = False
            self._due["look"] = now + max(
                QUEUE_CHECK_INTERVAL_S, self._separately_asked_queues / CLUSTER_QUEUES_ASKED_PER_S
            )
            names = self._copier.looked_at()
            wanted = self._wanted if self._due["discover"] else 0
            self._submit(
                lambda: self._look_at_origin(names),
                lambda found: self._on_spans(found, names, wanted),
            )
        if now >= self._due["discover"]:
            self._due["discover"] = now + MAX_ID
            self._submit(self._discover, self._on_discovered)
        if now >= self._due["report"]:
            self._due["report"] = now + REPORT_INTERVAL_S
            self._copier.keep_alive()
            self._target.report(self._token, self._make_report())

    def _start_reads(self) -> None:
        """Keep all readers busy, also while the rows of one are appended."""
        while len(self._windows) < MAX_READS_AT_ONCE and (
            asked := self._copier.plan(time.monotonic())
        ):
            self._windows.append(
                self._start_job(
                    lambda windows=asked: read_windows(  # type: ignore[misc]
                        self._origins.store_of_thread, windows
                    )
                )
            )

    def _start_job(self, work: Callable[[], Any]) -> Future[Any]:
        job = self._pool.submit(work)
        job.add_done_callback(lambda _: self._wake.set())
        return job

    def _submit(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._jobs.append((self._start_job(work), then))

    def _on_link_lost(self, error: BusError) -> None:
        """Forget what is under way, and wait a little: longer each time, and never in step with
        others.
        """
        self._counts.breaks.add(
            side="here" if error.details.get("url") == self._target.masked_url else "origin"
        )
        if str(self.error) != str(error):
            log.warning("mirroring pauses: %s", error)
        self.error = error
        for future in (*self._windows, *(job for job, _ in self._jobs)):
            future.cancel()
        self._windows.clear()
        self._jobs.clear()
        self._copier.forget()
        self._stopped.wait(self._pauses.next_s())
        with suppress(BusError):
            self._copier.find_copies()
            self._copier.keep_alive()
            self._target.report(self._token, self._make_report())
        now = time.monotonic()
        self._due = {"poll": now, "look": now, "discover": now, "report": now + REPORT_INTERVAL_S}
        self._pushed.resume_at(now)

    def _make_report(self) -> str:
        return encode_report(
            self.settings.masked_origin, self.settings.patterns, self.error, self.status()
        )

    @property
    def _separately_asked_queues(self) -> int:
        """Queues that cost a command each to be asked for."""
        return (
            len(self._copier.queues)
            if self._target.cluster or self.settings.layout == "cluster"
            else 0
        )

    # -- in the threads that read ------------------------------------------------------------------

    def _discover(self) -> tuple[list[str], float]:
        began, wanted = time.monotonic(), self.settings.named_queues
        if len(wanted) < len(self.settings.patterns):
            wanted = [*wanted, *self._origins.store_of_thread.discover(self.settings.accepts)]
        else:
            self._origins.store_of_thread.spans(
                dict.fromkeys(wanted, (NO_MARK, NO_MARK))
            )  # whether it answers
        return wanted, time.monotonic() - began

    def _read_counters(self, names: Sequence[str]) -> list[tuple[str, Any]]:
        return list(zip(names, self._origins.store_of_thread.counters(names), strict=True))

    def _look_at_origin(self, queues: dict[str, LookedAtQueue]) -> _OriginLook:
        store = self._origins.store_of_thread
        spans = look_at_queues(store, [(name, queue.last) for name, queue in queues.items()])
        there = [name for name, span in spans.items() if span.ttl_s]
        positions = dict(store.positions(there)) if self.settings.groups and there else {}
        return spans, positions, look_at_clocks(store, queues, spans)

    def _mark_there(self, queue: str, id: int) -> str:
        found: str = self._pool.submit(
            lambda: self._origins.store_of_thread.marks({queue: id})[queue]
        ).result()
        return found

    # -- what was found ----------------------------------------------------------------------------

    def _on_discovered(self, found: tuple[Sequence[str], float]) -> None:
        names, took_s = found
        self._due["discover"] = time.monotonic() + max(
            DISCOVERY_INTERVAL_S, DISCOVERY_PAUSE_FACTOR * took_s
        )
        self._copier.add(names)
        self._copier.look = self._copier.look or self._wanted > self.looked

    def _on_counters(self, found: Sequence[tuple[str, Any]], asked: dict[str, int]) -> None:
        now = time.monotonic()
        self._due["poll"] = now + max(
            COUNTER_POLL_S, self._separately_asked_queues / CLUSTER_QUEUES_ASKED_PER_S
        )
        self._pushed.resume_at(
            now + max(0.005, self._separately_asked_queues / MAX_CLUSTER_QUEUES_ASKED_PER_S)
        )
        self._copier.count({name: int(counter or 0) for name, counter in found}, asked)

    def _on_spans(self, found: _OriginLook, asked: dict[str, LookedAtQueue], wanted: int) -> None:
        self._copier.on_spans(*found, asked)
        if (names := self._copier.mirrored_queues) != self._listened:
            self._listened = names
            for each in self._listeners:
                each.listen(names)
        if self.error is not None:
            log.info("mirroring goes on")
        self.error, self._pauses = None, Pauses(*PAUSES_S)
        self.looked = max(self.looked, wanted)


class _PushSignal(threading.Event):
    """Set by listeners at each push; wakes the mirror."""

    def __init__(self, wake: threading.Event) -> None:
        super().__init__()
        self._wake, self._next = wake, 0.0

    def set(self) -> None:
        super().set()
        self._wake.set()

    def take(self, now: float) -> bool:
        """Whether something was pushed, once; False before the time that the last answer has
        named.
        """
        if now < self._next or not self.is_set():
            return False
        self.clear()
        self._next = now + MAX_ID  # until it is answered
        return True

    def resume_at(self, until: float) -> None:
        """Pushes count again from then on."""
        self._next = until

    @property
    def next_answer(self) -> list[float]:
        """Return the time of the next look, where a push came too early."""
        return [self._next] if self.is_set() else []


CAUGHT_UP_POLL_S = 0.02


class BusMirror(Handle):
    """Copies queues to this bus; ``async with``, or ``start`` and ``detach``. Threads of its own do
    the work.
    """

    def __init__(
        self,
        bus: Bus,
        origin: str | Sequence[str],
        patterns: tuple[str, ...],
        metrics: Metrics | None,
        options: Mapping[str, Any],
    ) -> None:
        self.settings = from_call(
            MirrorSettings, "mirror", {**options, "origin": origin, "patterns": patterns}
        )
        self._bus = bus
        self._metrics = metrics
        self._runner: MirrorRunner | None = None
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"BusMirror({self.settings.masked_origin!r})"

    async def __aenter__(self) -> Self:
        return await self.start()

    async def start(self) -> Self:
        """Begin, and return the mirror.

        Raises:
            StateError: It runs already.
            BusError: The error of the first contact with the origin, such as LinkLost,
                FederationRefused or Unauthorized.
        """
        async with self._lock:
            if self._runner is not None:
                raise StateError(
                    event="start",
                    what=repr(self),
                    state="started already",
                    remedy="Make another with bus.mirror(…)",
                )
            runner = MirrorRunner(self.settings, self._bus.options, self._metrics)
            try:
                await asyncio.to_thread(runner.start)
            except BaseException:
                await asyncio.to_thread(runner.stop)
                raise
            self._runner = runner
            self._bus._adopt(self)
        return self

    async def detach(self) -> None:
        """End; the mirrors stay mirrors, and go on when they are mirrored again."""
        async with self._lock:
            runner, self._runner = self._runner, None
            if runner is not None:
                self._bus.release(self)
                await asyncio.to_thread(runner.stop)

    @property
    def error(self) -> BusError | None:
        """Why nothing is mirrored now: one side is away. Return None while it is running."""
        return self._runner.error if self._runner else None

    def status(self) -> list[MirroredQueueStatus]:
        """Return the status of each queue, by name."""
        return self._runner.status() if self._runner else []

    async def caught_up(self, timeout_s: float = 60.0) -> list[MirroredQueueStatus]:
        """Wait until everything is copied that the origin had when this was called; queues that
        have stopped are not waited for.

        Raises:
            ConfigError: ``timeout_s`` is no number of seconds.
            StateError: The mirror is not started.
            MirrorTimeout: It has not caught up within ``timeout_s``. It goes on.
            BusError: The error of the mirror, if there is one after ``timeout_s``.
        """
        check_number("timeout_s", timeout_s, 0, WEEK_S, "seconds")
        until, runner = time.monotonic() + timeout_s, self._runner
        if runner is None:
            raise StateError(
                event="wait for",
                what=repr(self),
                state="not started",
                remedy="Use it inside 'async with', or call start()",
            )
        look = runner.look_now()
        goal: dict[str, int] | None = None
        while time.monotonic() < until:
            found = runner.status()
            if goal is None and runner.looked >= look:
                goal = {each.queue: each.last + each.behind for each in found}
            if goal is not None and all(
                each.error or each.last >= goal.get(each.queue, 0) for each in found
            ):
                return found
            await asyncio.sleep(CAUGHT_UP_POLL_S)
        if self.error is not None:
            raise self.error
        raise MirrorTimeout(origin=self.settings.masked_origin, timeout_s=timeout_s)
